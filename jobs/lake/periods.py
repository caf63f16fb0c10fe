"""Which period an instant lies in: calendar months or N days, in the dataset's own time zone."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from dp_udfs import checks
from dp_udfs.composition import Period
from dp_udfs.errors import InvalidParameterError

EPOCH = date(1970, 1, 1)  # periods of N days are counted from here unless an anchor is given


def period_of(
    instant: datetime, zone: str, period: Period, anchor: date = EPOCH
) -> tuple[date, date]:
    """Find the period that an instant lies in.

    Parameters
    ----------
    instant : datetime
        With a time zone, any.
    zone : str
        Name of the time zone whose days are counted, as "UTC" or "America/Los_Angeles".
    period : int or "month"
        Length in days, or calendar months.
    anchor : date
        First day of some period of N days.

    Returns
    -------
    (date, date)
        First day of the period, and the first day after it.

    Raises
    ------
    InvalidParameterError
        If the instant has no time zone or the period is not positive.
    """
    today = day_in(zone, instant)
    if period == "month":
        first = today.replace(day=1)
        return first, (first + timedelta(days=31)).replace(day=1)
    checks.positive_integers(period=period)
    first = today - timedelta(days=(today - anchor).days % period)
    return first, first + timedelta(days=period)


def day_in(zone: str, instant: datetime) -> date:
    """Name the day that an instant lies in, as clocks in `zone` show it."""
    if instant.tzinfo is None:
        raise InvalidParameterError(f"{instant} has no time zone")
    return instant.astimezone(ZoneInfo(zone)).date()
