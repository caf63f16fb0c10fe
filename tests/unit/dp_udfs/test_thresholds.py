"""Thresholds against published values and against slow, obvious sums."""

import math
from fractions import Fraction

import pytest
from scipy import stats

from dp_udfs import thresholds
from dp_udfs.errors import InvalidParameterError

EPSILON, DELTA = Fraction("0.15"), Fraction("1e-10")


def laplace(scale: float, reach: int) -> dict[int, float]:
    """Probabilities of discrete Laplace noise on [-reach, reach]."""
    ratio = math.exp(-1 / scale)
    return {z: (1 - ratio) / (1 + ratio) * ratio ** abs(z) for z in range(-reach, reach + 1)}


@pytest.mark.parametrize(("l0", "offset"), [(1, 344), (5, 368)])
def test_unknown_laplace_has_the_published_offsets(l0: int, offset: int) -> None:
    assert thresholds.unknown_laplace_offset(l0, 1, 1000, EPSILON, DELTA) == offset


@pytest.mark.parametrize(("l0", "linf", "most"), [(1, 1, 1), (2, 1, 9), (3, 2, 2)])
def test_unknown_laplace_takes_the_smallest_gap_that_will_do(l0: int, linf: int, most: int) -> None:
    epsilon, delta = Fraction("0.8"), Fraction("0.02")
    gap = thresholds.unknown_laplace_offset(l0, linf, most, epsilon, delta) - linf
    noise = laplace(2 * linf / 0.8, 150)
    allowed = 0.02 / (1 + math.exp(l0 * 0.8 / 2)) / min(l0, most)

    def exceeds(gap: int) -> float:
        """P[D > gap] for the difference D of two variables, by convolution."""
        return sum(p * sum(q for y, q in noise.items() if x - y > gap) for x, p in noise.items())

    assert exceeds(gap) <= allowed < exceeds(gap - 1)


@pytest.mark.parametrize(("l0", "offset"), [(None, 200.55737472615064), (5, 165.23525894916372)])
def test_unknown_gumbel_has_the_published_offsets(l0: int | None, offset: float) -> None:
    found = thresholds.unknown_gumbel_offset(1000, l0, 1, EPSILON, DELTA)
    assert found == pytest.approx(offset, rel=1e-6)


@pytest.mark.parametrize(("l0", "linf", "epsilon"), [(1, 1, "1"), (3, 1, "0.5"), (2, 4, "2")])
def test_fixed_gaussian_takes_the_smallest_gap_that_will_do(
    l0: int, linf: int, epsilon: str
) -> None:
    gap = thresholds.fixed_gaussian_threshold(l0, linf, Fraction(epsilon), Fraction("0.01")) - linf
    deviation = 2 * linf / float(epsilon)
    weights = {z: math.exp(-((z / deviation) ** 2) / 2) for z in range(-400, 401)}

    def exceeds(gap: int) -> float:
        return sum(w for z, w in weights.items() if z > gap) / sum(weights.values())

    def any_shows(gap: int) -> float:
        """Chance that any of the l0 elements of a lone unit shows, each counting linf."""
        return 1 - (1 - exceeds(gap)) ** l0

    assert any_shows(gap) <= 0.01 < any_shows(gap - 1)


def test_integer_noise_needs_more_than_the_continuous_quantile() -> None:
    """Standard deviation 2, delta 0.01: 1 + 2 z(0.99) = 5.652, and whole numbers need 6."""
    continuous = 1 + 2 * stats.norm.isf(0.01)
    assert continuous == pytest.approx(5.652, abs=1e-3)
    assert thresholds.fixed_gaussian_threshold(1, 1, Fraction(1), Fraction("0.01")) == 6


def test_fixed_gaussian_is_far_below_a_noisy_threshold_at_standard_settings() -> None:
    """Continuous noise would give 85.8; the two-draw Laplace threshold is 344."""
    assert thresholds.fixed_gaussian_threshold(1, 1, EPSILON, DELTA) == 86


@pytest.mark.parametrize("delta", ["0.3", "0.01", "1e-10", "1e-40", "1e-200"])
@pytest.mark.parametrize("l0", [1, 2, 7, 1000])
def test_a_share_of_delta_is_rounded_down_and_hardly_at_all(l0: int, delta: str) -> None:
    total, share = Fraction(delta), thresholds.each_of(l0, Fraction(delta))
    # 1 - (1 - p)^l0 = delta to first orders: p = delta / l0 + delta^2 (l0 - 1) / (2 l0^2) + ...
    assert (1 - share) ** l0 >= 1 - total
    above = share * (1 + Fraction(1, 10**40))
    assert (1 - above) ** l0 < 1 - total


def test_the_exponential_is_rounded_up_and_hardly_at_all() -> None:
    assert thresholds.exp_above(Fraction(0)) >= 1
    for exponent in (Fraction(3, 40), Fraction(1, 3), Fraction(150)):
        assert float(thresholds.exp_above(exponent)) == pytest.approx(math.exp(exponent), rel=1e-14)
    squared = thresholds.exp_above(Fraction(1, 3)) ** 2
    assert 0 < squared / thresholds.exp_above(Fraction(2, 3)) - 1 < Fraction(1, 10**57)


def test_a_loss_beyond_any_guarantee_is_refused() -> None:
    assert thresholds.half_loss(10, Fraction(40)) == 200
    with pytest.raises(InvalidParameterError, match="lower l0 or epsilon"):
        thresholds.half_loss(10, Fraction(41))
