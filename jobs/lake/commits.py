"""Appends by delta-rs that either land on the very table that was read, or not at all."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from dp_udfs.errors import LedgerConflictError, SettingsError
from jobs.lake import torn
from jobs.lake.durability import make_durable

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
        table = DeltaTable(str(path))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise torn.unusable(path, error) from None
    if torn.is_emptied(path, table.version()):
        raise torn.unusable(path, OSError(f"version {table.version()} is empty"))
    return table


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
            raise torn.unusable(path, error) from None
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
        raise torn.unusable(table.table_uri, error) from None
    make_durable(table.table_uri, before + 1, table.version())
    return True


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
