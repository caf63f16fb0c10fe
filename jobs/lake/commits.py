"""Appends by delta-rs that either land on the very table that was read, or not at all."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from dp_udfs.errors import LedgerConflictError, SettingsError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_TRY = CommitProperties(max_commit_retries=0)


def open_if_exists(path: str | Path) -> DeltaTable | None:
    """Open a table at its newest version, or return None where there is none.

    Raises
    ------
    SettingsError
        If there is something that cannot be read.
    """
    try:
        return DeltaTable(str(path))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise unusable(path, error) from None


def open_or_create(path: str | Path, schema: pa.Schema) -> DeltaTable:
    """Open an append-only table, its layout brought up to date; make it when it is first needed.

    Raises
    ------
    SettingsError
        If it cannot be used, or is of a newer version of this program.
    LedgerConflictError
        If somebody has made it a table whose rows can be changed.
    """
    table = open_if_exists(path)
    if table is not None:
        if table.metadata().configuration.get("delta.appendOnly") != "true":
            raise LedgerConflictError(
                f"the table at {path} is no longer protected: delta.appendOnly is not 'true'; find "
                f"out who changed it, verify the rows, then set it back"
            )
        bring_up_to_date(table, schema)
        return table
    try:
        if "://" not in str(path):  # what analysts are told is not for everybody on the machine
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        return DeltaTable.create(
            str(path), Schema.from_arrow(schema), configuration={"delta.appendOnly": "true"}
        )
    except (DeltaError, OSError) as error:  # another process made it first; else the error stands
        table = open_if_exists(path)
        if table is None:
            raise unusable(path, error) from None
        return table


def bring_up_to_date(table: DeltaTable, schema: pa.Schema) -> bool:
    """Add the columns that came later, empty in every row that is there; tell whether any did.

    Raises
    ------
    SettingsError
        If the table has columns that a newer version of this program has added.
    DeltaError
        If it cannot be written.
    """
    lacking = lacking_columns(table, schema)
    if lacking:
        wanted = Schema.from_arrow(pa.schema([schema.field(name) for name in lacking]))
        try:
            table.alter.add_columns(wanted.fields)
        except DeltaError:  # another process did it first; else the error stands
            table.update_incremental()
            if lacking_columns(table, schema):
                raise
        make_durable(table.table_uri, table.version(), table.version())
    return bool(lacking)


def lacking_columns(table: DeltaTable, schema: pa.Schema) -> list[str]:
    """List the columns of a layout that a table of an older version does not have."""
    found = {field.name for field in table.schema().fields}
    newer = sorted(found - set(schema.names))
    if newer:
        raise SettingsError(
            f"the table at {table.table_uri} is of a newer version of this program (column "
            f"{', '.join(newer)}); update the program"
        )
    return [name for name in schema.names if name not in found]


def widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give rows of an older layout the columns that came later, empty, and the layout's types."""
    for field in schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(schema.names).cast(schema)


def try_append(table: DeltaTable, rows: pa.Table) -> bool:
    """Append if nobody else has since `table` was read; durable on a local disk when it returns.

    Raises
    ------
    SettingsError
        If the table cannot be written.
    """
    before = table.version()
    try:
        write_deltalake(table, rows, mode="append", commit_properties=_ONE_TRY)
    except CommitFailedError:
        return False
    except (DeltaError, OSError) as error:
        raise unusable(table.table_uri, error) from None
    make_durable(table.table_uri, before + 1, table.version())
    return True


def unusable(path: str | Path, error: Exception) -> SettingsError:
    """Say that a table cannot be read or written, and the first line of why."""
    return SettingsError(f"the table at {path} cannot be used: {str(error).partition(chr(10))[0]}")


def make_durable(location: str, first: int, last: int) -> None:
    """Make versions of a local table outlive a power cut: files, log and their directories.

    delta-rs leaves that to the system; object stores need no help.
    """
    root = Path(unquote(location.removeprefix("file://")))
    log = root / "_delta_log"
    if not log.is_dir():
        return
    files: set[Path] = set()
    for version in range(first, last + 1):
        entry = log / f"{version:020d}.json"
        added = {root / name for name in _added_files(entry)}
        files |= {entry, *added, *(file.parent for file in added)}
    fsync(log, root, *files)


def fsync(*paths: Path) -> None:
    """Wait until files and directories are on the disk; together, so that they share the wait."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(_fsync_one, paths))


def _added_files(entry: Path) -> list[str]:
    """Files that one version of the log adds; none if the version is long checkpointed and gone."""
    try:
        lines = entry.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    actions = [json.loads(line) for line in lines]
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def _fsync_one(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # put together with others since
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Read a table as Python values, its timestamps (microseconds, UTC) as datetimes.

    `Table.to_pylist` would load pandas for the sake of timestamps, which takes longer than most
    programs that only want to look something up.
    """
    moments = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    for name in moments:
        whole = table.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        table = table.set_column(table.schema.get_field_index(name), name, whole)
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name in moments:
            if row[name] is not None:
                row[name] = _EPOCH + timedelta(microseconds=row[name])
    return rows
