"""The tree counter, the exact tails of its noise, and the bound that claims rely on."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs import counters, noise, rng
from dp_udfs.counters import CounterTerms, TreeCounter
from dp_udfs.errors import InvalidParameterError

SECRET = bytes(range(32))


@pytest.mark.parametrize(
    ("noises", "at_5_percent", "at_1_percent"),
    [
        (1, 2.303, 3.912),
        (2, 3.272, 5.192),
        (3, 4.010, 6.177),
        (5, 5.182, 7.756),
        (9, 6.959, 10.183),
    ],
)
def test_published_quantiles(noises: int, at_5_percent: float, at_1_percent: float) -> None:
    assert counters.laplace_quantile(0.05, noises) == pytest.approx(at_5_percent, abs=6e-4)
    assert counters.laplace_quantile(0.01, noises) == pytest.approx(at_1_percent, abs=6e-4)


@pytest.mark.parametrize(("noises", "scale"), [(1, 3), (2, 1), (3, Fraction(5, 2))])
def test_discrete_tails_equal_the_convolution(noises: int, scale: Fraction) -> None:
    reach = 400
    z = np.arange(-reach, reach + 1)
    one = np.exp(-np.abs(z) / float(scale))
    one /= one.sum()
    law = one
    for _ in range(noises - 1):
        law = np.convolve(law, one)
    middle = len(law) // 2
    for bound in (0, 1, 2, 7, 20):
        expected = law[middle + bound + 1 :].sum()
        assert counters.discrete_tail(bound, noises, scale) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 9), st.sampled_from([0.001, 0.01, 0.05, 0.4]), st.sampled_from([1, 7, 90]))
def test_the_discrete_quantile_is_the_smallest_bound(noises: int, beta: float, scale: int) -> None:
    bound = counters.discrete_quantile(beta, noises, scale)
    assert counters.discrete_tail(bound, noises, scale) <= beta
    assert bound == 0 or counters.discrete_tail(bound - 1, noises, scale) > beta * (1 - 1e-8)


def test_the_continuous_bound_is_the_limit_of_the_discrete_one() -> None:
    discrete = counters.discrete_quantile(0.01, 5, 10_000) / 10_000
    assert discrete == pytest.approx(counters.laplace_quantile(0.01, 5), abs=1e-3)


@pytest.mark.parametrize("periods", [1, 2, 3, 4, 7, 8, 16, 31])
def test_without_noise_the_count_is_exact_at_every_time(
    periods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "discrete_laplace", lambda *_: np.zeros(1, dtype=np.int64))
    counter = TreeCounter(periods, "0.5", rng.keyed(SECRET, "counter"))
    new = [3 * i % 7 for i in range(periods)]
    assert [counter.count(users) for users in new] == list(itertools.accumulate(new))
    with pytest.raises(InvalidParameterError, match=f"made for {periods} periods"):
        counter.count(1)


def test_a_user_is_part_of_at_most_as_many_sums_as_there_are_levels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two streams that differ in one user: how many sums that get noise differ."""
    monkeypatch.setattr(noise, "discrete_laplace", lambda *_: np.zeros(1, dtype=np.int64))
    for periods, joined in itertools.product((1, 4, 7, 16), range(16)):
        if joined >= periods:
            continue
        with_user, without = (TreeCounter(periods, 1, rng.keyed(SECRET, "c")) for _ in range(2))
        touched = 0
        for period in range(periods):
            with_user.count(int(period == joined))
            without.count(0)
            level = ((period + 1) & -(period + 1)).bit_length() - 1
            touched += with_user._sums[level] != without._sums[level]
        assert 1 <= touched <= counters.levels(periods)


