"""Numbers are read exactly, and those that nobody could mean are refused before they cost time."""

from decimal import Decimal
from fractions import Fraction

import pytest

from dp_udfs import checks
from dp_udfs.errors import InvalidParameterError

TEN = 10**1000


@pytest.mark.parametrize(
    "value", ["0.15", 0.15, Fraction(3, 20), Decimal("0.150"), "15e-2", "1.5E-1"]
)
def test_all_ways_to_write_a_number_are_that_number(value: checks.Real) -> None:
    assert checks.exact(epsilon=value) == Fraction(3, 20)


@pytest.mark.parametrize("value", ["much", "", "nan", "inf", float("nan"), float("-inf"), True])
def test_what_is_no_finite_number_is_refused(value: checks.Real) -> None:
    with pytest.raises(InvalidParameterError, match=r"epsilon = .* is not a finite number"):
        checks.exact(epsilon=value)


@pytest.mark.parametrize(
    "value",
    [
        "1e-999999999999",  # would fill the memory
        "1e999999999999",
        "0e-999999999999",
        Decimal("-1e999999999999"),
        "0." + "3" * 5000,  # cannot be printed
        TEN,
        -TEN,
        Fraction(TEN + 1, TEN),
    ],
)
def test_a_number_of_too_many_digits_is_refused_at_once(value: checks.Real) -> None:
    with pytest.raises(InvalidParameterError, match="epsilon has more than 1000 digits"):
        checks.exact(epsilon=value)


def test_a_delta_has_a_smallest_value() -> None:
    assert checks.exact_delta("1e-300") == Fraction(1, 10**300)
    with pytest.raises(InvalidParameterError, match="delta = 9e-301 is below 1e-300"):
        checks.exact_delta("9e-301")
