"""Users in the order in which they joined: each gets a number once, and nobody gets it again.

The table beside the engagements is as secret as they are. A row without a user ends each period: it
keeps how many numbers were given out when those who had the last of them are gone.
"""

from datetime import date
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from jobs.lake import batches, schemas, tables
from jobs.lake.settings import DatasetSettings
from jobs.lake.tables import Snapshot, TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def join(
    spark: "SparkSession", dataset: DatasetSettings, snapshot: Snapshot, period: int, end: date
) -> TableState:
    """Give numbers to the users who are first seen before a period ends; once.

    Parameters
    ----------
    end : date
        The first day after the period.

    Returns
    -------
    TableState
        Of the table of numbers, with that period in it.

    Notes
    -----
    Within a period the order is that of a hash with the dataset's public salt. A user who has rows
    of an earlier period that came late joins in this one: everybody counts once.

    Privacy: neighbours keep the slot. Tables that differ in one user differ in what stands under
    one number, for numbers are neither shifted nor used again.
    """
    place = dataset.table.numbers
    with batches.writer_lock(place):
        batches.create_numbers(spark, dataset)
        name = f"period {period}"
        if not batches.holds(spark, place, name):
            known = tables.read(spark, place)
            fresh = _first_seen(spark, dataset, snapshot, end)
            fresh = fresh.join(known.select("user_id"), on="user_id", how="left_anti")
            rows = _numbered(fresh, dataset, _first_free(known), period)
            batches.append_once(spark, rows, place, name)
        return tables.state(tables.locate(place, spark))


def count(spark: "SparkSession", numbers: TableState, periods: range) -> int:
    """Count the users who joined in these periods: a secret number."""
    rows = tables.read(spark, numbers).where(F.col("user_id").isNotNull())
    joined = F.col("period")
    return rows.where((joined >= periods.start) & (joined < periods.stop)).count()


def _first_seen(
    spark: "SparkSession", dataset: DatasetSettings, snapshot: Snapshot, end: date
) -> "DataFrame":
    """List the users of a snapshot, those who opted out aside."""
    rows = tables.read(spark, snapshot.tables["engagements"])
    rows = rows.where(F.col(dataset.table.event_date) < F.lit(end))
    users = rows.select(F.col(dataset.table.user_id).alias("user_id")).where(
        F.col("user_id").isNotNull()
    )
    opt_outs = snapshot.tables.get("opt_outs")
    if opt_outs is not None:
        left = tables.read(spark, opt_outs).select("user_id").distinct()
        users = users.join(left, on="user_id", how="left_anti")
    return users.distinct()


def _numbered(fresh: "DataFrame", dataset: DatasetSettings, free: int, period: int) -> "DataFrame":
    """Give new users the numbers from the first free one on, and note the next free one."""
    kinds = schemas.numbers(dataset)
    salted = F.xxhash64(F.lit(dataset.table.bounding_salt), F.col("user_id").cast("string"))
    place = F.row_number().over(Window.orderBy(salted, "user_id")) - 1
    in_period = F.lit(period).cast(kinds["period"]).alias("period")
    users = fresh.select(
        "user_id", (F.lit(free) + place).cast(kinds["number"]).alias("number"), in_period
    )
    nobody = F.lit(None).cast(kinds["user_id"]).alias("user_id")
    next_free = (F.lit(free) + F.count(F.lit(1))).cast(kinds["number"]).alias("number")
    end = fresh.agg(next_free).select(nobody, "number", in_period)
    return users.unionByName(end)


def _first_free(known: "DataFrame") -> int:
    """Read the number that the last row of the last period has noted."""
    noted = known.where(F.col("user_id").isNull()).agg(F.max("number")).first()
    return int(noted[0] or 0) if noted else 0
