"""What crashes left open is closed once, at the loss of a stored answer or at the reserve."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dp_udfs.budget import NOTHING, Loss
from jobs import settle_claims as program
from jobs.lake import commits, releases
from jobs.lake.ledger import Ledger
from jobs.settle_claims import EXPIRED, OPEN, SETTLED, settle_claims
from tests import drills
from tests.drills import Drill, check_books, stored
from tests.lakes import NOON, SmallLake

DAY = timedelta(days=1)
SOON, LATER = NOON + timedelta(hours=1), NOON + timedelta(days=2)
RESERVE, COST = Loss(7, 1), Loss(6, 1)


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    with drills.drill_in(tmp_path_factory.mktemp("told")) as drill:
        yield drill


@pytest.fixture
def small(tmp_path: Path, secret: bytes) -> SmallLake:
    return drills.drill_lake(tmp_path / "lake", secret)


@pytest.fixture
def crashed(drill: Drill, small: SmallLake) -> SmallLake:
    """A lake after three crashes: with an answer, without one, and with somebody else's."""
    drill.killed(small, at="after releases.write", run_id="answered")
    other = {"window": {"days": 7}}
    drill.killed(small, at="after Ledger.allocate", run_id="lost", question=other)
    drill.killed(small, "research", at="after Ledger.allocate", run_id="shared")
    return small


def settled(small: SmallLake, at: Any = LATER, **options: Any) -> dict[str, tuple[str, Loss]]:
    closings = settle_claims(small.lake, DAY, clock=lambda: at, **options)
    return {closing.claim.run_id: (closing.done, closing.charged) for closing in closings}


def ended(small: SmallLake) -> list[tuple[Any, ...]]:
    """How each run ended, and what it is charged."""
    ledger = small.ledger(LATER)
    runs = {entry["run_id"] for entry in small.entries("allocate")}
    found = [ledger.find(run) for run in sorted(runs)]
    return [(claim.run_id, claim.state, claim.charge, claim.digest) for claim in found if claim]


def test_an_answer_is_settled_and_published_whatever_its_age(crashed: SmallLake) -> None:
    assert settled(crashed, SOON) == {
        "answered": (SETTLED, COST),
        "lost": (OPEN, RESERVE),
        "shared": (SETTLED, COST),
    }
    assert {entry["run_id"] for entry in crashed.entries("release")} == {"answered", "shared"}
    assert len(stored(crashed)) == 1
    check_books(crashed)


def test_what_has_no_answer_expires_at_its_reserve_when_it_is_old(crashed: SmallLake) -> None:
    assert settled(crashed)["lost"] == (EXPIRED, RESERVE)
    (entry,) = crashed.entries("expire")
    assert (entry["run_id"], entry["units"]) == ("lost", 7)
    assert entry["reason"] == "open for 48.0 hours without an answer"
    check_books(crashed)
    assert settled(crashed) == {}


def test_a_dry_run_says_the_same_and_does_nothing(crashed: SmallLake) -> None:
    before = crashed.ledger().head()
    said = settled(crashed, dry_run=True)
    assert crashed.ledger().head() == before
    assert settled(crashed) == said


def test_its_own_run_finds_the_claim_settled(drill: Drill, crashed: SmallLake) -> None:
    undisturbed = drill.run(drills.copy(crashed, crashed.root.with_name("o")), run_id="answered")
    settled(crashed, SOON)
    again = drill.run(crashed, run_id="answered")
    assert again.answer == undisturbed.answer
    assert check_books(crashed)["settle"] == 2


def test_an_analyst_who_has_the_answer_already_pays_nothing(drill: Drill, small: SmallLake) -> None:
    stalled = drill.stopped(small, "after Ledger.allocate", run_id="first")
    assert drill.run(small, run_id="second").answer["charged"] == [6, 1]
    assert settled(small, SOON) == {"first": (SETTLED, NOTHING)}
    assert drill.woken(stalled).answer["charged"] == [0, 0]
    check_books(small)


def test_a_damaged_answer_is_none(crashed: SmallLake) -> None:
    (label,) = (answer["label"] for answer in stored(crashed))
    row = {"label": label, "row_kind": "element", "cohort": "all", "element": "film 9"}
    table = commits.open_or_create(crashed.lake.tables.releases, releases.SCHEMA)
    assert commits.try_append(table, pa.Table.from_pylist([row], schema=releases.SCHEMA))
    assert settled(crashed, SOON)["answered"] == (OPEN, RESERVE)
    assert settled(crashed)["answered"] == (EXPIRED, RESERVE)
    assert crashed.entries("release") == []


def test_a_label_is_not_published_with_other_numbers(drill: Drill, small: SmallLake) -> None:
    label = drill.run(small).answer["label"]
    answer = releases.find(small.lake.tables.releases, label)
    assert answer is not None
    rows = answer.rows.set_column(
        answer.rows.schema.get_field_index("noisy_count"),
        answer.rows.schema.field("noisy_count"),
        pa.compute.add(answer.rows["noisy_count"], 1),
    )
    changed = replace(answer, rows=rows, digest=releases._digest(rows))  # as changed code gives
    shutil.rmtree(small.lake.tables.releases)
    drill.killed(small, "research", at="after Ledger.allocate", run_id="r-002")
    releases.write(small.lake.tables.releases, small.question(**drills.TOP_3), changed)
    assert settled(small, SOON) == {"r-002": (OPEN, RESERVE)}
    assert settled(small) == {"r-002": (EXPIRED, RESERVE)}
    assert len(small.entries("release")) == 1


