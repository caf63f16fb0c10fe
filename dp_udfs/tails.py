"""Tails of discrete noise: the smallest thresholds that noise exceeds rarely enough.

Each inequality is decided in rigorous arithmetic, so a threshold is the exact one.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from dp_udfs import checks
from dp_udfs.intervals import Interval, decide

_CACHED = lru_cache(maxsize=1024)


@_CACHED
def laplace_difference_threshold(scale: Fraction, probability: Fraction) -> int:
    """Return the smallest integer g >= 0 with P[D > g] <= probability.

    Parameters
    ----------
    scale : Fraction
        Of two independent discrete Laplace variables, of which D is the difference.
    probability : Fraction
        Between 0 and 1.

    Returns
    -------
    int
        The threshold, exactly.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.

    Notes
    -----
    With q = exp(-1 / scale) and n >= 1: P[D >= n] = ((1 - q) / (1 + q))^2 q^n times
    ((n + 1) / (1 - q) + q / (1 - q)^2 + 2 q^2 / ((1 - q^2) (1 - q))).
    """
    checks.noise_scale(scale=scale)
    checks.probability(probability=probability)

    def tail(n: int, digits: int) -> Interval:
        one = Interval.of(1, digits)
        q = Interval.of(Fraction(-1) / scale, digits).exp()
        rest, square = one - q, q * q
        bracket = (
            Interval.of(n + 1, digits) / rest
            + q / (rest * rest)
            + (square + square) / ((one - square) * rest)
        )
        ratio = rest / (one + q)
        return ratio * ratio * Interval.of(Fraction(-n) / scale, digits).exp() * bracket

    return _smallest(tail, probability, guess=scale * _minus_ln(probability))


@_CACHED
def laplace_threshold(scale: Fraction, probability: Fraction) -> int:
    """Return the smallest integer g >= 0 with P[Z > g] <= probability, Z discrete Laplace.

    Parameters, errors and exactness are those of `laplace_difference_threshold`;
    P[Z >= n] = q^n / (1 + q) for n >= 1.
    """
    checks.noise_scale(scale=scale)
    checks.probability(probability=probability)

    def tail(n: int, digits: int) -> Interval:
        q = Interval.of(Fraction(-1) / scale, digits).exp()
        return Interval.of(Fraction(-n) / scale, digits).exp() / (Interval.of(1, digits) + q)

    return _smallest(tail, probability, guess=scale * _minus_ln(probability))


@_CACHED
def gaussian_threshold(variance: Fraction, probability: Fraction) -> int:
    """Return the smallest integer g >= 0 with P[Z > g] <= probability, Z discrete Gaussian.

    Parameters, errors and exactness are those of `laplace_difference_threshold`, with the
    `variance` of `dp_udfs.noise.discrete_gaussian`. From a variance of 10**12 on it takes seconds.
    """
    checks.noise_variance(variance=variance)
    checks.probability(probability=probability)

    def tail(n: int, digits: int) -> Interval:
        return _gaussian_sum(n, variance, digits) / _gaussian_total(variance, digits)

    from scipy import special  # a quarter of a second that workers without a Gaussian save

    quantile = -special.ndtri_exp(-max(_minus_ln(probability), math.log(2)))
    return _smallest(tail, probability, guess=math.sqrt(variance) * float(quantile))


@lru_cache(maxsize=64)
def _gaussian_total(variance: Fraction, digits: int) -> Interval:
    """Enclose the sum of exp(-z^2 / (2 variance)) over all z."""
    half = _gaussian_sum(1, variance, digits)
    return Interval.of(1, digits) + half + half


def _gaussian_sum(start: int, variance: Fraction, digits: int) -> Interval:
    """Enclose the sum of f(z) = exp(-z^2 / (2 variance)) over all z >= start >= 1.

    Taken in blocks of `size` terms. The ratio f(z + 1) / f(z) falls with z, so a block lies between
    two geometric series, with the ratios at its ends. More digits mean shorter blocks, down to
    single terms.
    """

    def power(exponent: int) -> Interval:
        return Interval.of(Fraction(-exponent) / (2 * variance), digits).exp()

    size = max(1, math.isqrt(math.floor(variance)) // (25 * digits))
    one = Interval.of(1, digits)
    value = power(start**2)  # f at the start of the block
    step = power(2 * start * size + size**2)  # takes f to the start of the next block
    ratio = power(2 * start + 1)
    ratio_to_size = power((2 * start + 1) * size)
    by_block, by_term = power(2 * size**2), power(2 * size)  # what step and ratio change by
    to_end, to_end_to_size = power(2 * (size - 1)), power(2 * (size - 1) * size)
    total, negligible = Interval.of(0, digits), Interval.of(10 ** (digits // 2), digits)
    while True:
        rest = value / (one - ratio)  # as much as all that follows, or more
        if (rest * negligible).high <= total.low:
            return total + Interval(Decimal(0), rest.high, digits)
        if size == 1:
            total = total + value
        else:
            most = rest * (one - ratio_to_size)
            least = value * (one - ratio_to_size * to_end_to_size) / (one - ratio * to_end)
            total = total + Interval(least.low, most.high, digits)
            ratio_to_size = ratio_to_size * by_block
        value, step, ratio = value * step, step * by_block, ratio * by_term


def _minus_ln(probability: Fraction) -> float:
    return math.log(probability.denominator) - math.log(probability.numerator)


def _smallest(tail: Callable[[int, int], Interval], probability: Fraction, guess: float) -> int:
    """Return the smallest g >= 0 with tail(g + 1, digits) <= probability, looking near `guess`."""

    def enough(g: int) -> bool:
        return decide(lambda digits: tail(g + 1, digits).below(Interval.of(probability, digits)))

    low, high, step = -1, max(0, math.floor(guess)), 1
    while not enough(high):
        low, high, step = high, high + step, 2 * step
    step = 1
    while high - step > low and enough(high - step):
        high, step = high - step, 2 * step
    low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
