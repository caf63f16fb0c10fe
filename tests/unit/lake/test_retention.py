"""What has to go and when: by dates and snapshots, never by rows."""

from datetime import date, timedelta
from pathlib import Path

import pytest
from deltalake import write_deltalake

from jobs.lake import retention
from tests import lakes
from tests.lakes import AS_OF, NOON, SmallLake, watched

DAY = timedelta(days=1)


@pytest.fixture
def small(tmp_path: Path, secret: bytes) -> SmallLake:
    """Retention 30 days, lag 5."""
    return lakes.make(tmp_path / "lake", secret)


def first_date(small: SmallLake, today: date) -> date:
    return retention.first_date(small.lake, small.dataset, today)


def test_rows_go_when_no_snapshot_to_come_can_be_asked_about_them(small: SmallLake) -> None:
    assert first_date(small, AS_OF) == AS_OF - 35 * DAY, "the lag, while there is no snapshot"
    small.publish()
    assert first_date(small, AS_OF) == AS_OF - 30 * DAY
    assert first_date(small, AS_OF + 4 * DAY) == AS_OF - 30 * DAY, "a late snapshot is whole"
    assert first_date(small, AS_OF + 9 * DAY) == AS_OF - 26 * DAY, "the lag at the latest"
    question = small.question(element="device")
    assert question.start >= first_date(small, AS_OF + 5 * DAY)


def test_quarantine_stays_a_month_at_most(small: SmallLake) -> None:
    assert retention.first_quarantined(small.dataset, AS_OF) == AS_OF - 30 * DAY
    table = small.dataset.table.model_copy(update={"retention_days": 7})
    short = small.dataset.model_copy(update={"table": table})
    assert retention.first_quarantined(short, AS_OF) == AS_OF - 7 * DAY


def test_the_newest_snapshot_and_those_of_open_claims_are_kept(small: SmallLake) -> None:
    def kept(days: float) -> list[int]:
        found = retention.kept_snapshots(small.lake, small.dataset, NOON + days * DAY)
        return sorted(snapshot.snapshot_id for snapshot in found)

    assert kept(0) == []
    for number in range(3):
        small.publish(AS_OF + number * DAY, NOON + number * DAY)
    assert kept(2) == [3]
    ledger = small.ledger(NOON)
    ledger.open_account("marketing", "t1", AS_OF, units=9, calls=9)
    for run_id, number in (("r1", 1), ("r2", 2)):
        details = {"dataset_name": "clips", "snapshot": number}
        ledger.allocate(run_id, analyst="marketing", dataset="t1", units=1, details=details)
    ledger.settle("r2", units=0, calls=0)
    assert kept(2) == [1, 3]
    assert kept(4) == [3], "published more than purge_lag_days - 1 ago"
    assert kept(6) == []


@pytest.mark.parametrize(("lag", "days"), [(0, 1), (1, 1), (7, 6), (36_500, 14)])
def test_snapshots_keep_files_for_less_than_the_lag(small: SmallLake, lag: int, days: int) -> None:
    table = small.dataset.table.model_copy(update={"purge_lag_days": lag})
    assert retention.longest_wait(table) == days * DAY


def test_what_is_overdue_is_seen_from_the_logs(small: SmallLake) -> None:
    place = small.dataset.table.engagements + "-by-date"
    rows = lakes.engagement_table(small.dataset, [watched("u1", 0), watched("u2", 35)])
    write_deltalake(place, rows, partition_by="event_date")
    table = small.dataset.table.model_copy(update={"engagements": place})
    dataset = small.dataset.model_copy(update={"table": table})
    assert retention.overdue(dataset, NOON) == []
    late = retention.overdue(dataset, NOON + DAY)
    assert late == ["rows from before 2024-01-27"]
    small.opt_out("u1")
    added = max(retention._added(small.dataset.table.opt_outs))
    assert len(retention.overdue(dataset, added + 30 * DAY)) == 1
    assert retention.overdue(dataset, added + 31 * DAY)[1] == f"opt-outs of {added.date()}"
