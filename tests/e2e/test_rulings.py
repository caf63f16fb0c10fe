"""Attacks on what a claim pays for, what an answer costs and which data a label names."""

import shutil
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs.budget import NOTHING, Loss
from dp_udfs.errors import BudgetExhaustedError, ClaimError, SettingsError
from jobs.lake import settings
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake, watched
from tests.plain_release import plain_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHER_SECRET = TEST_SECRET[::-1]
TOP: dict[str, Any] = {"k": 5, "max_candidates": 12}


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture
def clips(tmp_path: Path) -> SmallLake:
    """A lake with rows of all kinds, published."""
    small = lakes.make(tmp_path, TEST_SECRET)
    small.append(lakes.many_rows(seed=4, size=300))
    small.publish()
    return small


def die_while_computing(small: SmallLake, **how: Any) -> None:
    """Allocate, then die before anything is stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.release_counts.compute", _die)
        with pytest.raises(Killed):
            small.release(None, **how)


def _die(*_: Any, **__: Any) -> None:
    raise Killed


# --- a claim is bound to its question -------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"k": 4},
        {"filters": {"all": [{"column": "country", "in": ["DE"]}]}},
        {"window": {"days": 29}},
        {"cohorts": ["country"]},
        {"snapshot_id": 2},
        {"analyst": "research"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_run_id_does_not_pay_for_another_question(
    clips: SmallLake, other: dict[str, Any]
) -> None:
    clips.append([watched("u1")])
    clips.publish(lakes.AS_OF + timedelta(days=1))
    die_while_computing(clips, run_id="nightly", snapshot_id=1, **TOP)
    with pytest.raises(ClaimError, match="nightly"):
        clips.release(None, run_id="nightly", **TOP | other)
    assert [entry["run_id"] for entry in clips.entries("allocate")] == ["nightly"]
    assert clips.entries("settle") == []


def test_a_retry_answers_from_the_snapshot_of_its_first_try(
    clips: SmallLake, spark: "SparkSession"
) -> None:
    question, before = clips.question(**TOP), list(clips.rows)
    die_while_computing(clips, run_id="nightly", **TOP)
    clips.append([watched(f"late{n}", title="clip 1") for n in range(50)])
    clips.opt_out(*(f"u{n}" for n in range(30)))
    clips.publish(lakes.AS_OF + timedelta(days=1))
    outcome = clips.release(spark, run_id="nightly", **TOP)
    assert outcome.question.snapshot.snapshot_id == 1
    wanted = plain_release(lakes.question(**TOP), question, before, [], TEST_SECRET)
    noisy = {element: count for _, rank, element, count, _ in wanted.rows if rank}
    assert {element: count for (_, element), count in lakes.counts(outcome).items()} == noisy
    assert len(clips.entries("allocate")) == len(clips.entries("settle")) == 1


def make_again(small: SmallLake) -> None:
    """Drop the engagement table and make another one with as many versions at its place."""
    versions = DeltaTable(small.dataset.table.engagements).version()
    rows, small.rows = small.rows, []
    shutil.rmtree(small.dataset.table.engagements)
    for _ in range(versions):
        small.append([])
    small.append(rows[:-3])
    assert DeltaTable(small.dataset.table.engagements).version() == versions


def test_a_table_made_again_is_refused_and_then_has_noise_of_its_own(clips: SmallLake) -> None:
    window = {"from": date(2024, 2, 10), "to": lakes.AS_OF}
    asked: dict[str, Any] = {"element": "device", "cohorts": ["country"], "window": window}
    before = clips.question(**asked)
    make_again(clips)
    with pytest.raises(ClaimError, match="another table is there now"):
        clips.release(None, **asked)
    assert clips.entries("allocate") == []
    clips.publish(lakes.AS_OF + timedelta(days=1))
    after = clips.question(**asked)
    versions = {q.snapshot.tables["engagements"].version for q in (before, after)}
    assert len(versions) == 1
    assert after.label != before.label
    assert after.noise_key(TEST_SECRET) != before.noise_key(TEST_SECRET)


@pytest.mark.parametrize("run_id", ["nightly", None])
@pytest.mark.parametrize("gone", ["made again", "vacuumed"])
def test_a_claim_whose_snapshot_is_gone_is_charged_in_full(
    clips: SmallLake, run_id: str | None, gone: str
) -> None:
    die_while_computing(clips, run_id=run_id, **TOP)
    reserve = clips.question(**TOP).reserve
    if gone == "vacuumed":
        table = DeltaTable(clips.dataset.table.engagements)
        table.delete("user_id = 'u1'")
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    else:
        make_again(clips)
    for _ in range(2):
        with pytest.raises(ClaimError, match=r"VACUUM|another table|expired and was charged"):
            clips.release(None, run_id=run_id, **TOP)
    assert [entry["kind"] for entry in clips.entries("expire")] == ["expire"]
    budget = clips.ledger(lakes.NOON).get_budget("marketing", clips.question(**TOP).account)
    assert (3000 - budget.units_left, 300 - budget.calls_left) == (reserve.units, reserve.calls)
    assert not budget.open


def test_whoever_asks_first_about_a_snapshot_that_is_gone_is_refused_before_paying(
    clips: SmallLake,
) -> None:
    table = DeltaTable(clips.dataset.table.engagements)
    table.delete("user_id = 'u1'")
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(ClaimError, match="or publish one with"):
        clips.release(None, **TOP)
    assert clips.entries("allocate") == []


# --- the price does not depend on rows ------------------------------------------------------------

NOTHING_MATCHES: dict[str, Any] = {"filters": {"all": [{"column": "station", "in": [123456]}]}}
NOTHING_TO_COUNT: list[tuple[str, dict[str, Any], int, Loss]] = [  # elements shown, and the price
    ("unknown_gumbel", TOP | {"cohorts": ["channel"]}, 0, Loss(3 * 2, 3)),
    ("unknown_laplace", {"element": "city", "max_candidates": 9}, 0, Loss(2, 2)),
    ("fixed_gaussian", {"element": "city", "cohorts": ["country"]}, 0, Loss(2, 1)),
    ("known_laplace", {"element": "device", "cohorts": ["club"]}, 4 * 5, Loss(2, 2)),
    ("known_gumbel", {"element": "topic", "k": 3, "measure": "rows", "tau": 2}, 3, Loss(6, 1)),
]


@pytest.mark.parametrize(("mechanism", "keys", "shown", "price"), NOTHING_TO_COUNT)
def test_nothing_to_count_takes_the_same_path_and_is_charged(
    tmp_path: Path,
    spark: "SparkSession",
    mechanism: str,
    keys: dict[str, Any],
    shown: int,
    price: Loss,
) -> None:
    """An empty table, and a filter that no row passes."""
    empty = lakes.make(tmp_path / "empty", TEST_SECRET)
    full = lakes.make(tmp_path / "full", TEST_SECRET)
    full.append(lakes.many_rows(size=200))
    for small, filters in ((empty, {}), (full, NOTHING_MATCHES)):
        small.publish()
        outcome = small.release(spark, mechanism=mechanism, **keys, **filters)
        kinds = Counter(outcome.rows["row_kind"].to_pylist())
        assert kinds["stop"] == len(outcome.question.cohorts)
        assert kinds["element"] == shown
        assert None not in lakes.counts(outcome).values()
        assert outcome.charged == price
        assert len(small.entries("settle")) == 1


def test_an_answer_of_nothing_but_a_stop_is_charged_also_when_it_is_repeated(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    small = lakes.make(tmp_path, TEST_SECRET)
    small.publish()
    die_before_settling(small, spark, **TOP)
    outcome = small.release(spark, **TOP)
    assert [row["row_kind"] for row in outcome.rows.to_pylist()] == ["stop"]
    assert outcome.rows["stopped"].to_pylist() == [True]
    assert outcome.charged == Loss(2, 1)  # the choice of the threshold, and the stop
    assert len(small.entries("settle")) == 1
    assert small.release(None, "research", **TOP).charged == Loss(2, 1)


def die_before_settling(small: SmallLake, spark: "SparkSession", **how: Any) -> None:
    """Store the answer, then die before it is published and settled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.lake.ledger.Ledger.settle", _die)
        with pytest.raises(Killed):
            small.release(spark, **how)


