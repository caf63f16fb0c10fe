"""Delete what may not be kept: rows past the retention, and everything of people who opted out.

First rows leave the newest versions of the tables, by statements that name dates and tables only,
because a log keeps them. Then files leave the disk that no snapshot worth keeping reads. Every step
can be stopped anywhere and done again.
"""

from collections.abc import Collection
from datetime import date
from typing import TYPE_CHECKING

from dp_udfs.errors import ClaimError
from jobs.lake import consent, erasure, schemas, tables
from jobs.lake.settings import DatasetSettings, LakeSettings
from jobs.lake.tables import Snapshot, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_silent_logs(spark: "SparkSession", dataset: DatasetSettings) -> None:
    """Refuse tables whose logs would go on naming people; see `jobs.lake.erasure`."""
    for location, person in schemas.personal(dataset).values():
        erasure.require_silent_log(tables.locate(location, spark), person)


def delete_rows(
    spark: "SparkSession",
    lake: LakeSettings,
    dataset: DatasetSettings,
    *,
    first_date: date,
    first_quarantined: date,
) -> None:
    """Delete rows from the newest version of each table.

    Ids of people who opted out go last, when nothing else of them is left and their hashes are
    kept. A row in quarantine may name a person in a way that nobody can search for: when anybody
    leaves, all of it goes.

    Parameters
    ----------
    first_date : date
        Engagements of earlier dates are deleted.
    first_quarantined : date
        So is the quarantine of earlier as-of dates.
    """
    table = dataset.table
    _delete_before(spark, table.engagements, table.event_date, first_date)
    _delete_before(spark, table.quarantine, "as_of", first_quarantined)
    if table.opt_outs is None:
        return
    leaving = tables.state(tables.locate(table.opt_outs, spark))
    if not tables.holds_files(leaving):
        return
    consent.remember(spark, lake, dataset, leaving)
    delete_people(spark, table.engagements, table.user_id, leaving)
    if dataset.users is not None:
        delete_people(spark, table.numbers, "user_id", leaving)
    spark.sql(f"DELETE FROM {tables.quote(table.quarantine)}")  # noqa: S608 - quoted
    delete_people(spark, table.opt_outs, "user_id", leaving)


def remove_files(
    spark: "SparkSession", dataset: DatasetSettings, kept: Collection[Snapshot]
) -> bool:
    """Remove the files that neither a newest version nor a kept snapshot reads.

    Returns
    -------
    bool
        Whether files wait until the kept snapshots are replaced.
    """
    waiting = False
    for role, (location, _) in schemas.personal(dataset).items():
        path = tables.locate(location, spark)
        table_id = tables.state(path).table_id
        states = [each.tables[role] for each in kept if role in each.tables]
        versions = {state.version for state in states if state.table_id == table_id}
        waiting |= erasure.remove_files(path, versions)
    return waiting


def is_readable(snapshot: Snapshot) -> bool:
    """Whether questions can still be asked about a snapshot."""
    try:
        tables.verify(snapshot)
    except ClaimError:
        return False
    return True


def delete_people(spark: "SparkSession", location: str, column: str, leaving: TableState) -> None:
    """Delete the rows of the people in a state of the opt-outs: a join, so the log has no id."""
    people = f"{tables.quote(leaving.location)} VERSION AS OF {leaving.version}"
    spark.sql(
        f"MERGE INTO {tables.quote(location)} AS t "  # noqa: S608 - settings, quoted
        f"USING (SELECT DISTINCT user_id FROM {people}) AS leaving "
        f"ON t.`{column}` = leaving.user_id WHEN MATCHED THEN DELETE"
    )


def _delete_before(spark: "SparkSession", location: str, column: str, first: date) -> None:
    older = f"`{column}` < DATE'{first}'"
    spark.sql(f"DELETE FROM {tables.quote(location)} WHERE {older}")  # noqa: S608 - a setting, a date
