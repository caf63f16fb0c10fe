"""The mechanisms follow their exact laws, and the laws are private.

First, each law is written down again from its definition: peeling with exact weights, or a direct
sum over integer noise. Then 20,000 keyed seeds of each mechanism are compared with it by
chi-square: fixed seeds, at a level where a correct mechanism fails once in 10,000 choices of them;
with two parts of the noise, it must fail. Last, all pairs of neighbours among small histograms
are enumerated, and their hockey-stick divergence may not exceed delta; with a wrong threshold, it
must.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dp_udfs import noise, prices, thresholds, top_k
from dp_udfs.rng import SecureRandom, keyed

SECRET = bytes(range(32))
SEEDS = 20_000
FALSE_ALARM = 1e-4
BOT = "BOT"

Histogram = tuple[tuple[str, int], ...]
Law = Mapping[Any, float]
Floats = NDArray[np.float64]


# --- the laws, from their definitions -------------------------------------------------------------


def ranked(histogram: Histogram) -> list[tuple[str, int]]:
    """Positive elements by count descending, then name."""
    return sorted((pair for pair in histogram if pair[1] > 0), key=lambda pair: (-pair[1], pair[0]))


def peeling(weights: Mapping[str, float], k: int) -> dict[tuple[str, ...], float]:
    """Orders of the first k drawn without replacement; the stop symbol ends an order."""
    if k == 0 or not weights:
        return {(): 1.0}
    total = sum(weights.values())
    law: dict[tuple[str, ...], float] = {}
    for name, weight in weights.items():
        rest = {other: w for other, w in weights.items() if other != name}
        for order, p in peeling(rest, 0 if name == BOT else k - 1).items():
            law[(name, *order)] = weight / total * p
    return law


def known_gumbel_law(histogram: Histogram, k: int, linf: int, epsilon: float) -> Law:
    return peeling({name: math.exp(epsilon * n / linf) for name, n in histogram}, k)


@lru_cache(maxsize=4096)
def unknown_gumbel_law(
    histogram: Histogram,
    k: int,
    linf: int,
    most: int,
    epsilon: float,
    delta: float,
    l0: int | None = None,
    optimise: bool = True,
) -> Law:
    """Mixture over the number of candidates considered."""
    rows = ranked(histogram)

    def below(considered: int) -> int:
        return rows[considered][1] if considered < len(rows) else 0

    def displaced(considered: int) -> int:
        return considered if l0 is None else min(considered, l0)

    choices = range(k, most + 1) if optimise else [most]
    chances = {c: math.exp(-epsilon * below(c) / linf) / displaced(c) for c in choices}
    law: dict[Hashable, float] = defaultdict(float)
    for considered, chance in chances.items():
        weights = {name: math.exp(epsilon * n / linf) for name, n in rows[:considered]}
        weights[BOT] = (
            math.exp(epsilon + epsilon * below(considered) / linf) * displaced(considered) / delta
        )
        for order, p in peeling(weights, k).items():
            law[order] += chance / sum(chances.values()) * p
    return law


def laplace(values: NDArray[np.int64], scale: float) -> Floats:
    q = math.exp(-1 / scale)
    return np.asarray((1 - q) / (1 + q) * q ** np.abs(values))


def gaussian(values: NDArray[np.int64], deviation: float) -> Floats:
    weights = np.exp(-((np.arange(-60, 61) / deviation) ** 2) / 2)
    return np.asarray(np.exp(-((values / deviation) ** 2) / 2) / weights.sum())


@lru_cache(maxsize=64)
def unknown_laplace_law(
    histogram: Histogram, linf: int, most: int, epsilon: float, offset: int
) -> dict[tuple[str, ...], Floats]:
    """For each set of released elements, the probabilities of all values they may show."""
    rows, scale = ranked(histogram), 2 * linf / epsilon
    below = rows[most][1] if most < len(rows) else 0
    reach = math.ceil(14 * scale)  # the rest has probability below 1e-6
    grid = np.arange(-reach, offset + reach + 4)
    stop = laplace(grid - below - offset, scale)
    law = {}
    for released in itertools.product((False, True), repeat=len(rows[:most])):
        shown = [row for row, out in zip(rows[:most], released, strict=True) if out]
        hidden = [n for (_, n), out in zip(rows[:most], released, strict=True) if not out]
        ends_here = stop * math.prod(np.cumsum(laplace(grid - n, scale)) for n in hidden)
        ends_below = np.cumsum(ends_here) - ends_here
        shown.sort()  # axes go by name, so that neighbours agree on them
        density = np.ones(())
        for _, n in shown:
            density = np.multiply.outer(density, laplace(grid - n, scale))
        if shown:
            lowest = np.indices(density.shape).min(axis=0)
            law[tuple(name for name, _ in shown)] = density * ends_below[lowest]
        else:
            law[()] = np.array(ends_here.sum())
    return law


@lru_cache(maxsize=64)
def fixed_gaussian_law(
    histogram: Histogram, linf: int, epsilon: float, threshold: float
) -> dict[tuple[str, ...], Floats]:
    """One axis for each element: not shown, or its value above the threshold."""
    shown = np.arange(math.floor(threshold) + 1, math.floor(threshold) + 30)
    joint = np.ones(())
    for _, n in histogram:
        values = gaussian(shown - n, 2 * linf / epsilon) * (n > 0)
        joint = np.multiply.outer(joint, np.append(1 - values.sum(), values))
    return {(): joint}


# --- sampled outcomes against the laws ------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A mechanism with its data fixed, what to look at in its answer, and the law of that."""

    run: Callable[[SecureRandom], top_k.TopK]
    outcome: Callable[[top_k.TopK], Hashable]
    law: Law


