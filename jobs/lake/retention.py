"""How long rows and files stay: dates and snapshots only, decided without Spark and without rows.

A row is deleted once no snapshot to come can be asked about it, at the latest `purge_lag_days`
after the retention. Its files stay a little longer, for those who are still reading: the newest
snapshot and those of open claims, none for more than a part of the same lag.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from dp_udfs.errors import SettingsError
from jobs.lake import snapshots, tables
from jobs.lake.ledger import Ledger
from jobs.lake.periods import day_in
from jobs.lake.settings import DatasetSettings, EngagementTable, LakeSettings
from jobs.lake.tables import Snapshot

DAYS_AFTER_LEAVING = 30  # after so many days nothing of a person is left
LONGEST_WAIT = 14  # days for which a snapshot keeps files that are not needed otherwise


def first_date(lake: LakeSettings, dataset: DatasetSettings, today: date) -> date:
    """Return the first date whose engagements stay.

    Earlier ones lie outside every window on the newest snapshot or a later one, or are past
    retention and lag.
    """
    oldest = dataset.table.oldest_readable(today)
    published = snapshots.by_dataset(lake).get(dataset.name)
    if not published:
        return oldest
    return max(oldest, published[-1].as_of - timedelta(days=dataset.table.retention_days))


def first_quarantined(dataset: DatasetSettings, today: date) -> date:
    """Return the first as-of date whose quarantine stays: whom its rows are about is unknown."""
    return today - timedelta(days=min(dataset.table.retention_days, DAYS_AFTER_LEAVING))


def kept_snapshots(lake: LakeSettings, dataset: DatasetSettings, now: datetime) -> list[Snapshot]:
    """Find the snapshots whose files stay.

    The newest one of each dataset (two may share a table), and those that open claims may be
    reading: unless they were published so long ago that they would keep files past the lag.
    """
    published = snapshots.by_dataset(lake)
    wanted = [each[-1] for each in published.values()]
    for name, number in _claimed(lake):
        wanted += published.get(name, [])[number - 1 : number]
    wait = longest_wait(dataset.table)
    return [each for each in wanted if now - each.published_at < wait]


def longest_wait(table: EngagementTable) -> timedelta:
    """Say how long a snapshot keeps files after it was published."""
    return timedelta(days=min(LONGEST_WAIT, max(1, table.purge_lag_days - 1)))


def overdue(dataset: DatasetSettings, now: datetime) -> list[str]:
    """Say what should have been purged by now, from dates in the logs of the tables alone."""
    table = dataset.table
    oldest = table.oldest_readable(day_in(table.time_zone, now))
    found = []
    first = min(_dates(table), default=oldest)
    if first < oldest:
        found.append(f"rows from before {oldest}")
    since = min(_added(table.opt_outs), default=now)
    if now - since > timedelta(days=DAYS_AFTER_LEAVING):
        found.append(f"opt-outs of {since.date()}")
    return found


def _claimed(lake: LakeSettings) -> Iterator[tuple[str, int]]:
    """List dataset and snapshot of the claims that are open."""
    ledger = Ledger(lake.tables.ledger, lake.region, create=False)
    for claim in ledger.open_claims() if ledger.exists() else ():
        name, number = claim.details.get("dataset_name"), claim.details.get("snapshot")
        if name is not None and number is not None:
            yield name, number


def _dates(table: EngagementTable) -> list[date]:
    """Dates of the engagement table, where it is partitioned by them."""
    files = _files(table.engagements)
    name = f"partition.{table.event_date}"
    if files is None or name not in files.column_names:
        return []
    return [value for value in files[name].to_pylist() if value is not None]


def _added(location: str | None) -> list[datetime]:
    """When the files of a table were added."""
    files = None if location is None else _files(location)
    if files is None:
        return []
    moments = files["modification_time"].cast(pa.int64()).to_pylist()  # milliseconds
    return [datetime.fromtimestamp(moment / 1000, UTC) for moment in moments]


def _files(location: str) -> pa.Table | None:
    """List the files of a table; None where it cannot be found without Spark."""
    try:
        path = tables.locate(location)
        tables.state(path)
    except SettingsError:
        return None
    return pa.table(DeltaTable(path, skip_stats=True).get_add_actions(flatten=True))
