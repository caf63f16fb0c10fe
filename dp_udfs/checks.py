"""Checks on parameters: keyword in, message out. Each raises `InvalidParameterError`."""

import math
import numbers
import unicodedata
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from dp_udfs.errors import InvalidParameterError

Real = int | float | str | Fraction | Decimal

SMALLEST_EPSILON = Fraction(1, 10**6)
LARGEST_EPSILON = Fraction(100)
SMALLEST_DELTA = Fraction(1, 10**300)  # still a float, and so is what is divided by it
MOST_DIGITS = 1000  # of an exact number: more take time and memory, and say nothing
_SMALLEST_LONG: int = 10**MOST_DIGITS
LONGEST_IDENTIFIER = 200


def exact(**values: Real) -> Fraction:
    """Read one number as the decimal it is written as: `0.15` is 15/100, not the nearest double."""
    ((name, value),) = values.items()
    number = _finite(value)
    if number is None:
        raise InvalidParameterError(f"{name} = {value!r} is not a finite number")
    if _is_long(number):
        raise InvalidParameterError(f"{name} has more than {MOST_DIGITS} digits; round it")
    return Fraction(number)


def _finite(value: Real) -> int | Fraction | Decimal | None:
    """Read a number without writing it out; None if it is none, or not finite."""
    try:
        if isinstance(value, float):
            return Fraction(repr(float(value)))
        number = Decimal(value) if isinstance(value, str) else value
    except (ValueError, InvalidOperation):
        return None
    if isinstance(number, Decimal):
        return number if number.is_finite() else None
    rational = isinstance(number, numbers.Rational) and not isinstance(number, bool)
    return number if rational else None


def _is_long(number: int | Fraction | Decimal) -> bool:
    """Say whether a number takes too many digits to write out, before or after the point."""
    if isinstance(number, Decimal):
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)  # it is finite
        return len(digits) + abs(exponent) > MOST_DIGITS
    return max(abs(number.numerator), number.denominator) >= _SMALLEST_LONG


def exact_epsilon(epsilon: Real) -> Fraction:
    """Read an epsilon exactly and refuse what no release should use."""
    value = exact(epsilon=epsilon)
    if not SMALLEST_EPSILON <= value <= LARGEST_EPSILON:
        raise InvalidParameterError(
            f"epsilon = {epsilon} is outside [{float(SMALLEST_EPSILON)}, {float(LARGEST_EPSILON)}]"
        )
    return value


def exact_delta(delta: Real) -> Fraction:
    """Read a delta exactly; it lies strictly between 0 and 1, and not below 1e-300."""
    value = exact(delta=delta)
    if not 0 < value < 1:
        raise InvalidParameterError(f"delta = {delta} is not strictly between 0 and 1")
    if value < SMALLEST_DELTA:
        raise InvalidParameterError(f"delta = {delta} is below {float(SMALLEST_DELTA)}")
    return value


def positive(**values: float | Fraction) -> None:
    """Refuse values that are not finite and above zero."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InvalidParameterError(f"{name} = {value} must be positive and finite")


def positive_integers(**values: int) -> None:
    """Refuse values that are not whole numbers of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise InvalidParameterError(f"{name} = {value!r} must be a whole number of at least 1")


def non_negative_integers(**values: int) -> None:
    """Refuse values that are not whole numbers of at least 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
            raise InvalidParameterError(f"{name} = {value!r} must be a whole number of at least 0")


def probability(**values: float | Fraction) -> None:
    """Refuse values that are not strictly between 0 and 1."""
    for name, value in values.items():
        if not (math.isfinite(value) and 0 < value < 1):
            raise InvalidParameterError(f"{name} = {value} must be strictly between 0 and 1")


def noise_scale(**values: int | Fraction) -> None:
    """Refuse scales of noise outside [2**-20, 2**40]: with these, sums of counts fit 64 bits."""
    positive(**values)
    for name, value in values.items():
        if not Fraction(1, 2**20) <= value <= 2**40:
            raise InvalidParameterError(f"{name} = {float(value)} is outside [2**-20, 2**40]")


def noise_variance(**values: int | Fraction) -> None:
    """Refuse variances of noise outside [2**-40, 2**80], the squares of allowed scales."""
    positive(**values)
    for name, value in values.items():
        if not Fraction(1, 2**40) <= value <= 2**80:
            raise InvalidParameterError(f"{name} = {float(value)} is outside [2**-40, 2**80]")


def identifiers(**values: object) -> None:
    """Refuse names that do not fit on a line, or that two people could write differently."""
    for name, value in values.items():
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_IDENTIFIER:
            raise InvalidParameterError(
                f"{name} = {value!r:.80} must be a text of 1 to {LONGEST_IDENTIFIER} characters"
            )
        if not value.isprintable() or value != value.strip():
            raise InvalidParameterError(
                f"{name} = {value!r} has unprintable characters, or blanks at an end"
            )
        if unicodedata.normalize("NFC", value) != value:
            raise InvalidParameterError(f"{name} = {value!r} must be in Unicode's form NFC")
