"""Schemas of the tables that are not defined by the module that writes them alone."""

import pyarrow as pa

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
