"""A release killed at any point and run again: one charge, one release, the same numbers.

Releases run in processes of their own (`tests/release_drill.py`) in which only Spark's part is
replaced; the last tests kill the whole program while Spark works.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.release_counts import shown
from tests import drills, lakes
from tests.drills import Drill, check_books, stored
from tests.lakes import NOON, SmallLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATER = NOON + timedelta(hours=1)
ONCE = {"allocate": 1, "release": 1, "settle": 1}
NAMED: dict[str, Any] = {"run_id": "r-001"}
TWO_QUESTIONS: list[dict[str, Any]] = [{"question": {"window": {"days": n}}} for n in (30, 7)]


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    with drills.drill_in(tmp_path_factory.mktemp("told")) as drill:
        yield drill


@pytest.fixture
def small(tmp_path: Path, secret: bytes) -> SmallLake:
    return drills.drill_lake(tmp_path / "lake", secret)


@pytest.fixture
def fresh(small: SmallLake, tmp_path: Path) -> Iterator[SmallLake]:
    """Lakes like `small`, one after the other, in which nothing was asked yet."""
    return (drills.copy(small, tmp_path / f"lake-{number}") for number in count())


def entries_of(small: SmallLake, run_id: str) -> dict[str, Any]:
    entries = small.ledger().entries().to_pylist()
    return {entry["kind"]: entry for entry in entries if entry["run_id"] == run_id}


def charge_of(small: SmallLake, analyst: str = "marketing") -> int:
    """Units that an analyst has used, from the account."""
    account = small.question(**drills.TOP_3).account
    budget = small.ledger(NOON).get_budget(analyst, account)
    return budget.units - budget.units_left


def answers_of(small: SmallLake) -> dict[str, str]:
    return {answer["label"]: answer["digest"] for answer in stored(small)}


def rewrite_dataset(small: SmallLake, **changes: str) -> None:
    file = small.root / "conf" / "datasets" / "clips.toml"
    file.write_text(lakes.changed(file.read_text(), **changes))


# --- killed ---------------------------------------------------------------------------------------


def test_killed_between_every_two_steps(drill: Drill, fresh: Iterator[SmallLake]) -> None:
    undisturbed = drill.run(next(fresh), **NAMED)
    assert undisturbed.answer["charged"] == [6, 1]  # of 7 units: the top 3 ended after two films
    moments = undisturbed.moments
    in_order = ["after Ledger.allocate", "before release_counts.compute", "after releases.write"]
    in_order += ["before Ledger.settle", "after Ledger.settle"]
    assert sorted(in_order, key=moments.index) == in_order
    for at in range(len(moments)):
        small = next(fresh)
        drill.killed(small, at=at, **NAMED)
        check_books(small)
        again = drill.run(small, now=LATER, **NAMED)
        assert again.answer == undisturbed.answer
        assert check_books(small) == ONCE | {"open_account": 1}
        assert len(stored(small)) == 1
        shutil.rmtree(small.root)


def test_killed_where_another_analyst_had_the_answer_before(
    drill: Drill, small: SmallLake, tmp_path: Path
) -> None:
    first = drill.run(small)
    undisturbed = drill.run(drills.copy(small, tmp_path / "undisturbed"), "research")
    assert undisturbed.rows == first.rows
    assert not {"after releases.write", "after release_counts.compute"} & set(undisturbed.moments)
    steps = [at for at, moment in enumerate(undisturbed.moments) if moment.startswith("before")]
    for at in steps:
        lake = drills.copy(small, tmp_path / f"killed-{at}")
        drill.killed(lake, "research", at=at)
        settled = "settle" in entries_of(lake, undisturbed.answer["run_id"])
        check_books(lake)
        again = drill.run(lake, "research")
        assert again.rows == first.rows
        assert again.answer["charged"] == ([0, 0] if settled else [6, 1])
        assert check_books(lake) == dict.fromkeys((*ONCE, "open_account"), 2)
        assert len(stored(lake)) == 1
        shutil.rmtree(lake.root)


def test_killed_at_random_times(drill: Drill, fresh: Iterator[SmallLake]) -> None:
    chance = random.Random(1)
    other = next(fresh)
    undisturbed = [drill.run(other, **asked) for asked in TWO_QUESTIONS]
    before = drill.kills
    while drill.kills - before < 120:
        small = next(fresh)
        for asked, answer in zip(TWO_QUESTIONS, undisturbed, strict=True):
            for _ in range(8):
                running = drill.start(small, **asked)
                time.sleep(chance.uniform(0, 0.2))
                os.kill(running.pid, signal.SIGKILL)
                killed = drill.wait(running).killed
                check_books(small)
                if not killed:
                    break
            assert drill.run(small, **asked).rows == answer.rows
        assert check_books(small) == check_books(other)
        assert charge_of(small) == charge_of(other)
        assert answers_of(small) == answers_of(other)
        shutil.rmtree(small.root)


def test_a_run_killed_over_and_over_again(drill: Drill, small: SmallLake) -> None:
    for at in (1, 5, 12, 20, 24, 28, 32, 36):
        ending = drill.run(small, at=at, signal=signal.SIGKILL, **NAMED)
        assert ending.killed or ending.rows
        check_books(small)
    assert drill.run(small, **NAMED).answer["charged"] == [6, 1]
    assert check_books(small) == ONCE | {"open_account": 1}


def test_what_a_kill_leaves_half_written_does_no_harm(drill: Drill, small: SmallLake) -> None:
    first = drill.run(small, question={"window": {"days": 29}})
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")))
    for table in (small.lake.tables.ledger, small.lake.tables.releases):
        log = Path(table) / "_delta_log"
        newest = max(log.glob("*.json"))
        part = next(Path(table).rglob("*.parquet"))
        half = part.read_bytes()[: part.stat().st_size // 2]
        part.with_name("part-torn.parquet").write_bytes(half)
        part.with_name("part-torn.parquet#1").write_bytes(half)
        (log / "_commit_torn.json.tmp").write_bytes(newest.read_bytes()[:100])
        (log / f"{newest.name}#1").write_bytes(newest.read_bytes()[:100])
        (log / f"{len(list(log.glob('*.json'))):020d}.json#1").write_bytes(b'{"add":')
    again = drill.run(small)
    assert again.answer == undisturbed.answer
    assert drill.run(small, question={"window": {"days": 29}}).rows == first.rows
    assert check_books(small) == dict.fromkeys(ONCE, 2) | {"open_account": 1}


def test_kills_never_overspend_the_last_of_an_allowance(
    drill: Drill, tmp_path: Path, secret: bytes
) -> None:
    small = drills.drill_lake(tmp_path / "lake", secret, units="13")  # a reserve and a charge
    steps = drill.run(drills.copy(small, tmp_path / "other")).moments
    chance = random.Random(3)
    refused = 0
    for number in range(12):
        asked: dict[str, Any] = {"question": {"window": {"days": 30 - number}}}
        drill.run(small, at=chance.randrange(len(steps)), signal=signal.SIGKILL, **asked)
        check_books(small)
        again = drill.run(small, **asked)
        assert "rows" in again.answer or again.answer["error"] == "BudgetExhaustedError"
        refused += "error" in again.answer
        check_books(small)
    assert refused == 10
    assert charge_of(small) == 12


# --- several at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [NAMED, {}])
def test_copies_of_one_command(
    drill: Drill, fresh: Iterator[SmallLake], named: dict[str, Any]
) -> None:
    undisturbed = drill.run(next(fresh), **named)
    for _ in range(5):
        small = next(fresh)
        start = time.time() + 0.2
        copies = [drill.start(small, start=start, **named) for _ in range(3)]
        endings = [drill.wait(running) for running in copies]
        endings.append(drill.run(small, now=LATER, **named))
        assert [ending.rows for ending in endings] == [undisturbed.rows] * 4
        assert check_books(small) == ONCE | {"open_account": 1}
        assert len(stored(small)) == 1


def test_two_analysts_ask_one_question_at_once(drill: Drill, fresh: Iterator[SmallLake]) -> None:
    for _ in range(5):
        small = next(fresh)
        start = time.time() + 0.2
        both = [drill.start(small, who, start=start) for who in ("marketing", "research")]
        one, other = (drill.wait(running) for running in both)
        assert one.rows == other.rows
        assert one.answer["charged"] == other.answer["charged"] == [6, 1]
        assert check_books(small) == dict.fromkeys((*ONCE, "open_account"), 2)
        assert len(stored(small)) == 1


def test_two_runs_of_one_analyst_that_meet_share_one_answer(drill: Drill, small: SmallLake) -> None:
    stalled = drill.stopped(small, "before releases.write", run_id="r-001")
    second = drill.run(small, run_id="r-002")
    first = drill.woken(stalled)
    assert first.rows == second.rows
    assert (first.answer["charged"], second.answer["charged"]) == ([0, 0], [6, 1])
    assert charge_of(small) == 6
    assert len(stored(small)) == 1


@pytest.mark.parametrize(
    "at", ["before release_counts.compute", "before releases.write", "before Ledger.settle"]
)
def test_a_stalled_run_whose_claim_expired_cannot_publish(
    drill: Drill, small: SmallLake, at: str
) -> None:
    stalled = drill.stopped(small, at, **NAMED)
    small.ledger(LATER).expire("r-001", "nothing heard of it")
    ending = drill.woken(stalled)
    assert ending.answer["error"] == "ClaimError"
    assert "expired" in ending.answer["message"]
    assert small.entries("release") == []
    check_books(small)
    assert charge_of(small) == 7
    again = drill.run(small, **NAMED)
    assert "take a new run id" in again.answer["message"]
    assert drill.run(small, run_id="r-002").rows
    check_books(small)
    assert charge_of(small) == 7 + 6


def test_without_a_run_id_an_expired_claim_is_followed_by_a_new_one(
    drill: Drill, small: SmallLake
) -> None:
    drill.killed(small, at="after Ledger.allocate")
    (claim,) = small.ledger().open_claims()
    small.ledger(LATER).expire(claim.run_id, "nothing heard of it")
    again = drill.run(small, now=LATER)
    assert again.answer["run_id"] == claim.run_id.removesuffix("1") + "2"
    assert charge_of(small) == 7 + 6


# --- something changed between crash and retry ----------------------------------------------------


KILLS = ["after Ledger.allocate", "after releases.write"]


def test_a_run_without_an_answer_waits_for_the_secret_that_it_began_under(
    drill: Drill, small: SmallLake, secret: bytes
) -> None:
    file = small.root / "conf" / "secret"
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")), **NAMED)
    drill.killed(small, at="after Ledger.allocate", **NAMED)
    file.write_text(bytes(reversed(secret)).hex())
    again = drill.run(small, **NAMED)
    assert again.answer["error"] == "ClaimError"
    assert "the secret was replaced" in again.answer["message"]
    assert small.entries("release") == []
    file.write_text(secret.hex())
    assert drill.run(small, **NAMED).answer == undisturbed.answer
    check_books(small)


def test_a_stored_answer_is_published_whatever_became_of_the_secret(
    drill: Drill, small: SmallLake, secret: bytes
) -> None:
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")), **NAMED)
    drill.killed(small, at="after releases.write", **NAMED)
    (small.root / "conf" / "secret").write_text(bytes(reversed(secret)).hex())
    assert drill.run(small, **NAMED).answer == undisturbed.answer
    check_books(small)


NEWER: dict[str, Any] = {"newer": 1}  # the next version of the code


@pytest.mark.parametrize("at", ["after releases.write", "after Ledger.settle"])
def test_a_stored_answer_is_served_for_its_run_by_newer_code(
    drill: Drill, small: SmallLake, at: str
) -> None:
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")), **NAMED)
    drill.killed(small, at=at, **NAMED)
    again = drill.run(small, **NAMED, **NEWER)
    assert again.answer == undisturbed.answer
    check_books(small)
    assert charge_of(small) == 6


def test_a_run_without_an_answer_is_never_computed_by_newer_code(
    drill: Drill, small: SmallLake
) -> None:
    drill.killed(small, at="after Ledger.allocate", **NAMED)
    again = drill.run(small, **NAMED, **NEWER)
    assert again.answer["error"] == "ClaimError"
    assert "the code was replaced" in again.answer["message"]
    assert stored(small) == []
    assert drill.run(small, run_id="r-002", **NEWER).rows
    check_books(small)
    assert charge_of(small) == 7 + 6


@pytest.mark.parametrize("at", KILLS)
@pytest.mark.parametrize("change", ["question", "epsilon", "snapshot"])
def test_a_changed_question_gives_a_run_no_second_meaning(
    drill: Drill, small: SmallLake, at: str, change: str
) -> None:
    drill.killed(small, at=at, **NAMED)
    asked: dict[str, Any] = {}
    if change == "question":
        asked = {"question": {"k": 2}}
    elif change == "epsilon":
        rewrite_dataset(small, epsilon="0.5")
    else:
        small.append([lakes.watched("u2", title="film 2")])
        asked = {"snapshot_id": small.publish(lakes.AS_OF + timedelta(days=1)).snapshot_id}
    again = drill.run(small, **NAMED, **asked)
    assert again.answer["error"] == "ClaimError"
    assert "take a new run id" in again.answer["message"]
    assert small.entries("release") == []


def test_a_retry_reads_the_snapshot_of_its_first_try(drill: Drill, small: SmallLake) -> None:
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")), **NAMED)
    drill.killed(small, at="after Ledger.allocate", **NAMED)
    small.append([lakes.watched("u2", title="film 2")])
    small.publish(lakes.AS_OF + timedelta(days=1))
    assert drill.run(small, **NAMED).answer == undisturbed.answer


def test_words_and_places_in_the_settings_do_not_matter(drill: Drill, small: SmallLake) -> None:
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")), **NAMED)
    drill.killed(small, at="after Ledger.allocate", **NAMED)
    rewrite_dataset(small, description='"said otherwise"')
    moved = small.root.with_name("moved")
    small.root.rename(moved)
    small = drills.opened(moved)
    assert drill.run(small, **NAMED).answer == undisturbed.answer


def test_a_retry_whose_snapshot_is_gone_is_charged_its_reserve(
    drill: Drill, small: SmallLake
) -> None:
    drill.killed(small, at="after Ledger.allocate", **NAMED)
    shutil.rmtree(small.dataset.table.engagements)
    again = drill.run(small, **NAMED)
    assert again.answer["error"] == "ClaimError"
    assert "charged in full" in again.answer["message"]
    assert charge_of(small) == 7


# --- rows lost ------------------------------------------------------------------------------------


def test_lost_rows_come_back_as_they_were(drill: Drill, small: SmallLake) -> None:
    first = drill.run(small)
    shutil.rmtree(small.lake.tables.releases)
    for analyst, charged in (("marketing", [6, 1]), ("research", [6, 1])):
        again = drill.run(small, analyst)
        assert again.rows == first.rows
        assert again.answer["charged"] == charged
        check_books(small)
    assert charge_of(small) == 6


@pytest.mark.parametrize("analyst", ["marketing", "research"])
def test_lost_rows_are_not_replaced_by_other_numbers(
    drill: Drill, small: SmallLake, analyst: str
) -> None:
    """As after a change of the code that forgot to raise CODE_VERSION."""
    drill.run(small)
    shutil.rmtree(small.lake.tables.releases)
    again = drill.run(small, analyst, films={"film 1": 6000})
    assert again.answer["error"] == "ClaimError"
    assert "published with other numbers" in again.answer["message"]
    assert stored(small) == []
    assert len(small.entries("release")) == 1


@pytest.mark.parametrize("analyst", ["marketing", "research"])
def test_numbers_that_were_put_in_place_of_others_are_not_served(
    drill: Drill, small: SmallLake, tmp_path: Path, analyst: str
) -> None:
    """They are whole and have a manifest; only the ledger knows that others were published."""
    copy = drills.copy(small, tmp_path / "copy")
    label = drill.run(small).answer["label"]
    assert drill.run(copy, films={"film 1": 6000}).answer["label"] == label
    shutil.rmtree(small.lake.tables.releases)
    shutil.copytree(copy.lake.tables.releases, small.lake.tables.releases)
    again = drill.run(small, analyst)
    assert again.answer["error"] == "ClaimError"
    assert "published with other numbers" in again.answer["message"]
    assert len(small.entries("release")) == 1


# --- the whole program, killed while Spark works --------------------------------------------------


def test_the_program_killed_while_spark_works(
    tmp_path: Path, secret: bytes, spark: "SparkSession"
) -> None:
    small = lakes.make(tmp_path / "lake", secret, retention_days="3650")  # its clock is today's
    small.append(lakes.many_rows(users=300, size=3000))
    small.publish()
    other = drills.copy(small, tmp_path / "other")
    undisturbed = other.release(spark, k=3, max_candidates=20, cohorts=["country"])
    assert {"element", "stop"} == set(undisturbed.rows["row_kind"].to_pylist())
    options = ["--dataset", "clips", "--element", "title", "--measure", "users", "--days", "30"]
    options += ["--k", "3", "--max-candidates", "20", "--cohorts", "country"]
    for seen in ("allocate", "start Spark"):  # then Java starts; then Spark reads and counts
        with program(small, *options) as process:
            assert process.stderr
            lines = iter(process.stderr.readline, "")
            assert any(f" {seen}" in line for line in lines)
            time.sleep(1.0)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert stored(small) == []
        assert check_books(small) == {"open_account": 1, "allocate": 1}
    with program(small, *options) as process:
        said = json.loads(process.communicate()[0])
    assert said["charged_units"] == undisturbed.charged.units
    assert said["rows"] == shown(undisturbed.rows)
    assert check_books(small) == ONCE | {"open_account": 1}
    assert stored(small)[0]["digest"] == stored(other)[0]["digest"]


@contextmanager
def program(small: SmallLake, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Run the job as users do; at the end nothing of it is left, its Java included."""
    command = [sys.executable, "-m", "jobs.release_counts", "--conf", small.lake.source]
    command += [*options, "--analyst", "marketing", "--run-id", "r-001", "--format", "json"]
    few = {"PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=2 pyspark-shell"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | few,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
    for _ in range(600):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError("Java outlived its driver by a minute")
