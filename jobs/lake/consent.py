"""People who opted out stay out after their rows are gone: they are known by a keyed hash.

A table of opt-outs holds an id until the next purge, which puts HMAC-SHA256 of it into the table
beside it. Without the secret a hash tells nothing about an id; with it, a batch that brings the id
again is recognised. So an opt-out is for good.
"""

import hmac
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from dp_udfs import rng
from dp_udfs.errors import SettingsError
from dp_udfs.pandas_udfs import Batches, spare_next_task
from jobs.lake import batches, checking, questions, tables
from jobs.lake.settings import DatasetSettings, LakeSettings
from jobs.lake.tables import TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def remember(
    spark: "SparkSession", lake: LakeSettings, dataset: DatasetSettings, leaving: TableState
) -> None:
    """Keep the hashes of the people in a state of the table of opt-outs; each once."""
    assert dataset.table.purged is not None
    batches.create_purged(spark, dataset)
    secret = lake.read_opt_out_secret()
    known = tables.read(spark, dataset.table.purged)
    _check_secret(known, secret)
    users = tables.read(spark, leaving).select("user_id").distinct()
    fresh = _hashed(spark, dataset, users, secret).join(known, on="user_hash", how="left_anti")
    secret_id = F.lit(questions.secret_id(secret)).alias("secret_id")
    batches.append(fresh.select("user_hash", secret_id), dataset.table.purged)


def leave_out(
    spark: "SparkSession", lake: LakeSettings, dataset: DatasetSettings, rows: "DataFrame"
) -> "DataFrame":
    """Leave out the rows of people whose data were purged, from a batch as it came.

    Raises
    ------
    SettingsError
        If their hashes were made with another secret, so that nobody could be recognised.
    """
    if dataset.table.purged is None or not _holds_rows(spark, dataset.table.purged):
        return rows
    known = tables.read(spark, dataset.table.purged)
    secret = lake.read_opt_out_secret()
    _check_secret(known, secret)
    user = checking.user_ids(rows, dataset)
    users = rows.select(user.alias("user_id")).where(F.col("user_id").isNotNull()).distinct()
    gone = (
        _hashed(spark, dataset, users, secret)
        .join(known, on="user_hash", how="left_semi")
        .select(F.col("user_id").alias("_gone"))
    )
    return rows.join(gone, on=user == F.col("_gone"), how="left_anti")


def _hashed(
    spark: "SparkSession", dataset: DatasetSettings, users: "DataFrame", secret: bytes
) -> "DataFrame":
    """Add `user_hash` to a DataFrame of `user_id`."""
    assert dataset.table.purged is not None
    place = tables.locate(dataset.table.purged, spark)
    key = questions.derive_key(secret, "opt-outs", tables.state(place).table_id)
    schema = f"user_id {dataset.table.user_id_type}, user_hash string"
    return users.mapInArrow(_hash_users(key), schema)


def _hash_users(key: bytes) -> Callable[[Batches], Batches]:
    """Return the function for `mapInArrow`: a key in a column's expression would be in the plan."""

    def hash_users(given: Batches) -> Iterator[pa.RecordBatch]:
        for batch in given:
            users = batch.column(0)
            hashes = [
                hmac.digest(key, rng.encode_label(user), "sha256").hex()
                for user in users.to_pylist()
            ]
            yield pa.RecordBatch.from_arrays(
                [users, pa.array(hashes, pa.string())], ["user_id", "user_hash"]
            )
        spare_next_task()

    return hash_users


def _holds_rows(spark: "SparkSession", location: str) -> bool:
    """Whether there is such a table with a file in it."""
    try:
        return tables.holds_files(tables.state(tables.locate(location, spark)))
    except SettingsError:
        return False


def _check_secret(known: "DataFrame", secret: bytes) -> None:
    found = {row["secret_id"] for row in known.select("secret_id").distinct().collect()}
    if not found <= {questions.secret_id(secret)}:
        raise SettingsError(
            "opt_out_secret: people who opted out are known under another secret; name that one "
            "under [opt_out_secret] of the lake file, else their rows would come in again"
        )
