"""Exact counts of elements by cohort, and the true top of each cohort. All of it is secret.

Rows are engagements in normal form, bounded: `user`, `cohort` (text) and `element`.
"""

from typing import Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dp_udfs import checks
from dp_udfs.errors import InvalidParameterError

Measure = Literal["users", "rows"]

COHORTS_PER_PARTITION = 4  # fewer cohorts than this would leave cores idle
SPARK_GROUP_LIMIT = 1000  # above it Spark sorts all rows of a window instead of its largest ones


def histogram(
    engagements: DataFrame, *, measure: Measure, tau: int = 1, cohort_count: int = 1
) -> DataFrame:
    """Count distinct users, or rows of at most `tau` per user, by cohort and element.

    Parameters
    ----------
    engagements : DataFrame of user, cohort, element
        NULL is an element like any other here.
    measure : {"users", "rows"}
        What is counted. `users` needs `tau` = 1.
    tau : int
        Most that one user adds to one element of one cohort.
    cohort_count : int
        Length of the public list of cohorts; it decides only how the work is spread.

    Returns
    -------
    DataFrame of cohort, element, n
        `n` is an exact bigint of at least 1. All rows of a cohort lie in one partition if there are
        enough cohorts to go round, else all rows of an element of a cohort.
    """
    checks.positive_integers(tau=tau)
    if measure == "users" and tau != 1:
        raise InvalidParameterError(f"tau = {tau} does not fit the measure 'users': it must be 1")
    # One exchange serves both aggregations: each needs all rows of an element in one place.
    spread = engagements.select("user", "cohort", "element").repartition(
        *_spread_by(engagements, cohort_count)
    )
    if tau == 1:
        counted = spread.distinct().groupBy("cohort", "element").agg(F.count(F.lit(1)).alias("n"))
    else:
        clipped = spread.groupBy("cohort", "element", "user").agg(
            F.least(F.count(F.lit(1)), F.lit(tau)).alias("clipped")
        )
        counted = clipped.groupBy("cohort", "element").agg(F.sum("clipped").alias("n"))
    return counted.select("cohort", "element", "n")


def top_candidates(
    engagements: DataFrame,
    *,
    measure: Measure,
    tau: int = 1,
    limit: int | None,
    cohort_count: int = 1,
) -> DataFrame:
    """Keep the `limit` largest elements of each cohort.

    Parameters
    ----------
    engagements, measure, tau, cohort_count
        As for `histogram`.
    limit : int or None
        Most elements per cohort; None keeps the whole histogram (known domains).

    Returns
    -------
    DataFrame of cohort, element, n
        The first `limit` of each cohort by `n` descending, then element ascending (NULL first, then
        the order of UTF-8 bytes or of integers). A cohort lies in one partition, its rows together.

    Notes
    -----
    Run it under `temporary_settings(spark, session_settings(limit))`: Spark decides how to plan it
    when the rows are asked for.
    """
    counted = histogram(engagements, measure=measure, tau=tau, cohort_count=cohort_count)
    if limit is None:
        if "element" in _spread_by(engagements, cohort_count):
            counted = counted.repartition("cohort")
        return counted.sortWithinPartitions("cohort")
    checks.positive_integers(limit=limit)
    by_count = Window.partitionBy("cohort").orderBy(F.desc("n"), F.asc_nulls_first("element"))
    ranked = counted.withColumn("place", F.row_number().over(by_count))
    return ranked.where(F.col("place") <= limit).select("cohort", "element", "n")


def session_settings(limit: int | None) -> dict[str, str]:
    """Spark settings under which the top of a histogram is cut before it is ranked."""
    threshold = max(limit or 0, SPARK_GROUP_LIMIT)
    return {"spark.sql.optimizer.windowGroupLimitThreshold": str(threshold)}


def _spread_by(engagements: DataFrame, cohort_count: int) -> tuple[str, ...]:
    """Columns whose hash spreads the rows: cohorts if there are plenty, else their elements too."""
    # a number, or "auto" on some platforms
    partitions = engagements.sparkSession.conf.get("spark.sql.shuffle.partitions") or "auto"
    plenty = partitions.isdigit() and cohort_count >= COHORTS_PER_PARTITION * int(partitions)
    return ("cohort",) if plenty else ("cohort", "element")
