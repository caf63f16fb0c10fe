"""Queues on a real ledger: waiting, grants, consumption; and bad input changes nothing."""

from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dp_udfs.budget import RenyiCurve
from dp_udfs.errors import (
    BudgetExhaustedError,
    BudgetWaitingError,
    ClaimError,
    InvalidParameterError,
    SettingsError,
)
from dp_udfs.policies import DpfByArrivals, DpfByTime, FirstComeFirstServed, RoundRobinByArrivals
from jobs.lake import entry_log, evidence
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Block, Ledger
from jobs.lake.replication import replicate
from tests.ledgers import DECEMBER, FILMS, NOON, NOVEMBER, Clock


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    """Two blocks that open by quarters, one each ten seconds."""
    opened = Ledger(tmp_path / "ledger", clock=clock)
    opened.open_account("research", FILMS, NOVEMBER, 100, 10, period_end=DECEMBER)
    opened.open_queue(FILMS, DpfByTime(40, 10))
    for day in ("d1", "d2"):
        opened.open_block(day, FILMS, 1)
    return opened


def entries(ledger: Ledger) -> list[str]:
    kinds: list[str] = ledger.entries()["kind"].to_pylist()
    return kinds


def block(ledger: Ledger, block_id: str) -> Block:
    return next(found for found in ledger.blocks() if found.block_id == block_id)


def state(ledger: Ledger, run_id: str) -> str:
    claim = ledger.find(run_id)
    assert claim is not None
    return claim.state


def audited(ledger: Ledger) -> list[str]:
    return [each.finding for each in evidence.audit(EntryLog(ledger.path)).findings]


def test_a_claim_waits_until_its_blocks_have_room(ledger: Ledger, clock: Clock) -> None:
    waits = ledger.submit("r1", blocks={"d1": 0.5, "d2": 0.1})
    assert waits.state == "waiting"
    clock.wait(19)
    assert ledger.run_round() == ()
    clock.wait(6)
    (granted,) = ledger.run_round()
    assert (granted.run_id, granted.state) == ("r1", "allocated")
    assert granted.ticket is not None
    assert granted.ticket.decided_at == NOON + timedelta(seconds=20)  # however late one looks
    assert entries(ledger)[-2:] == ["submit", "allocate"]
    assert str(block(ledger, "d1").filter.left) == "0.5"
    assert audited(ledger) == []


def test_the_smallest_dominant_share_is_served_first(ledger: Ledger, clock: Clock) -> None:
    for run_id, amount in (("large", 0.25), ("small", 0.2), ("smaller", 0.1)):
        ledger.submit(run_id, blocks={"d1": amount})
    clock.wait(10)
    ledger.run_round()
    assert [state(ledger, name) for name in ("large", "small", "smaller")] == [
        "waiting",
        "waiting",
        "allocated",
    ]
    clock.wait(10)
    ledger.run_round()
    assert state(ledger, "small") == "allocated"


def test_an_allocation_on_queued_blocks_waits_and_finds_its_grant(
    ledger: Ledger, clock: Clock
) -> None:
    asked: dict[str, Any] = {
        "analyst": "research", "dataset": FILMS, "units": 21, "calls": 1,
        "blocks": {"d1": 0.5}, "fingerprint": "f",
    }  # fmt: skip
    for _ in range(2):
        with pytest.raises(BudgetWaitingError) as waits:
            ledger.allocate("r1", **asked)
        assert "block d1 has unlocked 0, needed 0.5; ask again under the same run id" in str(
            waits.value
        )
    assert ledger.get_budget("research", FILMS).units_left == 100
    clock.wait(20)
    claim = ledger.allocate("r1", **asked)
    assert (claim.state, claim.units, claim.period_start) == ("allocated", 21, NOVEMBER)
    assert ledger.get_budget("research", FILMS).units_left == 79
    ledger.settle("r1", units=5, calls=1, publish=("label", "digest"))
    assert ledger.get_budget("research", FILMS).units_left == 95
    assert str(block(ledger, "d1").filter.consumed) == "0.5"  # the reserve: others see it
    assert audited(ledger) == []


def test_what_an_account_has_not_left_does_not_enter_the_queue(ledger: Ledger) -> None:
    for _ in range(2):
        with pytest.raises(BudgetExhaustedError, match="asked for 101 units"):
            ledger.submit("r1", blocks={"d1": 0.1}, analyst="research", units=101, calls=1)
    assert entries(ledger)[-1] == "refuse"
    assert ledger.find("r1") is None


