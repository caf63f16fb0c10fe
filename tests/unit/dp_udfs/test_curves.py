"""Curves of blocks: known values, and what capacities and shares of a life promise."""

import math

import pytest

from dp_udfs import composition, curves
from dp_udfs.errors import InvalidParameterError

DEFAULT = ("2", "2.5", "3", "4", "5", "6", "8", "16", "32", "64")


def test_the_capacity_of_an_order_is_the_plain_conversion() -> None:
    found = curves.block_capacity(10, "1e-7", ("2", "17", "inf"))
    assert found == pytest.approx([10 - math.log(1e7), 10 - math.log(1e7) / 16, 10])


@pytest.mark.parametrize(("alphas", "factor"), [(DEFAULT, 0.93), (("1.5", "1.75", *DEFAULT), 1.62)])
def test_choosing_the_order_afterwards_costs_the_known_factor(
    alphas: tuple[str, ...], factor: float
) -> None:
    capacity = curves.block_capacity(100, "1e-7", alphas)
    epsilon, delta = curves.block_guarantee(capacity, alphas, 100)
    assert epsilon == 100
    assert delta == pytest.approx(factor * 1e-7, rel=0.01)


def test_an_unusable_order_promises_nothing_and_costs_nothing() -> None:
    one = curves.block_guarantee([5.0], ["64"], 5.5)
    assert curves.block_guarantee([-1.0, 5.0], ["2", "64"], 5.5) == one


def test_basic_composition_promises_its_epsilon_and_no_delta() -> None:
    assert curves.block_guarantee([1.0], ["inf"], 1) == (1.0, 0.0)
    assert curves.block_guarantee([1.0], ["inf"], "0.9")[1] == 1.0


def test_counts_take_the_divergence_of_their_units() -> None:
    curve = curves.units_curve(21, "0.15", ("2", "64", "inf"))
    assert curve[-1] == pytest.approx(21 * 0.15)
    assert curve[0] == pytest.approx(21 * composition.bounded_range_renyi(2, 0.15))
    assert curve[0] <= 21 * 2 * 0.15**2 / 8
    gaussian = curves.units_curve(21, "0.15", ("2", "inf"), gaussian=True)
    assert gaussian[0] == pytest.approx(21 * 2 * 0.15**2 / 8)
    assert math.isinf(gaussian[1])


def test_a_person_loses_what_all_their_blocks_may_lose() -> None:
    assert curves.blocks_met(365, 1) == 365
    assert curves.blocks_met(2, 30) == 2
    assert curves.blocks_met(30, 30) == 2
    assert curves.blocks_met(32, 30) == 3
    epsilon, delta = curves.guarantee_over_blocks(curves.blocks_met(10 * 365, 365), 1.0, 1e-9)
    assert (epsilon, delta) == pytest.approx((11, 1.1e-8))
    with pytest.raises(InvalidParameterError):
        curves.guarantee_over_blocks(-1, 1.0, 0)
