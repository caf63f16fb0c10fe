"""Delta tables: where they are, exactly what they hold, and how to read that very state again.

A state is taken by delta-rs from the table's log alone: no Spark, no row is read. A version number
does not name the data (a table that was dropped and made again counts from 0 once more), so a
state also carries the table's id and a digest of its files.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.exceptions import TableNotFoundError as NoSuchTable
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import ArrayType, DataType, PrimitiveType
from pyarrow.fs import FileSelector, PyFileSystem

from dp_udfs.errors import ClaimError, SettingsError
from jobs.lake.settings import is_table_name

if TYPE_CHECKING:  # a quote or a balance is asked for without Spark, and without waiting for it
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TableState:
    """One version of one Delta table.

    Attributes
    ----------
    location : str
        Path or URI of the table; never a catalog name.
    table_id : str
        The id in the table's metadata: new whenever a table is created.
    version : int
        Delta version.
    digest : str
        SHA-256 over the table's id and the path, size and deletion vector of every active file.
    """

    location: str
    table_id: str
    version: int
    digest: str


@dataclass(frozen=True)
class Snapshot:
    """A published state of all tables that a question may read.

    Attributes
    ----------
    snapshot_id : int
        Public; 1, 2, 3, ... within one dataset.
    as_of : date
        The date it stands for, from the schedule and never from the data.
    published_at : datetime
        When it was published, with time zone.
    tables : mapping of str to TableState
        By role: "engagements" and, where the dataset has them, "opt_outs".
    """

    snapshot_id: int
    as_of: date
    published_at: datetime
    tables: Mapping[str, TableState]


def locate(location: str, spark: "SparkSession | None" = None) -> str:
    """Return the path or URI of a table; only a catalog name needs Spark.

    Raises
    ------
    SettingsError
        If it is a name and there is no session to ask, or the catalog does not know it.
    """
    if not is_table_name(location):
        return location
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise SettingsError(f"table {location}: only Spark can find a name; give its path here")
    try:
        detail = session.sql(f"DESCRIBE DETAIL {quote(location)}").select("location").head()
    except AnalysisException:
        detail = None
    if detail is None:
        raise _no_table(location)
    return str(detail[0]).removeprefix("file:")


def quote(location: str) -> str:
    """Write a table's name or path as a Spark SQL identifier."""
    if is_table_name(location):
        return ".".join(f"`{part}`" for part in location.split("."))
    escaped = _absolute(location).replace("`", "``")
    return f"delta.`{escaped}`"


def state(location: str, version: int | None = None) -> TableState:
    """Take the state of a table at a version, the newest by default.

    Raises
    ------
    SettingsError
        If there is no such table or version.
    """
    table = _open(location, version)
    table_id = str(table.metadata().id)
    content = [table_id, sorted(_active_files(table))]
    return TableState(
        location=location,
        table_id=table_id,
        version=table.version(),
        digest=hashlib.sha256(json.dumps(content).encode()).hexdigest(),
    )


def holds_files(source: TableState) -> bool:
    """Whether a state has any file: one without has no row."""
    return bool(_active_files(_open(source.location, source.version)))


def columns(source: TableState) -> dict[str, str]:
    """List the columns of a state with their types as Spark SQL names them: from the log alone."""
    fields = _open(source.location, source.version).schema().fields
    return {field.name: _sql_type(field.type) for field in fields}


def read(spark: "SparkSession", source: TableState | str) -> "DataFrame":
    """Read a table: exactly the given state, or the newest one of a path or name."""
    if isinstance(source, str):
        if is_table_name(source):
            return spark.read.table(source)
        return spark.read.format("delta").load(_absolute(source))
    reader = spark.read.format("delta").option("versionAsOf", source.version)
    return reader.load(_absolute(source.location))


def verify(snapshot: Snapshot) -> None:
    """Make sure that every table of a snapshot can still be read exactly as it was published.

    Raises
    ------
    ClaimError
        If a table was made again or replaced, or its version or one of its files is gone.
    """
    for role, published in snapshot.tables.items():
        problem = _difference(published)
        if problem is not None:
            raise ClaimError(
                f"snapshot {snapshot.snapshot_id}: {role} at {published.location}: {problem}; "
                f"ask about the newest snapshot, or publish one with "
                f"jobs/ingest_engagements.py --publish"
            )


def _open(location: str, version: int | None = None) -> DeltaTable:
    try:
        return DeltaTable(location, version=version, skip_stats=True)
    except NoSuchTable:
        raise _no_table(location) from None
    except DeltaError:
        raise SettingsError(f"table {location}: version {version} cannot be read") from None


def _sql_type(kind: DataType) -> str:
    """Name a type of delta-rs as Spark SQL does."""
    if isinstance(kind, ArrayType):
        return f"array<{_sql_type(kind.element_type)}>"
    if isinstance(kind, PrimitiveType):
        return {"long": "bigint", "integer": "int"}.get(kind.type, kind.type)
    return kind.type


def _no_table(location: str) -> SettingsError:
    return SettingsError(
        f"table {location}: there is none; make it with jobs/ingest_engagements.py"
    )


def _absolute(location: str) -> str:
    """Spark resolves relative paths where its JVM was started, so it gets absolute ones."""
    return location if ":" in location else str(Path(location).absolute())


def _active_files(table: DeltaTable) -> list[tuple[str, int, str]]:
    """List path inside the table, size in bytes and deletion vector of each file of a version."""
    files = pa.table(table.get_add_actions())
    deleted = _deletion_vectors(table)
    return [
        (path, size, deleted.get(path, ""))
        for path, size in zip(
            files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True
        )
    ]


def _deletion_vectors(table: DeltaTable) -> dict[str, str]:
    """Digest of the rows that are marked as deleted, per file; such marks do not change a file."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    whole = DeltaTable(table.table_uri, version=table.version())  # these need the statistics
    marks = pa.table(whole.deletion_vectors())
    return {
        uri.removeprefix(table.table_uri): hashlib.sha256(bytes(kept)).hexdigest()
        for uri, kept in zip(
            marks["filepath"].to_pylist(), marks["selection_vector"].to_pylist(), strict=True
        )
    }


def _difference(published: TableState) -> str | None:
    """Say what keeps a published state from being read, or None."""
    try:
        current = state(published.location, published.version)
    except SettingsError:
        return f"version {published.version} is gone"
    if current.table_id != published.table_id:
        return "another table is there now"
    if current.digest != published.digest:
        return f"version {published.version} holds other files than were published"
    table = _open(published.location, published.version)
    stored = PyFileSystem(DeltaStorageHandler(table.table_uri))
    found = stored.get_file_info(FileSelector("", recursive=True))
    present = {(info.path, info.size) for info in found}
    wanted = {(unquote(path), size) for path, size, _ in _active_files(table)}
    return None if wanted <= present else "files of it were removed (purged, or VACUUM)"
