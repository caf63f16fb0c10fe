"""Schemas of the tables of a dataset and of its snapshots; who else writes a table defines it."""

import pyarrow as pa

from jobs.lake.settings import Column, DatasetSettings

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


def engagements(dataset: DatasetSettings) -> dict[str, str]:
    """Columns of an engagement table with their Spark SQL types."""
    table = dataset.table
    return {table.event_date: "date", table.user_id: table.user_id_type} | {
        name: _type(column) for name, column in dataset.columns.items()
    }


def opt_outs(dataset: DatasetSettings) -> dict[str, str]:
    """Columns of the table of users who opted out."""
    return {"user_id": dataset.table.user_id_type}


def _type(column: Column) -> str:
    return f"array<{column.type}>" if column.many else column.type
