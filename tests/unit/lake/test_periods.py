"""Periods of accounts: month ends, clock changes, and no session's time zone."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs.errors import InvalidParameterError
from jobs.lake.periods import period_of

LOS_ANGELES = "America/Los_Angeles"
OCTOBER = date(2024, 10, 1), date(2024, 11, 1)
NOVEMBER = date(2024, 11, 1), date(2024, 12, 1)
BEFORE = datetime(2024, 11, 1, 6, 59, 59, tzinfo=UTC)
AFTER = datetime(2024, 11, 1, 7, tzinfo=UTC)

instants = st.integers(0, 130 * 365 * 86400).map(lambda n: datetime.fromtimestamp(n, UTC))
zones = st.sampled_from(
    ["UTC", LOS_ANGELES, "Asia/Tokyo", "Pacific/Apia", "America/Sao_Paulo", "Asia/Kathmandu"]
)
periods = st.one_of(st.just("month"), st.integers(1, 400))


@pytest.mark.parametrize("written_in", ["UTC", LOS_ANGELES, "Asia/Tokyo"])
def test_the_month_is_that_of_the_ledgers_zone_however_the_instant_is_written(
    written_in: str,
) -> None:
    before, after = (moment.astimezone(ZoneInfo(written_in)) for moment in (BEFORE, AFTER))
    assert period_of(before, "UTC", "month") == NOVEMBER
    assert period_of(after, "UTC", "month") == NOVEMBER
    assert period_of(before, LOS_ANGELES, "month") == OCTOBER
    assert period_of(after, LOS_ANGELES, "month") == NOVEMBER


def test_the_hour_that_is_lived_twice_belongs_to_one_day() -> None:
    first = datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo(LOS_ANGELES), fold=0)
    again = datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo(LOS_ANGELES), fold=1)
    assert again.astimezone(UTC) - first.astimezone(UTC) == timedelta(hours=1)
    assert period_of(first, LOS_ANGELES, 1) == period_of(again, LOS_ANGELES, 1)


@given(instants, zones, periods)
def test_every_instant_lies_in_its_period_and_the_next_begins_where_it_ends(
    instant: datetime, zone: str, period: int
) -> None:
    start, end = period_of(instant, zone, period)
    assert start <= instant.astimezone(ZoneInfo(zone)).date() < end
    noon = datetime(end.year, end.month, end.day, 12, tzinfo=ZoneInfo(zone))
    assert period_of(noon, zone, period)[0] == end


def test_periods_of_days_may_be_anchored() -> None:
    assert period_of(AFTER, "UTC", 30, anchor=date(2024, 10, 15))[0] == date(2024, 10, 15)
    assert period_of(AFTER, "UTC", 30, anchor=date(2024, 12, 14))[0] == date(2024, 10, 15)


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="no time zone"):
        period_of(datetime(2024, 11, 1), "UTC", "month")  # noqa: DTZ001
