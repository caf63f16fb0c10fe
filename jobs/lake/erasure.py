"""What a table must be so that its rows can be deleted for good, and the removal of its files.

delta-rs alone: no row is read. A log keeps what was once written into it for a month or, in its
checkpoints, for as long as a file lives, so nothing about a person may ever get there.
"""

import shutil
import time
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileInfo, FileSelector, PyFileSystem

from dp_udfs.errors import SettingsError

# No marks instead of deletions, no copies of values in the log, no feed of old rows.
PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingNumIndexedCols": "0",
    "delta.enableChangeDataFeed": "false",
    "delta.autoOptimize.optimizeWrite": "true",  # one file per date and batch where they are small
}
ORPHAN_HOURS = 24  # files of no commit: younger ones may belong to one that is about to be made


def require(path: str, person: str) -> None:
    """Refuse a table that would keep something of a row after it is deleted.

    Parameters
    ----------
    path : str
        Path or URI of the table.
    person : str
        The column that tells who a row is about.

    Raises
    ------
    SettingsError
        It names what is wrong with the table, and how to make a new one of its rows.
    """
    problem = _problem(DeltaTable(path, skip_stats=True), person)
    if problem is not None:
        raise _refusal(path, problem)


def require_silent_log(path: str, person: str) -> None:
    """Refuse a table whose log has statistics of persons, from before its properties were set.

    Raises
    ------
    SettingsError
        As `require`.
    """
    store = PyFileSystem(DeltaStorageHandler(DeltaTable(path, skip_stats=True).table_uri))
    mentioned = f'"{person}":'  # as in {"minValues":{"user_id":"u1"}}
    for file in store.get_file_info(FileSelector("_delta_log", recursive=True)):
        if file.is_file and pc.any(pc.match_substring(_texts(store, file), mentioned)).as_py():
            raise _refusal(path, f"its log holds statistics of {person!r}")


def remove_files(path: str, keep: Collection[int]) -> bool:
    """Remove the files that neither the newest version nor one of `keep` reads.

    It can be stopped at any time and run again.

    Parameters
    ----------
    path : str
        Path or URI of the table.
    keep : collection of int
        Older versions that must stay readable.

    Returns
    -------
    bool
        Whether files stay that only the versions to keep read.
    """
    versions = sorted(keep) or None
    table = DeltaTable(path)  # with statistics: without, delta-rs 1.6 cannot keep versions
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, keep_versions=versions)
    table.vacuum(
        ORPHAN_HOURS,
        dry_run=False,
        enforce_retention_duration=False,
        full=True,
        keep_versions=versions,
    )
    stored = PyFileSystem(DeltaStorageHandler(table.table_uri))
    found = {file.path for file in stored.get_file_info(FileSelector("", recursive=True))}
    left = found - _files(table)
    return any(left & _files(DeltaTable(path, version=each)) for each in keep)


def remove_scratch(folder: Path, age: timedelta) -> None:
    """Remove the rows that Sparks which were killed have left on this machine's disk.

    Parameters
    ----------
    folder : Path
        Where Spark keeps its shuffle files.
    age : timedelta
        For how long nothing was written to what is removed: a Spark that is alive writes.
    """
    last = time.time() - age.total_seconds()
    for left in [*folder.glob("blockmgr-*"), *folder.glob("spark-*")]:
        if any(_changed(path) >= last for path in (left, *left.rglob("*"))):
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)  # what Java wrote about a crash


def _changed(path: Path) -> float:
    """When a file or folder was changed; long ago if it is gone by now."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _refusal(path: str, problem: str) -> SettingsError:
    return SettingsError(
        f"table {path}: {problem}, so a person could not be deleted from it for good; move it "
        f"aside and let jobs/ingest_engagements.py make a new one of its rows"
    )


def _texts(store: PyFileSystem, file: FileInfo) -> pa.ChunkedArray:
    """Texts of a file of a log in which statistics would stand, with plain quotes."""
    if not file.path.endswith(".parquet"):
        text = store.open_input_stream(file.path).readall().decode("latin-1")
        return pa.chunked_array([[text.replace("\\", "")]])
    try:
        checkpoint = pq.ParquetFile(store.open_input_file(file.path))
    except pa.ArrowInvalid:  # never finished, so nobody reads it
        return pa.chunked_array([], pa.string())
    columns = checkpoint.read(columns=["add.stats", "remove.stats"]).flatten().columns
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())


def _files(table: DeltaTable) -> set[str]:
    """Paths of the files of a version, inside the table."""
    return {unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()}


def _problem(table: DeltaTable, person: str) -> str | None:
    """Say what a table would keep of a deleted row, or None."""
    metadata = table.metadata()
    properties = metadata.configuration
    features = table.protocol().reader_features or ()
    marks = properties.get("delta.enableDeletionVectors") == "true"
    if marks or "deletionVectors" in features:
        return "delta.enableDeletionVectors is or was on"
    if properties.get("delta.enableChangeDataFeed") == "true":
        return "delta.enableChangeDataFeed is on"
    if properties.get("delta.appendOnly") == "true":
        return "delta.appendOnly is on"
    if person in metadata.partition_columns:
        return f"it is partitioned by {person!r}"
    if _indexes(properties, person):
        return f"delta.dataSkippingNumIndexedCols keeps statistics of {person!r}"
    return None


def _indexes(properties: dict[str, str], person: str) -> bool:
    """Whether new files get statistics of a column."""
    named = properties.get("delta.dataSkippingStatsColumns")
    if named is not None:
        return person in [name.strip(" `") for name in named.split(",")]
    return properties.get("delta.dataSkippingNumIndexedCols") != "0"
