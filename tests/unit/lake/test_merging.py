"""Several regions, no storage: whatever each does and hears, in the end they agree."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs.budget import Loss, RenyiCurve
from dp_udfs.errors import LedgerConflictError, PrivacyError
from dp_udfs.policies import DpfByArrivals, DpfByTime, Policy
from jobs.lake import carries, decisions, queueing
from jobs.lake.balances import Balances
from jobs.lake.decisions import BlockOpening, Demand, Opening, Sending
from jobs.lake.entries import GENESIS, SCHEMA_VERSION, Entry, Fact, credit_id
from jobs.lake.merging import lacking
from jobs.lake.rounds import Waiting

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
REGIONS = ("east", "north", "west")
ANALYST, DATASET = "research", "films"
POLICIES: tuple[Policy, ...] = (DpfByArrivals(3), DpfByTime(600, 60))


class Region:
    """One region's table, as a list."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table: list[Entry] = []

    def balances(self) -> Balances:
        balances = Balances(here=self.name)
        for entry in self.table:
            balances.apply(entry)
        return balances

    def write(self, facts: Sequence[Fact], at: datetime) -> None:
        for fact in facts:
            head = self.balances().heads.get(self.name)
            number = head.entry_no + 1 if head else 1
            name = f"{self.name}:{number}:{at.isoformat()}"
            entry = Entry(
                **vars(fact),
                region=self.name,
                entry_no=number,
                entry_id=credit_id(fact.claim_id or "", self.name)
                if fact.kind == "credit"
                else name,
                recorded_at=max(at, head.recorded_at) if head else at,
                schema_version=SCHEMA_VERSION,
                previous_hash=head.hash if head else GENESIS,
            )
            self.table.append(entry)

    def copy(self, other: "Region") -> int:
        copies = lacking(self.table, other.table)
        self.table += copies
        return len(copies)


