"""What tests of the ledger share: a table's id, a month, and a clock that they move."""

from datetime import UTC, date, datetime, timedelta

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
FILMS = "0b6a"  # a table's id


class Clock:
    """A clock that tests move."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
