"""Privacy blocks: one cap for all analysts and models, taken with the account or not at all."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs import curves
from dp_udfs.budget import NANO, Loss, RenyiCurve
from dp_udfs.errors import (
    BudgetExhaustedError,
    CallLimitError,
    ClaimError,
    InvalidParameterError,
    SettingsError,
)
from jobs.lake import entry_log
from jobs.lake.decisions import BlockOpening, Counted
from jobs.lake.ledger import Allocation, Block, Ledger

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
FILMS = "0b6a"  # a table's id
DAYS = ("d1", "d2", "d3")
ALPHAS = ("2", "4", "16")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = Ledger(tmp_path / "ledger", clock=lambda: NOON)
    opened.open_account("research", FILMS, NOVEMBER, 100, 10, period_end=DECEMBER)
    for day in DAYS:
        opened.open_block(day, FILMS, 1.0)
    return opened


def train(ledger: Ledger, run_id: str, blocks: Mapping[str, Any]) -> Allocation:
    """A model's job: blocks and no account."""
    return ledger.allocate(run_id, dataset=FILMS, blocks=blocks, fingerprint=run_id)


def count(ledger: Ledger, run_id: str, blocks: Mapping[str, Any], units: int = 21) -> Allocation:
    """An analyst's question: an account and blocks."""
    return ledger.allocate(
        run_id,
        analyst="research",
        dataset=FILMS,
        units=units,
        calls=1,
        blocks=blocks,
        fingerprint=run_id,
        details={"dataset_name": "films"},
    )


def block(ledger: Ledger, block_id: str) -> Block:
    return next(found for found in ledger.blocks() if found.block_id == block_id)


def left(ledger: Ledger) -> list[str]:
    return [str(found.filter.left) for found in ledger.blocks()]


def units_left(ledger: Ledger) -> tuple[int, int]:
    budget = ledger.get_budget("research", FILMS)
    return budget.units_left, budget.calls_left


# A capacity is spent to exactly zero


@pytest.mark.parametrize(
    "charges",
    [[0.1, 0.9], [0.1] * 10, [RenyiCurve.capacity(1).share(11)] * 11],
    ids=["two", "ten tenths", "eleven shares"],
)
def test_a_capacity_is_spent_to_exactly_zero_and_not_beyond(
    ledger: Ledger, charges: list[Any]
) -> None:
    for number, charge in enumerate(charges):
        train(ledger, f"r{number}", {"d1": charge})
    assert str(block(ledger, "d1").filter.left) == ("0" if len(charges) < 11 else "0.00000001")
    with pytest.raises(BudgetExhaustedError):
        train(ledger, "one more", {"d1": 0.0001})


def test_demands_are_rounded_up_and_capacities_down(ledger: Ledger) -> None:
    third = Fraction(1, 3)
    ledger.open_block("third", FILMS, third)
    with pytest.raises(BudgetExhaustedError):
        train(ledger, "r1", {"third": third})
    assert RenyiCurve.demand(third).nano[0] - RenyiCurve.capacity(third).nano[0] == 1


@given(st.integers(1, 10**12), st.integers(1, 10**4))
def test_all_shares_together_fit(capacity: int, parts: int) -> None:
    whole = RenyiCurve((capacity,))
    assert 0 <= whole.nano[0] - parts * whole.share(parts).nano[0] < parts


@given(st.lists(st.decimals(0, 10, places=9), min_size=1, max_size=20))
def test_sums_of_curves_are_exact(values: list[Any]) -> None:
    total = RenyiCurve.demand(0)
    for value in values:
        total = total + RenyiCurve.demand(value)
    assert total.nano == (sum(values) * NANO,)


# Users are counted once in each period, on terms that never change


def counted(period: int, total: int, bound: int, **terms: int) -> Counted:
    return Counted(FILMS, {"epsilon": 1, **terms}, period, total, bound, snapshot=period)


