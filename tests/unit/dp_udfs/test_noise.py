"""Noise is exact where floating point is not: fast draws meet slow ones of 200 digits."""

import itertools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs import noise, rng
from dp_udfs.errors import InvalidParameterError
from dp_udfs.rng import Element, Label, SecureRandom, UInt64Array

SECRET = bytes(range(32))
SCALE = Fraction(40, 3)  # 2 tau / epsilon of tau = 1, epsilon = 0.15
SCALES = [SCALE, Fraction(1, 7), Fraction(1), Fraction(10**6), Fraction(10**10, 3)]
BITS = 700  # of a scripted number, at most
DIGITS = 240  # of the references: more than BITS can tell apart


class Scripted(SecureRandom):
    """Gives element i the uniform numbers that the script says, to every bit."""

    def __init__(self, script: Callable[[int, int], Fraction], column: int | None = None) -> None:
        self._script, self._column = script, column

    def words(self, purpose: str, elements: Sequence[Element], block: int = 0) -> UInt64Array:
        assert purpose == "p"
        rows = []
        for element in elements:
            assert isinstance(element, int)
            if self._column is None:  # first words of the numbers 8 block, 8 block + 1, ...
                numbers = [self._script(element, 8 * block + i) for i in range(8)]
                rows.append([int(number * 2**64) for number in numbers])
            else:  # the 512 bits of one number that follow the first 64 + 512 block
                bits = int(self._script(element, self._column) * 2 ** (64 + 512 * (block + 1)))
                rows.append([bits >> 64 * i & (2**64 - 1) for i in reversed(range(8))])
        return np.array(rows, dtype=np.uint64).reshape(-1, 8)

    def stream(self, purpose: str, size: int, block: int = 0) -> UInt64Array:
        raise AssertionError(f"scripts are for elements: {purpose}, {size}, {block}")

    def child(self, *label: Label) -> SecureRandom:
        column = label[-1]
        assert isinstance(column, int)
        return Scripted(self._script, column)


def exp(exponent: Fraction) -> Fraction:
    """exp(exponent) to DIGITS digits."""
    with localcontext(prec=DIGITS):
        return Fraction((Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())


@cache
def ln(value: Fraction) -> Decimal:
    """ln(value) to DIGITS digits."""
    with localcontext(prec=DIGITS):
        return (Decimal(value.numerator) / Decimal(value.denominator)).ln()


def reference_laplace(scale: Fraction, number: Fraction) -> int:
    """The sign is the first bit, the others are U: count the n >= 1 with U < 2 q^n / (1 + q)."""
    negative, uniform = number >= Fraction(1, 2), 2 * number % 1
    with localcontext(prec=DIGITS):
        depth = (laplace_log_step(scale, 0) - ln(uniform)) * scale.numerator / scale.denominator
        magnitude = max(math.ceil(depth) - 1, 0)
    assert magnitude == 0 or ln(uniform) < laplace_log_step(scale, magnitude)
    assert not ln(uniform) < laplace_log_step(scale, magnitude + 1)
    return -magnitude if negative else magnitude


def laplace_log_step(scale: Fraction, n: int) -> Decimal:
    """ln P[abs(Z) >= n] for n >= 1: ln(2 q^n / (1 + q))."""
    with localcontext(prec=DIGITS):
        return ln(2 / (1 + exp(-1 / scale))) - Decimal(n * scale.denominator) / scale.numerator


def laplace_step(scale: Fraction, n: int) -> Fraction:
    with localcontext(prec=DIGITS):
        return Fraction(laplace_log_step(scale, n).exp())


def near(value: Fraction, closeness: int, above: bool) -> Fraction:
    """A number of BITS bits in [0, 1), 2^-closeness above or below a value."""
    moved = value + Fraction(1 if above else -1, 2**closeness)
    top = 1 - Fraction(1, 2**BITS)
    return Fraction(math.floor(min(max(moved, 1 - top), top) * 2**BITS), 2**BITS)


closeness = st.integers(30, 640)
NUMBERS = st.fractions(0, 1).filter(lambda number: number not in (0, Fraction(1, 2), 1))


# --- discrete Laplace -----------------------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(SCALES), st.floats(0, 40), closeness, st.booleans(), st.booleans())
def test_laplace_at_the_steps_of_its_distribution(
    scale: Fraction, depth: float, bits: int, above: bool, negative: bool
) -> None:
    n = 1 + math.floor(scale * Fraction(depth))
    uniform = near(laplace_step(scale, n), bits, above)
    number = (uniform + negative) / 2
    drawn = noise.discrete_laplace(scale, Scripted(lambda _, __: number), "p", [0])
    assert drawn.tolist() == [reference_laplace(scale, number)]
    if Fraction(1, 2**bits) < laplace_step(scale, n) - laplace_step(scale, n + 1):
        assert abs(drawn[0]) == n - above


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(SCALES), st.lists(NUMBERS, min_size=1, max_size=6))
def test_laplace_draws_equal_slow_exact_ones(scale: Fraction, numbers: list[Fraction]) -> None:
    source = Scripted(lambda element, _: numbers[element])
    drawn = noise.discrete_laplace(scale, source, "p", range(len(numbers)))
    assert drawn.tolist() == [reference_laplace(scale, number) for number in numbers]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("zeros", [62, 63, 64, 65, 600, 690])
