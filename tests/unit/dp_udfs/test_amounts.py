"""Numbers are read as they are written, and never lost in floating point."""

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs.amounts import ExactReading, RoundedReading, reading
from dp_udfs.errors import InvalidParameterError

UNIT = 10**22


@given(st.integers(1, 10**12))
def test_decimals_of_nine_places_are_exact(nano: int) -> None:
    (read,) = RoundedReading().demand(float(Fraction(nano, 10**9)))
    assert read == nano * 10**13


def test_other_floats_keep_their_order_and_their_precision() -> None:
    r = random.Random(1)
    values = sorted({r.uniform(0.9999999, 1) * 0.01 for _ in range(2000)})
    read = [RoundedReading().demand(value)[0] for value in values]
    assert read == sorted(set(read))
    for value, amount in zip(values, read, strict=True):
        assert abs(Fraction(amount, UNIT) / Fraction(value) - 1) < Fraction(1, 2**52)


def test_integers_and_fractions_stay_what_they_are() -> None:
    exact = ExactReading()
    assert exact.demand(3) == (3,)
    assert exact.demand((Fraction(1, 3), 2)) == (Fraction(1, 3), 2)
    assert exact.capacity([Fraction(-1, 2), Fraction(4, 2)]) == (Fraction(-1, 2), 2)
    assert exact.demand(np.array([1, 2])) == (1, 2)
    with pytest.raises(InvalidParameterError, match="neither an integer nor a fraction"):
        exact.demand(0.5)


def test_one_float_makes_all_rounded_and_unused_orders_are_dropped() -> None:
    assert type(reading([1, 2], [Fraction(1, 3), (1, 2)])) is ExactReading
    rounded = reading([(1, -1, 0.5), (1, -1, -1)], [(1, 1, 1)])
    assert isinstance(rounded, RoundedReading)
    assert rounded.demand((Fraction(1, 2), 9, 1)) == (UNIT // 2, UNIT)
    assert rounded.capacity((1, -1, -1)) == (UNIT + UNIT // 10**9, -UNIT)
    assert rounded.amounts((0.0, 0.0, 0.25)) == (0, UNIT // 4)


@pytest.mark.parametrize("bad", [(0.1, float("nan")), (0.1, float("inf")), (0.1, -1.0), (0.1, "x")])
def test_what_is_dropped_is_checked_all_the_same(bad: object) -> None:
    rounded = reading([(1.0, -1.0)], [])
    with pytest.raises(InvalidParameterError):
        rounded.demand(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="1 amounts for 2 orders"):
        reading([(-1.0, 1.0)], []).demand(0.1)