def users(number: int) -> BlockOpening:
    return BlockOpening(
        block_id=f"users {number}",
        dataset=FILMS,
        capacity=RenyiCurve.capacity(1),
        alphas=("inf",),
        mode="enforce",
        details={},
    )


def test_the_first_count_of_a_period_holds_and_opens_its_blocks(ledger: Ledger) -> None:
    ledger.count_users(counted(1, 5, 3), [users(0)])
    ledger.count_users(counted(1, 6, 4), [users(1)])  # by another process
    ledger.count_users(counted(2, 9, 8), [users(0), users(1)])
    known = ledger.user_count(FILMS)
    assert known is not None
    assert (known.sums, known.bound) == ((5, 9), 8)
    assert [each.block_id for each in ledger.blocks()] == [*DAYS, "users 0", "users 1"]


def test_counts_out_of_turn_or_on_other_terms_are_refused(ledger: Ledger) -> None:
    ledger.count_users(counted(1, 5, 3), [])
    head = ledger.head()
    with pytest.raises(SettingsError, match="that never changes"):
        ledger.count_users(counted(2, 5, 3, per_block=4), [])
    for wrong in (counted(3, 9, 8), counted(2, 9, 2)):
        with pytest.raises(InvalidParameterError, match="users of dataset"):
            ledger.count_users(wrong, [])
    assert ledger.head() == head


# All or nothing


def test_a_request_on_several_blocks_is_all_or_nothing(ledger: Ledger) -> None:
    train(ledger, "earlier", {"d3": 0.8})
    with pytest.raises(BudgetExhaustedError) as refused:
        train(ledger, "r1", dict.fromkeys(DAYS, 0.5))
    assert "block d3: asked for epsilon 0.5, left 0.2 of 1, used by others (0.8)" in str(
        refused.value
    )
    assert "d1" not in str(refused.value)
    assert left(ledger) == ["1", "1", "0.2"]
    assert ledger.find("r1") is None
    train(ledger, "r1", dict.fromkeys(DAYS[:2], 0.5))
    assert left(ledger) == ["0.5", "0.5", "0.2"]


def test_account_and_blocks_are_taken_together_or_not_at_all(ledger: Ledger) -> None:
    with pytest.raises(BudgetExhaustedError, match="block d1: asked for epsilon 2"):
        count(ledger, "r1", {"d1": 2})
    with pytest.raises(BudgetExhaustedError, match="asked for 101 units"):
        count(ledger, "r2", {"d1": 0.5}, units=101)
    assert units_left(ledger) == (100, 10)
    assert left(ledger) == ["1", "1", "1"]
    count(ledger, "r3", {"d1": 0.5, "d2": 0.25})
    assert units_left(ledger) == (79, 9)
    assert left(ledger) == ["0.5", "0.75", "1"]


def test_everything_that_is_short_is_named(ledger: Ledger) -> None:
    ledger.open_account("research", FILMS, NOVEMBER, 100, 0, reason="none", period_end=DECEMBER)
    with pytest.raises(CallLimitError, match=r"0 calls.*; and block d1: .*; and block d2: "):
        count(ledger, "r1", {"d1": 2, "d2": 2, "d3": 1})


def test_a_count_and_a_model_meet_on_one_block(ledger: Ledger) -> None:
    ledger.open_block("week", FILMS, curves.block_capacity(10, "1e-7", ALPHAS), alphas=ALPHAS)
    curve = curves.units_curve(200, "0.15", ALPHAS)
    ledger.open_account("marketing", FILMS, NOVEMBER, 300, 10, period_end=DECEMBER)
    ledger.allocate(
        "count",
        analyst="marketing",
        dataset=FILMS,
        units=200,
        calls=1,
        blocks={"week": curve},
        fingerprint="count",
    )
    ledger.settle("count", units=150, calls=1, publish=("label", "digest"))
    model = [0.7 * alpha for alpha in map(float, ALPHAS)]
    refusal = ledger.check_budget(dataset=FILMS, blocks={"week": model})
    with pytest.raises(BudgetExhaustedError, match=r"block week: .*used by others"):
        train(ledger, "model", {"week": model})
    assert refusal is not None
    assert "alpha (2, 4, 16)" in str(refusal)
    fresh = Ledger(ledger.path, clock=lambda: NOON)
    fresh.open_block("next week", FILMS, block(ledger, "week").filter.capacity, alphas=ALPHAS)
    train(fresh, "model", {"next week": model})  # without the count it fits


