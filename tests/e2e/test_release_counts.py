"""A release is what plain counting and the same keyed noise give, however the data are laid out."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dp_udfs import pandas_udfs
from dp_udfs.budget import NOTHING, Loss
from jobs.lake import releases, runs
from jobs.lake.questions import Question
from jobs.lake.session import temporary_settings
from jobs.lake.tables import TableState
from jobs.release_counts import Outcome, compute, release_counts
from tests import drills, lakes, release_drill
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake, watched
from tests.plain_release import plain_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Keys = dict[str, Any]

NOISE = {"epsilon": "2", "delta": "0.01"}  # little enough for elements to show in every case

TOP: Keys = {"k": 6, "max_candidates": 12}
CITY: Keys = {"element": "city", "max_candidates": 8}
SCORES: Keys = {"all": [{"column": "score", "at_least": 2}]}

QUESTIONS: dict[str, Keys] = {
    "unknown gumbel": TOP,
    "unknown gumbel, more than there are": {"k": 40, "max_candidates": 60},
    "unknown gumbel, no counts": TOP | {"with_counts": False},
    "unknown gumbel, fixed threshold": TOP | {"optimise_threshold": False},
    "unknown gumbel, l0 and tau": {
        "element": "station",
        "mechanism": "unknown_gumbel",
        "k": 3,
        "max_candidates": 8,
        "measure": "rows",
        "tau": 2,
    },
    "unknown gumbel, arrays with NULL": {"element": "tag", "k": 4, "max_candidates": 5},
    "exclusive cohorts": TOP | {"cohorts": ["country"]},
    "cohorts of two a user": TOP | {"cohorts": ["club"]},
    "cohorts without a cap": TOP | {"cohorts": ["channel"]},
    "cohorts of two columns": TOP | {"cohorts": ["country", "club"]},
    "unknown laplace": CITY,
    "unknown laplace in cohorts": CITY | {"cohorts": ["club"], "filters": SCORES},
    "known laplace": {"element": "device"},
    "known laplace in cohorts, cut": {"element": "device", "cohorts": ["country"], "k": 2},
    "known gumbel, arrays": {"element": "topic", "k": 4, "measure": "rows", "tau": 3},
    "known gumbel of numbers, no counts": {"element": "score", "k": 9, "with_counts": False},
    "fixed gaussian of numbers": {"element": "station", "mechanism": "fixed_gaussian"},
    "fixed gaussian in cohorts": {
        "element": "city",
        "mechanism": "fixed_gaussian",
        "measure": "rows",
        "tau": 4,
        "cohorts": ["channel"],
    },
    "filters and dates": TOP
    | {
        "window": {"from": date(2024, 2, 3), "to": date(2024, 2, 27)},
        "filters": {
            "all": [{"column": "device", "in": ["phone", "tv"]}],
            "any": [
                [{"column": "station", "at_most": 0}, {"column": "score", "in": [1, 5]}],
                [{"column": "country", "in": ["DE"]}, {"column": "station", "in": [2**53 + 1]}],
            ],
        },
    },
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    """A lake with rows of all kinds."""
    small = lakes.make(tmp_path_factory.mktemp("clips"), TEST_SECRET, **NOISE)
    small.append(lakes.many_rows(users=200, size=3000), files=3)
    small.opt_out("u1", "u7", "nobody")
    small.publish()
    return small


def shown(outcome: Outcome) -> list[tuple[Any, ...]]:
    return plain_rows(outcome.rows)


def plain_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    names = ("cohort", "rank", "element", "noisy_count", "stopped")
    return [tuple(row[name] for name in names) for row in rows.to_pylist()]


# --- the reference --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_is_that_of_plain_counting_and_the_same_noise(
    clips: SmallLake, spark: "SparkSession", name: str
) -> None:
    keys = QUESTIONS[name]
    question = clips.question(**keys)
    wanted = plain_release(
        lakes.question(**keys), question, clips.rows, clips.opt_outs, TEST_SECRET
    )
    outcome = clips.release(spark, **keys)
    assert shown(outcome) == wanted.rows
    assert len(shown(outcome)) > len(question.cohorts)
    assert outcome.charged == wanted.loss
    assert question.reserve.covers(outcome.charged)
    for row in outcome.rows.to_pylist():
        if row["noisy_count"] is not None:
            low, high = row["noisy_count"] - row["low"], row["high"] - row["noisy_count"]
            assert low == high == question.noise.half_width
            assert row["noise_scale"] == question.noise.standard_deviation


def test_the_account_bears_the_sum_of_the_charges(clips: SmallLake) -> None:
    settled = [Loss(row["units"], row["calls"]) for row in clips.entries("settle")]
    budget = clips.ledger(lakes.NOON).get_budget("marketing", clips.question(**TOP).account)
    assert sum(settled, NOTHING) == Loss(3000 - budget.units_left, 300 - budget.calls_left)
    assert len(settled) == len(QUESTIONS)
    assert not budget.open


def test_the_rows_hold_what_the_cases_are_about(clips: SmallLake) -> None:
    keys = QUESTIONS["unknown gumbel, more than there are"]
    plain = plain_release(
        lakes.question(**keys), clips.question(**keys), clips.rows, clips.opt_outs, TEST_SECRET
    )
    counts = plain.truth["all"]
    assert {None, "null", "None", ""} <= counts.keys()
    assert len(counts) > TOP["max_candidates"] + 1
    lived_in = {(row["user_id"], row["country"]) for row in clips.rows}
    travellers = {
        user for user, country in lived_in if country == "DE" and (user, "FR") in lived_in
    }
    assert len(travellers - {None}) > 5


# --- the same question over other layouts ---------------------------------------------------------


LIKE: Keys = {"title": "null", "city": "Bonn", "score": 5, "club": "red", "channel": "app"}


def not_counted() -> list[lakes.Row]:
    """Rows that no answer may depend on: of nobody, without consent, out of place and time."""
    odd = [watched(None, **LIKE), watched("nobody", **LIKE), watched("v2", 31, **LIKE)]
    odd += [watched("v3", 0, **LIKE), watched("v4", 1, **LIKE | {"score": 1})]
    odd += [watched("v5", 1, **LIKE | {"score": None})]
    odd += [watched("v6", 1, **LIKE | {"club": club}) for club in ("black", None, "RED", "red ")]
    return odd  # of users without other rows: each would add one to what is shown


BY_CLUB: Keys = TOP | {"cohorts": ["club"], "filters": SCORES}
CAPPED: Keys = CITY | {"cohorts": ["club"], "filters": SCORES, "measure": "rows", "tau": 2}


@pytest.mark.parametrize("keys", [BY_CLUB, CAPPED], ids=["gumbel", "laplace"])
def test_an_answer_does_not_depend_on_order_files_plans_or_rows_that_do_not_count(
    clips: SmallLake, spark: "SparkSession", tmp_path: Path, keys: Keys
) -> None:
    question = clips.question(**keys)
    rows = list(clips.rows)
    table = lakes.engagement_table(clips.dataset, rows)
    first = lakes.same_label(question, tmp_path / "one", table)
    wanted = compute(first, TEST_SECRET, spark)
    assert len(wanted.rows) > 8
    released = {(row["cohort"], row["element"]) for row in wanted.rows.to_pylist()}
    assert ("red", LIKE[question.element]) in released

    random.Random(3).shuffle(rows)
    rows += not_counted()
    table = lakes.engagement_table(clips.dataset, rows)
    second = lakes.same_label(question, tmp_path / "parts", table, "event_date")
    assert len(list((tmp_path / "parts").rglob("*.parquet"))) > 20
    for partitions in (1, 7):  # four cohorts: plenty for one partition, few for seven
        with temporary_settings(spark, {"spark.sql.shuffle.partitions": partitions}):
            assert compute(second, TEST_SECRET, spark) == wanted


def test_elements_below_those_considered_change_nothing(
    spark: "SparkSession", tmp_path: Path
) -> None:
    small = lakes.make(tmp_path / "lake", TEST_SECRET)
    small.append([])
    small.publish()
    question = small.question(**TOP, cohorts=["club"])
    rows = [
        watched(f"u{user}", title=f"clip {clip}", club="red")
        for clip in range(16)
        for user in range(40 - 2 * clip)
    ]
    answers = []
    for name, more in (
        ("without", []),
        ("with", [watched(f"u{n}", title=f"rare {n % 30}", club="red") for n in range(99)]),
    ):
        table = lakes.engagement_table(small.dataset, rows + more)
        asked = lakes.same_label(question, tmp_path / name, table)
        answers.append(compute(asked, TEST_SECRET, spark))
    assert answers[0] == answers[1]
    assert len(answers[0].rows) > 4


# --- noise belongs to one label -------------------------------------------------------------------


def noise_of_zeros(question: Question, secret: bytes = TEST_SECRET) -> tuple[int, ...]:
    """Answer on no rows at all: every count is its noise."""
    nothing = pandas_udfs.ARROW_ANSWER_SCHEMA.empty_table()
    key = question.noise_key(secret)
    answer = pandas_udfs.complete(nothing, question.mechanism, key, question.cohorts)
    noise = {row["element"]: row["noisy_count"] for row in answer.to_pylist() if row["element"]}
    return tuple(noise[str(element)] for element in question.mechanism.domain or ())


def test_whatever_changes_in_the_label_changes_all_the_noise(tmp_path: Path) -> None:
    domain = str([f"device {number}" for number in range(40)])
    text = lakes.CLIPS.replace('["phone", "radio", "tablet", "tv", "watch"]', domain)
    made = lakes.make(tmp_path, TEST_SECRET, text, epsilon="0.0001")
    made.publish()
    asked = made.question(element="device", window={"days": 20})
    engagements = TableState("", "one-id", 1, "one-digest")
    consent = {"opt_outs": replace(engagements, digest="consent")}
    snapshot = replace(asked.snapshot, tables={"engagements": engagements})
    asked = replace(asked, snapshot=snapshot)

    def with_table(**changes: Any) -> Question:
        dataset = asked.dataset
        table = dataset.table.model_copy(update=changes)
        return replace(asked, dataset=dataset.model_copy(update={"table": table}))

    def with_state(**changes: Any) -> Question:
        tables = {"engagements": replace(engagements, **changes)}
        return replace(asked, snapshot=replace(snapshot, tables=tables))

    day = timedelta(days=1)
    others = [
        asked,
        replace(asked, snapshot=replace(snapshot, snapshot_id=2)),
        with_state(table_id="another-id"),
        with_state(version=2),
        with_state(digest="another-digest"),
        replace(asked, snapshot=replace(snapshot, tables={**snapshot.tables, **consent})),
        replace(asked, start=asked.start + day),
        replace(asked, end=asked.end - day),
        replace(asked, measure="rows"),
        replace(asked, measure="rows", mechanism=replace(asked.mechanism, tau=2)),
        replace(asked, mechanism=replace(asked.mechanism, l0=2)),
        replace(asked, mechanism=replace(asked.mechanism, epsilon="0.0002")),
        replace(asked, filters=((("score", (1,)),),)),
        replace(asked, cohorts_per_user=1),
        with_table(bounding_salt="clips-2"),
        with_table(retention_days=29),
        with_table(time_zone="Asia/Tokyo"),
    ]
    noises = [noise_of_zeros(question) for question in others]
    noises.append(noise_of_zeros(asked, TEST_SECRET[::-1]))
    assert all(len(noise) == 40 for noise in noises)
    for number, one in enumerate(noises):
        for other in noises[:number]:
            same = sum(a == b for a, b in zip(one, other, strict=True))
            assert same <= 1  # two draws of scale 20,000 agree by chance once in 80,000


def test_another_k_has_noise_of_its_own(clips: SmallLake) -> None:
    two, three = clips.question(element="topic", k=2), clips.question(element="topic", k=3)
    assert two.noise_key(TEST_SECRET) != three.noise_key(TEST_SECRET)


# --- repeats --------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[SmallLake]:
    """A lake on which nothing was asked yet."""
    small = lakes.make(tmp_path, TEST_SECRET, **NOISE)
    small.append(lakes.many_rows(seed=2, users=200, size=3000))
    small.publish()
    yield small
    budget = small.ledger(lakes.NOON).get_budget("marketing", small.question(**TOP).account)
    assert not budget.open


def test_a_repeat_is_free_for_its_analyst_and_charged_to_another(
    fresh: SmallLake, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = TOP | {"cohorts": ["country"]}
    first = fresh.release(spark, **keys)
    assert first.charged == Loss(fresh.entries("settle")[0]["units"], 1)
    assert first.charged.units > 0
    monkeypatch.setattr("jobs.release_counts.compute", must_not_run)
    again = fresh.release(None, **keys)
    same_by_dates = fresh.release(
        None, **keys, window={"from": lakes.AS_OF - timedelta(days=30), "to": lakes.AS_OF}
    )
    for repeat in (again, same_by_dates):
        assert repeat.rows == first.rows
        assert repeat.charged == NOTHING
        assert repeat.budget.units_left == first.budget.units_left
    theirs = fresh.release(None, "research", **keys)
    assert theirs.rows == first.rows
    assert theirs.charged == first.charged
    assert fresh.release(None, "research", **keys).charged == NOTHING
    assert len(fresh.entries("allocate")) == len(fresh.entries("settle")) == 2


def test_a_smaller_k_is_the_beginning_of_an_answer_one_owns(
    fresh: SmallLake, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: Keys = {"max_candidates": 20, "cohorts": ["club"]}
    large = fresh.release(spark, k=8, **keys)
    compute_again = fresh.release(spark, "research", k=3, **keys)
    assert compute_again.charged.units > 0
    assert compute_again.question.label != large.question.label

    monkeypatch.setattr("jobs.release_counts.compute", must_not_run)
    small = fresh.release(None, k=3, **keys)
    assert small.charged == NOTHING
    begun = [row for row in shown(large) if row[1] is not None and row[1] <= 3]
    assert [row for row in shown(small) if row[1] is not None] == begun
    sizes = {cohort: sum(row[0] == cohort for row in begun) for cohort in large.question.cohorts}
    assert max(sizes.values()) == 3
    ends = {row[0]: row[4] for row in shown(small) if row[1] is None}
    assert ends == {cohort: size < 3 for cohort, size in sizes.items()}
    monkeypatch.undo()
    assert fresh.release(spark, k=9, **keys).charged.units > 0


def must_not_run(*_: Any) -> None:
    raise AssertionError("an answer that is stored was computed again")


def test_one_question_asked_twice_at_once_is_charged_once(
    fresh: SmallLake, spark: "SparkSession"
) -> None:
    def ask(run_id: str | None) -> Outcome:
        return fresh.release(spark, **TOP, run_id=run_id)

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(ask, [None, None]))
    assert outcomes[0].rows == outcomes[1].rows
    assert len(fresh.entries("allocate")) == 1
    assert len(fresh.entries("settle")) == 1
    left = {outcome.budget.units_left for outcome in outcomes}
    assert min(left) == 3000 - fresh.entries("settle")[0]["units"]


def test_two_runs_of_one_question_at_once_are_charged_once(
    fresh: SmallLake, spark: "SparkSession"
) -> None:
    """Both allocate before either is published; the second to publish owns the answer by then."""
    charges = []
    original = releases.write

    def write_after_another_run(*arguments: Any) -> Any:
        monkeypatch.setattr(releases, "write", original)
        charges.append(fresh.release(spark, **TOP, run_id="second").charged)
        return original(*arguments)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(releases, "write", write_after_another_run)
        charges.append(fresh.release(spark, **TOP, run_id="first").charged)
    assert len(fresh.entries("allocate")) == 2
    assert charges[0].units > 0
    assert charges[1] == NOTHING
    assert sum(entry["units"] for entry in fresh.entries("settle")) == charges[0].units


def test_a_run_that_outlives_its_period_shows_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = drills.drill_lake(tmp_path, TEST_SECRET, retention_days="60")
    times = [datetime(2024, 3, 31, 23, 59, tzinfo=UTC)]

    def take_two_minutes(*arguments: Any) -> releases.Release:
        times.append(times[-1] + timedelta(minutes=2))
        return release_drill.compute(*arguments)

    monkeypatch.setattr("jobs.release_counts.compute", take_two_minutes)
    outcome = release_counts(
        small.lake,
        small.dataset,
        lakes.question(k=3, max_candidates=4),
        "marketing",
        clock=lambda: times[-1],
    )
    assert len(shown(outcome)) > 1
    assert outcome.charged == Loss(6, 1)
    (charge,) = small.entries("settle")
    assert charge["period_start"] == date(2024, 3, 1)
    assert (outcome.budget.units_left, outcome.budget.resets_at) == (3000, date(2024, 5, 1))


def test_a_secret_replaced_in_the_middle_of_a_run_keys_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = drills.drill_lake(tmp_path, TEST_SECRET)
    allocate, secrets = runs.allocate, []

    def replace_secret(*arguments: Any) -> Any:
        (small.root / "conf" / "secret").write_text(bytes(range(100, 132)).hex())
        return allocate(*arguments)

    def compute_with(question: Question, secret: bytes, *_: Any) -> releases.Release:
        secrets.append(secret)
        return release_drill.compute(question, secret)

    monkeypatch.setattr(runs, "allocate", replace_secret)
    monkeypatch.setattr("jobs.release_counts.compute", compute_with)
    small.release(None, k=3, max_candidates=4)
    assert secrets == [TEST_SECRET]


def test_an_answer_can_be_read_again_and_again(fresh: SmallLake, spark: "SparkSession") -> None:
    outcome = fresh.release(spark, **TOP)
    stored = releases.find(fresh.lake.tables.releases, outcome.question.label)
    assert stored is not None
    assert stored.rows == outcome.rows
    by_spark = spark.read.format("delta").load(fresh.lake.tables.releases)
    rows = by_spark.where("row_kind <> 'manifest'").orderBy("cohort", "rank").toArrow()
    once, twice = (rows.select(outcome.rows.schema.names).to_pylist() for _ in range(2))
    assert sorted(once, key=repr) == sorted(twice, key=repr)
    assert sorted(once, key=repr) == sorted(outcome.rows.to_pylist(), key=repr)
    assert len(fresh.entries("settle")) == 1
