"""Thresholds that hide elements of a lone privacy unit, from public parameters alone.

Every bound is rounded to the safe side: a threshold here is never below the exact one by the
width of a rounding error, and the smallest whole number that will do where noise is integer.
"""

import math
from fractions import Fraction
from functools import lru_cache

from dp_udfs import tails
from dp_udfs.errors import InvalidParameterError
from dp_udfs.intervals import Interval

_DIGITS = 60
_LARGEST_LOSS = 200  # l0 * epsilon / 2; a guarantee is worth nothing long before
_CACHED = lru_cache(maxsize=1024)  # a question asks for the same threshold once a cohort


def most_displaced(candidates: int, l0: int | None) -> int:
    """Count the candidates that one privacy unit can put in or out of the true top, at most."""
    return candidates if l0 is None else min(candidates, l0)


@_CACHED
def unknown_laplace_offset(
    l0: int, linf: int, max_candidates: int, epsilon: Fraction, delta: Fraction
) -> int:
    """Return what `unknown_laplace` adds to the count of the first element not considered.

    linf + g with the smallest whole g such that m P[D > g] <= delta / (1 + exp(l0 epsilon / 2)),
    where D is the difference of two discrete Laplace variables of scale 2 linf / epsilon and m
    the most elements that one unit displaces.
    """
    allowed = delta / (1 + exp_above(half_loss(l0, epsilon))) / most_displaced(max_candidates, l0)
    return linf + tails.laplace_difference_threshold(2 * linf / epsilon, allowed)


def unknown_gumbel_offset(
    candidates: int, l0: int | None, linf: int, epsilon: Fraction, delta: Fraction
) -> float:
    """Return the like for `unknown_gumbel`: linf (1 + ln(m / delta) / epsilon)."""
    return linf * (1 + math.log(most_displaced(candidates, l0) / delta) / float(epsilon))


@_CACHED
def fixed_gaussian_threshold(l0: int, linf: int, epsilon: Fraction, delta: Fraction) -> int:
    """Return what a noisy count of `fixed_gaussian` must exceed.

    linf + g with the smallest whole g such that P[Z > g] <= p = 1 - (1 - delta)^(1 / l0), where
    Z is discrete Gaussian of variance (2 linf / epsilon)^2: l0 elements of a lone unit together
    show with probability delta at most. The continuous quantile would give up to 3 times that.
    """
    return linf + tails.gaussian_threshold((2 * linf / epsilon) ** 2, each_of(l0, delta))


def each_of(l0: int, delta: Fraction) -> Fraction:
    """Return p such that l0 independent events of chance p have delta together, rounded down."""
    digits = _DIGITS + len(str(delta.denominator))
    logarithm = Interval.of(1 - delta, digits).ln() / Interval.of(l0, digits)
    return (Interval.of(1, digits) - logarithm.exp()).rounded_down()


def half_loss(l0: int, epsilon: Fraction) -> Fraction:
    """Return l0 * epsilon / 2, the epsilon of one call of a restricted Laplace mechanism."""
    loss = l0 * epsilon / 2
    if loss > _LARGEST_LOSS:
        raise InvalidParameterError(
            f"l0 * epsilon / 2 = {float(loss)} is above {_LARGEST_LOSS}; lower l0 or epsilon"
        )
    return loss


def exp_above(exponent: Fraction) -> Fraction:
    """Return exp(exponent), rounded up in its 60th digit."""
    return Fraction(Interval.of(exponent, _DIGITS).exp().high)