def test_what_could_never_be_served_is_rejected_and_unlocks_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", clock=Clock())
    ledger.open_queue(FILMS, DpfByArrivals(2))
    ledger.open_block("d1", FILMS, 1)
    for _ in range(2):
        assert ledger.submit("huge", blocks={"d1": 1.5}).state == "rejected"
    assert block(ledger, "d1").arrivals == 0
    with pytest.raises(BudgetExhaustedError, match=r"was rejected: .* under a new run id"):
        ledger.allocate("huge", blocks={"d1": 1.5})
    assert ledger.submit("r1", blocks={"d1": 0.5}).state == "allocated"  # a fair share, at once
    assert ledger.submit("r2", blocks={"d1": 0.75}).state == "waiting"  # unlocks the rest
    assert ledger.submit("r3", blocks={"d1": 0.5}).state == "allocated"
    assert entries(ledger).count("reject") == 1
    assert audited(ledger) == []


def test_a_claim_that_is_not_served_in_time_is_never(ledger: Ledger, clock: Clock) -> None:
    ledger.submit("r1", blocks={"d1": 0.5}, timeout=timedelta(seconds=15))
    clock.wait(60)
    (ended,) = ledger.run_round()
    assert ended.state == "timed_out"
    assert ended.ticket is not None
    assert ended.ticket.reason == "was not served within 15 s"
    assert ledger.submit("r1", blocks={"d1": 0.5}).state == "timed_out"  # the first answer again


def test_a_claim_that_waits_can_be_cancelled_and_one_that_was_granted_cannot(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.submit("r1", blocks={"d1": 0.5})
    ledger.submit("r2", blocks={"d2": 0.25})
    clock.wait(10)
    assert ledger.cancel("r2", "not wanted").state == "allocated"  # it has been, since
    for _ in range(2):
        assert ledger.cancel("r1", "not wanted").state == "cancelled"
    with pytest.raises(ClaimError, match="is cancelled"):
        ledger.settle("r1", units=0, calls=0)


def test_parts_are_consumed_once_and_the_rest_serves_others(ledger: Ledger, clock: Clock) -> None:
    clock.wait(40)
    ledger.submit("r1", blocks={"d1": 0.8, "d2": 0.8})
    ledger.submit("r2", blocks={"d1": 0.7})
    for _ in range(2):
        ledger.consume("r1", {"d1": 0.2}, request_id="step 1")
    ledger.consume("r1", {"d1": 0.1, "d2": 0.5}, request_id="step 2")
    assert state(ledger, "r2") == "waiting"
    for _ in range(2):
        ledger.give_back("r1", "the model has converged")
    assert state(ledger, "r2") == "allocated"
    assert [str(each.filter.consumed) for each in ledger.blocks()] == ["0.3", "0.5"]
    assert str(block(ledger, "d1").filter.left) == "0"
    assert entries(ledger)[-4:] == ["consume", "consume", "give_back", "allocate"]
    with pytest.raises(ClaimError, match="is given_back"):
        ledger.consume("r1", {"d1": 0.1}, request_id="step 3")
    assert ledger.submit("r1", blocks={"d1": 0.8, "d2": 0.8}).state == "given_back"  # for good
    assert audited(ledger) == []


def test_consuming_all_that_is_left_settles_the_claim(ledger: Ledger, clock: Clock) -> None:
    clock.wait(40)
    ledger.submit("r1", blocks={"d1": 0.5, "d2": 0.25})
    ledger.consume("r1", {"d1": 0.25}, request_id="a")
    for _ in range(2):
        ledger.consume("r1", {"d1": 0.25, "d2": 0.25}, request_id="b")
        ledger.consume("r1", request_id="b")
    assert state(ledger, "r1") == "settled"
    assert [str(each.filter.consumed) for each in ledger.blocks()] == ["0.5", "0.25"]


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({"d1": 0.6}, "cannot consume 0.6 of block d1: it holds 0.5"),
        ({"d2": 0.1}, "holds nothing of block d2"),
        ({"d1": Fraction(-1, 10)}, "no loss is negative"),
        ({"d1": float("nan")}, "not a finite number"),
        ({"d1": (0.1, 0.1)}, "one value"),
    ],
)
def test_what_a_claim_does_not_hold_is_not_consumed(
    ledger: Ledger, clock: Clock, amounts: Mapping[str, Any], message: str
) -> None:
    clock.wait(40)
    ledger.submit("r1", blocks={"d1": 0.5})
    with pytest.raises((ClaimError, InvalidParameterError), match=message):
        ledger.consume("r1", amounts, request_id="a")
    ledger.consume("r1", {"d1": 0.1}, request_id="a")
    with pytest.raises(ClaimError, match="consumed other amounts"):
        ledger.consume("r1", {"d1": 0.2}, request_id="a")
    assert str(block(ledger, "d1").filter.consumed) == "0.1"


