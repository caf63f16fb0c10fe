"""Tables about blocks and queues: what is where, who waits for what, how long, who took what."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dp_udfs.policies import DpfByTime
from jobs.lake import block_reports
from jobs.lake.entries import Entry, from_table
from jobs.lake.ledger import Ledger
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.programs import run_here

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    """A block that opens by a quarter each day, and three claims on it; one beside it."""
    now = NOON
    ledger = Ledger(tmp_path / "ledger", clock=lambda: now)
    ledger.open_block("plain", "pages", 2)
    ledger.allocate("other", dataset="pages", blocks={"plain": 0.5})
    ledger.open_queue("films", DpfByTime(4 * 86400, 86400))
    ledger.open_block("d1", "films", 1)
    ledger.submit("r1", blocks={"d1": 0.2}, analyst="research")
    ledger.submit("r2", blocks={"d1": 0.6}, analyst="marketing")
    ledger.submit("r3", blocks={"d1": 0.9}, analyst="sales", timeout=DAY)
    now = NOON + 2 * DAY
    ledger.run_round()
    ledger.consume("r1", {"d1": 0.1}, request_id="a")
    return from_table(ledger.entries())


def at(entries: Sequence[Entry], days: float) -> list[dict[str, object]]:
    return block_reports.blocks(block_reports.fold(entries, "local"), NOON + days * DAY)


def test_the_four_parts_of_a_block_add_up_and_say_how_long_it_lasts(entries: list[Entry]) -> None:
    block, plain = at(entries, 2)
    parts = [block[name] for name in ("locked", "unlocked", "allocated", "consumed")]
    assert parts == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert block["days_left"] == pytest.approx(8)  # a fifth in two days
    assert (block["state"], block["epsilon_used"]) == ("queued", pytest.approx(0.2))
    assert [plain[name] for name in ("unlocked", "allocated", "state")] == [0.75, 0.25, "open"]


def test_what_is_due_counts_as_decided(entries: list[Entry]) -> None:
    block = at(entries, 4)[0]
    assert block["allocated"] == pytest.approx(0.7)  # r2 is granted by now, whoever looks
    assert block["unlocked"] == pytest.approx(0.2)


def test_who_waits_and_for_what(entries: list[Entry]) -> None:
    balances = block_reports.fold(entries, "local")
    (waits,) = block_reports.waiting(balances, NOON + 2 * DAY)
    assert (waits["run_id"], waits["since"]) == ("r2", NOON)
    assert waits["waits_for"] == "block d1 has unlocked 0.3, needed 0.6"


def test_delays_decisions_and_spend(entries: list[Entry]) -> None:
    balances = block_reports.fold(entries, "local")
    (films,) = block_reports.delays(balances)
    assert (films["granted"], films["waiting"], films["timed_out"]) == (1, 1, 1)
    assert films["p50_seconds"] == films["p100_seconds"] == 86400
    first, third = block_reports.decisions_by_day(entries)
    assert (first["submit"], first["allocate"]) == (3, 0)
    assert (third["allocate"], third["time_out"]) == (1, 1)
    spent = {row["analyst"]: row["blocks_worth"] for row in block_reports.tenants(balances)}
    assert spent == {"(none)": 0.25, "research": pytest.approx(0.2)}


def test_the_past_is_shown_by_days(entries: list[Entry]) -> None:
    rows = [row for row in block_reports.over_time(entries, "local") if row["block"] == "d1"]
    assert [(row["day"], row["locked"]) for row in rows] == [
        (NOON.date(), 1.0),
        ((NOON + 2 * DAY).date(), 0.5),
    ]


def test_a_trail_tells_a_claims_whole_life(entries: list[Entry]) -> None:
    rows = block_reports.trail(entries, "r1")
    assert [row["kind"] for row in rows] == ["submit", "allocate", "consume"]
    assert rows[1]["decided_at"] == (NOON + DAY).isoformat()
    assert rows[2]["blocks"] == {"d1": "0.1"}


def test_the_program_prints_each_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = lakes.make(tmp_path, TEST_SECRET)
    small.ledger().open_block("d1", "films", 1)
    given = "--conf", str(small.lake.source), "--format", "json"
    for table in ("blocks", "over-time", "waiting", "delays", "decisions", "tenants"):
        ended = run_here(capsys, "report_blocks", table, *given)
        assert ended.code == 0
        assert json.loads(ended.out)["table"] == table
    assert "--run-id is missing" in run_here(capsys, "report_blocks", "trail", *given).error