# What becomes of a claim on blocks


def test_a_settled_claim_consumes_its_whole_reserve_of_a_block(ledger: Ledger) -> None:
    count(ledger, "r1", {"d1": 0.5})
    assert str(block(ledger, "d1").filter.allocated) == "0.5"
    ledger.settle("r1", units=3, calls=1)
    parts = block(ledger, "d1").filter
    assert (str(parts.allocated), str(parts.consumed), str(parts.left)) == ("0", "0.5", "0.5")
    assert units_left(ledger) == (97, 9)


def test_an_expired_claim_consumes_and_one_given_back_frees(ledger: Ledger) -> None:
    train(ledger, "r1", {"d1": 0.5, "d2": 0.5})
    train(ledger, "r2", {"d1": 0.5})
    ledger.expire("r1", "not heard of for a day")
    ledger.give_back("r2", "the session did not start")
    assert left(ledger) == ["0.5", "0.5", "1"]
    assert str(block(ledger, "d1").filter.consumed) == "0.5"
    train(ledger, "r2", {"d1": 0.5})
    assert left(ledger) == ["0", "0.5", "1"]


def test_the_same_run_is_charged_once_and_stands_for_one_demand(ledger: Ledger) -> None:
    first = train(ledger, "r1", {"d1": 0.5})
    assert train(ledger, "r1", {"d1": 0.5}) == first
    assert Ledger(ledger.path).find("r1") == first
    for other in ({"d1": 0.4}, {"d2": 0.5}, {"d1": 0.5, "d2": 0.1}):
        with pytest.raises(ClaimError, match="another question: blocks"):
            train(ledger, "r1", other)
    assert left(ledger) == ["0.5", "1", "1"]


def test_a_refusal_names_own_claims_and_of_others_only_the_sum(ledger: Ledger) -> None:
    count(ledger, "mine", {"d1": 0.25})
    ledger.open_account("marketing", FILMS, NOVEMBER, 100, 10, period_end=DECEMBER)
    for name, epsilon in (("theirs-1", 0.5), ("theirs-2", 0.125)):
        ledger.allocate(
            name, analyst="marketing", dataset=FILMS, units=1, calls=1, blocks={"d1": epsilon}
        )
    ledger.settle("theirs-1", units=0, calls=1)
    with pytest.raises(BudgetExhaustedError) as refused:
        count(ledger, "r1", {"d1": 0.5})
    assert "used by mine (0.25, open), others (0.625); dataset films" in str(refused.value)
    assert "theirs" not in str(refused.value)
    assert refused.value.facts["block_id"] == "d1"


def test_blocks_are_carried_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_log, "SEGMENT", 8)
    ledger = Ledger(tmp_path / "ledger", clock=lambda: NOON)
    ledger.open_block("b", FILMS, [1, 1, -1], alphas=ALPHAS, details={"day": "2026-11-01"})
    for number in range(12):
        train(ledger, f"r{number}", {"b": [0.01, 0.02, 0.1]})
        if number % 2:
            ledger.settle(f"r{number}", units=0, calls=0)
    fresh = Ledger(ledger.path, clock=lambda: NOON)
    assert fresh.blocks() == ledger.blocks()
    assert "carry" in ledger.entries()["kind"].to_pylist()
    assert str(fresh.blocks()[0].filter.left) == "(0.88, 0.76, -2.2)"
    fresh.settle("r0", units=0, calls=0)
    assert str(fresh.blocks()[0].filter.consumed) == "(0.07, 0.14, 0.7)"