def order(answer: top_k.TopK) -> Hashable:
    return answer.elements + ((BOT,) if answer.stopped else ())


def names(answer: top_k.TopK) -> Hashable:
    return tuple(sorted(answer.elements, key=str))


def count_of(element: str) -> Callable[[top_k.TopK], Hashable]:
    """The noisy count of one element, or None if it is not released."""

    def find(answer: top_k.TopK) -> Hashable:
        return dict(zip(answer.elements, answer.counts or (), strict=True)).get(element)

    return find


def sets_of(law: Mapping[tuple[str, ...], Floats]) -> Law:
    return {released: float(values.sum()) for released, values in law.items()}


def integer_law(probabilities: Callable[..., Floats], centre: int, scale: float) -> Law:
    values = np.arange(centre - 200, centre + 201)
    return dict(zip(values.tolist(), probabilities(values - centre, scale).tolist(), strict=True))


AB: Histogram = (("a", 3), ("b", 1))
DOMAIN: Histogram = (*AB, ("c", 0), ("d", 0), ("e", 0))
FOUR: Histogram = (("d", 2), ("c", 5), ("b", 2), ("a", 7))


def call(function: Callable[..., top_k.TopK], histogram: Histogram, **parameters: Any) -> Any:
    elements, counts = [name for name, _ in histogram], [n for _, n in histogram]
    return lambda rng: function(elements, counts, rng=rng, **parameters)


def gaussian_count_law() -> Law:
    """Count of the element `a` of FOUR, with everything at or below the threshold as None."""
    threshold = thresholds.fixed_gaussian_threshold(2, 1, Fraction("0.8"), Fraction("0.2"))
    whole = integer_law(gaussian, 7, 2 / 0.8)
    law: dict[Hashable, float] = {n: p for n, p in whole.items() if n > threshold}
    return law | {None: 1 - sum(law.values())}


