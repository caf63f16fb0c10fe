"""What a scheduler refuses, explains and remembers; weights, slack, and any k of n blocks."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from dp_udfs.blocks import Parts
from dp_udfs.errors import ClaimError, InvalidParameterError
from dp_udfs.policies import DpfByArrivals, DpfByTime, FirstComeFirstServed
from dp_udfs.scheduler import Scheduler
from dp_udfs.scheduling import (
    BlockSpec,
    ClaimSpec,
    DPack,
    Optimal,
    RoundRobinByArrivals,
    simulate,
)

BLOCKS = [BlockSpec("b1", 0.0, 1.0), BlockSpec("b2", 5.0, 1.0)]
NAN, INFINITY = float("nan"), float("inf")


def scheduler(n: int = 4, *, lock_released: bool = False) -> Scheduler:
    made = Scheduler(DpfByArrivals(n), lock_released=lock_released)
    for block_id in ("b1", "b2"):
        made.open_block(block_id, 12, 0)
    return made


def states(decisions: list[Any]) -> list[tuple[str, float | None]]:
    return [(decision.state, decision.at) for decision in decisions]


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [-0.1, 0.0, NAN, INFINITY, "0.1", True, None, (0.1, 0.1), ()])
def test_demands_that_are_no_amounts_are_errors(amount: Any) -> None:
    for policy in (FirstComeFirstServed(), RoundRobinByArrivals(2), DPack(1.0, 1.0)):
        with pytest.raises(InvalidParameterError):
            simulate(BLOCKS, [ClaimSpec("c", 1.0, {"b1": amount})], policy)


@pytest.mark.parametrize("capacity", [-1.0, 0.0, NAN, INFINITY, (), (-1.0, 0.0), (1.0, 1.0)])
def test_capacities_that_are_none_are_errors(capacity: Any) -> None:
    with pytest.raises(InvalidParameterError):
        simulate([*BLOCKS, BlockSpec("b3", 6.0, capacity)], [], DpfByArrivals(2))


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (ClaimSpec("c", 1.0, {}), "names no block"),
        (ClaimSpec("c", 1.0, {"b9": 0.1}), "unknown block b9"),
        (ClaimSpec("c", NAN, {"b1": 0.1}), "not a time"),
        (ClaimSpec("c", 1.0, {"b1": 0.1}, timeout=-1.0), "timeout = -1.0"),
        (ClaimSpec("c", 1.0, {"b1": 0.1}, timeout=NAN), "timeout = nan"),
        (ClaimSpec("c", 1.0, {"b1": 0.1}, weight=0), "weight = 0"),
        (ClaimSpec("c", 1.0, {"b1": 0.1}, any_of=2), "any 2 of 1"),
        (ClaimSpec("c", 1.0, {"b1": 0.1}, any_of=0), "any_of = 0"),
    ],
)
def test_claims_that_make_no_sense_are_errors(claim: ClaimSpec, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        simulate(BLOCKS, [claim], DpfByArrivals(2))


def test_names_are_used_once() -> None:
    with pytest.raises(InvalidParameterError, match="same block_id"):
        simulate([BLOCKS[0], BLOCKS[0]], [], DpfByArrivals(2))
    twice = [ClaimSpec("c", 1.0, {"b1": 0.1})] * 2
    with pytest.raises(InvalidParameterError, match="same claim_id"):
        simulate(BLOCKS, twice, DpfByArrivals(2))
    with pytest.raises(InvalidParameterError, match="b1 exists already"):
        scheduler().open_block("b1", 12, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DpfByArrivals(0),
        lambda: DpfByArrivals(2.5),  # type: ignore[arg-type]
        lambda: DpfByTime(0, 1),
        lambda: DpfByTime(1, NAN),
        lambda: DpfByArrivals(4, slack=1),
        lambda: DpfByArrivals(5, slack="0.4"),
        lambda: DpfByTime(10, 3, slack="0.4"),
        lambda: DPack(1, 1, grants_between_updates=0),
        lambda: Optimal(1, 1, time_limit=0),
    ],
)
def test_policies_check_themselves(make: Any) -> None:
    with pytest.raises(InvalidParameterError):
        make()


def test_an_error_changes_nothing() -> None:
    made = scheduler()
    made.submit("c1", {"b1": 3}, 5)
    before = [block.budget() for block in made.blocks.values()]
    for wrong in (
        lambda: made.submit("c2", {"b1": 1}, 4),  # the clock goes back
        lambda: made.submit("c2", {"b1": 1, "b9": 1}, 6),
        lambda: made.submit("c2", {"b1": 1, "b2": 0}, 6),
        lambda: made.submit("c2", {"b1": 0.5}, 6),  # a float says less than it seems
        lambda: made.open_block("b3", 12, 4),
        lambda: made.release("c1", 4),
        lambda: made.advance(4),
    ):
        with pytest.raises(InvalidParameterError):
            wrong()
    assert [block.budget() for block in made.blocks.values()] == before
    assert list(made.claims) == ["c1"]
    assert list(made.blocks) == ["b1", "b2"]


def test_what_could_never_be_served_is_rejected_and_unlocks_nothing() -> None:
    made = scheduler()
    assert made.submit("large", {"b1": 13, "b2": 1}, 1).state == "REJECTED"
    assert "b1 is more than it has" in made.claims["large"].reason
    assert made.blocks["b2"].step == 0
    made.retire_block("b2", 2)
    assert made.submit("late", {"b2": 1}, 3).reason == "block b2 is RETIRED"
    decisions = simulate(BLOCKS, [ClaimSpec("early", 4.0, {"b2": 0.1})], DpfByArrivals(2))
    assert states(decisions) == [("REJECTED", 4.0)]


# --- the life of a claim --------------------------------------------------------------------------


def test_waiting_claims_are_rejected_once_consumption_leaves_too_little() -> None:
    made = scheduler(n=2)
    made.submit("a", {"b1": 6}, 1)
    assert made.submit("z", {"b1": 7}, 2).state == "WAITING"
    made.consume("a")
    assert made.claims["z"].state == "REJECTED"
    made.submit("y", {"b1": 6}, 3)
    made.consume("y")
    assert made.blocks["b1"].state == "EXHAUSTED"
    assert made.submit("x", {"b1": 1}, 4).reason == "block b1 is EXHAUSTED"


def test_retiring_a_block_rejects_those_that_wait_for_it_and_keeps_grants() -> None:
    made = scheduler()
    made.submit("granted", {"b1": 3, "b2": 3}, 1)
    made.submit("waiting", {"b1": 6, "b2": 1}, 2)
    made.retire_block("b2", 3)
    assert made.claims["waiting"].state == "REJECTED"
    assert made.claims["granted"].state == "ALLOCATED"
    made.consume("granted")
    assert made.blocks["b2"].budget().consumed == (3,)


def test_it_says_why_a_claim_waits() -> None:
    made = scheduler()
    made.submit("c", {"b1": 2, "b2": 5}, 1)
    (shortage,) = made.shortages("c")
    assert shortage == ("b2", (5,), (3,))
    by_time = Scheduler(DpfByTime(10, 1))
    by_time.open_block("b", 10, 0)
    by_time.submit("c", {"b": 8}, Fraction(9, 2))
    assert by_time.shortages("c") == [("b", (8,), (4,))]


def test_a_claim_submitted_again_is_answered_as_before() -> None:
    made = scheduler()
    first = made.submit("c", {"b1": 3}, 1)
    assert made.submit("c", {"b1": 3}, 2) is first
    assert made.blocks["b1"].step == 1
    with pytest.raises(ClaimError, match="with another demand"):
        made.submit("c", {"b1": 2}, 2)
    with pytest.raises(ClaimError, match="with another demand"):
        made.submit("c", {"b1": 3, "b2": 3}, 2)


def test_a_request_made_again_changes_nothing() -> None:
    made = scheduler()
    made.submit("c", {"b1": 3}, 1)
    for _ in range(2):
        made.consume("c", {"b1": 1}, request_id="r1")
    assert made.blocks["b1"].budget().consumed == (1,)
    for _ in range(2):
        made.release("c", 2, request_id="r2")
    assert made.claims["c"].state == "CLOSED"
    assert made.blocks["b1"].budget().allocated == (0,)


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({"b1": 4}, "no more than that"),
        ({"b2": 1}, "does not name block b2"),
        ({"b1": -1}, "cannot consume"),
    ],
)
def test_no_more_is_consumed_than_a_claim_holds(amounts: Mapping[str, int], message: str) -> None:
    made = scheduler()
    made.submit("c", {"b1": 3}, 1)
    with pytest.raises(ClaimError, match=message):
        made.consume("c", amounts)
    assert made.blocks["b1"].budget().consumed == (0,)


def test_every_order_must_be_held_to_be_consumed() -> None:
    """One order with room admits a claim; consuming it needs room at all orders."""
    made = Scheduler(DpfByArrivals(1))
    made.open_block("b", (10, 10), 0)
    made.submit("c", {"b": (2, 5)}, 1)
    with pytest.raises(ClaimError):
        made.consume("c", {"b": (2, 6)})
    with pytest.raises(InvalidParameterError, match="2 orders"):
        made.consume("c", {"b": (2,)})


def test_claims_that_hold_nothing_cannot_give_back() -> None:
    made = scheduler()
    made.submit("c", {"b1": 6}, 1)
    with pytest.raises(ClaimError, match="WAITING"):
        made.release("c", 2)
    with pytest.raises(ClaimError, match="WAITING"):
        made.consume("c")
    made.cancel("c", 2)
    made.cancel("c", 3)
    assert made.claims["c"].state == "CANCELLED"
    assert made.blocks["b1"].budget().unlocked == (3,)
    with pytest.raises(ClaimError, match="no claim"):
        made.cancel("d", 3)


def test_released_budget_may_be_locked_and_opens_again_by_shares() -> None:
    made = scheduler(n=2, lock_released=True)
    made.submit("a", {"b1": 6}, 1)
    made.submit("b", {"b1": 6}, 2)
    made.release("a", 3)
    assert made.blocks["b1"].budget().locked == (6,)
    waiting = made.submit("c", {"b1": 4}, 4)
    assert waiting.state == "ALLOCATED"  # its arrival opened one share of six
    assert made.blocks["b1"].budget() == Parts((0,), (2,), (10,), (0,))


def test_a_release_serves_those_that_wait() -> None:
    made = scheduler(n=1)
    made.submit("a", {"b1": 12}, 1)
    made.submit("b", {"b1": 8}, 2)
    made.submit("c", {"b1": 4}, 2)
    made.release("a", 3)
    assert [(d.claim_id, d.at) for d in made.decisions] == [("a", 1), ("c", 3), ("b", 3)]


# --- moments --------------------------------------------------------------------------------------


def test_what_is_given_back_meets_what_time_has_opened() -> None:
    scheduler = Scheduler(DpfByTime(5, 1))
    scheduler.open_block("b", 5, 0)
    scheduler.submit("c1", {"b": 2}, 2)
    scheduler.submit("c2", {"b": 4}, 2)  # not before 6
    scheduler.release("c1", 4)
    assert scheduler.decisions[-1] == ("c2", "ALLOCATED", 4)


def test_a_claim_may_be_served_at_its_very_deadline() -> None:
    blocks = [BlockSpec("b", 0.0, 1.0)]
    claims = [
        ClaimSpec("in time", 1.0, {"b": 0.5}, timeout=4.0),
        ClaimSpec("too late", 1.0, {"b": 0.5}, timeout=8.9),
    ]
    assert states(simulate(blocks, claims, DpfByTime(10.0, 1.0))) == [
        ("ALLOCATED", 5.0),
        ("TIMED_OUT", 9.9),
    ]


def test_time_does_not_drift_whatever_the_tick() -> None:
    """A hundred ticks of a tenth open a block of one wholly, and not a hundredth sooner."""
    blocks = [BlockSpec("b", 0.0, 1.0)]
    claims = [ClaimSpec(f"c{i}", 0.0, {"b": 0.01}) for i in range(100)]
    decisions = simulate(blocks, claims, DpfByTime(10.0, 0.1))
    assert [d.at for d in decisions] == [(i + 1) * 0.1 for i in range(100)]


def test_decimals_fit_as_they_are_written() -> None:
    blocks = [BlockSpec("b", 0.0, 0.3)]
    claims = [ClaimSpec("c1", 1.0, {"b": 0.1 + 0.2}), ClaimSpec("c2", 2.0, {"b": 1e-9})]
    first, second = simulate(blocks, claims, FirstComeFirstServed())
    assert first.state == "ALLOCATED"  # 0.30000000000000004
    assert second.state == "REJECTED"


# --- weights, slack, any k of n -------------------------------------------------------------------


def test_shares_are_divided_by_weight() -> None:
    blocks = [BlockSpec("b", 0, 12)]
    claims = [
        ClaimSpec("plain", 1, {"b": 4}),
        ClaimSpec("heavy", 2, {"b": 6}, weight=2),
        ClaimSpec("tied", 3, {"b": 3}, weight=1),
    ]
    decisions = simulate(blocks, claims, DpfByTime(12, 12))
    assert [d.state for d in decisions] == ["WAITING", "ALLOCATED", "ALLOCATED"]
    without = [ClaimSpec(c.claim_id, c.submitted_at, c.demand) for c in claims]
    assert [d.state for d in simulate(blocks, without, DpfByTime(12, 12))] == [
        "ALLOCATED",
        "WAITING",
        "ALLOCATED",
    ]


def test_slack_opens_faster_at_first() -> None:
    opening = DpfByTime(10, 1, slack="0.4").opening()
    opened = [Fraction(opening.opened(i), opening.parts) for i in range(12)]
    early, late = Fraction(14, 100), Fraction(6, 100)
    assert opened[:6] == [i * early for i in range(6)]
    assert opened[6:] == [5 * early + i * late for i in range(1, 6)] + [1]
    for policy in (DpfByArrivals(10, slack="0.4"), DpfByTime(10, 3), DpfByArrivals(7)):
        opening = policy.opening()
        for parts in range(1, opening.parts + 1):
            step = opening.step_for(parts)
            assert opening.opened(step) >= parts > opening.opened(step - 1)


def test_any_k_of_n_takes_the_least_used_blocks() -> None:
    made = Scheduler(DpfByArrivals(1))
    for block_id, total in (("b1", 10), ("b2", 20), ("b3", 10)):
        made.open_block(block_id, total, 0)
    made.submit("first", {"b1": 5, "b2": 5}, 1)
    claim = made.submit("some", {"b1": 2, "b2": 2, "b3": 2}, 2, any_of=2)
    assert [block.block_id for block in claim.blocks] == ["b2", "b3"]
    assert made.blocks["b1"].step == 1
    assert made.submit("some", {"b1": 2, "b2": 2, "b3": 2}, 2, any_of=2) is claim
    none = made.submit("none", {"b1": 15, "b2": 15, "b3": 15}, 3, any_of=2)
    assert none.reason == "only 1 of 2 blocks could serve it"


def test_the_optimum_chooses_which_blocks_serve_most() -> None:
    """Two claims need any one of two blocks; the choice made at submission would block one."""
    blocks = [BlockSpec("b1", 0, 10), BlockSpec("b2", 0, 10)]
    claims = [
        ClaimSpec("any", 1, {"b1": 6, "b2": 6}, any_of=1),
        ClaimSpec("b1 only", 1, {"b1": 6}),
    ]
    assert [d.state for d in simulate(blocks, claims, Optimal(1, 1))] == ["ALLOCATED"] * 2
    assert [d.state for d in simulate(blocks, claims, DPack(1, 1))].count("ALLOCATED") == 1