# Grids


def test_one_order_with_room_is_enough_and_all_are_charged(ledger: Ledger) -> None:
    ledger.open_block("b", FILMS, [1, 1, 1], alphas=ALPHAS)
    train(ledger, "r1", {"b": [0.3, 0.6, 5]})
    assert str(block(ledger, "b").filter.left) == "(0.7, 0.4, -4)"
    train(ledger, "r2", {"b": [0.7, 2, 0]})
    with pytest.raises(BudgetExhaustedError):
        train(ledger, "r3", {"b": [0.1, 0.1, 0.1]})


def test_an_order_without_capacity_is_never_used(ledger: Ledger) -> None:
    ledger.open_block("b", FILMS, [-3, 0, 1], alphas=ALPHAS)
    train(ledger, "r1", {"b": [0, 0, 1]})
    with pytest.raises(BudgetExhaustedError):
        train(ledger, "r2", {"b": [0, 0, 0.1]})


@pytest.mark.parametrize(
    ("capacity", "alphas"),
    [([1, 1], ("2",)), (1, ALPHAS), ([1, 1], ("4", "2")), ([1, 1], ("1.5", "2")), ([], ())],
)
def test_grids_that_make_no_sense_are_refused(
    ledger: Ledger, capacity: Any, alphas: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidParameterError):
        ledger.open_block("b", FILMS, capacity, alphas=alphas)


@pytest.mark.parametrize("demand", [-0.1, float("nan"), float("inf"), [0.1, 0.1], True, "much"])
def test_demands_that_make_no_sense_are_refused(ledger: Ledger, demand: Any) -> None:
    with pytest.raises(InvalidParameterError):
        train(ledger, "r1", {"d1": demand})
    assert left(ledger) == ["1", "1", "1"]


def test_blocks_are_opened_once_and_belong_to_one_dataset(ledger: Ledger) -> None:
    ledger.open_block("d1", FILMS, 1)
    for capacity, dataset in ((2, FILMS), (1, "other")):
        with pytest.raises(SettingsError, match="never changes"):
            ledger.open_block("d1", dataset, capacity)
    with pytest.raises(SettingsError, match="there is no block d9"):
        train(ledger, "r1", {"d9": 0.1})
    with pytest.raises(SettingsError, match="not of other"):
        ledger.allocate("r1", dataset="other", blocks={"d1": 0.1})
    assert ledger.entries()["kind"].to_pylist().count("open_block") == 3


def test_a_demand_of_nothing_but_calls_still_needs_an_account(ledger: Ledger) -> None:
    with pytest.raises(SettingsError, match="has no account"):
        ledger.allocate("r1", analyst="nobody", dataset=FILMS, calls=1, blocks={"d1": 0.1})
    with pytest.raises(InvalidParameterError):
        ledger.allocate("r1", units=1)
    assert ledger.allocate("r2", blocks={"d1": 0.1}).reserve == Loss()


def test_a_mode_that_is_misspelt_is_refused(ledger: Ledger) -> None:
    mode: Any = "off"
    with pytest.raises(InvalidParameterError, match="mode = 'off' must be one of"):
        ledger.open_block("b", FILMS, 1, mode=mode)
    with pytest.raises(InvalidParameterError, match="mode"):
        ledger.open_account("research", FILMS, DECEMBER, 1, 1, mode=mode)
    with pytest.raises(InvalidParameterError, match="mode"):
        ledger.update_budget("research", FILMS, mode=mode, reason="why")


def test_a_tracked_block_refuses_nothing_and_says_what_it_would_have(ledger: Ledger) -> None:
    ledger.open_block("t", FILMS, 1, mode="track")
    claim = train(ledger, "r1", {"t": 3})
    assert claim.note == "would have been refused: block t: asked for epsilon 3, left 1 of 1"
    with pytest.raises(BudgetExhaustedError, match="block d1"):
        train(ledger, "r2", {"t": 3, "d1": 3})