def act(region: Region, draw: st.DrawFn, *, escrow: bool, at: datetime) -> None:
    """Do one thing that a program could do there."""
    balances = region.balances()
    head = balances.heads.get(region.name)
    now = max(at, head.recorded_at) if head else at  # as the journal has it
    units, calls = draw(st.integers(0, 40)), draw(st.integers(0, 4))
    own = [c for c in balances.claims.values() if c.is_open and c.region == region.name]
    kind = draw(
        st.sampled_from(["open", "ask", "ask", "settle", "close", "override", "send", "get"])
        | st.sampled_from(["queue", "block", "wait", "wait", "wait", "round", "round", "retire"])
    )
    facts: Sequence[Fact] = []
    if kind == "open":
        allowance = Loss(50, 10) if escrow else Loss(draw(st.sampled_from([90, 100])), 20)
        opening = Opening(
            analyst=ANALYST, dataset=DATASET, start=NOVEMBER, end=DECEMBER, zone="UTC",
            allowance=allowance, reason="", escrow=escrow,
        )  # fmt: skip
        facts = decisions.open_account(balances, at, opening)
    elif kind == "ask":
        run_id = f"run-{draw(st.integers(0, 5))}"  # regions use the same names
        claim = balances.claims.get((region.name, run_id))
        asked = Demand(
            run_id=run_id, analyst=ANALYST, dataset=DATASET, loss=Loss(units, calls)
        )  # fmt: skip
        claim_id = f"{region.name}:{len(region.table)}"
        facts, _ = decisions.allocate(balances, at, claim, asked, claim_id, lambda *_: ())
    elif kind == "settle" and own:
        claim = draw(st.sampled_from(own))
        facts = decisions.settle(claim, Loss(claim.units // 2, claim.calls), None)
        facts = queueing.around(balances, now, claim, facts)
    elif kind == "close" and own:
        claim = draw(st.sampled_from(own))
        facts = decisions.close(claim, "give_back", "nothing was read")
        facts = queueing.around(balances, now, claim, facts)
    elif kind == "override" and not escrow:
        account = balances.account_on(ANALYST, DATASET, at)
        facts = decisions.override(account, 60 + units, None, None, "why") if account else []
    elif kind == "send" and escrow:
        to = draw(st.sampled_from([name for name in REGIONS if name != region.name]))
        asked_to = Sending(f"t-{draw(st.integers(0, 3))}", ANALYST, DATASET, to, Loss(units, calls))
        earlier = [e for e in region.table if (e.kind, e.region) == ("debit", region.name)]
        facts = decisions.debit(balances, at, asked_to, earlier)
    elif kind == "get":
        facts = decisions.credits(balances)
    else:
        facts = queue_facts(region, draw, balances, now, kind)
    region.write(facts, at)


def queue_facts(
    region: Region, draw: st.DrawFn, balances: Balances, now: datetime, kind: str
) -> Sequence[Fact]:
    """Say one thing that a program could say of a queue there."""
    if kind == "queue":
        policy = draw(st.sampled_from(POLICIES))
        return queueing.open_queue(balances, DATASET, policy)
    if kind == "block":
        return decisions.open_blocks(balances, [block(draw(st.integers(1, 2)))])
    if kind == "wait":
        run_id = f"wait-{draw(st.integers(0, 5))}"
        names = draw(st.sets(st.sampled_from(["block 1", "block 2"]), min_size=1))
        asked = Demand(
            run_id=run_id, analyst=ANALYST, dataset="",
            loss=Loss(draw(st.sampled_from([0, 0, 0, 3]))),
            blocks=dict.fromkeys(sorted(names), RenyiCurve((draw(st.integers(1, 60)),))),
        )  # fmt: skip
        facts, _ = queueing.submit(
            balances,
            now,
            balances.claims.get((region.name, run_id)),
            asked,
            Waiting(timeout=timedelta(minutes=draw(st.integers(0, 9)))),
            f"{region.name}:{len(region.table)}",
            lambda *_: (),
        )
        return facts
    if kind == "round":
        return queueing.run_round(balances, now)
    if kind == "retire":
        return queueing.retire(balances, now, "block 1", "its data are gone")
    return ()


def block(number: int) -> BlockOpening:
    """A block that each region may open, before it hears that another one has."""
    return BlockOpening(
        block_id=f"block {number}", dataset=DATASET, capacity=RenyiCurve((100,)),
        alphas=("inf",), mode="enforce", details={},
    )  # fmt: skip


@st.composite
def worlds(draw: st.DrawFn, *, escrow: bool) -> list[Region]:
    """Regions that act, and now and then hear of each other."""
    regions = [Region(name) for name in REGIONS]
    if draw(st.integers(0, 2)):
        east = regions[0]
        policy = draw(st.sampled_from(POLICIES))
        east.write(queueing.open_queue(east.balances(), DATASET, policy), NOON)
        east.write(decisions.open_blocks(east.balances(), [block(1), block(2)]), NOON)
    for step in range(draw(st.integers(0, 12) | st.integers(20, 40))):
        region = draw(st.sampled_from(regions))
        if draw(st.booleans()):
            region.copy(draw(st.sampled_from(regions)))
            continue
        at = NOON + timedelta(minutes=draw(st.integers(-3, 3)) + step)  # clocks differ
        with suppress(PrivacyError):  # refused, as it should be
            act(region, draw, escrow=escrow, at=at)
    return regions


def content(balances: Balances) -> tuple[object, ...]:
    return (
        balances.heads, balances.accounts, balances.claims, balances.transfers, balances.refused,
        balances.blocks, balances.queues,
    )  # fmt: skip


@settings(max_examples=150)
@given(st.booleans().flatmap(lambda escrow: worlds(escrow=escrow)), st.data())
def test_ledgers_agree_in_any_order_of_copying(regions: list[Region], data: st.DataObject) -> None:
    pairs = [(a, b) for a in regions for b in regions if a is not b]
    for _ in range(2):
        for to, source in data.draw(st.permutations(pairs)):
            to.copy(source)
    first, *others = regions
    assert {entry.entry_id for entry in first.table} == set().union(
        *({entry.entry_id for entry in other.table} for other in others)
    )
    for other in others:
        assert content(other.balances()) == content(first.balances())
    assert [to.copy(source) for to, source in pairs] == [0] * len(pairs)


@settings(max_examples=150)
@given(worlds(escrow=True))
def test_shares_are_never_overspent_wherever_one_looks(regions: list[Region]) -> None:
    everything = Region("auditor")
    for region in regions:
        everything.copy(region)
    for region in [*regions, everything]:
        balances = region.balances()
        for account in balances.accounts.get((ANALYST, DATASET), {}).values():
            for share in account.shares.values():
                assert share.filter.capacity.covers(share.filter.used)
    balances = everything.balances()
    for account in balances.accounts.get((ANALYST, DATASET), {}).values():
        owned = sum((s.filter.capacity for s in account.shares.values()), Loss())
        sent = sum((transfer.loss for transfer in balances.transfers.values()), Loss())
        opened = sum((s.opened_with for s in account.shares.values()), Loss())
        assert owned + sent == opened


@settings(max_examples=100)
@given(st.booleans().flatmap(lambda escrow: worlds(escrow=escrow)))
def test_a_carry_keeps_what_regions_own_and_have_sent(regions: list[Region]) -> None:
    for region in regions:
        balances = region.balances()
        carried = carries.read(carries.write(balances, NOON))
        assert carried.accounts == {key: value for key, value in balances.accounts.items() if value}
        assert carried.transfers == balances.transfers
        assert carried.heads == balances.heads
        assert (carried.blocks, carried.queues) == (balances.blocks, balances.queues)
        kept = {key: c for key, c in balances.claims.items() if c.is_open or c.state == "waiting"}
        assert carried.claims == kept


def test_what_was_sent_is_received_once() -> None:
    east, west = Region("east"), Region("west")
    for region in (east, west):
        opening(region, 100, details='{"escrow":true}')
    asked = Sending("t", ANALYST, DATASET, "west", Loss(30))
    east.write(decisions.debit(east.balances(), NOON, asked, []), NOON)
    for _ in range(2):
        west.copy(east)
        west.write(decisions.credits(west.balances()), NOON)
        east.copy(west)
    for region, units in ((east, 70), (west, 130)):
        account = region.balances().account_on(ANALYST, DATASET, NOON)
        assert account is not None
        assert account.filter.capacity == Loss(units)
    assert east.balances().transfers == {}


def opening(region: Region, units: int, at: datetime = NOON, **changes: Any) -> None:
    said = {"analyst": ANALYST, "dataset": DATASET, "period_start": NOVEMBER, "units": units}
    region.write([Fact(kind="open_account", **(said | changes))], at)  # type: ignore[arg-type]


def test_an_account_that_two_regions_opened_has_the_smaller_allowance() -> None:
    east, west = Region("east"), Region("west")
    opening(east, 100, calls=5)
    opening(west, 80, calls=9)
    east.copy(west)
    (account,) = east.balances().accounts[ANALYST, DATASET].values()
    assert account.filter.capacity == account.opened_with == Loss(80, 5)


def test_the_latest_override_holds_and_not_the_one_that_was_heard_of_last() -> None:
    east, west = Region("east"), Region("west")
    opening(east, 100, calls=5)
    west.copy(east)
    for region, units, minutes in ((east, 300, 2), (west, 200, 1)):
        account = region.balances().account_on(ANALYST, DATASET, NOON)
        assert account is not None
        facts = decisions.override(account, units, None, None, "why")
        region.write(facts, NOON + timedelta(minutes=minutes))
    for region, other in ((east, west), (west, east)):
        region.copy(other)
        account = region.balances().account_on(ANALYST, DATASET, NOON)
        assert account is not None
        assert account.filter.capacity == Loss(300, 5)


def test_one_id_with_other_content_is_an_error() -> None:
    east, west = Region("east"), Region("west")
    opening(east, 100)
    west.copy(east)
    west.table[0] = replace(west.table[0], units=200)
    for region, other in ((east, west), (west, east)):
        with pytest.raises(LedgerConflictError, match="entry 1 of region east is two entries"):
            region.copy(other)


def test_a_region_that_wrote_anew_after_a_restore_is_an_error() -> None:
    east, west = Region("east"), Region("west")
    opening(east, 100)
    opening(east, 100, period_start=DECEMBER)
    west.copy(east)
    east.table.pop()
    opening(east, 100, at=NOON + timedelta(hours=1), period_start=date(2027, 1, 1))
    with pytest.raises(LedgerConflictError, match="entry 2 of region east is two entries"):
        west.copy(east)


def test_a_credit_without_its_debit_is_an_error() -> None:
    east = Region("east")
    opening(east, 100, details='{"escrow":true}')
    (account,) = east.balances().accounts[ANALYST, DATASET].values()
    east.write([account.fact("credit", units=5, claim_id="west:1")], NOON)
    with pytest.raises(LedgerConflictError, match="receives what was not sent"):
        east.balances()
