"""Rows that no table should hold, or that two tools read differently: what they count for."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def exact(tmp_path: Path) -> SmallLake:
    """An empty lake with an epsilon of 100: noise is 0 but once in 10^21 draws."""
    return lakes.make(tmp_path, TEST_SECRET, epsilon="100")


def test_null_is_an_element_and_equals_no_text(tmp_path: Path, spark: "SparkSession") -> None:
    small = lakes.make(tmp_path, TEST_SECRET, epsilon="20")
    names = ["a", "b", None, "null", "None", "", "NULL"]
    rows = [
        watched(f"u{place}-{n}", title=name, tag=[name])
        for place, name in enumerate(names)
        for n in range(100 + place)
    ]
    small.append(rows)
    small.publish()
    asked: dict[str, Any] = {"k": 9, "max_candidates": 20}
    for keys in (asked, asked | {"element": "tag"}):
        found = lakes.counts(small.release(spark, **keys))
        assert found.keys() == {("all", name) for name in names}
        for place, name in enumerate(names):
            assert abs(found["all", name] - 100 - place) <= 4
    left_out = lakes.CLIPS.replace("keep_nulls = true", "keep_nulls = false")
    strict = lakes.make(tmp_path / "strict", TEST_SECRET, left_out, epsilon="20")
    strict.append(rows)
    strict.publish()
    found = lakes.counts(strict.release(spark, **asked))
    assert found.keys() == {("all", name) for name in names if name is not None}


@pytest.mark.parametrize("measure", ["users", "rows"])
def test_rows_of_nobody_are_neither_one_user_nor_many(
    exact: SmallLake, spark: "SparkSession", measure: str
) -> None:
    titles = [f"clip {number}" for number in range(10)]
    nobody = [watched(None, title=titles[number % 10], city="Bonn") for number in range(1000)]
    exact.append(nobody + [watched(f"u{n}", title="clip 3", city="Metz") for n in range(50)])
    exact.publish()
    tau: dict[str, Any] = {} if measure == "users" else {"tau": 1}
    found = lakes.counts(exact.release(spark, k=10, max_candidates=20, measure=measure, **tau))
    assert found == {("all", "clip 3"): 50}
    cities: dict[str, Any] = {"element": "city", "mechanism": "fixed_gaussian"}
    found = lakes.counts(exact.release(spark, **cities, measure=measure, **tau))
    assert found == {("all", "Metz"): 50}


@pytest.mark.parametrize("kind", ["bigint", "string"])
def test_large_user_ids_that_differ_in_the_last_digit_are_two_users(
    tmp_path: Path, spark: "SparkSession", kind: str
) -> None:
    exact = lakes.make(tmp_path, TEST_SECRET, epsilon="100", user_id_type=f'"{kind}"')
    ids: list[Any] = [9007199254740992, 9007199254740993]
    users = ids if kind == "bigint" else [str(number) for number in ids]
    exact.append([watched(user, device="tv") for user in [*users, None] for _ in range(3)])
    exact.append([watched(user, topic=["art"]) for user in users])
    exact.publish()
    assert lakes.counts(exact.release(spark, element="device"))["all", "tv"] == 2
    exact.opt_out(users[1])
    exact.publish(lakes.AS_OF + timedelta(days=1))
    topics = exact.release(spark, element="topic", k=6, measure="rows", tau=1)
    assert lakes.counts(topics)["all", "art"] == 1


def test_large_numbers_stay_two_elements(exact: SmallLake, spark: "SparkSession") -> None:
    numbers = [2**53, 2**53 + 1, -(2**63), 2**63 - 1, None]
    exact.append([watched(f"u{n}", station=numbers[n % 5]) for n in range(100)])
    exact.publish()
    found = lakes.counts(exact.release(spark, element="station", mechanism="fixed_gaussian"))
    assert found == {("all", None if n is None else str(n)): 20 for n in numbers}
