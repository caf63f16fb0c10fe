"""Backups of the ledger, the released answers and the snapshots: verified copies in one folder.

A backup is three Parquet files and `backup.json`, written last: their digests, the head of every
region and when it was taken. Answers are read after the ledger, so that each publication in a
backup has its answer; those of claims that the copied ledger does not know are left to the next.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import QueryBuilder

from dp_udfs.errors import LedgerConflictError, SettingsError
from jobs.lake import commits, evidence, releases, schemas
from jobs.lake.durability import fsync
from jobs.lake.entries import COLUMNS, SCHEMA_VERSION, Entry, from_table
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Ledger
from jobs.lake.settings import LakeSettings

MANIFEST = "backup.json"
_LAYOUTS = {"ledger": COLUMNS, "releases": releases.SCHEMA, "snapshots": schemas.SNAPSHOTS}


@dataclass(frozen=True)
class Backup:
    """A whole backup: the rows of each table, and what its manifest says."""

    tables: dict[str, pa.Table]
    region: str
    heads: dict[str, str]
    taken_at: str

    @property
    def entries(self) -> list[Entry]:
        """The ledger's entries, in their order."""
        return from_table(self.tables["ledger"])

    def facts(self) -> dict[str, Any]:
        """Say what it holds."""
        return {
            "taken_at": self.taken_at,
            **{name: table.num_rows for name, table in self.tables.items()},
            "heads": self.heads,
        }


def take(lake: LakeSettings, folder: Path, now: datetime) -> Backup:
    """Copy the lake's tables into a new folder, and read the copy back.

    Raises
    ------
    SettingsError
        If there is no ledger, or the folder holds anything.
    LedgerConflictError
        If the ledger does not hold: a backup of it would replace better ones.
    """
    log = EntryLog(lake.tables.ledger)
    audited = evidence.audit(log)
    ledger = commits.widened(log.query("SELECT * FROM ledger ORDER BY position"), COLUMNS)
    answers = _rows(lake, "releases")
    known = pa.array(evidence.claimed_labels(audited.entries), pa.string())
    answers = answers.filter(pa.compute.is_in(answers["label"], known))
    if audited.findings:
        raise LedgerConflictError(
            f"the ledger at {lake.tables.ledger} does not hold, so it was not backed up: "
            f"{audited.findings[0].finding}; jobs.verify_ledger tells all"
        )
    tables = {"ledger": ledger, "releases": answers, "snapshots": _rows(lake, "snapshots")}
    said = {"schema_version": SCHEMA_VERSION, "region": lake.region, "heads": audited.heads()}
    _write(folder, tables, said | {"taken_at": now.isoformat()})
    return read(folder)


def read(folder: Path) -> Backup:
    """Read a backup, and check that it is whole and as it was written.

    Raises
    ------
    SettingsError
        If it is not finished, was changed, or is of a newer version of this program.
    """
    try:
        said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise SettingsError(f"{folder} holds no finished backup: {MANIFEST} is missing") from None
    if said["schema_version"] > SCHEMA_VERSION:
        raise SettingsError(f"{folder} was written by a newer version of this program; update it")
    for name, digest in said["digests"].items():
        if _digest(folder / name) != digest:
            raise SettingsError(f"{folder}: {name} is missing or was changed since")
    tables = {
        name: commits.widened(pq.read_table(folder / f"{name}.parquet"), layout)
        for name, layout in _LAYOUTS.items()
    }
    backup = Backup(tables, said["region"], said["heads"], said["taken_at"])
    heads = {entry.region: entry.hash for entry in sorted(backup.entries, key=_number)}
    if heads != backup.heads:
        raise SettingsError(f"{folder}: the entries do not end at the heads that it names")
    return backup


def restore(lake: LakeSettings, ledger: Ledger, entries: Iterable[list[Entry]]) -> int:
    """Make the ledger anew of entries from one or more places; it grants nothing yet.

    It can be stopped and run again.

    Returns
    -------
    int
        How many entries are new.

    Raises
    ------
    SettingsError
        If there is a ledger that was not restored.
    """
    if ledger.exists() and not ledger.is_restored():
        raise SettingsError(
            f"there is a ledger at {lake.tables.ledger}: move it away first, and name it with "
            f"--from too if it can be read; it may hold what a backup lacks"
        )
    return sum(ledger.restore(each) for each in entries)


def restore_others(lake: LakeSettings, backup: Backup) -> dict[str, int]:
    """Put back what is gone of the answers, and the snapshots where they are gone altogether."""
    kept = _rows(lake, "releases")["label"].unique()
    lost = backup.tables["releases"]
    lost = lost.filter(pa.compute.invert(pa.compute.is_in(lost["label"], kept.cast(pa.string()))))
    snapshots = backup.tables["snapshots"]
    if commits.open_if_exists(lake.tables.snapshots):
        snapshots = snapshots.slice(0, 0)
    added = {"releases": lost, "snapshots": snapshots}
    for name, rows in added.items():
        table = commits.open_or_create(getattr(lake.tables, name), _LAYOUTS[name])
        if rows.num_rows and not commits.try_append(table, rows):
            raise LedgerConflictError(f"the table of {name} is in use; stop what writes it")
    return {name: rows.num_rows for name, rows in added.items()}


def _rows(lake: LakeSettings, name: str) -> pa.Table:
    """Read all rows of a table, in the order in which they were written; none where none is."""
    table = commits.open_if_exists(getattr(lake.tables, name))
    if table is None:
        return _LAYOUTS[name].empty_table()
    query = QueryBuilder().register(name, table)
    rows = query.execute(f"SELECT * FROM {name}")  # noqa: S608 (one of three names)
    return commits.widened(pa.RecordBatchReader.from_stream(rows).read_all(), _LAYOUTS[name])


def _write(folder: Path, tables: dict[str, pa.Table], said: dict[str, Any]) -> None:
    """Write the files, and the manifest when they are on the disk; only their owner reads them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SettingsError(f"{folder} is not empty; name a new folder for each backup")
    digests = {}
    for name, rows in tables.items():
        path = folder / f"{name}.parquet"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            pq.write_table(rows, file)
        digests[path.name] = _digest(path)
    fsync(*folder.iterdir(), folder)
    part = folder / f"{MANIFEST}.part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as manifest:
        json.dump(said | {"digests": digests}, manifest, indent=1)
    fsync(part)
    part.rename(folder / MANIFEST)
    fsync(folder)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _number(entry: Entry) -> int:
    return entry.entry_no
