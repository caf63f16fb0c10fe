"""Thresholds are the smallest that will do: checked against sums, and against public values."""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs import tails
from dp_udfs.errors import InvalidParameterError

SCALE = 2 / Fraction("0.15")  # 2 tau / epsilon
Threshold = Callable[[Fraction, Fraction], int]
SCALES = st.fractions("0.05", 6, max_denominator=50)


def exp(value: Fraction) -> Decimal:
    with localcontext(prec=60):
        return (Decimal(value.numerator) / value.denominator).exp()


def laplace(scale: Fraction) -> dict[int, Decimal]:
    """Probabilities of a discrete Laplace variable, by summing the weights."""
    return normalised({z: exp(-abs(z) / scale) for z in range(-250, 251)})


def gaussian(variance: Fraction) -> dict[int, Decimal]:
    return normalised({z: exp(-(z**2) / (2 * variance)) for z in range(-250, 251)})


def normalised(weights: dict[int, Decimal]) -> dict[int, Decimal]:
    with localcontext(prec=60):
        total = sum(weights.values())
        return {z: weight / total for z, weight in weights.items()}


def tail(law: dict[int, Decimal], g: int) -> Decimal:
    """P[Z > g]."""
    with localcontext(prec=60):
        return sum((p for z, p in law.items() if z > g), Decimal(0))


def difference_tail(law: dict[int, Decimal], g: int) -> Decimal:
    """P[Z - Z' > g] by summing over all pairs."""
    with localcontext(prec=60):
        return sum((p * tail(law, g + z) for z, p in law.items() if abs(z) < 60), Decimal(0))


@pytest.mark.parametrize(
    ("l0", "tail_target", "offset"),
    [(1, "4.812587841214648e-11", 344), (5, "4.0733340004593024e-11", 368)],
)
def test_published_offsets_of_the_unknown_domain(l0: int, tail_target: str, offset: int) -> None:
    """epsilon 0.15, delta 1e-10, tau 1: tau + g of section 4 with m = l0."""
    assert 1 + tails.laplace_difference_threshold(SCALE, Fraction(tail_target) / l0) == offset


def test_published_thresholds_of_the_whole_histogram() -> None:
    """The integer that belongs to the published 298.8 (Laplace) and 85.8 (Gaussian)."""
    assert 1 + tails.laplace_threshold(SCALE, Fraction(1, 10**10)) == 299
    assert 1 + tails.gaussian_threshold(SCALE**2, Fraction(1, 10**10)) == 86


@settings(deadline=None, max_examples=40)
@given(SCALES, st.integers(1, 14), st.integers(1, 99))
def test_laplace_threshold_is_the_smallest(scale: Fraction, exponent: int, digits: int) -> None:
    probability = Fraction(digits, 100) / 10 ** (exponent - 1)
    check(laplace(scale), tail, tails.laplace_threshold(scale, probability), probability)


@settings(deadline=None, max_examples=40)
@given(SCALES, st.integers(1, 14), st.integers(1, 99))
def test_gaussian_threshold_is_the_smallest(variance: Fraction, exponent: int, digits: int) -> None:
    variance = variance**2
    probability = Fraction(digits, 100) / 10 ** (exponent - 1)
    check(gaussian(variance), tail, tails.gaussian_threshold(variance, probability), probability)


@settings(deadline=None, max_examples=15)
@given(st.fractions("0.05", "1.2", max_denominator=50), st.integers(1, 8), st.integers(1, 99))
def test_difference_threshold_is_the_smallest(scale: Fraction, exponent: int, digits: int) -> None:
    probability = Fraction(digits, 100) / 10 ** (exponent - 1)
    threshold = tails.laplace_difference_threshold(scale, probability)
    check(laplace(scale), difference_tail, threshold, probability)


def check(
    law: dict[int, Decimal],
    above: Callable[[dict[int, Decimal], int], Decimal],
    threshold: int,
    probability: Fraction,
) -> None:
    assert Fraction(above(law, threshold)) <= probability
    assert threshold == 0 or Fraction(above(law, threshold - 1)) > probability


@pytest.mark.parametrize("threshold", [tails.laplace_threshold, tails.laplace_difference_threshold])
def test_a_tail_that_equals_its_bound_to_fifty_digits_is_decided(threshold: Threshold) -> None:
    law = laplace(Fraction(1))
    above = tail if threshold is tails.laplace_threshold else difference_tail
    exact = Fraction(above(law, 4))
    assert threshold(Fraction(1), exact * (1 + Fraction(1, 10**20))) == 4
    assert threshold(Fraction(1), exact * (1 - Fraction(1, 10**20))) == 5


def test_blocks_of_terms_give_the_same_threshold_as_single_terms() -> None:
    """Standard deviations above 1000 are summed in blocks; the continuous tail is close there."""
    for deviation in (500, 3000):
        threshold = tails.gaussian_threshold(Fraction(deviation**2), Fraction(1, 10**10))
        assert threshold == math.ceil(6.361340902404056 * deviation - 0.5)
    digits = 40
    blocks = tails._gaussian_sum(5001, Fraction(3001**2), digits)
    single = sum(math.exp(-(z**2) / (2 * 3001**2)) for z in range(5001, 40_000))
    assert float(blocks.low) <= single * (1 + 1e-12)
    assert float(blocks.high) >= single * (1 - 1e-12)
    assert blocks.width < blocks.high / 10**5


def test_a_probability_smaller_than_any_float() -> None:
    tiny = Fraction(1, 10**400)
    assert abs(tails.laplace_threshold(Fraction(1), tiny) - 400 * math.log(10)) < 2
    assert tails.gaussian_threshold(Fraction(100), tiny) in range(422, 432)


def test_likely_events_need_no_threshold() -> None:
    likely = 1 - Fraction(1, 10**30)
    assert tails.laplace_threshold(SCALE, likely) == 0
    assert tails.laplace_difference_threshold(SCALE, likely) == 0
    assert tails.gaussian_threshold(SCALE**2, likely) == 0
    assert tails.gaussian_threshold(Fraction(1, 2**40), Fraction(1, 10**300)) == 0


@pytest.mark.parametrize("bad", [Fraction(0), Fraction(1), Fraction(-1), Fraction(2)])
@pytest.mark.parametrize(
    "threshold",
    [tails.laplace_threshold, tails.laplace_difference_threshold, tails.gaussian_threshold],
)
def test_parameters_out_of_range_are_refused(threshold: Threshold, bad: Fraction) -> None:
    with pytest.raises(InvalidParameterError, match="probability"):
        threshold(SCALE, bad)
    with pytest.raises(InvalidParameterError):
        threshold(Fraction(0), Fraction(1, 2))