def test_a_refusal_says_the_same_whatever_the_rows_are(tmp_path: Path) -> None:
    refusals = []
    for name, rows in (("empty", []), ("full", lakes.many_rows(size=100))):
        small = lakes.make(tmp_path / name, TEST_SECRET, units="10")
        small.append(rows)
        small.publish()
        with pytest.raises(BudgetExhaustedError) as caught:
            small.release(None, **TOP)
        account = small.question(**TOP).account
        refusals.append(str(caught.value).replace(account, "ID"))
        assert small.entries("allocate") == []
    assert refusals[0] == refusals[1]
    for words in ("marketing on clips", "11 units", "10 units", "resets on 2024-04-01"):
        assert words in refusals[0]


def test_an_answer_with_changed_numbers_is_not_served(
    clips: SmallLake, spark: "SparkSession"
) -> None:
    outcome = clips.release(spark, element="device")
    path = clips.lake.tables.releases
    table = DeltaTable(path)
    rows = table.to_pyarrow_table()
    place = rows.schema.get_field_index("noisy_count")
    shifted = [None if n is None else n + 1 for n in rows["noisy_count"].to_pylist()]
    changed = rows.set_column(place, rows.schema.field(place), [shifted])
    shutil.rmtree(path)
    write_deltalake(path, changed)
    for analyst in ("marketing", "research"):
        with pytest.raises(ClaimError, match="does not match its manifest"):
            clips.release(None, analyst, element="device")
    assert outcome.charged.units == 1


