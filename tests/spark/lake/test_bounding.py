"""Caps on what a user adds: their laws, what a choice may depend on, and odd keys."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dp_udfs.errors import InvalidParameterError
from jobs.lake import bounding
from jobs.lake.bounding import bound_contributions
from jobs.lake.session import temporary_settings
from tests.builders import engagements, normal_form

Row = tuple[Any, str, Any]  # user, cohort, element


SPREAD = {  # many partitions, which Spark would merge where there are few rows
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}


def bounded(
    rows: DataFrame,
    *,
    cohorts: int | None = None,
    l0: int | None = None,
    salt: str = "salt",
    listed: Sequence[str] = (),
) -> list[Row]:
    kept = bound_contributions(rows, cohorts_per_user=cohorts, l0=l0, salt=salt, cohorts=listed)
    assert kept.columns == ["user", "cohort", "element"]
    return [tuple(row) for row in kept.collect()]


def by_user(rows: Iterable[Row]) -> dict[Any, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return {user: sorted(rows, key=repr) for user, rows in found.items()}


def random_rows(seed: int, size: int = 400) -> list[Row]:
    """Users of very different zeal, some of whom travel; NULL is among the elements."""
    draw = random.Random(seed)
    elements = [None, "", "null", *(f"title:{number}" for number in range(9))]
    return [
        (f"u{int(40 * draw.random() ** 2)}", draw.choice("abc"), draw.choice(elements))
        for _ in range(size)
    ]


@pytest.mark.parametrize("cap", [None, 1, 2, 9])
def test_the_cap_on_cohorts_is_kept_and_used_in_full(spark: SparkSession, cap: int | None) -> None:
    before = by_user(random_rows(seed=1))
    after = by_user(bounded(normal_form(spark, random_rows(seed=1)), cohorts=cap))
    assert after.keys() == before.keys()
    for user, kept in after.items():
        seen, chosen = ({cohort for _, cohort, _ in rows} for rows in (before[user], kept))
        assert len(chosen) == min(len(seen), cap or len(seen))
        assert kept == [row for row in before[user] if row[1] in chosen]


@pytest.mark.parametrize("cap", [1, 3, 99])
@pytest.mark.parametrize("cohorts", [None, 1, 2])
def test_the_cap_on_elements_spans_the_kept_cohorts(
    spark: SparkSession, cohorts: int | None, cap: int
) -> None:
    rows = normal_form(spark, random_rows(seed=1))
    before = by_user(bounded(rows, cohorts=cohorts))
    after = by_user(bounded(rows, cohorts=cohorts, l0=cap))
    assert after.keys() == before.keys()
    for user, kept in after.items():
        seen, chosen = ({element for _, _, element in rows} for rows in (before[user], kept))
        assert len(chosen) == min(len(seen), cap)
        assert kept == [row for row in before[user] if row[2] in chosen]


def test_a_choice_depends_on_the_users_own_rows_only(spark: SparkSession) -> None:
    rows = random_rows(seed=2)
    chosen = by_user(bounded(normal_form(spark, rows), cohorts=1, l0=2))
    some = {f"u{number}" for number in range(0, 40, 3)}
    alone = [row for row in rows if row[0] in some]
    assert by_user(bounded(normal_form(spark, alone), cohorts=1, l0=2)) == {
        user: kept for user, kept in chosen.items() if user in some
    }


def test_a_choice_ignores_order_partitions_and_repeats(spark: SparkSession) -> None:
    rows = random_rows(seed=3)
    chosen = by_user(bounded(normal_form(spark, rows), cohorts=2, l0=2))
    random.Random(4).shuffle(rows)
    shuffled = normal_form(spark, rows).repartition(5)
    with temporary_settings(spark, SPREAD):
        assert by_user(bounded(shuffled, cohorts=2, l0=2)) == chosen
    twice = by_user(bounded(normal_form(spark, rows * 2), cohorts=2, l0=2))
    assert {user: set(kept) for user, kept in twice.items()} == {
        user: set(kept) for user, kept in chosen.items()
    }


def test_the_list_of_cohorts_changes_no_choice(spark: SparkSession) -> None:
    rows = normal_form(spark, random_rows(seed=6))
    for cap in (1, 2):
        assert set(bounded(rows, cohorts=cap, listed="abc")) == set(bounded(rows, cohorts=cap))


@pytest.mark.parametrize("listed", ["", "abc"])
def test_a_cap_holds_where_codes_collide(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """Two names with one code would count as one cohort, if the names were not compared."""
    monkeypatch.setattr(bounding, "_code", lambda *_: F.lit(1).cast("bigint"))
    kept = by_user(bounded(normal_form(spark, random_rows(seed=7)), cohorts=1, l0=1, listed=listed))
    assert all(len({row[1:] for row in rows}) == 1 for rows in kept.values())


def test_choices_spread_evenly_and_follow_the_salt(spark: SparkSession) -> None:
    users, elements = 2000, "abcd"
    rows = engagements(spark, *((f"u{u}", e) for u in range(users) for e in elements))
    first, second = (dict(_choices(bounded(rows, l0=1, salt=salt))) for salt in ("s1", "s2"))
    for chosen in (first, second):
        counts = [list(chosen.values()).count(element) for element in elements]
        # chi-square with 3 degrees of freedom; a fair choice exceeds 21.1 with probability 1e-4
        assert sum((count - users / 4) ** 2 / (users / 4) for count in counts) < 21.1
    agree = sum(first[user] == second[user] for user in first)
    assert abs(agree - users / 4) < 4 * (users * 3 / 16) ** 0.5


def test_the_choice_of_a_salt_stays_the_same_for_ever(spark: SparkSession) -> None:
    """Another choice gives other answers: who changes this raises `questions.CODE_VERSION`."""
    text = normal_form(spark, [("u1", c, e) for c in "abcd" for e in ("x", "y", "z", None)])
    assert sorted(bounded(text, cohorts=2, l0=2), key=repr) == [
        ("u1", cohort, element) for cohort in "ab" for element in "xy"
    ]
    whole = normal_form(spark, [(1, c, e) for c in "abcd" for e in (1, 2, 3, None)])
    assert sorted(bounded(whole, cohorts=2, l0=2), key=repr) == [
        (1, cohort, element) for cohort in "bd" for element in (2, 3)
    ]


def test_a_traveller_counts_in_one_cohort_only(spark: SparkSession) -> None:
    """Two cohorts by a predicate are no parallel composition unless that is enforced."""
    rows = engagements(
        spark, ("u1", "x", 2, "country A"), ("u1", "x", 1, "country B"), ("u2", "y", 1, "country A")
    )
    kept = bounded(rows, cohorts=1)
    assert len({cohort for user, cohort, _ in kept if user == "u1"}) == 1
    assert ("u2", "country A", "y") in kept


def test_one_title_a_day_is_still_one_title_in_a_window(spark: SparkSession) -> None:
    """What is true by construction on a day is enforced over the whole question."""
    daily = [("u1", "abc"[day % 3], f"title:{day}") for day in range(30)]
    assert len({element for _, _, element in bounded(normal_form(spark, daily), l0=1)}) == 1


@pytest.mark.parametrize(("cohorts", "l0"), [(None, None), (1, None), (None, 1), (1, 1)])
def test_rows_without_a_user_never_count(
    spark: SparkSession, cohorts: int | None, l0: int | None
) -> None:
    members = [(f"u{number}", f"title:{number % 10}") for number in range(50)]
    nobody = [(None, f"title:{number % 10}") for number in range(1000)]
    kept = bounded(engagements(spark, *members, *nobody), cohorts=cohorts, l0=l0)
    assert sorted(kept) == sorted((user, "all", element) for user, element in members)


@pytest.mark.parametrize("kind", [int, str, Decimal])
def test_ids_that_differ_in_the_last_digit_stay_different(spark: SparkSession, kind: type) -> None:
    first, second = kind("9007199254740992"), kind("9007199254740993")
    rows = [(first, "x"), (first, "y"), (first, "z"), (second, "x"), (second, "y"), (second, "z")]
    kept = bounded(engagements(spark, *rows, (None, "x")), l0=1)
    assert sorted(user for user, _, _ in kept) == [first, second]


def test_null_is_an_element_of_its_own(spark: SparkSession) -> None:
    rows = engagements(spark, *(("u1", element) for element in (None, "null", "None", "")))
    for l0 in (1, 2, 3, 4):
        assert len(bounded(rows, l0=l0)) == l0


def test_a_cap_below_one_is_refused(spark: SparkSession) -> None:
    rows = engagements(spark, ("u1", "x"))
    with pytest.raises(InvalidParameterError, match="l0 = 0"):
        bound_contributions(rows, cohorts_per_user=None, l0=0, salt="salt")
    with pytest.raises(InvalidParameterError, match="cohorts_per_user = 0"):
        bound_contributions(rows, cohorts_per_user=0, l0=None, salt="salt")


def _choices(rows: list[Row]) -> Iterator[tuple[Any, Any]]:
    yield from ((user, element) for user, _, element in rows)