def test_the_bound_holds_as_often_as_it_says() -> None:
    """64 periods, beta 5 %: of 64 * 60 bounds 192 are expected to fail, at most 280 do.

    Bounds of one stream share noise: over streams the deviation of their number is about 20.
    With two thirds of the noise allowed for, 8 % fail: the same test rejects that.
    """
    periods, beta, failed, careless = 64, 0.05, 0, 0
    scale = TreeCounter(periods, "0.5", rng.keyed(SECRET)).scale
    allowed = [counters.discrete_quantile(beta, noises, scale) for noises in range(1, 7)]
    two_thirds = [counters.discrete_quantile(beta, n, scale * Fraction(2, 3)) for n in range(1, 7)]
    for stream in range(60):
        counter = TreeCounter(periods, "0.5", rng.keyed(SECRET, "stream", stream))
        for period in range(1, periods + 1):
            estimate = counter.count(5)
            failed += estimate - allowed[counter.noises - 1] > 5 * period
            careless += estimate - two_thirds[counter.noises - 1] > 5 * period
    assert failed <= 280 < careless


def test_bounds_never_fall_and_are_never_negative() -> None:
    counter = TreeCounter(8, 1, rng.keyed(SECRET, "counter"))
    bound = 0
    for _ in range(8):
        estimate = counter.count(0)
        new = counter.lower_bound(estimate, 0.01, earlier=bound)
        assert new >= bound
        bound = new
    assert counters.lower_bound(100, 3, 2, 0.05, earlier=95) == 95
    assert counters.lower_bound(100, 3, 2, 0.05) == math.floor(100 - 2 * 4.010)
    assert counters.lower_bound(1, 3, 2, 0.05) == 0
    assert counters.nameable_buckets(29, 10) == 2


def test_the_costs_of_a_counter() -> None:
    exact = counters.counter_cost("0.1", 365, (2, 8, math.inf), "exact")
    paper = counters.counter_cost("0.1", 365, (2, 8, math.inf), "paper")
    assert exact[1] == pytest.approx(0.0044, abs=1e-4)
    assert paper[1] == pytest.approx(0.16)
    assert exact[2] == pytest.approx(0.1)
    for alpha, cost in zip((2, 8), exact, strict=False):
        assert cost <= alpha * 0.01 / (2 * counters.levels(365))
        assert cost >= counters.levels(365) * counters.laplace_renyi(90, alpha)
    with pytest.raises(InvalidParameterError, match="neither exact nor paper"):
        counters.counter_cost("0.1", 365, (2,), "cheap")  # type: ignore[arg-type]


def test_the_renyi_divergence_of_the_discrete_noise() -> None:
    scale, alpha = 3.0, 5.0
    z = np.arange(-300, 301)
    p, q = np.exp(-np.abs(z) / scale), np.exp(-np.abs(z - 1) / scale)
    divergence = math.log((p**alpha * q ** (1 - alpha)).sum() / p.sum()) / (alpha - 1)
    assert counters.discrete_laplace_renyi(scale, alpha) == pytest.approx(divergence, rel=1e-9)


def test_sums_drawn_one_by_one_make_the_same_counts() -> None:
    terms = CounterTerms(9, "0.5")
    secret, new_users = bytes(range(32)), [5, 0, 7, 3, 11, 2, 0, 9, 4]
    whole = TreeCounter(9, "0.5", rng.keyed(secret, "films"))
    sums: dict[int, int] = {}
    for period, _ in enumerate(new_users, start=1):
        true_sum = sum(new_users[each - 1] for each in terms.summed(period))
        sums[period] = terms.noisy_sum(true_sum, period, rng.keyed(secret, "films"))
        assert terms.estimate(sums, period) == whole.count(new_users[period - 1])
    assert terms.scale == whole.scale


def test_a_bound_over_all_periods_asks_each_for_its_part_of_beta() -> None:
    terms, whole = CounterTerms(8, 1), TreeCounter(8, 1, rng.fresh())
    whole.period = 7
    assert terms.lower_bound(100, 7, 0.08) == whole.lower_bound(100, 0.01)
    assert terms.lower_bound(100, 7, 0.08, earlier=99) == 99
    with pytest.raises(InvalidParameterError, match="made for 8 periods"):
        terms.summed(9)