def test_a_run_that_is_still_alive_may_be_first(drill: Drill, small: SmallLake) -> None:
    """Between looking and closing, the claim's own run or another repair does its work."""
    for at in ("before releases.write", "before Ledger.settle"):
        lake = drills.copy(small, small.root.with_name(at.replace(" ", "-")))
        stalled = drill.stopped(lake, at, run_id="r-001")
        ledger = Ledger(lake.lake.tables.ledger, clock=lambda: LATER)
        (claim,) = ledger.open_claims()
        answer = program._answer(lake.lake, ledger, claim)
        assert (answer is not None) == (at == "before Ledger.settle")
        assert drill.woken(stalled).rows
        seen = program.Closing(claim, DAY, SETTLED if answer else EXPIRED, RESERVE)
        closing = program._close(ledger, seen, answer)
        assert closing.charged == COST
        assert closing.done == (SETTLED if answer else program.MEANWHILE)
        assert check_books(lake) == {"open_account": 1, "allocate": 1, "release": 1, "settle": 1}


def test_repairs_and_retries_race(drill: Drill, small: SmallLake) -> None:
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")), run_id="r-001")
    outcomes = Counter[str]()
    for number in range(6):
        lake = drills.copy(small, small.root.with_name(f"race-{number}"))
        at = ["after Ledger.allocate", "after releases.write"][number % 2]
        drill.killed(lake, at=at, run_id="r-001")
        start = time.time() + 0.1
        retry = drill.start(lake, run_id="r-001", start=start, now=LATER)
        time.sleep(max(0.0, start + 0.03 * number - time.time()))
        said = settled(lake).get("r-001", ("nothing to do", COST))
        ending = drill.wait(retry)
        books = check_books(lake)
        if books["expire"]:
            assert said == (EXPIRED, RESERVE)
            assert ending.answer["error"] == "ClaimError"
        else:
            assert said[1] == COST
            assert ending.answer == undisturbed.answer
            assert books == {"open_account": 1, "allocate": 1, "release": 1, "settle": 1}
        outcomes[said[0]] += 1
    assert outcomes[SETTLED] + outcomes["nothing to do"] >= 3  # where the answer was there


def test_killed_at_any_moment_it_goes_on_where_it_was(drill: Drill, small: SmallLake) -> None:
    for days in (1, 2):
        at = "after releases.write" if days == 1 else "after Ledger.allocate"
        drill.killed(small, at=at, question={"window": {"days": days}})
    undisturbed = drills.copy(small, small.root.with_name("undisturbed"))
    ending = drill.repair(undisturbed, now=LATER)
    assert sorted(ending.answer["closed"].values()) == [EXPIRED, SETTLED]
    chance = random.Random(2)
    at_steps = range(0, len(ending.moments), 2)
    for number, moment in enumerate([*at_steps, *[None] * 12]):
        lake = drills.copy(small, small.root.with_name(f"killed-{number}"))
        if moment is None:
            running = drill.start_repair(lake, now=LATER)
            time.sleep(chance.uniform(0, 0.06))
            os.kill(running.pid, signal.SIGKILL)
            drill.wait(running)
        else:
            assert drill.repair(lake, now=LATER, at=moment, signal=signal.SIGKILL).killed
        check_books(lake)
        drill.repair(lake, now=LATER)
        assert check_books(lake) == check_books(undisturbed)
        assert ended(lake) == ended(undisturbed)
        shutil.rmtree(lake.root)


# --- the program ----------------------------------------------------------------------------------


def command(small: SmallLake, *options: str) -> list[str]:
    conf = ["--conf", small.lake.source, "--format", "json"]
    return [sys.executable, "-m", "jobs.settle_claims", *conf, *options]


def test_the_program_says_what_it_did(crashed: SmallLake) -> None:
    run = command(crashed, "--older-than", "1")
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["found"] == 3
    assert (said[SETTLED], said[EXPIRED]) == (2, 1)  # the clock of the lake's tests is long past
    rows = {row["run_id"]: row for row in said["rows"]}
    assert rows["lost"]["charged_units"] == rows["lost"]["reserve_units"] == 7
    assert rows["answered"]["dataset"] == "clips"
    again = subprocess.run(run, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["found"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--older-than"),
        (("--older-than", "0"), "older_than = 0"),
        (("--older-than", "soon"), "invalid int value"),
    ],
)
def test_bad_options_are_refused(small: SmallLake, options: tuple[str, ...], message: str) -> None:
    done = subprocess.run(command(small, *options), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_mistyped_lake_is_an_error(small: SmallLake) -> None:
    done = subprocess.run(
        command(small, "--older-than", "1"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there is no ledger" in done.stderr
