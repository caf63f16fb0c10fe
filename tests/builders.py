"""Small tables for tests, with only the fields that matter."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Engagement = tuple[Any, ...]  # (user, element), (user, element, times) or (.., times, cohort)


def engagements(spark: "SparkSession", *rows: Engagement) -> "DataFrame":
    """Return engagements in normal form, e.g. `engagements(spark, ("u1", "title:1", 3))`.

    Each row is a user, an element, how often they met (once) and in which cohort ("all").
    """
    table = [
        (user, cohort, element)
        for user, element, times, cohort in map(_complete, rows)
        for _ in range(times)
    ]
    return normal_form(spark, table)


def normal_form(spark: "SparkSession", rows: Iterable[tuple[Any, str | None, Any]]) -> "DataFrame":
    """Return rows of user, cohort and element as they are; the types are those of the values."""
    users, cohorts, elements = map(list, zip(*rows, strict=True))
    table = {"user": _array(users), "cohort": pa.array(cohorts), "element": _array(elements)}
    return spark.createDataFrame(pa.table(table))


def _complete(row: Engagement) -> tuple[Any, Any, int, str]:
    """Fill in what a row leaves out."""
    times = row[2] if len(row) > 2 else 1
    cohort = row[3] if len(row) > 3 else "all"
    return row[0], row[1], times, cohort


def _array(values: list[Any]) -> pa.Array:
    """An Arrow column; text where there is nothing but NULL."""
    array = pa.array(values)
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array
