"""The ledger between processes: races for the last of an allowance, and SIGKILL at any moment.

Data come from `tests/ledger_drill.py`, which says what each process was told.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from dp_udfs.budget import NANO, RenyiCurve
from dp_udfs.policies import DpfByTime
from dp_udfs.scheduler import Scheduler
from jobs.lake import evidence, policies
from jobs.lake.balances import Balances
from jobs.lake.budgets import read_curves
from jobs.lake.entries import Entry, from_table
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Ledger

DRILL = Path(__file__).parents[2] / "ledger_drill.py"
DATASET = "films"
RESERVE = 5
BLOCKS = ("day 1", "day 2", "day 3")


def drill(name: str, paths: list[Path], *options: object) -> list[dict[str, Any]]:
    command = [sys.executable, str(DRILL), name, *map(str, paths), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [line["error"] for line in told if "error" in line]
    return told


def opened(path: Path, units: int, *analysts: str) -> Ledger:
    ledger = Ledger(path)
    for analyst in analysts or ("research",):
        ledger.open_account(analyst, DATASET, date(2020, 1, 1), units, 1000)
    return ledger


def test_eight_processes_share_room_for_exactly_ten(tmp_path: Path) -> None:
    ledgers = [opened(tmp_path / f"ledger-{n}", 10 * RESERVE) for n in range(5)]
    told = drill("race", [Path(ledger.path) for ledger in ledgers], "--processes", 8)
    for ledger in ledgers:
        here = [line for line in told if line["ledger"] == Path(ledger.path).name]
        granted = [line["granted"] for line in here if "granted" in line]
        refused = [line["message"] for line in here if "refused" in line]
        assert len(granted) == len(set(granted)) == 10
        assert len(refused) == 8
        assert all("asked for 5 units and 1 call, left 0 units" in message for message in refused)
        assert ledger.get_budget("research", DATASET).units_left == 0
        kinds = Counter(ledger.entries()["kind"].to_pylist())
        assert kinds == {"open_account": 1, "allocate": 10, "refuse": 8}
        assert all(ledger.find(run_id) for run_id in granted)


def test_several_blocks_have_room_for_exactly_ten_whoever_asks(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger", 1000, "marketing", "research")
    for block in BLOCKS:
        ledger.open_block(block, DATASET, 1)
    asking = "--processes", 6, "--analysts", "marketing", "research", "--blocks", *BLOCKS
    told = drill("race", [tmp_path / "ledger"], *asking)
    assert len([line for line in told if "granted" in line]) == 10
    refused = [line["message"] for line in told if "refused" in line]
    assert len(refused) == 6
    assert all("block day 1: asked for epsilon 0.1, left 0 of 1" in each for each in refused)
    assert {str(block.filter.left) for block in ledger.blocks()} == {"0"}
    used = sum(ledger.get_budget(name, DATASET).used.units for name in ("marketing", "research"))
    assert used == 10 * RESERVE


def test_killed_at_any_moment_all_blocks_show_a_charge_or_none_does(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger", 100_000)
    for block in BLOCKS:
        ledger.open_block(block, DATASET, 1000)
    drill("kill", [tmp_path / "ledger"], "--kills", 20, "--seed", 3, "--blocks", *BLOCKS)
    first, *others = ledger.blocks()
    claims = [c for c in ledger.claims("research", DATASET) if c.state != "given_back"]
    assert len(claims) >= 3
    assert first.filter.used == RenyiCurve((len(claims) * NANO // 10,))
    assert [block.filter for block in others] == [first.filter, first.filter]


def test_killed_at_any_moment_a_queue_serves_as_if_nobody_had_been(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger", 1)
    policy = DpfByTime(4, 0.2)
    ledger.open_queue(DATASET, policy)
    for block in BLOCKS:
        ledger.open_block(block, DATASET, 4)
    told = drill("kill", [tmp_path / "ledger"], "--kills", 15, "--queued", "--blocks", *BLOCKS)
    ledger.run_round()
    entries = from_table(ledger.entries())
    times = Counter((entry.run_id, entry.kind) for entry in entries if entry.run_id)
    assert set(times.values()) == {1}
    acknowledged = {(line["run"], line["step"]) for line in told if "step" in line}
    assert acknowledged <= set(times)
    assert len([done for done in acknowledged if done[1] == "allocate"]) >= 5
    assert evidence.audit(EntryLog(ledger.path)).findings == []
    decided = [
        (entry.run_id, json.loads(entry.details or "{}")["queue"]["at"])
        for entry in entries
        if entry.kind in ("allocate", "time_out", "reject")
    ]
    assert decided == lived_through(entries, policy)


def lived_through(entries: Sequence[Entry], policy: DpfByTime) -> list[tuple[str, str]]:
    """What one scheduler decides that nobody kills."""
    scheduler = Scheduler(policies.read(policies.write(policy)))
    for entry in entries:
        at = policies.microseconds(entry.recorded_at)
        curves = {name: curve.nano for name, curve in read_curves(entry.blocks).items()}
        run_id = entry.run_id or ""
        if entry.kind == "open_block":
            ((name, capacity),) = curves.items()
            scheduler.open_block(name, capacity, at)
        elif entry.kind == "submit":
            until = datetime.fromisoformat(json.loads(entry.details or "{}")["queue"]["until"])
            timeout = policies.microseconds(until) - at
            scheduler.submit(run_id, curves, at, timeout=timeout)
        elif entry.kind in ("consume", "settle"):
            scheduler.go_to(at)
            scheduler.consume(run_id, curves)
        elif entry.kind == "give_back":
            scheduler.release(run_id, at)
    scheduler.go_to(policies.microseconds(entries[-1].recorded_at))
    return [
        (name, policies.moment(int(at or 0)).isoformat()) for name, _, at in scheduler.decisions
    ]


def test_two_processes_want_the_last_of_the_allowance(tmp_path: Path) -> None:
    ledgers = [opened(tmp_path / f"ledger-{n}", 2 * RESERVE - 1) for n in range(20)]
    told = drill("race", [Path(ledger.path) for ledger in ledgers], "--processes", 2)
    granted = Counter(line["ledger"] for line in told if "granted" in line)
    refused = Counter(line["ledger"] for line in told if "refused" in line)
    names = [Path(ledger.path).name for ledger in ledgers]
    assert granted == dict.fromkeys(names, 1)
    assert refused == dict.fromkeys(names, 2)  # each worker goes on until it is refused


def test_nobody_starves_and_accounts_do_not_touch_each_other(tmp_path: Path) -> None:
    analysts = ("marketing", "research", "sales", "support")
    ledger = opened(tmp_path / "ledger", 8 * RESERVE, *analysts)
    told = drill("race", [tmp_path / "ledger"], "--processes", 8, "--analysts", *analysts)
    granted = Counter(line["analyst"] for line in told if "granted" in line)
    assert granted == dict.fromkeys(analysts, 8)
    assert all(line["seconds"] < 30 for line in told if "granted" in line)
    assert all(ledger.get_budget(analyst, DATASET).units_left == 0 for analyst in analysts)


@pytest.mark.parametrize(("seed", "units"), [(1, 100_000), (2, 40)])
def test_killed_at_any_moment_nothing_is_lost_doubled_or_overspent(
    tmp_path: Path, seed: int, units: int
) -> None:
    opened(tmp_path / "ledger", units)
    told = drill("kill", [tmp_path / "ledger"], "--kills", 25, "--seed", seed)
    ledger = Ledger(tmp_path / "ledger")
    entries = from_table(ledger.entries())
    balances = Balances()
    for entry in entries:  # checks the chain and every transition
        balances.apply(entry)

    acknowledged = {(line["run"], line["step"]) for line in told if "step" in line}
    written = {(entry.run_id, entry.kind) for entry in entries}
    assert {done for done in acknowledged if done[1] != "refused"} <= written

    gave_back = {entry.run_id for entry in entries if entry.kind == "give_back"}
    times = Counter((entry.run_id, entry.kind) for entry in entries if entry.run_id)
    assert all(count == 1 for (run_id, _), count in times.items() if run_id not in gave_back)

    used = sum(claim.charge.units for claim in balances.claims.values())
    budget = ledger.get_budget("research", DATASET)
    assert budget.units_left == units - used >= 0
    for label in ledger.released_labels():
        assert balances.claims["local", label.run_id].charge.units > 0
    assert len([done for done in acknowledged if done[1] == "allocate"]) >= 5
    if units < 1000:
        assert any(step == "refused" for _, step in acknowledged)
