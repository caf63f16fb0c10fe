"""Published snapshots: an append-only table of which state stands for which date.

Questions read snapshots and nothing newer, so that late rows and deletions become visible on the
schedule and not at a moment that tells something. Written by delta-rs with compare-and-append: an
id is given out once.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from dp_udfs.errors import LedgerConflictError, SettingsError
from jobs.lake import commits, schemas, tables
from jobs.lake.settings import DatasetSettings, LakeSettings
from jobs.lake.tables import Snapshot, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

ATTEMPTS = 100  # each lost attempt means that somebody else's snapshot was published


def publish(
    lake: LakeSettings,
    dataset: DatasetSettings,
    as_of: date,
    published_at: datetime,
    spark: "SparkSession | None" = None,
) -> Snapshot:
    """Publish the present state of a dataset's tables for a date.

    Publishing a date again returns its snapshot, as long as the tables are as they were.

    Parameters
    ----------
    as_of : date
        From the schedule, never from the data; not before the newest published one.
    published_at : datetime
        Now, with time zone.
    spark : SparkSession, optional
        Needed only where the dataset file gives catalog names instead of paths.

    Raises
    ------
    SettingsError
        If a table is missing, `as_of` goes back in time, or it is published already and the tables
        have changed since.
    """
    states = {
        role: tables.state(tables.locate(location, spark))
        for role, location in _roles(dataset).items()
    }
    for _ in range(ATTEMPTS):
        log = commits.open_or_create(lake.tables.snapshots, schemas.SNAPSHOTS)
        published = _published(log, lake, dataset.name)
        earlier = next((s for s in published if s.as_of == as_of), None)
        if earlier is not None and earlier.tables == states:
            return earlier
        _check_date(dataset.name, as_of, published)
        fresh = Snapshot(len(published) + 1, as_of, published_at.astimezone(UTC), states)
        row = pa.Table.from_pylist([_row(lake, dataset.name, fresh)], schema=schemas.SNAPSHOTS)
        if commits.try_append(log, row):
            logger.info(
                "published snapshot %d of %s as of %s", fresh.snapshot_id, dataset.name, as_of
            )
            return fresh
    raise LedgerConflictError(f"snapshots at {lake.tables.snapshots}: kept changing; try again")


def latest(lake: LakeSettings, dataset: DatasetSettings) -> Snapshot:
    """Return the newest snapshot of a dataset.

    Raises
    ------
    SettingsError
        If none is published; the message has the command that publishes one.
    """
    return _all(lake, dataset)[-1]


def get(lake: LakeSettings, dataset: DatasetSettings, snapshot_id: int) -> Snapshot:
    """Return one published snapshot.

    Raises
    ------
    SettingsError
        If there is no such snapshot.
    """
    published = _all(lake, dataset)
    if not 1 <= snapshot_id <= len(published):
        raise SettingsError(
            f"snapshot {snapshot_id} of {dataset.name}: not published; "
            f"the newest is {len(published)}"
        )
    return published[snapshot_id - 1]


def by_dataset(lake: LakeSettings) -> dict[str, list[Snapshot]]:
    """List all published snapshots of every dataset, in the order of their ids."""
    log = commits.open_if_exists(lake.tables.snapshots)
    published: dict[str, list[Snapshot]] = {}
    for row in _rows(log) if log is not None else []:
        published.setdefault(row["dataset"], []).append(_snapshot(lake, row))
    return published


def find(lake: LakeSettings, dataset: DatasetSettings, as_of: date) -> Snapshot | None:
    """Return the snapshot that stands for a date, or None."""
    log = commits.open_if_exists(lake.tables.snapshots)
    published = _published(log, lake, dataset.name) if log is not None else []
    return next((snapshot for snapshot in published if snapshot.as_of == as_of), None)


def check_open(lake: LakeSettings, dataset: DatasetSettings, as_of: date) -> None:
    """Refuse to change tables for a date that is published, or before one that is.

    Raises
    ------
    SettingsError
        Before anything is written.
    """
    log = commits.open_if_exists(lake.tables.snapshots)
    if log is not None:
        _check_date(dataset.name, as_of, _published(log, lake, dataset.name))


def _roles(dataset: DatasetSettings) -> dict[str, str]:
    """Where each table that a question may read lies."""
    roles = {"engagements": dataset.table.engagements}
    if dataset.table.opt_outs is not None:
        roles["opt_outs"] = dataset.table.opt_outs
    return roles


def _check_date(dataset: str, as_of: date, published: list[Snapshot]) -> None:
    if not published or as_of > published[-1].as_of:
        return
    newest = published[-1]
    raise SettingsError(
        f"--as-of {as_of}: snapshot {newest.snapshot_id} of {dataset} already stands for "
        f"{newest.as_of}; late rows wait for a later date"
    )


def _all(lake: LakeSettings, dataset: DatasetSettings) -> list[Snapshot]:
    """All snapshots of a dataset in order; at least one."""
    log = commits.open_if_exists(lake.tables.snapshots)
    published = _published(log, lake, dataset.name) if log is not None else []
    if not published:
        raise SettingsError(
            f"dataset {dataset.name}: no snapshot is published; run "
            f"jobs/ingest_engagements.py --dataset {dataset.name} --as-of DATE --publish"
        )
    return published


def _published(log: DeltaTable, lake: LakeSettings, dataset: str) -> list[Snapshot]:
    """Read the snapshots of a dataset, in the order of their ids."""
    return [_snapshot(lake, row) for row in _rows(log) if row["dataset"] == dataset]


def _rows(log: DeltaTable) -> list[dict[str, Any]]:
    """Read the whole table, in the order of the ids."""
    query = QueryBuilder().register("snapshots", log)
    found = query.execute("SELECT * FROM snapshots ORDER BY snapshot_id")
    return commits.to_rows(pa.RecordBatchReader.from_stream(found).read_all())


def _snapshot(lake: LakeSettings, row: Mapping[str, Any]) -> Snapshot:
    states = {
        entry["role"]: TableState(
            lake.locate(entry["location"]), entry["table_id"], entry["version"], entry["digest"]
        )
        for entry in row["tables"]
    }
    return Snapshot(row["snapshot_id"], row["as_of"], row["published_at"].astimezone(UTC), states)


def _row(lake: LakeSettings, dataset: str, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.snapshot_id,
        "dataset": dataset,
        "as_of": snapshot.as_of,
        "published_at": snapshot.published_at,
        "tables": [
            {"role": role} | asdict(state) | {"location": _within(lake, state.location)}
            for role, state in snapshot.tables.items()
        ],
    }


def _within(lake: LakeSettings, location: str) -> str:
    """Store a path inside the lake from its root: a lake that is moved or copied stays whole."""
    path = Path(location)
    return f"./{path.relative_to(lake.root)}" if path.is_relative_to(lake.root) else location
