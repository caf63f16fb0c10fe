"""Rigorous arithmetic: intervals of decimals that are certain to hold the real number.

The standard library's decimal numbers round the four operations in the direction asked for, and
round `exp` and `ln` correctly; so these bounds hold on every platform, whatever its C library does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    ROUND_CEILING,
    ROUND_FLOOR,
    Context,
    Decimal,
    DivisionByZero,
    InvalidOperation,
    Overflow,
)
from fractions import Fraction
from functools import lru_cache

FEWEST_DIGITS = 40


@dataclass(frozen=True, slots=True)
class Interval:
    """All real numbers from `low` to `high`; operations are rounded outwards to `digits` digits."""

    low: Decimal
    high: Decimal
    digits: int

    @staticmethod
    def of(value: int | Fraction, digits: int) -> "Interval":
        """Enclose an exact number; whole numbers are held exactly, however long."""
        if value.denominator == 1:
            whole = Decimal(value.numerator)
            return Interval(whole, whole, digits)
        down, up = _rounding(digits)
        above, below = Decimal(value.numerator), Decimal(value.denominator)
        return Interval(down.divide(above, below), up.divide(above, below), digits)

    def __add__(self, other: "Interval") -> "Interval":
        down, up = _rounding(self.digits)
        return Interval(down.add(self.low, other.low), up.add(self.high, other.high), self.digits)

    def __sub__(self, other: "Interval") -> "Interval":
        return self + -other

    def __neg__(self) -> "Interval":
        return Interval(self.high.copy_negate(), self.low.copy_negate(), self.digits)

    def __mul__(self, other: "Interval") -> "Interval":
        down, up = _rounding(self.digits)
        if self.low >= 0 and other.low >= 0:
            low, high = down.multiply(self.low, other.low), up.multiply(self.high, other.high)
        else:
            ends = [(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
            low = min(down.multiply(a, b) for a, b in ends)
            high = max(up.multiply(a, b) for a, b in ends)
        return Interval(low, high, self.digits)

    def __truediv__(self, other: "Interval") -> "Interval":
        """Divide by an interval of positive numbers."""
        down, up = _rounding(self.digits)
        one = Decimal(1)
        return self * Interval(down.divide(one, other.high), up.divide(one, other.low), self.digits)

    def exp(self) -> "Interval":
        """Take the exponential."""
        down, up = _rounding(self.digits)
        low, high = down.exp(self.low), up.exp(self.high)
        return Interval(max(down.next_minus(low), Decimal(0)), up.next_plus(high), self.digits)

    def ln(self) -> "Interval":
        """Take the natural logarithm of an interval of positive numbers."""
        down, up = _rounding(self.digits)
        low, high = down.ln(self.low), up.ln(self.high)
        low = down.next_minus(low) if low else low  # ln 1 = 0 is exact
        return Interval(low, up.next_plus(high) if high else high, self.digits)

    @property
    def width(self) -> Decimal:
        """Return how far the ends lie apart, rounded up."""
        return _rounding(self.digits)[1].subtract(self.high, self.low)

    def below(self, other: "Interval") -> bool | None:
        """Say whether every number here is less than every number there; None if undecided."""
        if self.high < other.low:
            return True
        return False if self.low > other.high else None

    def rounded_down(self) -> Fraction:
        """Return the lower end exactly."""
        return Fraction(self.low)


def decide(question: Callable[[int], bool | None]) -> bool:
    """Ask `question(digits)` at 40, 80, 160, ... digits until the answer is certain."""
    return next(answer for answer in map(question, precisions()) if answer is not None)


def precisions() -> Iterator[int]:
    """Yield ever more digits."""
    digits = FEWEST_DIGITS
    while True:
        yield digits
        digits *= 2


@lru_cache(maxsize=64)
def _rounding(digits: int) -> tuple[Context, Context]:
    """Return the contexts that round down and up, with no limit on the size of a number."""
    traps = [InvalidOperation, DivisionByZero, Overflow]
    down, up = (
        Context(prec=digits, rounding=rounding, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=traps)
        for rounding in (ROUND_FLOOR, ROUND_CEILING)
    )
    return down, up
