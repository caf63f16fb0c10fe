"""Composition against published values, brute force and the laws that a bound must keep."""

import math
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs import composition
from dp_udfs.errors import InvalidParameterError

# steps, epsilon, delta: base bound, zCDP conversion, bounded-range Rényi
COMPOSED = [
    (10, 1.0, 1e-9, 10.0, 10.802854422181909, 8.839708802092424),
    (100, 0.15, 1e-6, 4.2235534806141874, 3.7817310666954147, 3.749015722662834),
    (3000, 0.15, 1e-9, 34.881229604258635, 33.7818467984751, 33.74929485986212),
]


@pytest.mark.parametrize(("steps", "epsilon", "delta", "base", "zcdp", "renyi"), COMPOSED)
def test_composed_epsilons_are_the_published_ones(
    steps: int, epsilon: float, delta: float, base: float, zcdp: float, renyi: float
) -> None:
    assert composition.bounded_range_epsilon(steps, epsilon, delta) == pytest.approx(base, rel=1e-9)
    assert composition.zcdp_epsilon(steps, epsilon, delta) == pytest.approx(zcdp, rel=1e-9)
    found = composition.bounded_range_renyi_epsilon(steps, epsilon, delta)
    assert found == pytest.approx(renyi, rel=1e-9)


@pytest.mark.parametrize(
    ("periods", "guarantee"),
    [(1, (34.881229604258635, 7e-9)), (2, (54.270537263844254, 1.3e-8)), (3, (71.1, 1.9e-8))],
)
def test_the_standard_allowance_promises_what_is_printed(
    periods: int, guarantee: tuple[float, float]
) -> None:
    found = composition.guarantee_over_periods(periods, 3000, 30, 0.15, 1e-10, 1e-9)
    assert found == pytest.approx(guarantee, rel=2e-4)


def test_gaussian_accounts_state_the_zcdp_figure() -> None:
    found = composition.account_guarantee(3000, 30, "0.15", "1e-10", "1e-9", gaussian=True)
    assert found == pytest.approx((33.7818467984751, 7e-9), rel=1e-9)


def test_one_gaussian_unit_is_never_said_to_cost_only_its_epsilon() -> None:
    epsilon, _ = composition.account_guarantee(1, 1, 1, 1e-10, 1e-9, gaussian=True)
    sigma = 2.0  # one unit at epsilon 1: loss normal with mean 1/8 and standard deviation 1/2
    assert epsilon > 1
    assert _gaussian_delta(sigma, 1.0) == pytest.approx(6.8e-3, rel=0.01)
    assert _gaussian_delta(sigma, epsilon) <= 1e-9


def test_an_account_of_pure_releases_stays_between_the_known_limits() -> None:
    found = [composition.pure_epsilon(n, "0.1", 1e-6) for n in (1, 10, 100)]
    assert found[0] <= 0.1
    assert found[1] <= 1.0
    assert 4.774 <= found[2] <= 5.757  # the exact optimum; the unoptimised conversion
    assert composition.pure_epsilon(2, 100, 1e-6) == 200  # whatever epsilon may be at all


def test_decimals_are_read_as_written() -> None:
    assert composition.account_guarantee(1, 30, "0.15", "1e-10", "1e-9")[1] == 7e-9


def test_nothing_spent_loses_nothing() -> None:
    for bound in (composition.zcdp_epsilon, composition.bounded_range_renyi_epsilon):
        assert bound(0, 0.15, 1e-9) == 0
    assert composition.bounded_range_epsilon(0, 0.15, 1e-9) == 0


def test_the_adaptive_optimum_of_the_standard_allowance_is_within_its_bracket() -> None:
    assert 32.44 <= composition.adaptive_epsilon(3000, "0.15", "1e-9") <= 32.55


@pytest.mark.parametrize(("epsilon", "at"), [(1.0, 0.3), (0.5, 0.1), (3.0, 2.0)])
def test_the_optimum_of_one_step_is_the_closed_form(epsilon: float, at: float) -> None:
    delta = (1 - math.exp((at - epsilon) / 2)) ** 2 / -math.expm1(-epsilon)
    assert composition.adaptive_epsilon(1, epsilon, delta, cells=80) == pytest.approx(at, rel=1e-3)
    assert composition.adaptive_epsilon(1, epsilon, delta) >= at - 1e-12


def test_choosing_after_seeing_costs_more_than_choosing_before() -> None:
    found = composition.adaptive_epsilon(2, 1, 0.2365, cells=80)
    assert found == pytest.approx(0.2, abs=1e-3)
    delta_before = max(_two_steps_delta(s / 200, r / 200, 0.2) for s in range(201) for r in [s])
    assert delta_before == pytest.approx(0.2299, abs=1e-3)


def _two_steps_delta(first: float, second: float, at: float) -> float:
    """Hockey stick of two bounded-range steps of epsilon 1, with losses in [-s, 1 - s]."""
    outcomes = [(1.0, 0.0)]
    for s in (first, second):
        p = math.expm1(-s) / math.expm1(-1)
        outcomes = [(w * q, z + dz) for w, z in outcomes for q, dz in ((p, 1 - s), (1 - p, -s))]
    return sum(w * max(0.0, -math.expm1(at - z)) for w, z in outcomes)


