"""Append a batch of rows to Delta tables once, however often the same command runs.

Each append carries the batch's name as a Delta transaction of its own, so a table knows which
batches it holds. Whatever a crash left out is appended by the next run, and nothing twice.
"""

import fcntl
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dp_udfs.errors import LedgerConflictError, SettingsError
from jobs.lake import checking, erasure, schemas, tables
from jobs.lake.session import temporary_settings
from jobs.lake.settings import DatasetSettings, is_table_name

logger = logging.getLogger(__name__)

_ELSEWHERE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+:", re.ASCII | re.IGNORECASE)

_ARROW = {
    "date": pa.date32(),
    "string": pa.string(),
    "bigint": pa.int64(),
    "array<string>": pa.list_(pa.string()),
    "array<bigint>": pa.list_(pa.int64()),
}


def create_tables(spark: SparkSession, dataset: DatasetSettings) -> None:
    """Make the tables of a dataset that are not there yet.

    Raises
    ------
    SettingsError
        If a table is there with other columns than the dataset file declares, or one from which
        a person could not be deleted for good.
    """
    table = dataset.table
    required = (table.event_date, table.user_id)
    _create(spark, table.engagements, schemas.engagements(dataset), required, table.event_date)
    _create(spark, table.quarantine, schemas.QUARANTINE, tuple(schemas.QUARANTINE))
    if table.opt_outs is not None:
        _create(spark, table.opt_outs, schemas.opt_outs(dataset), ("user_id",))
    if dataset.users is not None:
        create_numbers(spark, dataset)
    for location, person in schemas.personal(dataset).values():
        erasure.require(tables.locate(location, spark), person)


def create_numbers(spark: SparkSession, dataset: DatasetSettings) -> None:
    """Make the table of users in the order of joining: see `jobs.lake.joining`."""
    _create(spark, dataset.table.numbers, schemas.numbers(dataset), tuple(schemas.NUMBERS))


def create_purged(spark: SparkSession, dataset: DatasetSettings) -> None:
    """Make the table of hashes of people who were purged: see `jobs.lake.consent`."""
    assert dataset.table.purged is not None
    _create(spark, dataset.table.purged, schemas.PURGED, tuple(schemas.PURGED))


def add_engagements(
    spark: SparkSession, dataset: DatasetSettings, rows: DataFrame, *, batch_id: str, as_of: date
) -> bool:
    """Check a batch and append it: odd rows to the quarantine, all others to the engagements.

    Parameters
    ----------
    rows : DataFrame
        Columns as `checking.check_columns` wants them. Whole duplicates are events of their own.
    batch_id : str
        Names the content: the same name again appends nothing.
    as_of : date
        No row may be younger, nor older than the retention before it.

    Returns
    -------
    bool
        Whether rows were appended, rather than found there from an earlier run.
    """
    table = dataset.table
    zone = {"spark.sql.session.timeZone": table.time_zone}
    with temporary_settings(spark, zone):
        odd = checking.rejected(rows, dataset, as_of, batch_id)
        good = checking.accepted(rows, dataset, as_of)
        append_once(spark, odd, table.quarantine, batch_id)
        return append_once(spark, good, table.engagements, batch_id)


def add_opt_outs(
    spark: SparkSession, dataset: DatasetSettings, users: DataFrame, *, batch_id: str
) -> bool:
    """Append users who opted out: a DataFrame with the column `user_id`."""
    assert dataset.table.opt_outs is not None
    known = tables.read(spark, dataset.table.opt_outs)
    fresh = users.select("user_id").distinct().join(known, on="user_id", how="left_anti")
    return append_once(spark, fresh, dataset.table.opt_outs, batch_id)


def holds(spark: SparkSession, location: str, batch_id: str) -> bool:
    """Whether a batch is in a table: asked of its log, where no cache can be in between."""
    table = DeltaTable(tables.locate(location, spark), skip_stats=True)
    return table.transaction_version(_transaction(batch_id)) is not None


def quarantined(spark: SparkSession, dataset: DatasetSettings, batch_id: str) -> dict[str, int]:
    """Rows of a batch in quarantine by reason: for the operator, never for analysts."""
    rows = tables.read(spark, dataset.table.quarantine).where(F.col("batch_id") == batch_id)
    counts = rows.groupBy("reason").count().orderBy("reason").collect()
    return {row["reason"]: row["count"] for row in counts}


def append(rows: DataFrame, location: str, **options: str | int) -> None:
    """Append rows to a table."""
    writer = rows.write.format("delta").mode("append").options(**options)
    if is_table_name(location):
        writer.saveAsTable(location)
    else:
        writer.save(location)


@contextmanager
def writer_lock(location: str) -> Iterator[None]:
    """Be the only writer of a local table, waiting for another one to finish.

    Spark's commits to a local disk check first and rename after, so two processes can lose one.
    Object stores commit atomically by themselves and need no lock. The lock ends with the process.
    """
    if is_table_name(location) or _ELSEWHERE.match(location):
        yield
        return
    path = Path(location.removeprefix("file:").rstrip("/") + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another writer of %s", location)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _create(
    spark: SparkSession,
    location: str,
    columns: Mapping[str, str],
    required: tuple[str, ...],
    partition: str | None = None,
) -> None:
    if is_table_name(location):
        _create_in_catalog(spark, location, columns, required, partition)
    else:
        # Not by Spark: killed in the middle, it leaves a folder that it takes for a table
        DeltaTable.create(
            location,
            pa.schema(
                pa.field(column, _ARROW[kind], nullable=column not in required)
                for column, kind in columns.items()
            ),
            mode="ignore",
            partition_by=partition,
            configuration=erasure.PROPERTIES,
        )
    found = {f.name: f.dataType.simpleString() for f in tables.read(spark, location).schema}
    if found != dict(columns):
        name = next(n for n in [*columns, *found] if found.get(n) != columns.get(n))
        raise SettingsError(
            f"table {location}: column {name!r} is {found.get(name, 'missing')} there and "
            f"{columns.get(name, 'missing')} in the dataset file; alter the one or the other"
        )


def _create_in_catalog(
    spark: SparkSession,
    name: str,
    columns: Mapping[str, str],
    required: tuple[str, ...],
    partition: str | None,
) -> None:
    parts = [
        f"`{column}` {kind}{' NOT NULL' if column in required else ''}"
        for column, kind in columns.items()
    ]
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in erasure.PROPERTIES.items())
    partitioned = f"PARTITIONED BY (`{partition}`)" if partition else ""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {tables.quote(name)} ({', '.join(parts)}) USING delta "
        f"{partitioned} TBLPROPERTIES ({properties})"
    )


def append_once(spark: SparkSession, rows: DataFrame, location: str, batch_id: str) -> bool:
    """Append rows under the batch's name, unless the table has it already."""
    if holds(spark, location, batch_id):
        return False
    append(rows, location, txnAppId=_transaction(batch_id), txnVersion=1)
    if not holds(spark, location, batch_id):
        raise LedgerConflictError(
            f"table {location}: its commit of batch {batch_id} was lost, because another program "
            f"writes to it; stop that and run this again"
        )
    return True


def _transaction(batch_id: str) -> str:
    return f"discreet:{batch_id}"