def test_laplace_has_no_longest_tail(scale: Fraction, zeros: int) -> None:
    number = Fraction(1, 2 ** (zeros + 1))  # a sign, then only zeros for long
    drawn = noise.discrete_laplace(scale, Scripted(lambda _, __: number), "p", [0])
    assert drawn.tolist() == [reference_laplace(scale, number)]
    assert drawn[0] > 0.69 * zeros * float(scale) - 1


def test_laplace_of_words_of_ones() -> None:
    number = 1 - Fraction(1, 2**BITS)
    drawn = noise.discrete_laplace(SCALE, Scripted(lambda _, __: number), "p", [0])
    assert drawn.tolist() == [0]


# --- discrete Gaussian ----------------------------------------------------------------------------


def reference_gaussian(variance: Fraction, number: Callable[[int], Fraction]) -> int:
    """Canonne, Kamath and Steinke's algorithm 3, step by step."""
    t = math.isqrt(math.floor(variance)) + 1
    for column in itertools.count(step=2):
        y = reference_laplace(Fraction(t), number(column))
        if number(column + 1) < exp(-((abs(y) - variance / t) ** 2) / (2 * variance)):
            return y
    raise AssertionError


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([SCALE**2, Fraction(1, 9), Fraction(5), Fraction(10**12) + Fraction(1, 3)]),
    st.lists(
        st.tuples(st.floats(0.001, 0.999).filter(lambda u: u != 0.5), closeness, st.booleans()),
        min_size=1,
        max_size=6,
    ),
)
def test_gaussian_at_the_edge_of_acceptance(
    variance: Fraction, attempts: list[tuple[float, int, bool]]
) -> None:
    t = math.isqrt(math.floor(variance)) + 1

    def script(_: int, column: int) -> Fraction:
        if column >= 2 * len(attempts):  # a proposal near 0, accepted for sure
            return Fraction(1, 2**40) if column % 2 else Fraction(2, 5)
        start, bits, above = attempts[column // 2]
        if column % 2 == 0:
            return Fraction(start)
        y = reference_laplace(Fraction(t), Fraction(start))
        return near(exp(-((abs(y) - variance / t) ** 2) / (2 * variance)), bits, above)

    drawn = noise.discrete_gaussian(variance, Scripted(script), "p", [0])
    assert drawn.tolist() == [reference_gaussian(variance, lambda column: script(0, column))]


def test_gaussian_draws_are_independent_of_their_neighbours() -> None:
    source = rng.keyed(SECRET)
    together = noise.discrete_gaussian(SCALE**2, source, "p", range(300))
    alone = [noise.discrete_gaussian(SCALE**2, source, "p", [i])[0] for i in range(300)]
    assert together.tolist() == alone


# --- Gumbel order ---------------------------------------------------------------------------------


def reference_times(
    linear: Sequence[int], slope: Fraction, terms: Sequence[Fraction], numbers: Sequence[Fraction]
) -> list[Decimal]:
    with localcontext(prec=DIGITS):
        return [
            (-ln(number)).ln() - ln(term) - Decimal((slope * h).numerator) / (slope * h).denominator
            for h, term, number in zip(linear, terms, numbers, strict=True)
        ]


def tied(
    h: int, term: Fraction, time: Decimal, slope: Fraction, bits: int, above: bool
) -> Fraction:
    """The uniform number with which a candidate finishes at a given time, moved a little."""
    with localcontext(prec=DIGITS):
        score = ln(term) + Decimal((slope * h).numerator) / (slope * h).denominator
        return near(Fraction((-(time + score).exp()).exp()), bits, above)


CANDIDATES = st.tuples(
    st.integers(0, 60), st.fractions("0.01", 100), st.integers(25, 640), st.booleans()
)


@settings(deadline=None, max_examples=60)
@given(st.lists(CANDIDATES, min_size=2, max_size=6), st.floats(-2, 2), st.integers(0, 10**12))
def test_gumbel_order_of_near_ties(
    candidates: list[tuple[int, Fraction, int, bool]], time: float, base: int
) -> None:
    slope = Fraction(3, 20)
    linear = [base + h for h, *_ in candidates]
    terms = [term for _, term, *_ in candidates]
    start = Decimal(time) - Decimal(base * 3) / 20 - 3
    numbers = [
        tied(base + h, term, start, slope, bits, above) for h, term, bits, above in candidates
    ]
    times = reference_times(linear, slope, terms, numbers)
    if len(set(times)) < len(times):
        return
    source = Scripted(lambda element, _: numbers[element])
    order = noise.gumbel_order(
        linear, slope, noise.LogTerms(terms), source, "p", range(len(linear))
    )
    assert order.tolist() == sorted(range(len(times)), key=times.__getitem__)


def test_gumbel_order_where_floating_point_is_wrong() -> None:
    """Twelve numbers 2^-100 apart: binary64 sees twelve equal ones and keeps them as they came."""
    numbers = [Fraction(1, 3) + Fraction(i, 2**100) for i in range(12)]
    assert len({math.log(-math.log(number)) for number in numbers}) == 1
    source = Scripted(lambda element, _: numbers[element])
    order = noise.gumbel_order([5] * 12, SCALE, None, source, "p", range(12))
    assert order.tolist() == list(reversed(range(12)))


@pytest.mark.parametrize("above", [False, True])
def test_gumbel_order_in_both_tails(above: bool) -> None:
    distances = [Fraction(1, 2**k) for k in (20, 24, 25, 39, 40, 41, 63, 64, 65, 66, 500, 501, 690)]
    numbers = [1 - distance if above else distance for distance in distances]
    source = Scripted(lambda element, _: numbers[element])
    order = noise.gumbel_order([0] * len(numbers), SCALE, None, source, "p", range(len(numbers)))
    assert [numbers[i] for i in order] == sorted(numbers, reverse=True)


def test_gumbel_order_of_huge_counts_differs_by_their_differences_only() -> None:
    source = rng.keyed(SECRET)
    small = np.array([0, 1, 2, 3, 50, -7])
    orders = [
        noise.gumbel_order(small + base, Fraction(3, 20), None, source, "p", range(6)).tolist()
        for base in (0, 10**12, 2**62)
    ]
    assert orders[0] == orders[1] == orders[2]
    negative = noise.gumbel_order(2**62 - small, -Fraction(3, 20), None, source, "p", range(6))
    assert negative.tolist() == orders[0]


def test_huge_counts_far_apart_need_no_rigorous_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(noise._Race, "_exact_time")
    counts = [2**62 - 1000 * i for i in range(500)]
    order = noise.gumbel_order(counts, Fraction(3, 20), None, rng.keyed(SECRET), "p", range(500))
    assert order.tolist() == list(range(500))


@given(st.integers(0, 2**32), st.integers(0, 12))
def test_the_first_few_are_the_beginning_of_the_whole_order(seed: int, limit: int) -> None:
    source = rng.keyed(SECRET, seed)
    linear = [3, 3, 2, 2, 1, 1, 0, 0, 100, 100]
    whole = noise.gumbel_order(linear, Fraction(1), None, source, "p", range(10))
    first = noise.gumbel_order(linear, Fraction(1), None, source, "p", range(10), limit=limit)
    assert first.tolist() == whole.tolist()[:limit]
    assert sorted(whole.tolist()) == list(range(10))


def test_a_log_term_is_a_factor_of_the_weight() -> None:
    source = rng.keyed(SECRET)
    order = noise.gumbel_order(
        [0, 0], Fraction(1), noise.LogTerms([Fraction(1), Fraction(10**40)]), source, "p", 2
    )
    assert order.tolist() == [1, 0]


def test_an_extreme_log_term_is_no_float() -> None:
    source = rng.keyed(SECRET)
    terms = [Fraction(10**4000), Fraction(1, 10**4000), Fraction(10**4000 + 1, 10**4000)]
    assert noise.gumbel_order(
        [0] * 3, Fraction(1), noise.LogTerms(terms), source, "p", 3
    ).tolist() == [0, 2, 1]


# --- all three ------------------------------------------------------------------------------------

Draw = Callable[[SecureRandom, Sequence[Element] | int], list[int]]


def laplace(source: SecureRandom, elements: Sequence[Element] | int) -> list[int]:
    return list(map(int, noise.discrete_laplace(SCALE, source, "p", elements)))


def gaussian(source: SecureRandom, elements: Sequence[Element] | int) -> list[int]:
    return list(map(int, noise.discrete_gaussian(SCALE**2, source, "p", elements)))


def gumbel(source: SecureRandom, elements: Sequence[Element] | int) -> list[int]:
    size = elements if isinstance(elements, int) else len(elements)
    return list(map(int, noise.gumbel_order([1] * size, SCALE, None, source, "p", elements)))


ALL = pytest.mark.parametrize("draw", [laplace, gaussian, gumbel])


@ALL
def test_another_c_library_gives_the_same_noise(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = draw(rng.keyed(SECRET), 100_000)
    for function in ("log", "log1p"):
        for module in (np, math):
            exact = getattr(module, function)
            monkeypatch.setattr(module, function, lambda x, f=exact: f(x) * (1 + 3e-12))
    assert draw(rng.keyed(SECRET), 100_000) == before


@ALL
def test_rigorous_arithmetic_agrees_with_floating_point(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = [draw(rng.keyed(SECRET), size) for size in (500, range(500))]
    monkeypatch.setattr(noise, "_SLACK", 0.5)  # nothing is certain any more
    assert [draw(rng.keyed(SECRET), size) for size in (500, range(500))] == fast


@ALL
def test_noise_follows_the_key_of_its_element(draw: Draw) -> None:
    elements: list[Element] = ["a", "b", None, "None", 1, "1", b"1", *range(100, 400)]
    forwards = draw(rng.keyed(SECRET), elements)
    backwards = draw(rng.keyed(SECRET), elements[::-1])
    if draw is gumbel:
        assert [elements[i] for i in forwards] == [elements[::-1][i] for i in backwards]
    else:
        assert forwards == backwards[::-1]
        assert forwards[:50] == draw(rng.keyed(SECRET), elements[:50])
    assert forwards != draw(rng.keyed(SECRET, "other"), elements)


@ALL
def test_nothing_to_draw(draw: Draw) -> None:
    assert draw(rng.keyed(SECRET), []) == draw(rng.fresh(), 0) == []


@ALL
def test_fresh_noise_differs(draw: Draw) -> None:
    assert draw(rng.fresh(), 100) != draw(rng.fresh(), 100)
    assert draw(rng.fresh(), range(100)) != draw(rng.fresh(), range(100))


def test_keyed_noise_is_the_same_on_every_machine_and_version() -> None:
    source = rng.keyed(SECRET, "golden")
    assert (laplace(source, 6), gaussian(source, 6), gumbel(source, 6)) == GOLDEN_STREAM
    films: list[Element] = ["film 1", "film 2", 3, None, b"5"]
    assert (laplace(source, films), gaussian(source, films), gumbel(source, films)) == GOLDEN_FILMS


GOLDEN_STREAM = ([-27, 47, 2, -10, -12, -14], [-29, 10, -7, -3, -24, 20], [3, 4, 5, 0, 2, 1])
GOLDEN_FILMS = ([-34, 18, 16, 8, 24], [16, 19, 17, 8, 25], [0, 3, 2, 1, 4])


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(1, 2**21), Fraction(2**41)])
def test_scales_out_of_range_are_refused(scale: Fraction) -> None:
    with pytest.raises(InvalidParameterError, match="scale"):
        noise.discrete_laplace(scale, rng.fresh(), "p", 1)
    with pytest.raises(InvalidParameterError, match="variance"):
        noise.discrete_gaussian(scale * abs(scale), rng.fresh(), "p", 1)


def test_gumbel_order_refuses_what_it_cannot_order() -> None:
    source = rng.fresh()
    one = Fraction(1)
    with pytest.raises(InvalidParameterError, match="equal length"):
        noise.gumbel_order([1, 2], one, None, source, "p", ["a"])
    with pytest.raises(InvalidParameterError, match="equal length"):
        noise.gumbel_order([1, 2], one, noise.LogTerms([]), source, "p", ["a", "b"])
    with pytest.raises(InvalidParameterError, match="positive"):
        noise.LogTerms([one, 0 * one])
    with pytest.raises(InvalidParameterError, match="differ"):
        noise.gumbel_order([1, 1], one, None, source, "p", [None, None])
    with pytest.raises(InvalidParameterError, match="ranges"):
        noise.gumbel_order([-(2**62), 2**62], one, None, source, "p", ["a", "b"])
    with pytest.raises(InvalidParameterError, match="elements"):
        noise.discrete_laplace(one, source, "p", -1)
