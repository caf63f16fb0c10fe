"""Intervals hold the real number, however the arithmetic rounds."""

from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs.intervals import Interval, decide

DIGITS = 12
NUMBERS = st.fractions(-50, 50, max_denominator=10**30)


def holds(interval: Interval, value: Fraction | Decimal) -> bool:
    return Fraction(interval.low) <= Fraction(value) <= Fraction(interval.high)


def around(value: Fraction) -> Interval:
    """An interval that is wider than rounding alone makes it."""
    width = Fraction(1, 10**9)
    low, high = Interval.of(value - width, DIGITS), Interval.of(value + width, DIGITS)
    return Interval(low.low, high.high, DIGITS)


@given(NUMBERS, NUMBERS)
def test_the_four_operations_hold_the_exact_result(a: Fraction, b: Fraction) -> None:
    for enclose in (around, lambda value: Interval.of(value, DIGITS)):
        one, other = enclose(a), enclose(b)
        assert holds(one, a)
        assert holds(-one, -a)
        assert holds(one + other, a + b)
        assert holds(one - other, a - b)
        assert holds(one * other, a * b)
        if other.low > 0:
            assert holds(one / other, a / b)


@given(NUMBERS)
def test_exp_and_ln_hold_the_result_of_many_more_digits(a: Fraction) -> None:
    with localcontext(prec=80):
        value = Decimal(a.numerator) / a.denominator
        assert holds(around(a).exp(), value.exp())
        assert holds(Interval.of(a, DIGITS).exp(), value.exp())
        if around(a).low > 0:
            assert holds(around(a).ln(), value.ln())
            assert holds(Interval.of(a, DIGITS).ln(), value.ln())


def test_results_are_narrow_and_do_not_heed_the_context_around_them() -> None:
    with localcontext(prec=3, Emax=9, Emin=-9):
        third = Interval.of(Fraction(1, 3), 40)
        assert 0 < third.width < Decimal("1e-39")
        assert (third.exp() - third.exp()).width < Decimal("1e-38")
        assert Interval.of(-(10**6), 40).exp().high > 0
        assert Interval.of(10**100 + 1, 40).low == 10**100 + 1


def test_a_comparison_is_made_only_where_it_is_certain() -> None:
    third = Interval.of(Fraction(1, 3), DIGITS)
    half = Interval.of(Fraction(1, 2), DIGITS)
    assert third.below(half) is True
    assert half.below(third) is False
    assert third.below(Interval.of(Fraction(1, 3) + Fraction(1, 10**13), DIGITS)) is None


@pytest.mark.parametrize("offset", [Fraction(1, 10**60), -Fraction(1, 10**200)])
def test_decide_takes_as_many_digits_as_it_needs(offset: Fraction) -> None:
    third = Fraction(1, 3)
    asked: list[int] = []

    def below(digits: int) -> bool | None:
        asked.append(digits)
        return Interval.of(third, digits).below(Interval.of(third + offset, digits))

    assert decide(below) is (offset > 0)
    assert asked == [40, 80, 160, 320][: len(asked)]
    assert len(asked) > 1


def test_rounding_down_gives_a_lower_bound() -> None:
    assert 0 < Fraction(2, 3) - Interval.of(Fraction(2, 3), 20).rounded_down() < Fraction(1, 10**19)
