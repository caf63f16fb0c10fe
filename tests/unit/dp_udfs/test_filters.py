"""The filter admits to exactly zero, and not one unit further."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs.budget import NOTHING, Loss
from dp_udfs.errors import BudgetExhaustedError, CallLimitError
from dp_udfs.filters import PrivacyFilter

losses = st.builds(Loss, st.integers(0, 30), st.integers(0, 3))


def test_an_allowance_is_spent_to_exactly_zero() -> None:
    gate = PrivacyFilter(capacity=Loss(10, 10))
    for _ in range(10):
        gate.admit(Loss(1, 1))
        gate = gate.after(Loss(1, 1))
    assert gate.left == NOTHING
    with pytest.raises(BudgetExhaustedError, match="asked for 1 unit and 0 calls, left 0 units"):
        gate.admit(Loss(1, 0))


def test_short_calls_are_told_apart_from_short_units() -> None:
    gate = PrivacyFilter(capacity=Loss(10, 1), used=Loss(4, 1))
    with pytest.raises(CallLimitError) as refused:
        gate.admit(Loss(6, 1))
    assert refused.value.facts == {"demand": Loss(6, 1), "left": Loss(6, 0)}
    with pytest.raises(BudgetExhaustedError) as refused_units:
        gate.admit(Loss(7, 0))
    assert not isinstance(refused_units.value, CallLimitError)


def test_a_capacity_lowered_below_what_is_used_leaves_nothing() -> None:
    assert PrivacyFilter(capacity=Loss(3, 3), used=Loss(5, 1)).left == Loss(0, 2)


@given(losses, st.lists(losses, max_size=20))
def test_no_sequence_of_admitted_demands_exceeds_the_capacity(
    capacity: Loss, demands: list[Loss]
) -> None:
    gate = PrivacyFilter(capacity)
    for demand in demands:
        fits = gate.left.covers(demand)
        try:
            gate.admit(demand)
        except BudgetExhaustedError:
            assert not fits
        else:
            assert fits
            gate = gate.after(demand)
    assert capacity.covers(gate.used)
    assert gate.used + gate.left == capacity