@pytest.mark.parametrize(("steps", "epsilon", "delta"), [(10, 1.0, 1e-9), (100, 0.15, 1e-6)])
def test_the_optimum_lies_under_every_other_bound_and_above_one_strategy(
    steps: int, epsilon: float, delta: float
) -> None:
    found = composition.adaptive_epsilon(steps, epsilon, delta, cells=40)
    assert found <= composition.bounded_range_renyi_epsilon(steps, epsilon, delta) * 1.001
    up = 1 / (1 + math.exp(-epsilon / 2))  # randomised response of epsilon / 2
    reached = sum(
        math.comb(steps, ups)
        * up**ups
        * (1 - up) ** (steps - ups)
        * max(0.0, -math.expm1(found - (2 * ups - steps) * epsilon / 2))
        for ups in range(steps + 1)
    )
    assert reached <= delta
    assert reached > 0 or found > steps * epsilon / 2


@pytest.mark.parametrize("epsilon", [0.01, 0.15, 1.0])
@pytest.mark.parametrize("ratio", [0.3, 1.01, 1.5, 2.0, 3.3, 7.0])
def test_a_step_of_another_epsilon_weighs_no_more_than_its_squared_ratio(
    epsilon: float, ratio: float
) -> None:
    weight = math.ceil(ratio**2)
    for delta in (1e-12, 1e-3):
        for bound in (composition.bounded_range_epsilon, composition.zcdp_epsilon):
            assert bound(50, epsilon * ratio, delta) <= bound(50 * weight, epsilon, delta) + 1e-12
    for alpha in (1.01, 1.5, 2, 5, 64, 500):
        step = composition.bounded_range_renyi(alpha, epsilon * ratio)
        assert step <= weight * composition.bounded_range_renyi(alpha, epsilon) * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**6), st.floats(1e-6, 50), st.floats(1e-15, 0.1))
def test_the_renyi_curve_lies_under_the_zcdp_line(steps: int, epsilon: float, delta: float) -> None:
    renyi = composition.bounded_range_renyi_epsilon(steps, epsilon, delta)
    line = composition.zcdp_epsilon(steps, epsilon, delta)
    assert renyi <= line * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**5), st.floats(1e-5, 20), st.floats(1e-12, 0.1))
def test_more_steps_cost_more_and_a_larger_delta_less(
    steps: int, epsilon: float, delta: float
) -> None:
    for bound in (
        composition.bounded_range_epsilon,
        composition.zcdp_epsilon,
        composition.bounded_range_renyi_epsilon,
        composition.pure_epsilon,
    ):
        here = bound(steps, epsilon, delta)
        assert bound(steps + 1, epsilon, delta) >= here * (1 - 1e-9)
        assert bound(steps, epsilon * 1.01, delta) >= here * (1 - 1e-9)
        assert bound(steps, epsilon, delta * 2) <= here * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.floats(1.001, 200), st.floats(1e-3, 100), st.floats(0, 1))
def test_no_step_beats_the_worst_step(alpha: float, epsilon: float, share: float) -> None:
    s = share * epsilon
    p = math.expm1(-s) / math.expm1(-epsilon)
    terms = []
    if p > 0:
        terms.append(math.log(p) + (alpha - 1) * (epsilon - s))
    if p < 1:
        terms.append(math.log1p(-p) - (alpha - 1) * s)
    divergence = float(np.logaddexp.reduce(terms)) / (alpha - 1)
    worst = composition.bounded_range_renyi(alpha, epsilon)
    assert divergence <= worst * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("alpha", [1.001, 2.5, 64, 1.1e3])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 1e-3])
def test_the_divergence_of_a_small_step_keeps_its_digits(alpha: float, epsilon: float) -> None:
    """It is alpha epsilon^2 / 8, less at most the share (alpha epsilon)^2 / 72 of it."""
    share = composition.bounded_range_renyi(alpha, epsilon) / (alpha * epsilon**2 / 8)
    assert 1 - (alpha * epsilon) ** 2 / 72 - 3e-6 <= share <= 1 + 3e-6


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 120), st.integers(0, 10), st.integers(1, 60))
def test_periods_of_days_are_counted_as_by_hand(retention: int, lag: int, length: int) -> None:
    by_hand = max(
        len({day // length for day in range(first, first + retention + lag + 1)})
        for first in range(length)
    )
    assert composition.periods_met(retention, lag, length) == by_hand


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 800), st.integers(0, 5))
def test_calendar_months_are_counted_as_by_hand(retention: int, lag: int) -> None:
    def months(first: date) -> int:
        days = (first + timedelta(days=n) for n in range(retention + lag + 1))
        return len({(day.year, day.month) for day in days})

    by_hand = max(months(date(2021, 1, 1) + timedelta(days=n)) for n in range(365))
    assert composition.periods_met(retention, lag, "month") >= by_hand
    if retention + lag <= 365:
        assert composition.periods_met(retention, lag, "month") == by_hand


def test_the_last_of_january_is_read_in_three_months() -> None:
    assert composition.periods_met(30, 0, "month") == 3
    assert composition.periods_met(28, 0, "month") == 2
    assert composition.periods_met(30, 0, 30) == 2
    assert composition.periods_met(30, 1, 30) == 3


@pytest.mark.parametrize(
    ("steps", "epsilon", "delta"),
    [
        (-1, 0.1, 1e-9),
        (1.5, 0.1, 1e-9),
        (1, 0, 1e-9),
        (1, math.nan, 1e-9),
        (1, 0.1, 0),
        (1, 0.1, 1),
    ],
)
def test_what_is_out_of_range_is_refused(steps: int, epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidParameterError):
        composition.bounded_range_epsilon(steps, epsilon, delta)
    with pytest.raises(InvalidParameterError):
        composition.zcdp_epsilon(steps, epsilon, delta)


def _gaussian_delta(sigma: float, epsilon: float) -> float:
    """Exact delta of one count of sensitivity 1 with normal noise."""

    def tail(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    return tail(epsilon * sigma - 1 / (2 * sigma)) - math.exp(epsilon) * tail(
        epsilon * sigma + 1 / (2 * sigma)
    )
