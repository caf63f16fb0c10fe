"""Schemas of the tables of a dataset and of its snapshots; who else writes a table defines it."""

from collections.abc import Collection, Mapping

import pyarrow as pa

from dp_udfs.errors import SettingsError
from jobs.lake import tables
from jobs.lake.settings import Column, DatasetSettings
from jobs.lake.tables import Snapshot

SNAPSHOTS = pa.schema(
    [
        pa.field("snapshot_id", pa.int64(), nullable=False),
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("as_of", pa.date32(), nullable=False),
        pa.field("published_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field(
            "tables",
            pa.list_(
                pa.struct(
                    [
                        pa.field("role", pa.string()),
                        pa.field("location", pa.string()),
                        pa.field("table_id", pa.string()),
                        pa.field("version", pa.int64()),
                        pa.field("digest", pa.string()),
                    ]
                )
            ),
            nullable=False,
        ),
    ]
)

QUARANTINE = {
    "batch_id": "string",
    "as_of": "date",
    "reason": "string",
    "row": "string",  # the row as it came, as JSON
}

NUMBERS = {  # and `user_id`; NULL in the row that says up to where numbers are given out
    "number": "bigint",
    "period": "bigint",
}

PURGED = {
    "user_hash": "string",  # see `jobs.lake.consent`
    "secret_id": "string",
}


_NARROWER = {"bigint": ("int", "short", "byte")}  # integers that mean the same as 64-bit ones


def engagements(dataset: DatasetSettings) -> dict[str, str]:
    """Columns of an engagement table with their Spark SQL types."""
    table = dataset.table
    return {table.event_date: "date", table.user_id: table.user_id_type} | {
        name: _type(column) for name, column in dataset.columns.items()
    }


def opt_outs(dataset: DatasetSettings) -> dict[str, str]:
    """Columns of the table of users who opted out."""
    return {"user_id": dataset.table.user_id_type}


def numbers(dataset: DatasetSettings) -> dict[str, str]:
    """Columns of the table of users in the order of joining."""
    return {"user_id": dataset.table.user_id_type, **NUMBERS}


def personal(dataset: DatasetSettings) -> dict[str, tuple[str, str]]:
    """List the tables with rows about people by role: location, and the column that names them."""
    table = dataset.table
    places = {
        "engagements": (table.engagements, table.user_id),
        "quarantine": (table.quarantine, "row"),
    }
    if table.opt_outs is not None:
        places["opt_outs"] = (table.opt_outs, "user_id")
    if dataset.users is not None:
        places["users"] = (table.numbers, "user_id")
    return places


def require(dataset: DatasetSettings, snapshot: Snapshot, used: Collection[str]) -> None:
    """Refuse a snapshot whose tables lack a column that a question uses, or hold another type.

    Raises
    ------
    SettingsError
        It names the column; nothing was read but the tables' logs.
    """
    table = dataset.table
    names = {table.event_date, table.user_id, *used}
    wanted = {name: kind for name, kind in engagements(dataset).items() if name in names}
    _require(dataset, snapshot, "engagements", wanted)
    if "opt_outs" in snapshot.tables:
        _require(dataset, snapshot, "opt_outs", opt_outs(dataset))


def _require(
    dataset: DatasetSettings, snapshot: Snapshot, role: str, wanted: Mapping[str, str]
) -> None:
    found = tables.columns(snapshot.tables[role])
    for name, kind in wanted.items():
        if found.get(name) not in (kind, *_NARROWER.get(kind, ())):
            raise SettingsError(
                f"dataset {dataset.name}: column {name!r} of table {role} is "
                f"{found.get(name, 'missing')} in snapshot {snapshot.snapshot_id}, not {kind}"
            )


def _type(column: Column) -> str:
    return f"array<{column.type}>" if column.many else column.type