def test_consumption_that_leaves_too_little_rejects_those_that_wait(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.submit("r1", blocks={"d1": 0.25})
    ledger.submit("r2", blocks={"d1": 0.9})
    clock.wait(10)
    ledger.run_round()
    ledger.consume("r1", request_id="all")
    assert state(ledger, "r2") == "rejected"
    assert entries(ledger)[-2:] == ["settle", "reject"]


def test_a_retired_block_serves_nobody_any_more(ledger: Ledger, clock: Clock) -> None:
    clock.wait(10)
    ledger.submit("r1", blocks={"d1": 0.25})
    ledger.submit("r2", blocks={"d1": 0.25})
    for _ in range(2):
        ledger.retire_block("d1", "30 days are over")
    assert (state(ledger, "r1"), state(ledger, "r2")) == ("allocated", "rejected")
    assert ledger.submit("r3", blocks={"d1": 0.1}).state == "rejected"
    with pytest.raises(SettingsError, match="there is no block d9"):
        ledger.retire_block("d9", "30 days are over")


def test_a_retired_block_without_a_queue_is_not_taken_from(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", clock=Clock())
    ledger.open_block("d1", FILMS, 1)
    ledger.retire_block("d1", "30 days are over")
    with pytest.raises(SettingsError, match="d1 is retired"):
        ledger.allocate("r1", dataset=FILMS, blocks={"d1": 0.1})


@pytest.mark.parametrize(
    ("blocks", "terms", "error", "message"),
    [
        ({}, {}, InvalidParameterError, "name at least one"),
        ({"d9": 0.1}, {}, SettingsError, "there is no block d9"),
        ({"d1": -0.1}, {}, InvalidParameterError, "no loss is negative"),
        ({"d1": 0}, {}, InvalidParameterError, "must be positive"),
        ({"d1": float("nan")}, {}, InvalidParameterError, "not a finite number"),
        ({"d1": float("inf")}, {}, InvalidParameterError, "not a finite number"),
        ({"d1": (0.1, 0.2)}, {}, InvalidParameterError, "one value"),
        ({"d1": 0.1}, {"weight": 0}, InvalidParameterError, "weight = 0"),
        ({"d1": 0.1}, {"any_of": 2}, InvalidParameterError, "any 2 of 1"),
        ({"d1": 0.1}, {"timeout": timedelta(seconds=-1)}, InvalidParameterError, "timeout"),
        ({"d1": 0.1}, {"details": {"queue": 1}}, InvalidParameterError, "the ledger's own word"),
        ({"d1": 0.1}, {"units": 1, "analyst": "sales"}, SettingsError, "no account"),
        ({"plain": 0.1}, {}, SettingsError, "not served by a queue"),
        ({"plain": 0.1, "d1": 0.1}, {}, SettingsError, "not served by a queue"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    ledger: Ledger, blocks: Any, terms: Any, error: type[Exception], message: str
) -> None:
    ledger.open_block("plain", "another table", 1)
    before = ledger.head()
    with pytest.raises(error, match=message):
        ledger.submit("r1", blocks=blocks, **terms)
    assert ledger.head() == before


def test_a_run_id_stands_for_one_demand_on_the_same_terms(ledger: Ledger) -> None:
    ledger.submit("r1", blocks={"d1": 0.5, "d2": 0.5}, any_of=1)
    before = ledger.head()
    for other in (
        {"blocks": {"d1": 0.4, "d2": 0.5}, "any_of": 1},
        {"blocks": {"d1": 0.5, "d2": 0.5}},
        {"blocks": {"d1": 0.5, "d2": 0.5}, "any_of": 1, "weight": 2},
        {"blocks": {"d1": 0.5, "d2": 0.5}, "any_of": 1, "fingerprint": "other"},
    ):
        with pytest.raises(ClaimError):
            ledger.submit("r1", **other)
    assert ledger.head() == before


def test_a_policy_never_changes_and_nothing_is_lost(ledger: Ledger) -> None:
    ledger.submit("r1", blocks={"d1": 0.5})
    ledger.open_queue(FILMS, DpfByTime(40, 10))
    before = ledger.head()
    for policy in (DpfByTime(40, 20), FirstComeFirstServed(), DpfByArrivals(7)):
        with pytest.raises(SettingsError, match="that never changes"):
            ledger.open_queue(FILMS, policy)
    ledger.open_block("plain", "another table", 1)
    with pytest.raises(SettingsError, match="without a queue, first come first served; that never"):
        ledger.open_queue("another table", DpfByArrivals(7))
    with pytest.raises(InvalidParameterError, match="is for simulations"):
        ledger.open_queue("third", RoundRobinByArrivals(3))
    assert entries(ledger)[-1] == "open_block"
    assert ledger.head() != before
    assert state(ledger, "r1") == "waiting"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "track"}, "mode must be enforce"),
        ({"capacity": -1}, "not positive at any alpha"),
        ({"capacity": (1, 2), "alphas": ("2", "4")}, "that never changes"),
    ],
)
def test_a_queue_takes_only_blocks_that_it_can_serve(
    ledger: Ledger, changes: Any, message: str
) -> None:
    with pytest.raises((SettingsError, InvalidParameterError), match=message):
        ledger.open_block("d3", FILMS, **{"capacity": 1, **changes})


