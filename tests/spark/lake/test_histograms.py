"""Exact counts and their true top: against a slow reference, and what the plans may look like."""

import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dp_udfs.errors import InvalidParameterError
from jobs.lake.bounding import bound_contributions
from jobs.lake.histograms import Measure, histogram, session_settings, top_candidates
from jobs.lake.session import temporary_settings
from tests.builders import engagements, normal_form

Cell = tuple[str, Any, int]  # cohort, element, n
FEW, MANY = 1, 1000  # public cohorts: the work is split by element, or by cohort
SPREAD = {  # many partitions, which Spark would merge where there are few rows
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}
ENGINES: dict[str, dict[str, str]] = {"accelerated": {}, "plain": {"spark.comet.enabled": "false"}}


def cells(counted: DataFrame) -> list[Cell]:
    assert counted.columns == ["cohort", "element", "n"]
    assert dict(counted.dtypes)["n"] == "bigint"
    return [tuple(row) for row in counted.collect()]


def reference(rows: Iterable[tuple[Any, ...]], tau: int, limit: int | None) -> set[Cell]:
    """Count the slow and obvious way; NULL first among equals, then UTF-8 bytes."""
    table = pd.DataFrame(list(rows), columns=["user", "cohort", "element"])
    each = table.groupby(["cohort", "element", "user"], dropna=False).size().clip(upper=tau)
    counted = each.groupby(["cohort", "element"], dropna=False).sum().reset_index()
    by_cohort: dict[str, list[tuple[Any, int]]] = {}
    for cohort, element, n in counted.itertuples(index=False):
        by_cohort.setdefault(cohort, []).append((None if pd.isna(element) else element, n))
    kept = set()
    for cohort, found in by_cohort.items():
        found.sort(key=lambda pair: (-pair[1], pair[0] is not None, (pair[0] or "").encode()))
        kept |= {(cohort, *pair) for pair in found[:limit]}
    return kept


def random_rows(seed: int, size: int = 600) -> list[tuple[str, str, str | None]]:
    """Three cohorts of different size, many ties, NULL beside texts that look like it."""
    draw = random.Random(seed)
    elements = [None, "", "null", "None", "a", "B", "é", "\uff5e", "\U0001f600"]
    return [
        (f"u{draw.randrange(25)}", draw.choice("aaab") if draw.random() < 0.99 else "c", element)
        for element in draw.choices(elements, weights=range(9, 0, -1), k=size)
    ]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cohort_count", [FEW, MANY])
@pytest.mark.parametrize(
    ("measure", "tau", "limit"),
    [("users", 1, None), ("users", 1, 1), ("users", 1, 4), ("rows", 1, 4), ("rows", 3, 4)],
)
def test_the_top_is_that_of_the_slow_reference(
    spark: SparkSession, engine: str, cohort_count: int, measure: Measure, tau: int, limit: int
) -> None:
    rows = random_rows(seed=tau)
    table = normal_form(spark, rows)
    counting: dict[str, Any] = {"measure": measure, "tau": tau, "cohort_count": cohort_count}
    with temporary_settings(spark, ENGINES[engine] | session_settings(limit)):
        top = cells(top_candidates(table, limit=limit, **counting))
        assert len(top) == len(set(top))
        assert set(top) == reference(rows, tau, limit)
        if limit is None:
            assert set(cells(histogram(table, **counting))) == set(top)