CASES = {
    "unknown_gumbel, published": Case(
        call(
            top_k.unknown_gumbel, AB, k=1, linf=1, max_candidates=1, epsilon="0.5", delta="0.05",
            optimise_threshold=False,
        ),
        order,
        {("BOT",): 0.9238420944089875, ("a",): 0.07615790559101268},
    ),
    "known_gumbel, published": Case(
        call(top_k.known_gumbel, DOMAIN, k=1, linf=1, epsilon="0.5"),
        lambda answer: answer.elements,
        {
            ("a",): 0.49085297406561745,
            ("b",): 0.1805747177965998,
            ("c",): 0.10952410271259429,
            ("d",): 0.10952410271259429,
            ("e",): 0.10952410271259429,
        },
    ),
    "unknown_laplace, published": Case(
        call(
            top_k.unknown_laplace, AB, l0=1, linf=1, max_candidates=1, epsilon="0.5", delta="0.05"
        ),
        names,
        {(): 0.9754653651798886, ("a",): 0.02453463482011122},
    ),
    "unknown_gumbel, optimal threshold, l0": Case(
        call(
            top_k.unknown_gumbel, FOUR, k=2, linf=2, max_candidates=4, epsilon="1.1", delta="0.6",
            l0=2,
        ),
        order,
        unknown_gumbel_law(FOUR, 2, 2, 4, 1.1, 0.6, l0=2),
    ),
    "known_gumbel, orders of two": Case(
        call(top_k.known_gumbel, FOUR, k=2, linf=2, epsilon="1.5"),
        order,
        known_gumbel_law(FOUR, 2, 2, 1.5),
    ),
    "unknown_laplace, sets": Case(
        call(
            top_k.unknown_laplace, FOUR, l0=2, linf=1, max_candidates=3, epsilon="1.6", delta="0.5"
        ),
        names,
        sets_of(
            unknown_laplace_law(
                FOUR, 1, 3, 1.6,
                thresholds.unknown_laplace_offset(2, 1, 3, Fraction("1.6"), Fraction("0.5")),
            )
        ),
    ),
    "fixed_gaussian, counts": Case(
        call(top_k.fixed_gaussian, FOUR, l0=2, linf=1, epsilon="0.8", delta="0.2"),
        count_of("a"),
        gaussian_count_law(),
    ),
    "known_laplace, counts": Case(
        call(top_k.known_laplace, FOUR, l0=1, linf=3, epsilon="1.5"),
        count_of("b"),
        integer_law(laplace, 2, 4),
    ),
    "known_gumbel, counts": Case(
        call(top_k.known_gumbel, (("a", 9),), k=1, linf=3, epsilon="1.5"),
        count_of("a"),
        integer_law(laplace, 9, 4),
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def chi_square(case: Case, seeds: int, label: str) -> float:
    """Chance of a fit as bad as this one; cells expected fewer than 10 times are one cell."""
    seen = Counter(case.outcome(case.run(keyed(SECRET, label, seed))) for seed in range(seeds))
    usual = [outcome for outcome, p in case.law.items() if p * seeds >= 10]
    observed = [seen[outcome] for outcome in usual]
    expected = [case.law[outcome] * seeds for outcome in usual]
    if seeds - sum(expected) >= 1:
        observed.append(seeds - sum(observed))
        expected.append(seeds - sum(expected))
    scaled = np.array(expected) * (seeds / sum(expected))
    if sum(observed) != seeds:
        return 0.0  # something came that cannot come
    return float(stats.chisquare(observed, scaled).pvalue)


def test_the_laws_reproduce_the_published_tables() -> None:
    gap = thresholds.unknown_laplace_offset(1, 1, 1, Fraction("0.5"), Fraction("0.05"))
    assert gap == 18
    for name, law in (
        ("unknown_gumbel", unknown_gumbel_law(AB, 1, 1, 1, 0.5, 0.05, optimise=False)),
        ("known_gumbel", known_gumbel_law(DOMAIN, 1, 1, 0.5)),
        ("unknown_laplace", sets_of(unknown_laplace_law(AB, 1, 1, 0.5, gap))),
    ):
        assert law == pytest.approx(CASES[f"{name}, published"].law, rel=3e-6)


@every_case
def test_the_laws_are_whole(case: Case) -> None:
    assert sum(case.law.values()) == pytest.approx(1, abs=1e-6)


@every_case
def test_outcomes_follow_the_exact_law(case: Case) -> None:
    assert chi_square(case, SEEDS, "exact") > FALSE_ALARM


@every_case
def test_two_thirds_of_the_noise_are_found_out(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    weaken_noise(monkeypatch)
    assert chi_square(case, SEEDS // 4, "weak") < 1e-9


def weaken_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every mechanism two parts of its noise."""
    laplace, gaussian, order = noise.discrete_laplace, noise.discrete_gaussian, noise.gumbel_order
    two_thirds = Fraction(2, 3)
    monkeypatch.setattr(noise, "discrete_laplace", lambda s, *rest: laplace(s * two_thirds, *rest))
    monkeypatch.setattr(
        noise, "discrete_gaussian", lambda v, *rest: gaussian(v * two_thirds**2, *rest)
    )

    def weaker(linear: Any, slope: Fraction, terms: Any, *rest: Any, **options: Any) -> Any:
        raised = None
        if terms is not None:
            raised = noise.LogTerms([Fraction(float(term) ** 1.5) for term in terms])
        return order(linear, slope / two_thirds, raised, *rest, **options)

    monkeypatch.setattr(noise, "gumbel_order", weaker)


def test_counts_do_not_know_why_their_element_was_selected() -> None:
    """Given that the second-best element came first, its count still has its own, centred noise."""
    run = CASES["known_gumbel, published"].run
    answers = [run(keyed(SECRET, "fresh counts", seed)) for seed in range(SEEDS // 4)]
    noises = [
        answer.counts[0] - 1 for answer in answers if answer.counts and "b" in answer.elements
    ]
    assert len(noises) > 800
    assert abs(np.mean(noises)) < 4 * np.std(noises) / math.sqrt(len(noises))


# --- the laws of neighbours -----------------------------------------------------------------------


def neighbours(l0: int, linf: int = 1, largest: int = 3) -> Iterator[tuple[Histogram, Histogram]]:
    """All pairs over three elements where one unit adds at most linf to at most l0 counts."""
    for counts in itertools.product(range(largest + 1), repeat=3):
        for taken in itertools.product(range(linf + 1), repeat=3):
            fewer = [n - less for n, less in zip(counts, taken, strict=True)]
            if 0 < sum(less > 0 for less in taken) <= l0 and min(fewer) >= 0:
                larger, smaller = (tuple(zip("abc", each, strict=True)) for each in (counts, fewer))
                yield larger, smaller
                yield smaller, larger


def hockey_stick(one: Mapping[Any, Any], other: Mapping[Any, Any], epsilon: float) -> float:
    """The least delta such that `one` is at most exp(epsilon) `other` plus delta."""
    excess = (
        np.maximum(p - math.exp(epsilon) * np.asarray(other.get(outcome, 0.0)), 0).sum()
        for outcome, p in one.items()
    )
    return float(sum(excess))


def worst(
    law: Callable[[Histogram], Mapping[Any, Any]], epsilon: float, l0: int, linf: int = 1
) -> float:
    return max(hockey_stick(law(one), law(other), epsilon) for one, other in neighbours(l0, linf))


@pytest.mark.parametrize(("k", "linf"), [(1, 1), (2, 1), (2, 2)])
def test_known_gumbel_is_exactly_k_bounded_range_steps(k: int, linf: int) -> None:
    """Losses on any two outcomes differ by k * epsilon at most, and that is reached."""
    ranges = []
    for one, other in neighbours(3, linf):
        law, reference = (known_gumbel_law(h, k, linf, 0.7) for h in (one, other))
        losses = [math.log(p / reference[outcome]) for outcome, p in law.items()]
        ranges.append(max(losses) - min(losses))
    assert max(ranges) <= k * 0.7 + 1e-12
    assert max(ranges) > k * 0.7 - (0.01 if k == 1 else 0.7)


@pytest.mark.parametrize("optimise", [True, False])
@pytest.mark.parametrize(("k", "most", "l0"), [(1, 1, None), (1, 2, 1), (2, 2, None), (2, 3, 2)])
@pytest.mark.parametrize("delta", [0.01, 0.05])
def test_unknown_gumbel_is_private(
    k: int, most: int, l0: int | None, delta: float, optimise: bool
) -> None:
    """Selections only: as many steps as are charged without counts, and delta."""
    epsilon = (k + optimise) * 0.6 + k * math.log(1 / (1 - delta))

    def law(histogram: Histogram, delta: float = delta) -> Law:
        return unknown_gumbel_law(histogram, k, 1, most, 0.6, delta, l0, optimise)

    assert 0 < worst(law, epsilon, l0 or 3) <= delta
    assert worst(lambda histogram: law(histogram, delta=10 * delta), epsilon, l0 or 3) > delta


def test_unknown_gumbel_uses_an_enforced_l0_only_because_it_is_enforced() -> None:
    def law(histogram: Histogram) -> Law:
        return unknown_gumbel_law(histogram, 2, 1, 2, 0.6, 0.05, 1, False)

    epsilon = 2 * 0.6 + 2 * math.log(1 / 0.95)
    assert worst(law, epsilon, l0=1) <= 0.05 < worst(law, epsilon, l0=2)


@pytest.mark.parametrize(("l0", "most"), [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(("epsilon", "delta"), [("0.5", "0.001"), ("1", "0.001")])
def test_unknown_laplace_is_private(l0: int, most: int, epsilon: str, delta: str) -> None:
    """One call is (l0 epsilon / 2, delta)-DP; ten times the delta is not, nor ln(m / delta)."""
    eps, tail = float(epsilon), float(delta)

    def worst_at(offset: int) -> float:
        return worst(
            lambda histogram: unknown_laplace_law(histogram, 1, most, eps, offset), l0 * eps / 2, l0
        )

    def offset(delta: Fraction) -> int:
        return thresholds.unknown_laplace_offset(l0, 1, most, Fraction(epsilon), delta)

    assert 0 < worst_at(offset(Fraction(delta))) <= tail
    assert worst_at(offset(10 * Fraction(delta))) > tail
    plain = 1 + math.ceil(2 / eps * math.log(min(l0, most) / tail))
    assert worst_at(plain) > tail


@pytest.mark.parametrize("epsilon", ["1", "2"])
def test_unknown_laplace_composes_as_one_laplace_step_and_its_call_delta(epsilon: str) -> None:
    """At any factor: at most "reveal all with call_delta, else one Laplace step"."""
    eps = float(epsilon)
    offset = thresholds.unknown_laplace_offset(1, 1, 2, Fraction(epsilon), Fraction("0.01"))
    reveals = float(prices.call_delta("unknown_laplace", l0=1, epsilon=epsilon, delta="0.01"))
    values = np.arange(-80, 82)
    step = {"value": laplace(values, 2 / eps)}, {"value": laplace(values - 1, 2 / eps)}
    for at in np.linspace(-eps, eps, 9).tolist():
        found = worst(lambda histogram: unknown_laplace_law(histogram, 1, 2, eps, offset), at, 1)
        assert found <= reveals + (1 - reveals) * hockey_stick(*step, at) + 1e-9


@pytest.mark.parametrize(("l0", "delta"), [(1, "0.00136"), (2, "0.002718")])
def test_fixed_gaussian_is_private(l0: int, delta: str) -> None:
    """Delta-approximate (l0 epsilon^2 / 8)-zCDP, converted at 1e-5; three wrong thresholds fail.

    Standard deviation 1, and a delta whose continuous threshold is just below a whole number.
    """
    conversion = 1e-5
    allowed, rho = float(delta) + conversion, l0 / 2
    loss = rho + 2 * math.sqrt(rho * math.log(1 / conversion))

    def worst_at(threshold: float) -> float:
        return worst(lambda histogram: fixed_gaussian_law(histogram, 1, 2.0, threshold), loss, l0)

    def threshold(delta: Fraction) -> int:
        return thresholds.fixed_gaussian_threshold(l0, 1, Fraction(2), delta)

    assert 0 < worst_at(threshold(Fraction(delta))) <= allowed
    assert worst_at(threshold(10 * Fraction(delta))) > allowed
    assert worst_at(threshold(Fraction(delta)) - 1) > allowed
    continuous = 1 + stats.norm.isf(1 - (1 - float(delta)) ** (1 / l0))
    assert worst_at(continuous) > 2 * allowed


def test_a_fixed_threshold_on_a_cut_histogram_is_not_private() -> None:
    """Cut to its top two first, an element far above the threshold may come or go."""
    threshold = thresholds.fixed_gaussian_threshold(1, 1, Fraction(2), Fraction("0.01"))

    def cut(histogram: Histogram) -> dict[tuple[str, ...], Floats]:
        top = dict(ranked(histogram)[:2])
        kept = tuple((name, top.get(name, 0)) for name, _ in histogram)
        return fixed_gaussian_law(kept, 1, 2.0, threshold)

    one, other = (("a", 15), ("b", 14), ("c", 15)), (("a", 15), ("b", 15), ("c", 15))
    assert hockey_stick(cut(one), cut(other), 10) > 0.9