# --- labels name the data -------------------------------------------------------------------------


def test_late_rows_do_not_show_as_the_difference_of_two_answers(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    small = lakes.make(tmp_path, TEST_SECRET, epsilon="0.001")
    small.append([watched(f"u{n}", device="tv") for n in range(20)])
    small.publish()
    window = {"from": date(2024, 2, 10), "to": lakes.AS_OF}
    first = small.release(spark, element="device", window=window)
    small.append([watched("late", device="radio")])
    small.publish(lakes.AS_OF + timedelta(days=1))
    second = small.release(spark, element="device", window=window)
    small.opt_out("u3")
    small.publish(lakes.AS_OF + timedelta(days=2))
    third = small.release(spark, element="device", window=window)
    assert len({o.question.label for o in (first, second, third)}) == 3
    assert {o.charged for o in (first, second, third)} == {Loss(1, 1)}
    for one, other, true in ((first, second, {"radio": 1}), (second, third, {"tv": -1})):
        changes = {
            key[1]: lakes.counts(other)[key] - lakes.counts(one)[key] for key in lakes.counts(one)
        }
        told = [element for element, change in changes.items() if change == true.get(element, 0)]
        assert len(changes) == 5
        assert len(told) <= 1  # noise of scale 2,000 agrees by chance once in 8,000 times


def test_a_label_is_evaluated_once_and_served_from_then_on(
    clips: SmallLake, spark: "SparkSession"
) -> None:
    """Also when the first one to ask died after its answer was stored."""
    die_before_settling(clips, spark, **TOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.release_counts.compute", _die)
        theirs = clips.release(None, "research", **TOP)
        ours = clips.release(None, **TOP)
    assert ours.rows == theirs.rows
    assert ours.charged == theirs.charged != NOTHING
    assert len(clips.entries("release")) == 2
    stored = DeltaTable(clips.lake.tables.releases).to_pyarrow_table()
    assert stored["row_kind"].to_pylist().count("manifest") == 1


# --- the secret -----------------------------------------------------------------------------------


def test_without_a_secret_nothing_is_released(clips: SmallLake) -> None:
    (clips.root / "conf" / "secret").unlink()
    with pytest.raises(SettingsError, match="openssl rand -hex 32"):
        clips.release(None, **TOP)
    assert clips.entries("allocate") == []


@pytest.mark.parametrize("text", ["", "00" * 32, "ab" * 31, "xyz" * 30, "ab" * 32])
def test_a_guessable_secret_is_refused_and_not_shown(clips: SmallLake, text: str) -> None:
    (clips.root / "conf" / "secret").write_text(text)
    with pytest.raises(SettingsError, match="openssl rand -hex 32") as caught:
        clips.release(None, **TOP)
    assert not text or text not in str(caught.value)


def test_two_installations_over_the_same_rows_draw_other_noise(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """Even a copied lake, with the very same tables, has its own noise by its own secret."""
    first = lakes.make(tmp_path / "first", TEST_SECRET, epsilon="0.001")
    first.append([watched(f"u{n}", device="tv", topic=["art"]) for n in range(30)])
    first.publish()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    (tmp_path / "second" / "conf" / "secret").write_text(OTHER_SECRET.hex())
    lake = settings.load_lake(tmp_path / "second" / "conf" / "local.toml")
    second = SmallLake(lake, settings.load_dataset("clips", lake))
    asked: dict[str, Any] = {"element": "topic", "k": 6}
    answers = [small.release(spark, **asked) for small in (first, second)]
    assert len({answer.question.label for answer in answers}) == 2
    one, other = map(lakes.counts, answers)
    assert len(one) == len(other) == 6
    assert sum(one[key] == other[key] for key in one) <= 1


def test_under_a_new_secret_a_repeat_is_a_new_answer_and_is_charged(
    clips: SmallLake, spark: "SparkSession"
) -> None:
    first = clips.release(spark, element="device", run_id="nightly")
    assert clips.release(spark, element="device").charged == NOTHING
    (clips.root / "conf" / "secret").write_text(OTHER_SECRET.hex())
    second = clips.release(spark, element="device")
    assert second.charged == first.charged != NOTHING
    assert second.rows != first.rows
    assert clips.release(spark, element="device").charged == NOTHING


def test_a_stored_answer_outlives_the_secret(clips: SmallLake, spark: "SparkSession") -> None:
    first = clips.release(spark, element="device", run_id="nightly")
    secret = clips.root / "conf" / "secret"
    secret.write_text(OTHER_SECRET.hex())
    assert clips.release(None, element="device", run_id="nightly").rows == first.rows
    secret.unlink()
    assert clips.release(None, element="device", run_id="nightly").rows == first.rows
    assert len(clips.entries("allocate")) == 1
