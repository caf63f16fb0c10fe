"""What a run costs and what an account owns, as values that add up exactly."""

from dataclasses import dataclass

from dp_udfs import checks
from dp_udfs.errors import InvalidParameterError


@dataclass(frozen=True)
class Loss:
    """Information units and calls: whole numbers, so an allowance is spent to exactly zero.

    Parameters
    ----------
    units : int
        Steps of one epsilon bounded range; not negative.
    calls : int
        Answers for one cohort, each with at most one delta; not negative.
    """

    units: int = 0
    calls: int = 0

    def __post_init__(self) -> None:
        checks.non_negative_integers(units=self.units, calls=self.calls)

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.units + other.units, self.calls + other.calls)

    def __sub__(self, other: "Loss") -> "Loss":
        if not self.covers(other):
            raise InvalidParameterError(f"{self} does not cover {other}")
        return Loss(self.units - other.units, self.calls - other.calls)

    def covers(self, other: "Loss") -> bool:
        """Whether `other` can be taken from this, in units and in calls."""
        return self.units >= other.units and self.calls >= other.calls

    def beyond(self, other: "Loss") -> "Loss":
        """Return what remains of this after `other`: nothing where `other` is larger."""
        return Loss(max(0, self.units - other.units), max(0, self.calls - other.calls))

    def __str__(self) -> str:
        return f"{_counted(self.units, 'unit')} and {_counted(self.calls, 'call')}"


NOTHING = Loss()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
