"""What a run costs and what an account or a block owns, as values that add up exactly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from dp_udfs import checks
from dp_udfs.checks import Real
from dp_udfs.errors import InvalidParameterError

NANO = 10**9  # a curve counts billionths of epsilon
LARGEST = 2**62  # so that sums stay whole numbers of 64 bits in every reader of the ledger


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
        if max(self.units, self.calls) > LARGEST:
            raise InvalidParameterError(f"more than {LARGEST} units or calls: no ledger holds them")

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


@dataclass(frozen=True)
class RenyiCurve:
    """A loss, or what is left for losses, at each order alpha of a block's grid.

    On a grid of one order the curve is one number. With the order infinity, where Rényi divergence
    is the epsilon of pure differential privacy, that is basic composition.

    Parameters
    ----------
    nano : tuple of int
        Billionths of epsilon, one per order. What a capacity has left may be negative at an order
        that is overdrawn or was never usable.
    """

    nano: tuple[int, ...]

    def __post_init__(self) -> None:
        whole = all(type(value) is int and abs(value) <= LARGEST for value in self.nano)
        if not self.nano or not whole:
            raise InvalidParameterError(
                f"curve = {self.nano!r:.80} must be whole billionths of epsilon, one per alpha"
            )

    @classmethod
    def demand(cls, epsilons: Real | Sequence[Real]) -> "RenyiCurve":
        """Read a loss, rounded up to whole billionths; not negative.

        Parameters
        ----------
        epsilons : number, or sequence of them
            One per order, in nats; decimals are read as written, so 0.1 is a tenth.
        """
        curve = cls(tuple(math.ceil(value * NANO) for value in _exact(epsilons)))
        if min(curve.nano) < 0:
            raise InvalidParameterError(f"curve = {curve}: no loss is negative")
        return curve

    @classmethod
    def capacity(cls, epsilons: Real | Sequence[Real]) -> "RenyiCurve":
        """Read a capacity, rounded down; at an order where it is not positive nothing fits."""
        return cls(tuple(math.floor(value * NANO) for value in _exact(epsilons)))

    def share(self, parts: int) -> "RenyiCurve":
        """Return one of so many equal parts, rounded down: all of them together always fit.

        Noise is to be sized for the part that comes back.
        """
        checks.positive_integers(parts=parts)
        return RenyiCurve(tuple(value // parts for value in self.nano))

    @property
    def zero(self) -> "RenyiCurve":
        """No loss at all, on the same grid."""
        return RenyiCurve((0,) * len(self.nano))

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The values in nats, for computing guarantees; never for adding up."""
        return tuple(value / NANO for value in self.nano)

    def __add__(self, other: "RenyiCurve") -> "RenyiCurve":
        return RenyiCurve(tuple(a + b for a, b in self._pairs(other)))

    def __sub__(self, other: "RenyiCurve") -> "RenyiCurve":
        return RenyiCurve(tuple(a - b for a, b in self._pairs(other)))

    def covers(self, other: "RenyiCurve") -> bool:
        """Whether `other` fits into this at some order: for a guarantee one is enough."""
        return any(a >= b for a, b in self._pairs(other))

    def __str__(self) -> str:
        values = [f"{Decimal(value).scaleb(-9).normalize():f}" for value in self.nano]
        return values[0] if len(values) == 1 else f"({', '.join(values)})"

    def _pairs(self, other: "RenyiCurve") -> list[tuple[int, int]]:
        if len(self.nano) != len(other.nano):
            raise InvalidParameterError(
                f"a curve of {len(other.nano)} values meets one of {len(self.nano)}: "
                f"give one value for each alpha of the block"
            )
        return list(zip(self.nano, other.nano, strict=True))


def _exact(epsilons: Real | Sequence[Real]) -> list[Fraction]:
    if isinstance(epsilons, str | int | float | Fraction | Decimal):
        return [checks.exact(epsilon=epsilons)]
    return [checks.exact(epsilon=value) for value in epsilons]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
