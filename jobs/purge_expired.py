"""Delete rows past their retention and everything of people who opted out; run it every day.

    python -m jobs.purge_expired --dataset movielens

Rows leave the tables at once, and their files leave the disk when no snapshot that people may be
reading needs them: so what one night's run deletes is gone after the next published snapshot and
the next run. A snapshot keeps files for two weeks at most, and for less than purge_lag_days. With
--at-once nothing is kept: questions then wait for a new snapshot. Run it while nothing else writes
the dataset's tables (on a local disk it waits for the ingest); killed, it is run again.
"""

import argparse
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

from jobs.lake import batches, erasure, program, purging, reports, retention, runtime, snapshots
from jobs.lake.ledger import utc_now
from jobs.lake.periods import day_in
from jobs.lake.session import get_session
from jobs.lake.settings import DatasetSettings, LakeSettings, load_dataset, load_lake
from jobs.lake.tables import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Purge:
    """What has to go at a moment, in public terms.

    Attributes
    ----------
    first_date, first_quarantined : date
        Rows of earlier dates go: engagements by their date, the quarantine by its as-of date.
    kept : list of Snapshot
        Whose files stay for now.
    """

    first_date: date
    first_quarantined: date
    kept: list[Snapshot]


def main(options: argparse.Namespace) -> None:
    """Purge the dataset of the command line."""
    lake = load_lake(options.conf)
    dataset = load_dataset(options.dataset, lake)
    if options.dry_run:
        purge = plan(lake, dataset, utc_now(), at_once=options.at_once)
        waiting = bool(purge.kept)
    else:
        purge, waiting = purge_expired(lake, dataset, at_once=options.at_once)
    facts = {
        "dataset": dataset.name,
        "dry_run": options.dry_run,
        "files": _files(dataset, purge) if waiting else "removed",
    }
    reports.show(options, shown(dataset, purge), facts)


def purge_expired(
    lake: LakeSettings,
    dataset: DatasetSettings,
    *,
    at_once: bool = False,
    spark: "SparkSession | None" = None,
    clock: Callable[[], datetime] = utc_now,
) -> tuple[Purge, bool]:
    """Delete what has to go from a dataset's tables, and from the disk.

    Parameters
    ----------
    at_once : bool
        Keep no snapshot readable.
    spark : SparkSession, optional
        The caller's session; else the active one, else a local one.
    clock : callable, optional
        Tells the time.

    Returns
    -------
    Purge, bool
        What had to go, and whether files of it wait until a kept snapshot is replaced.

    Raises
    ------
    SettingsError
        If a person could not be deleted for good from one of the tables.
    """
    with program.progress("start Spark"):
        spark = spark or get_session("discreet purge")
    with batches.writer_lock(dataset.table.engagements):
        batches.create_tables(spark, dataset)
        purging.require_silent_logs(spark, dataset)
        purge = plan(lake, dataset, clock(), at_once=at_once)
        with program.progress("delete rows"):
            purging.delete_rows(
                spark,
                lake,
                dataset,
                first_date=purge.first_date,
                first_quarantined=purge.first_quarantined,
            )
        with program.progress("remove files"):
            waiting = purging.remove_files(spark, dataset, purge.kept)
            erasure.remove_scratch(runtime.SCRATCH, retention.longest_wait(dataset.table))
    newest = snapshots.by_dataset(lake).get(dataset.name, [])[-1:]
    for snapshot in newest:
        if not purging.is_readable(snapshot):
            logger.warning(
                "snapshot %d cannot be read any more: publish the next one with "
                "jobs/ingest_engagements.py --publish",
                snapshot.snapshot_id,
            )
    return purge, waiting


def plan(lake: LakeSettings, dataset: DatasetSettings, now: datetime, *, at_once: bool) -> Purge:
    """Decide what has to go, from dates and published snapshots alone."""
    today = day_in(dataset.table.time_zone, now)
    return Purge(
        first_date=retention.first_date(lake, dataset, today),
        first_quarantined=retention.first_quarantined(dataset, today),
        kept=[] if at_once else retention.kept_snapshots(lake, dataset, now),
    )


def shown(dataset: DatasetSettings, purge: Purge) -> list[dict[str, str]]:
    """Say what goes from each table."""
    leavers = dataset.table.opt_outs is not None
    rows = {
        "engagements": f"rows from before {purge.first_date}"
        + ("; all rows of people who opted out" if leavers else ""),
        "quarantine": f"rows of batches as of before {purge.first_quarantined}"
        + ("; all rows when anybody opted out" if leavers else ""),
    }
    if leavers:
        rows["opt_outs"] = "all ids; their keyed hashes stay, in the table beside it"
    return [{"table": table, "goes": what} for table, what in rows.items()]


def _files(dataset: DatasetSettings, purge: Purge) -> str:
    """Say what the files wait for that are left."""
    last = max(snapshot.published_at for snapshot in purge.kept)
    until = last + retention.longest_wait(dataset.table)
    return (
        f"those that readers may need stay until the first run after the next snapshot, "
        f"or after {until.date()}"
    )


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("--dataset", required=True, help="dataset file's name, without .toml")
    parser.add_argument(
        "--at-once", action="store_true", help="keep no file for questions on the newest snapshot"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    program.run(main, parser)
