"""Which blocks a claim may name, and that nobody sees users past the counter's bound."""

import pytest

from dp_udfs.amounts import Number
from dp_udfs.errors import InvalidParameterError
from dp_udfs.privacy_units import PrivacyUnit, Slice, nameable, select


def nobody(_: Number) -> int:
    raise AssertionError("event blocks need no counter")


def test_event_blocks_may_be_named_once_their_time_is_over() -> None:
    days = {f"day {d}": Slice(start=d, end=d + 1) for d in range(5)}
    assert nameable(days, 3, nobody) == ["day 0", "day 1", "day 2"]
    assert select(days, 5, nobody, start=1, end=3) == ["day 1", "day 2"]


def test_user_blocks_may_be_named_up_to_the_lower_bound() -> None:
    buckets = {f"u{k}": Slice(first_user=10 * k, end_user=10 * k + 10) for k in range(4)}
    assert nameable(buckets, 0, lambda _: 29) == ["u0", "u1"]
    assert nameable(buckets, 0, lambda _: 30) == ["u0", "u1", "u2"]
    assert nameable(buckets, 0, lambda _: 9) == []


def test_user_time_blocks_follow_the_bound_as_of_their_own_time() -> None:
    blocks = {
        f"u{k} day {d}": Slice(d, d + 1, first_user=10 * k, end_user=10 * k + 10)
        for d in range(3)
        for k in range(3)
    }
    bound: dict[Number, int] = {1: 10, 2: 25, 3: 30}
    assert nameable(blocks, 2, bound.__getitem__) == ["u0 day 0", "u0 day 1", "u1 day 1"]


def test_a_selector_that_matches_nothing_says_so() -> None:
    with pytest.raises(InvalidParameterError, match="no block from 7 to 9"):
        select({"day 1": Slice(start=1, end=2)}, 9, nobody, start=7, end=9)


def test_slices_say_what_they_protect() -> None:
    assert Slice(0, 1).unit is PrivacyUnit.EVENT
    assert Slice(first_user=0, end_user=9).unit is PrivacyUnit.USER
    assert Slice(0, 1, 0, 9).unit is PrivacyUnit.USER_TIME
    assert PrivacyUnit.USER.neighbours == "all rows of one user"
    assert not PrivacyUnit.EVENT.needs_counter

    with pytest.raises(InvalidParameterError, match="open at one end"):
        Slice(start=1)
    with pytest.raises(InvalidParameterError, match="empty"):
        Slice(first_user=3, end_user=3)
    with pytest.raises(InvalidParameterError, match="one privacy unit"):
        nameable({"a": Slice(0, 1), "b": Slice(first_user=0, end_user=1)}, 0, nobody)
