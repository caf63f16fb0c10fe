"""Noise follows its law: chi-square against exact probabilities, from fixed seeds.

Each law passes at a false-alarm rate of 1 in 1,000 for a seed chosen blindly, and the same noise
at two thirds of its scale is rejected at 1 in 10^12.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dp_udfs import noise, rng
from dp_udfs.rng import Element

SECRET = b"statistical tests, fixed forever"
DRAWS = 200_000
ORDERS = 20_000
FALSE_ALARM = 1e-3
REJECTED = 1e-12

Exponent = Callable[[float], float]


def p_value(counts: Sequence[float], expected: Sequence[float]) -> float:
    return float(stats.chisquare(counts, expected).pvalue)


def law_p_value(draws: noise.IntArray, exponent: Exponent) -> float:
    """Compare draws with the law of weights exp(-exponent(z)); both tails become one cell each."""
    weights = {z: math.exp(-exponent(z)) for z in range(-3000, 3001)}
    total = math.fsum(weights.values())
    edge = max(z for z, weight in weights.items() if len(draws) * weight / total >= 20)
    expected: Counter[int] = Counter()
    for z, weight in weights.items():
        expected[max(-edge, min(edge, z))] += len(draws) * weight / total  # type: ignore[assignment]
    found = Counter(np.clip(draws, -edge, edge).tolist())
    cells = sorted(expected)
    return p_value([found[z] for z in cells], [expected[z] for z in cells])


@pytest.mark.parametrize("elements", [DRAWS, range(DRAWS)], ids=["stream", "keyed"])
@pytest.mark.parametrize("scale", [Fraction(40, 3), Fraction(1, 2), Fraction(1), Fraction(157, 3)])
def test_discrete_laplace(scale: Fraction, elements: Sequence[Element] | int) -> None:
    def exponent(z: float) -> float:
        return abs(z) / float(scale)

    source = rng.keyed(SECRET, "laplace", str(scale))
    draws = noise.discrete_laplace(scale, source, "p", elements)
    assert law_p_value(draws, exponent) > FALSE_ALARM
    weaker = noise.discrete_laplace(scale * 2 / 3, source, "p", elements)
    assert law_p_value(weaker, exponent) < REJECTED


@pytest.mark.parametrize("elements", [DRAWS, range(DRAWS)], ids=["stream", "keyed"])
@pytest.mark.parametrize(
    "variance", [Fraction(1600, 9), Fraction(1, 3), Fraction(1), Fraction(9999)]
)
def test_discrete_gaussian(variance: Fraction, elements: Sequence[Element] | int) -> None:
    def exponent(z: float) -> float:
        return z**2 / (2 * float(variance))

    source = rng.keyed(SECRET, "gaussian", str(variance))
    draws = noise.discrete_gaussian(variance, source, "p", elements)
    assert law_p_value(draws, exponent) > FALSE_ALARM
    weaker = noise.discrete_gaussian(variance * 4 / 9, source, "p", elements)
    assert law_p_value(weaker, exponent) < REJECTED


def test_large_scales_agree_with_continuous_laws() -> None:
    """Kolmogorov-Smirnov; at a scale of a million the steps are far below what it can see."""
    source = rng.keyed(SECRET, "large")
    laplace = noise.discrete_laplace(Fraction(10**6), source, "laplace", DRAWS) / 1e6
    gaussian = noise.discrete_gaussian(Fraction(10**12), source, "gaussian", DRAWS) / 1e6
    for draws, law in ((laplace, stats.laplace), (gaussian, stats.norm)):
        assert stats.kstest(draws, law.cdf).pvalue > FALSE_ALARM
        assert stats.kstest(draws * 2 / 3, law.cdf).pvalue < REJECTED


@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_draws_of_neighbouring_keys_are_uncorrelated(draw: Callable[..., noise.IntArray]) -> None:
    """Correlations of 200,000 pairs, within 4 standard deviations (false alarms: 1 in 16,000)."""
    source = rng.keyed(SECRET, "pairs")
    draws = draw(Fraction(40), source, "p", range(DRAWS)).astype(float)
    others = draw(Fraction(40), source, "other", range(DRAWS)).astype(float)
    stream = draw(Fraction(40), source, "p", DRAWS).astype(float)
    for one, other in ((draws[1:], draws[:-1]), (draws, others), (draws, stream)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / DRAWS**0.5
        assert abs(np.corrcoef(abs(one), abs(other))[0, 1]) < 4 / DRAWS**0.5
        assert abs(np.corrcoef(np.sign(one), abs(other))[0, 1]) < 4 / DRAWS**0.5


COUNTS = (4, 2, 2, 0)
TERMS = (Fraction(1), Fraction(1), Fraction(5, 2), Fraction(7))


def peeling(slope: Fraction) -> dict[tuple[int, ...], float]:
    """Probability of each order: choose by weight, again and again, without replacement."""
    weights = [math.exp(slope * h) * float(term) for h, term in zip(COUNTS, TERMS, strict=True)]
    table = {}
    for order in itertools.permutations(range(len(COUNTS))):
        left, probability = sum(weights), 1.0
        for place in order:
            probability *= weights[place] / left
            left -= weights[place]
        table[order] = probability
    return table


def orders(
    slope: Fraction, elements: Sequence[Element] | int, size: int
) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(size):
        source = rng.keyed(SECRET, "order", seed)
        order = noise.gumbel_order(COUNTS, slope, noise.LogTerms(TERMS), source, "p", elements)
        found[tuple(order.tolist())] += 1
    return found


@pytest.mark.parametrize("elements", [4, ["a", "b", None, 3]], ids=["stream", "keyed"])
def test_gumbel_order(elements: Sequence[Element] | int) -> None:
    table = peeling(Fraction(1, 2))

    def order_p_value(slope: Fraction, size: int) -> float:
        found = orders(slope, elements, size)
        return p_value([found[order] for order in table], [size * p for p in table.values()])

    assert order_p_value(Fraction(1, 2), ORDERS) > FALSE_ALARM
    assert order_p_value(Fraction(3, 4), ORDERS // 4) < REJECTED  # two thirds of the noise
