"""Budgets and demands as exact numbers, so that what is locked, open and used always adds up.

The scheduler computes with integers (the ledger's nano-epsilon) or with fractions, never with
floating point: a hundred demands of 0.01 fill a block of 1 to exactly zero.
"""

import functools
import itertools
import math
import numbers
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_udfs.errors import InvalidParameterError

Amount = int | Fraction
Curve = tuple[Amount, ...]  # one amount for each order; basic accounting has one
Number = float | Fraction  # a moment or a stretch of time may be either, too
Numbers = Number | Sequence[Number] | NDArray[np.float64]

_PER_UNIT = 10**22  # the largest power of ten that is exact in floating point
_ROUNDING = 10**9  # one part in this many of a capacity is forgiven to numbers that were rounded


class ExactReading:
    """Integers and fractions as they are; a float is refused, since it says less than it seems."""

    def demand(self, value: Numbers) -> Curve:
        """Read a demand: one number for each order, none negative and not all zero."""
        return _cached_demand(_hashable(value))

    def amounts(self, value: Numbers) -> Curve:
        """Read what is consumed of a demand: it may be zero."""
        return tuple(map(_exact, _as_tuple(value)))

    def capacity(self, value: Numbers) -> Curve:
        """Read a capacity; an order whose amount is not positive is never used."""
        return _some_positive("capacity", tuple(map(_exact, _as_tuple(value))))


class RoundedReading(ExactReading):
    """Floats too, each as the decimal it was written as; and a capacity forgives their rounding.

    A capacity is widened by one part in 10**9, so that a demand of 0.1 + 0.2 fits where 0.3 is
    open. Over the life of a block, demands exceed its capacity by no more than that.

    Parameters
    ----------
    orders : sequence of bool or None
        For each order whether to keep it: whether some block can use it. All if None.
    """

    def __init__(self, orders: Sequence[bool] | None = None) -> None:
        self._orders = orders
        self._read = functools.lru_cache(maxsize=4096, typed=True)(self._read_demand)

    def demand(self, value: Numbers) -> Curve:
        """Read a demand, in units of 10**-22."""
        return self._read(_hashable(value))

    def amounts(self, value: Numbers) -> Curve:
        """Read what is consumed of a demand, in units of 10**-22."""
        return tuple(map(_rounded, self._kept(_as_tuple(value))))

    def capacity(self, value: Numbers) -> Curve:
        """Read a capacity, in units of 10**-22."""
        read = _some_positive("capacity", tuple(map(_rounded, _as_tuple(value))))
        return tuple(c + max(c, 0) // _ROUNDING for c in self._kept(read))

    def _read_demand(self, value: Number | tuple[Number, ...]) -> Curve:
        values = _as_tuple(value)
        try:
            bad = not (sum(values) < math.inf and min(values, default=0) >= 0)  # NaN is bad, too
        except TypeError:
            bad = True
        if bad:
            raise InvalidParameterError("a demand must be finite and not negative at any order")
        return _some_positive("demand", tuple(map(_rounded, self._kept(values))))

    def _kept(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._orders is None:
            return values
        if len(values) != len(self._orders):
            raise InvalidParameterError(f"{len(values)} amounts for {len(self._orders)} orders")
        return tuple(itertools.compress(values, self._orders))


def reading(capacities: Sequence[Numbers], demands: Iterable[Numbers]) -> ExactReading:
    """Return the reading for these numbers: the exact one if none of them is a float."""
    curves = [_as_tuple(capacity) for capacity in capacities]
    demanded = map(_as_tuple, demands)
    if not any(isinstance(x, float) for curve in itertools.chain(curves, demanded) for x in curve):
        return ExactReading()
    if len({len(curve) for curve in curves}) != 1:
        return RoundedReading()
    usable = [max(totals) > 0 for totals in zip(*curves, strict=True)]
    return RoundedReading(usable if any(usable) else None)


def _as_tuple(value: Numbers) -> tuple[Number, ...]:
    if type(value) is tuple:  # most are: asked first, for it is quick
        return value
    if isinstance(value, np.ndarray):
        return tuple(value.ravel().tolist())
    return tuple(value) if isinstance(value, Sequence) else (value,)


def _hashable(value: Numbers) -> Number | tuple[Number, ...]:
    return _as_tuple(value) if isinstance(value, list | np.ndarray) else value  # type: ignore[return-value]


@functools.lru_cache(maxsize=4096, typed=True)
def _cached_demand(value: Number | tuple[Number, ...]) -> Curve:
    return _demand(tuple(map(_exact, _as_tuple(value))))


def _demand(curve: Curve) -> Curve:
    if curve and min(curve) < 0:
        raise InvalidParameterError("a demand must not be negative at any order")
    return _some_positive("demand", curve)


def _some_positive(name: str, curve: Curve) -> Curve:
    if not curve or max(curve) <= 0:
        raise InvalidParameterError(f"a {name} must be positive at one order at least")
    return curve


def _exact(value: Number) -> Amount:
    if isinstance(value, numbers.Rational) and not isinstance(value, bool):
        return int(value) if value.denominator == 1 else Fraction(value)
    raise InvalidParameterError(f"{value!r} is neither an integer nor a fraction")


def _rounded(value: Number) -> int:
    """Read one number in units of 10**-22: exactly, if a decimal of at most nine places."""
    if not isinstance(value, float):
        return math.floor(_exact(value) * _PER_UNIT)
    try:
        nano = int(value * 1e9 + 0.5)
    except (ValueError, OverflowError):
        raise InvalidParameterError(f"{value!r} is not a finite number") from None
    if nano / 1e9 == value:  # division rounds correctly, so this is the decimal nano / 10**9
        return nano * (_PER_UNIT // 10**9)
    return int(value * 1e22)
