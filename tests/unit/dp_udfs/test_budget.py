"""Losses add up exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs.budget import NOTHING, Loss
from dp_udfs.errors import InvalidParameterError

losses = st.builds(Loss, st.integers(0, 10**9), st.integers(0, 10**6))


@given(losses, losses)
def test_what_is_added_can_be_taken_off_again(one: Loss, other: Loss) -> None:
    assert (one + other) - other == one
    assert (one + other).covers(one)


@given(losses, losses)
def test_covering_is_the_same_as_leaving_nothing_beyond(one: Loss, other: Loss) -> None:
    assert one.covers(other) == (other.beyond(one) == NOTHING)


def test_calls_and_units_must_both_be_covered() -> None:
    assert not Loss(10, 0).covers(Loss(5, 1))
    assert not Loss(4, 3).covers(Loss(5, 1))
    assert Loss(5, 1).covers(Loss(5, 1))


def test_a_loss_is_never_negative_or_broken() -> None:
    with pytest.raises(InvalidParameterError, match="does not cover"):
        Loss(1, 1) - Loss(2, 0)
    for units in (-1, 0.5, True, "3"):
        with pytest.raises(InvalidParameterError, match="units"):
            Loss(units, 0)  # type: ignore[arg-type]


def test_a_loss_beyond_what_a_ledger_can_hold_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="no ledger holds"):
        Loss(1, 2**62 + 1)


def test_a_loss_reads_as_a_sentence() -> None:
    assert str(Loss(21, 1)) == "21 units and 1 call"