@pytest.mark.parametrize("cohort_count", [FEW, MANY])
def test_equal_counts_are_ordered_by_bytes_and_null_comes_first(
    spark: SparkSession, cohort_count: int
) -> None:
    # UTF-16 would put the emoji before the wave dash; a locale would put "a" before "B"
    texts = [None, "", "B", "a", "a\0", "aa", "null", "é", "\uff5e", "\U0001f600"]
    numbers = [None, -(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]
    for ordered in (texts, numbers):
        table = engagements(spark, *(("u1", element) for element in ordered[::-1]))
        for limit in (1, 2, 5, len(ordered) - 1):
            top = cells(
                top_candidates(table, measure="users", limit=limit, cohort_count=cohort_count)
            )
            assert {element for _, element, _ in top} == set(ordered[:limit])


@pytest.mark.parametrize("cohort_count", [FEW, MANY])
def test_order_partitions_and_lesser_elements_leave_the_top_alone(
    spark: SparkSession, cohort_count: int
) -> None:
    rows = random_rows(seed=5)
    top = set(cells(_top(normal_form(spark, rows), 3, cohort_count)))
    least = min(n for _, _, n in top)
    random.Random(6).shuffle(rows)
    rows += [(f"u{user}", "a", f"new:{element}") for element in range(50) for user in range(least)]
    rows = [row for row in rows if not (row[2] or "").startswith("new") or row[0] != "u0"]
    shuffled = normal_form(spark, rows).repartition(5)
    with temporary_settings(spark, SPREAD):
        assert set(cells(_top(shuffled, 3, cohort_count))) == top


def test_null_is_a_group_near_its_true_size(spark: SparkSession) -> None:
    rows = [(f"u{number}", ("a", "b", None)[number % 3]) for number in range(300)]
    counted = cells(histogram(engagements(spark, *rows), measure="users"))
    assert set(counted) == {("all", element, 100) for element in ("a", "b", None)}


@pytest.mark.parametrize("kind", ["long", "text", "decimal"])
def test_users_whose_ids_differ_in_the_last_digit_are_two(spark: SparkSession, kind: str) -> None:
    ids = [9007199254740992, 9007199254740993]
    rows = engagements(spark, *((user, "x", 3) for user in ids), (None, "y"))
    cast = {"long": "bigint", "text": "string", "decimal": "decimal(20,0)"}[kind]
    rows = rows.withColumn("user", F.col("user").cast(cast))
    rows = bound_contributions(rows, cohorts_per_user=None, l0=None, salt="salt")
    assert cells(histogram(rows, measure="users")) == [("all", "x", 2)]


def test_a_user_adds_at_most_tau(spark: SparkSession) -> None:
    rows = engagements(spark, ("u1", "x", 50), ("u2", "x", 2), ("u2", "y", 1), ("u1", "x", 7, "c"))
    expected = {1: (2, 1, 1), 3: (5, 1, 3), 60: (52, 1, 7)}
    for tau, (x, y, other) in expected.items():
        counted = set(cells(histogram(rows, measure="rows", tau=tau)))
        assert counted == {("all", "x", x), ("all", "y", y), ("c", "x", other)}


def test_users_are_counted_once_whatever_tau_says(spark: SparkSession) -> None:
    rows = engagements(spark, ("u1", "x", 2))
    with pytest.raises(InvalidParameterError, match="tau = 2"):
        histogram(rows, measure="users", tau=2)
    with pytest.raises(InvalidParameterError, match="limit = 0"):
        top_candidates(rows, measure="users", limit=0)


def test_no_rows_give_no_candidates(spark: SparkSession) -> None:
    nothing = engagements(spark, ("u1", "x")).where("user = 'u2'")
    for limit in (1, None):
        assert cells(top_candidates(nothing, measure="users", limit=limit)) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cohort_count", [FEW, MANY])
@pytest.mark.parametrize("limit", [2, None])
def test_a_cohort_lies_in_one_partition_with_its_rows_together(
    spark: SparkSession, engine: str, cohort_count: int, limit: int | None
) -> None:
    """The Python stage takes the candidates where they are."""
    rows = [(f"u{n % 7}", f"cohort {n % 19}", f"title:{n % 11}") for n in range(600)]
    with temporary_settings(spark, ENGINES[engine] | SPREAD):
        seen = (
            _top(normal_form(spark, rows), limit, cohort_count)
            .mapInArrow(_runs_of_cohorts, "cohort string, size bigint")
            .toArrow()
        )
    cohorts = seen["cohort"].to_pylist()
    assert sorted(cohorts) == sorted({f"cohort {n}" for n in range(19)})
    assert set(seen["size"].to_pylist()) == {2 if limit else 11}


def test_many_cohorts_need_one_exchange(plan: "Plan", stored: DataFrame) -> None:
    for limit in (21, None):
        query = _top(stored, limit, MANY).mapInArrow(_runs_of_cohorts, "cohort string, size long")
        text = plan(query)
        assert text.count("Exchange hashpartitioning(cohort") == text.count("Exchange ") == 1
        assert text.index("MapInArrow") < text.index("Exchange ")


def test_few_cohorts_merge_short_lists(plan: "Plan", stored: DataFrame) -> None:
    merge, spread = plan(_top(stored, 21, FEW)).split("Exchange hashpartitioning(cohort")[1:]
    assert "GroupLimit" in merge  # each partition sends its own top, not all it has
    assert "element" in spread[: spread.index(")")]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_cut_stays_below_the_ranking_at_a_thousand_candidates(
    plan: "Plan", spark: SparkSession, stored: DataFrame, engine: str
) -> None:
    """Above 1,000 Spark drops the group limit without a word."""
    with temporary_settings(spark, ENGINES[engine]):
        assert "GroupLimit" not in plan(_top(stored, 1001, MANY))
        with temporary_settings(spark, session_settings(1001)):
            assert "GroupLimit" in plan(_top(stored, 1001, MANY))


def test_caps_cost_one_more_exchange(plan: "Plan", stored: DataFrame) -> None:
    bounded = bound_contributions(stored, cohorts_per_user=1, l0=5, salt="salt")
    text = plan(_top(bounded, 21, MANY))
    assert text.count("Exchange hashpartitioning(user") == 1
    assert text.count("Exchange ") == 2


@pytest.mark.parametrize(
    ("cap", "cohorts", "keys"),
    [
        (1, "", "user _w cohort"),
        (2, "", "user _w cohort"),
        (2, "abc", "user _w"),
        (1, "abc", "user"),
    ],
)
def test_a_users_rows_are_sorted_no_finer_than_a_cap_on_cohorts_needs(
    plan: "Plan", stored: DataFrame, cap: int, cohorts: str, keys: str
) -> None:
    kept = bound_contributions(stored, cohorts_per_user=cap, l0=None, salt="salt", cohorts=cohorts)
    (sort,) = (line for line in plan(kept).splitlines() if "Sort [" in line)
    assert re.findall(r"(user|_w|cohort)\S* ASC", sort) == keys.split()


def test_only_the_columns_needed_are_read(plan: "Plan", stored: DataFrame) -> None:
    rows = stored.where("day > '2020-01-01'")
    arrays = rows.select("user", "cohort", F.explode_outer("titles").alias("element"))
    for table, column in ((rows, "element"), (arrays, "titles")):
        bounded = bound_contributions(table, cohorts_per_user=None, l0=None, salt="salt")
        text = plan(_top(bounded, 21, MANY))
        (scan,) = (line for line in text.splitlines() if "ReadSchema" in line)
        filters, read = scan.split("PushedFilters")[1].split("ReadSchema")
        assert "GreaterThan(day" in filters
        assert "IsNotNull(user)" in filters
        assert all(name in read for name in ("user", "cohort", column, "day"))
        assert "seconds" not in read
        assert text.count("Exchange ") == 1


def test_spark_connect_gives_the_same_candidates(
    bounded_top_here: set[Cell], connect_spark: SparkSession
) -> None:
    there = _bounded_top(normal_form(connect_spark, random_rows(seed=8)))
    assert set(cells(there)) == bounded_top_here


@pytest.fixture
def bounded_top_here(spark: SparkSession) -> set[Cell]:
    return set(cells(_bounded_top(normal_form(spark, random_rows(seed=8)))))


def _top(rows: DataFrame, limit: int | None, cohort_count: int) -> DataFrame:
    return top_candidates(rows, measure="users", limit=limit, cohort_count=cohort_count)


def _bounded_top(rows: DataFrame) -> DataFrame:
    return _top(bound_contributions(rows, cohorts_per_user=1, l0=2, salt="salt"), 3, FEW)


def _runs_of_cohorts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each stretch of equal cohorts in a partition."""
    names = [name for batch in batches for name in batch.column("cohort").to_pylist()]
    starts = [n for n in range(len(names)) if n == 0 or names[n] != names[n - 1]]
    sizes = np.diff([*starts, len(names)])
    yield pa.RecordBatch.from_pydict({"cohort": [names[n] for n in starts], "size": sizes})


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A Delta table with more columns than a question needs."""
    wide = engagements(spark, ("u1", "x")).withColumns(
        {"day": F.current_date(), "titles": F.array("element"), "seconds": F.lit(1)}
    )
    path = str(tmp_path_factory.mktemp("tables") / "wide")
    wide.write.format("delta").save(path)
    return spark.read.format("delta").load(path)


class Plan:
    """The physical plan of a query, as Spark explains it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, query: DataFrame) -> str:
        self.capsys.readouterr()
        query.explain()
        return self.capsys.readouterr().out


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return Plan(capsys)