def test_another_region_is_told_where_to_ask(ledger: Ledger, tmp_path: Path, clock: Clock) -> None:
    ledger.submit("r1", blocks={"d1": 0.5})
    east = Ledger(tmp_path / "east", "east", clock)
    replicate([ledger, east])
    for ask in (
        lambda: east.submit("r2", blocks={"d1": 0.1}),
        lambda: east.allocate("r2", blocks={"d1": 0.1}),
        lambda: east.retire_block("d1", "its data are gone"),
    ):
        with pytest.raises(SettingsError, match="served in region local: ask there"):
            ask()
    with pytest.raises(ClaimError, match="has its claim in region local"):
        east.cancel("r1", "not wanted")
    clock.wait(60)
    assert east.run_round() == ()
    assert [claim.state for claim in ledger.run_round()] == ["allocated"]
    replicate([ledger, east])
    assert state(east, "r1") == "allocated"
    east.open_queue(FILMS, DpfByArrivals(2))  # for blocks of its own
    east.open_block("d1@east", FILMS, 1)
    assert east.submit("r2", blocks={"d1@east": 0.5}).state == "allocated"
    replicate([ledger, east])
    assert audited(ledger) == audited(east) == []


def test_queues_outlive_segments(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_log, "SEGMENT", 4)
    ledger = Ledger(tmp_path / "ledger", clock=clock)
    ledger.open_queue(FILMS, DpfByTime(40, 10))
    ledger.open_block("d1", FILMS, 1)
    ledger.submit("late", blocks={"d1": 0.3}, timeout=timedelta(seconds=100))
    ledger.submit("gone", blocks={"d1": 0.4}, timeout=timedelta(seconds=5))
    for number in range(8):
        clock.wait(1)
        fresh = Ledger(tmp_path / "ledger", clock=clock)
        fresh.submit(f"small {number}", blocks={"d1": 0.02})
    assert fresh.find("gone") is not None
    assert state(fresh, "gone") == "timed_out"
    clock.wait(42)
    fresh.run_round()
    assert state(fresh, "late") == "allocated"
    assert str(block(fresh, "d1").filter.left) == "0.54"
    assert audited(fresh) == []


def test_a_clock_that_goes_back_unlocks_nothing_and_stops_nothing(
    ledger: Ledger, clock: Clock
) -> None:
    clock.wait(15)
    ledger.submit("r1", blocks={"d1": 0.25})
    clock.wait(-3600)
    assert ledger.run_round() == ()
    assert ledger.submit("r2", blocks={"d1": 0.25}).state == "waiting"
    clock.wait(3600 + 5)
    assert [claim.run_id for claim in ledger.run_round()] == ["r2"]
    assert audited(ledger) == []


def test_whoever_looks_first_may_ask_without_being_charged(ledger: Ledger, clock: Clock) -> None:
    before = ledger.head()
    waits = ledger.check_budget(blocks={"d1": 0.5})
    assert isinstance(waits.refusal, BudgetWaitingError)
    clock.wait(20)
    assert ledger.check_budget(blocks={"d1": 0.5}).fits
    assert "rejected" in str(ledger.check_budget(blocks={"d1": 1.5}).refusal)
    assert ledger.head() == before


def test_renyi_blocks_are_granted_where_one_order_fits(tmp_path: Path, clock: Clock) -> None:
    ledger = Ledger(tmp_path / "ledger", clock=clock)
    ledger.open_queue(FILMS, DpfByTime(40, 10))
    ledger.open_block("d1", FILMS, (1, 2, -1), alphas=("2", "4", "8"))
    clock.wait(10)
    assert ledger.submit("r1", blocks={"d1": (0.9, 0.5, 5)}).state == "allocated"
    assert ledger.submit("r2", blocks={"d1": (0.01, 0.01, 0)}).state == "waiting"
    assert block(ledger, "d1").filter.left == RenyiCurve((10**8, 15 * 10**8, -6 * 10**9))
    assert audited(ledger) == []
