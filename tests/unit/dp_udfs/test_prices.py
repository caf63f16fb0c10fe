"""Prices and public numbers of noise against published values."""

import math
from typing import Any

import pytest

from dp_udfs import checks, prices
from dp_udfs.errors import InvalidParameterError


@pytest.mark.parametrize(
    ("mechanism", "parameters", "units"),
    [
        ("unknown_gumbel", {"k": 10}, 21),
        ("unknown_gumbel", {"k": 10, "optimise_threshold": False}, 20),
        ("unknown_gumbel", {"k": 10, "with_counts": False}, 11),
        ("unknown_gumbel", {"k": 10, "with_counts": False, "optimise_threshold": False}, 10),
        ("known_gumbel", {"k": 10}, 20),
        ("known_gumbel", {"k": 10, "with_counts": False}, 10),
        ("known_gumbel", {"k": 10, "domain_size": 4}, 8),
        ("known_laplace", {"l0": 3}, 3),
        ("unknown_laplace", {"l0": 3}, 3),
        ("fixed_gaussian", {"l0": 3}, 3),
    ],
)
def test_the_reserve_is_as_published(
    mechanism: str, parameters: dict[str, Any], units: int
) -> None:
    assert prices.maximum_cost(mechanism, **parameters) == (units, 1)


@pytest.mark.parametrize(("l0", "factor"), [(1, 1.0389), (14, 1.9288), (15, 2.0401)])
def test_a_call_of_unknown_laplace_weighs_more_with_l0(l0: int, factor: float) -> None:
    added = prices.call_delta("unknown_laplace", l0=l0, epsilon="0.15", delta="1e-10")
    assert float(added) / 1e-10 == pytest.approx(factor, abs=1e-4)
    assert float(added) / 1e-10 == pytest.approx((1 + math.exp(l0 * 0.075)) / 2)


@pytest.mark.parametrize(("l0", "calls"), [(1, 1), (14, 1), (15, 2), (40, 6)])
def test_unknown_laplace_passes_two_delta_from_l0_15_on(l0: int, calls: int) -> None:
    charged = prices.charged_calls("unknown_laplace", l0=l0, epsilon="0.15", delta="1e-10")
    assert charged == calls


def test_other_calls_weigh_one_at_their_own_delta_and_more_on_a_stricter_account() -> None:
    for mechanism in ("unknown_gumbel", "fixed_gaussian"):
        assert prices.charged_calls(mechanism, l0=50, epsilon=1, delta="1e-6") == 1
    assert prices.charged_calls("known_laplace", l0=50, epsilon=1) == 1
    stricter = prices.charged_calls("unknown_gumbel", epsilon=1, delta="1e-6", account_delta="1e-7")
    assert stricter == 5
    exactly_two = prices.charged_calls("unknown_gumbel", epsilon=1, delta=4e-7, account_delta=1e-7)
    assert exactly_two == 2


def test_known_domains_add_no_delta() -> None:
    assert prices.call_delta("known_gumbel", epsilon=1) == 0


def test_noise_of_the_standard_setting() -> None:
    """Standard deviation 18.9 (Laplace) against 13.3 (Gaussian) at epsilon 0.15."""
    laplace = prices.noise_summary(
        "unknown_laplace", linf=1, epsilon="0.15", delta="1e-10", l0=1, max_candidates=1000
    )
    assert laplace.standard_deviation == pytest.approx(18.9, abs=0.05)
    assert laplace.threshold_offset == 344
    assert (laplace.units, laplace.calls) == (1, 1)
    gaussian = prices.noise_summary("fixed_gaussian", linf=1, epsilon="0.15", delta="1e-10", l0=1)
    assert gaussian.standard_deviation == pytest.approx(2 / 0.15)
    assert gaussian.threshold_offset == 86
    gumbel = prices.noise_summary(
        "unknown_gumbel", linf=1, epsilon="0.15", delta="1e-10", k=10, max_candidates=1000
    )
    assert gumbel.threshold_offset == pytest.approx(200.557375)
    assert gumbel.units == 21
    assert gumbel.half_width == laplace.half_width


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("scale", [0.4, 2, 13.5])
def test_deviation_and_interval_agree_with_the_sum_over_all_noise(
    gaussian: bool, scale: float
) -> None:
    found, half_width = prices.count_noise(checks.exact(scale=scale), gaussian)
    power, half = (2, 0.5) if gaussian else (1, 1)
    weights = {z: math.exp(-half * abs(z / scale) ** power) for z in range(-600, 601)}
    total = sum(weights.values())
    assert found == pytest.approx(math.sqrt(sum(z * z * w for z, w in weights.items()) / total))

    def inside(width: int) -> float:
        return sum(w for z, w in weights.items() if abs(z) <= width) / total

    assert inside(half_width) >= 0.95
    assert half_width == 0 or inside(half_width - 1) < 0.95


def test_without_counts_there_is_no_noise_to_describe() -> None:
    summary = prices.noise_summary(
        "unknown_gumbel",
        linf=1,
        epsilon=1,
        delta="1e-6",
        k=3,
        max_candidates=9,
        with_counts=False,
    )
    assert summary.standard_deviation is None
    assert summary.half_width is None
    assert summary.threshold_offset is not None


@pytest.mark.parametrize("mechanism", ["unknown_laplace", "unknown_gumbel", "fixed_gaussian"])
def test_the_smallest_delta_has_a_threshold_and_a_smaller_one_is_refused(mechanism: str) -> None:
    parameters: dict[str, Any] = {
        "linf": 1,
        "epsilon": 1,
        "k": 3,
        "l0": 300,
        "max_candidates": 100_000,
    }
    offset = prices.noise_summary(mechanism, delta="1e-300", **parameters).threshold_offset
    assert offset is not None
    assert 50 < offset < 3000
    with pytest.raises(InvalidParameterError, match="delta"):
        prices.noise_summary(mechanism, delta="1e-400", **parameters)


def test_known_domains_have_no_threshold() -> None:
    assert prices.noise_summary("known_gumbel", linf=1, epsilon=1, k=3).threshold_offset is None


@pytest.mark.parametrize(
    ("mechanism", "parameters", "named"),
    [
        ("laplace", {}, "mechanism"),
        ("known_laplace", {}, "l0"),
        ("known_gumbel", {}, "k"),
        ("unknown_gumbel", {"k": 3}, "delta"),
        ("unknown_gumbel", {"k": 3, "delta": "1e-6"}, "max_candidates"),
        ("fixed_gaussian", {"l0": 1, "delta": 1}, "delta"),
    ],
)
def test_what_is_missing_is_named(mechanism: str, parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameterError, match=named):
        prices.noise_summary(mechanism, linf=1, epsilon=1, **parameters)
