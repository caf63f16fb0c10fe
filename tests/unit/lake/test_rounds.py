"""Queues without storage: whoever looks when, the ledger decides what one scheduler would."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs.budget import Loss, RenyiCurve
from dp_udfs.claims import ClaimState
from dp_udfs.policies import DPack, DpfByArrivals, DpfByTime, FirstComeFirstServed, Optimal
from dp_udfs.scheduler import Scheduler
from dp_udfs.scheduling import BlockSpec, ClaimSpec, simulate
from jobs.lake import carries, decisions, policies, queueing
from jobs.lake.allocations import Allocation
from jobs.lake.balances import Balances
from jobs.lake.decisions import BlockOpening, Demand
from jobs.lake.entries import GENESIS, SCHEMA_VERSION, Entry, Fact
from jobs.lake.policies import Served, microseconds
from jobs.lake.rounds import Round, Waiting

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
DATASET = "films"
ALPHAS = ("2", "4", "8")
CAPACITY = RenyiCurve((12, 24, -3))  # the third order is never used
POLICIES: tuple[Served, ...] = (
    FirstComeFirstServed(),
    DpfByArrivals(4),
    DpfByTime(20, 4),
    DPack(20, 4),
)


@dataclass(frozen=True)
class Event:
    at: int
    kind: str
    name: str = ""
    demand: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    terms: Waiting = field(default_factory=Waiting)


@dataclass
class Region:
    """A ledger as a list, folded as it grows."""

    entries: list[Entry] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)  # how many entries there were after each
    balances: Balances = field(default_factory=lambda: Balances(here="local"))

    def write(self, facts: Sequence[Fact], at: datetime) -> None:
        for fact in facts:
            entry = Entry(
                **vars(fact),
                region="local",
                entry_no=len(self.entries) + 1,
                entry_id=f"local:{len(self.entries) + 1}",
                recorded_at=at,
                schema_version=SCHEMA_VERSION,
                previous_hash=self.entries[-1].hash if self.entries else GENESIS,
            )
            self.entries.append(entry)
            self.balances.apply(entry)
        self.commits.append(len(self.entries))

    def carry(self) -> None:
        """Forget all that a carry does not keep."""
        self.balances = carries.read(carries.write(self.balances, NOON))
        self.balances.here = "local"

    def claim(self, run_id: str) -> Allocation | None:
        return self.balances.claims.get(("local", run_id))

    def open_block(self, name: str, at: datetime) -> None:
        opening = BlockOpening(
            block_id=name,
            dataset=DATASET,
            capacity=CAPACITY,
            alphas=ALPHAS,
            mode="enforce",
            details={},
        )
        self.write(decisions.open_blocks(self.balances, [opening]), at)

    def submit(
        self,
        run_id: str,
        demand: Mapping[str, tuple[int, ...]],
        at: datetime,
        terms: Waiting = Waiting(),  # noqa: B008 (frozen)
        **said: Any,
    ) -> None:
        blocks = {name: RenyiCurve(curve) for name, curve in demand.items()}
        asked = Demand(
            run_id=run_id,
            **{"analyst": "", "dataset": "", "loss": Loss(), **said},
            blocks=blocks,
            fingerprint="f",
        )
        known = self.claim(run_id)
        facts, refusal = queueing.submit(
            self.balances, at, known, asked, terms, f"claim {run_id}", lambda *_: ()
        )
        self.write(facts, at)
        if refusal:
            raise refusal

    def close(self, run_id: str, kind: str, at: datetime) -> None:
        claim = self.claim(run_id)
        if claim is None or not claim.is_open:
            return
        if kind == "free":
            facts = decisions.close(claim, "give_back", "nothing was read")
        else:
            facts = decisions.settle(claim, Loss(), None)
        self.write(queueing.around(self.balances, at, claim, facts), at)


def queue(policy: Served) -> Region:
    region = Region()
    region.write(queueing.open_queue(region.balances, DATASET, policy), NOON)
    return region


def after(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Blocks that come one by one, claims on them, and looks at the queue at any time."""
    at, blocks, claims = 0, 0, 0
    events = []
    kinds = ["block", "claim", "claim", "claim", "claim", "round", "carry"]
    if draw(st.booleans()):
        kinds += ["free", "use", "cancel", "retire"]
    for _ in range(draw(st.integers(2, 16))):
        at += draw(st.integers(0, 6))
        kind = draw(st.sampled_from(kinds))
        if kind == "block" or not blocks:
            at += 1  # after all claims of an instant, as `simulate` has it
            events.append(Event(at, "block", f"b{blocks}"))
            blocks += 1
        elif kind == "claim":
            names = draw(st.sets(st.sampled_from([f"b{n}" for n in range(blocks)]), min_size=1))
            curve = draw(st.tuples(st.integers(0, 9), st.integers(1, 18), st.integers(0, 9)))
            timeout = draw(st.none() | st.integers(0, 12).map(lambda s: timedelta(seconds=s)))
            any_of = draw(st.none() | st.integers(1, len(names)))
            terms = Waiting(timeout, draw(st.sampled_from(["1", "2", "1/3"])), any_of)
            demand = dict.fromkeys(sorted(names), curve)
            events.append(Event(at, "claim", f"c{claims}", demand, terms))
            claims += 1
        elif kind == "retire":
            events.append(Event(at, kind, f"b{draw(st.integers(0, blocks - 1))}"))
        elif kind in ("round", "carry") or claims:
            events.append(Event(at, kind, f"c{draw(st.integers(0, max(0, claims - 1)))}"))
    return events


def recorded(events: Sequence[Event], policy: Served) -> Region:
    """The ledger's way."""
    region = queue(policy)
    for event in events:
        at = after(event.at)
        if event.kind == "block":
            region.open_block(event.name, at)
        elif event.kind == "claim":
            region.submit(event.name, event.demand, at, event.terms)
        elif event.kind == "round":
            region.write(queueing.run_round(region.balances, at), at)
        elif event.kind == "carry":
            region.carry()
        elif event.kind == "retire":
            facts = queueing.retire(region.balances, at, event.name, "the data are gone")
            region.write(facts, at)
        else:
            region.write(queueing.run_round(region.balances, at), at)
            claim = region.claim(event.name)
            if event.kind == "cancel" and claim:
                region.write(queueing.cancel(region.balances, at, claim, "not wanted"), at)
            else:
                region.close(event.name, event.kind, at)
    end = after(10_000)
    region.write(queueing.run_round(region.balances, end), end)
    return region


def decided(region: Region) -> dict[str, tuple[str, int | None]]:
    """What became of each claim first, and when, from its entries alone."""
    found: dict[str, tuple[str, int | None]] = {}
    for entry in region.entries:
        if entry.kind == "submit":
            found[str(entry.run_id)] = "WAITING", None
        elif entry.kind in ("allocate", "reject", "time_out", "cancel"):
            state = {"allocate": "ALLOCATED", "reject": "REJECTED", "time_out": "TIMED_OUT"}
            told = json_of(entry).get("queue", {}).get("at")
            at = datetime.fromisoformat(told) if told else entry.recorded_at
            found[str(entry.run_id)] = state.get(entry.kind, "CANCELLED"), microseconds(at)
    return found


def json_of(entry: Entry) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(entry.details or "{}")
    return content


def lived(events: Sequence[Event], policy: Served) -> dict[str, tuple[str, int | None]]:
    """One scheduler that lives through it all."""
    scheduler = Scheduler(policies.read(policies.write(policy)))
    for event in events:
        at = microseconds(after(event.at))
        claim = scheduler.claims.get(event.name)
        if event.kind == "block":
            scheduler.open_block(event.name, CAPACITY.nano, at)
        elif event.kind == "claim":
            scheduler.submit(
                event.name,
                event.demand,
                at,
                timeout=timeout_of(event),
                weight=Fraction(event.terms.weight),
                any_of=event.terms.any_of,
            )
        elif event.kind == "retire":
            scheduler.retire_block(event.name, at)
        elif event.kind in ("free", "use", "cancel"):
            scheduler.go_to(at)
            if claim and event.kind == "cancel" and claim.state is ClaimState.WAITING:
                scheduler.cancel(event.name, at)
            elif claim and claim.state is ClaimState.ALLOCATED and event.kind != "cancel":
                if event.kind == "free":
                    scheduler.release(event.name, at)
                else:
                    scheduler.consume(event.name)
    scheduler.advance(microseconds(after(10_000)))
    first: dict[str, tuple[str, Any]] = dict.fromkeys(scheduler.claims, ("WAITING", None))
    for decision in scheduler.decisions:
        first[decision.claim_id] = decision.state, decision.at
    return first


def timeout_of(event: Event) -> int | None:
    timeout = event.terms.timeout
    return None if timeout is None else timeout // timedelta(microseconds=1)


def simulated(events: Sequence[Event], policy: Served) -> dict[str, tuple[str, Any]]:
    blocks = [
        BlockSpec(e.name, microseconds(after(e.at)), CAPACITY.nano)
        for e in events
        if e.kind == "block"
    ]
    claims = [
        ClaimSpec(
            e.name,
            microseconds(after(e.at)),
            e.demand,
            timeout_of(e),
            weight=Fraction(e.terms.weight),
            any_of=e.terms.any_of,
        )
        for e in events
        if e.kind == "claim"
    ]
    made = simulate(blocks, claims, policies.read(policies.write(policy)))
    return {name: (state, at) for name, state, at in made}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@settings(max_examples=30)
@given(histories())
def test_claims_are_served_as_by_one_scheduler_whoever_looks_when(
    policy: Served, events: list[Event]
) -> None:
    found = decided(recorded(events, policy))
    assert found == lived(events, policy)
    if not {event.kind for event in events} & {"free", "use", "cancel", "retire"}:
        assert found == simulated(events, policy)


@settings(max_examples=40)
@given(histories(), st.sampled_from(POLICIES))
def test_blocks_hold_what_their_claims_hold_and_never_more_than_is_unlocked(
    events: list[Event], policy: Served
) -> None:
    region = recorded([event for event in events if event.kind != "carry"], policy)
    balances = Balances(here="local")
    for entry in region.entries:
        balances.apply(entry)
        if entry.entry_no not in region.commits:
            continue
        queue_ = balances.queues["local", DATASET]
        opened = Round(balances, queue_, queue_.at).parts()
        for block in balances.blocks.values():
            if block.opened_at is None or block.opened_at > queue_.at:
                continue  # nothing was decided since
            budget = block.filter
            found = opened[block.block_id]
            locked, unlocked = found.locked, found.unlocked
            assert (found.allocated, found.consumed) == (
                budget.allocated.nano,
                budget.consumed.nano,
            )
            parts = zip(budget.capacity.nano, locked, unlocked, budget.used.nano, strict=True)
            assert all(total == a + b + used for total, a, b, used in parts)  # I1
            assert min(*locked[:2], *budget.allocated.nano, *budget.consumed.nano) >= 0  # I2
            assert any(amount >= 0 for amount in unlocked[:2])
            assert not budget.is_overspent  # I3
            held = [
                (part, curves[block.block_id])
                for claim in balances.claims.values()
                for part, curves in claim.held
                if block.block_id in curves
            ]
            for part in ("allocated", "consumed"):  # I4
                zero = budget.capacity.zero
                total = sum((curve for name, curve in held if name == part), zero)
                assert total == getattr(budget, part)


def test_a_choice_of_blocks_is_made_by_each_round_of_the_optimum() -> None:
    events = [Event(n, "block", f"b{n}") for n in range(3)]
    wanted = {f"b{n}": (2, 2, 2) for n in range(3)}
    events += [Event(4, "claim", f"c{n}", wanted, Waiting(any_of=2)) for n in range(3)]
    region = recorded(events, Optimal(20, 4))
    assert decided(region) == lived(events, Optimal(20, 4))
    assert [len(claim.blocks) for claim in region.balances.claims.values()] == [2, 2, 2]


def test_rounds_in_vain_are_noted_and_not_held_again() -> None:
    region = queue(DPack(400, 4))
    region.open_block("b", NOON)
    region.submit("r1", {"b": (12, 24, 0)}, NOON)
    for seconds in (100, 200, 250, 400):
        facts = queueing.run_round(region.balances, after(seconds))
        region.write(facts, after(seconds))
        region.carry()
    assert [entry.kind for entry in region.entries[2:]] == ["submit", "unlock", "allocate"]
    assert decided(region)["r1"] == ("ALLOCATED", microseconds(after(400)))


# What an account bears is taken with the grant, or the claim is not served


def with_account(units: int) -> Region:
    region = queue(DpfByTime(20, 4))
    opening = Fact(
        kind="open_account",
        analyst="research",
        dataset=DATASET,
        period_start=NOON.date(),
        units=units,
        calls=10,
    )
    region.write([opening], NOON)
    region.open_block("b", NOON)
    return region


def ask(region: Region, run_id: str, amount: int, units: int) -> None:
    region.submit(run_id, {"b": (amount, amount, 0)}, NOON, analyst="research", loss=Loss(units, 1))


def test_an_account_is_charged_when_its_blocks_are_granted() -> None:
    region = with_account(100)
    ask(region, "r1", 6, 70)
    account = region.balances.account_on("research", DATASET, NOON)
    assert account is not None
    assert account.filter.used == Loss()
    region.write(queueing.run_round(region.balances, after(60)), after(60))
    claim = region.claim("r1")
    assert claim is not None
    assert claim.ticket is not None
    assert (claim.state, claim.period_start) == ("allocated", NOON.date())
    assert claim.ticket.decided_at == after(8)  # order 4 has a fraction 2/5 of 24 then
    account = region.balances.account_on("research", DATASET, NOON)
    assert account is not None
    assert account.filter.used == Loss(70, 1)


def test_two_that_wait_do_not_get_the_same_units() -> None:
    region = with_account(100)
    for run_id in ("r1", "r2"):
        ask(region, run_id, 4, 70)
    facts = queueing.run_round(region.balances, after(60))
    region.write(facts, after(60))
    assert [fact.kind for fact in facts] == ["allocate", "reject"]
    assert "account is used up when blocks have room" in str(facts[1].reason)
    assert region.balances.blocks["b"].filter.used == RenyiCurve((4, 4, 0))
    region.submit("r3", {"b": (4, 4, 0)}, after(60))  # what r2 was not given is there
    assert region.balances.blocks["b"].filter.used == RenyiCurve((8, 8, 0))


def test_a_queue_that_another_region_served_first_loses_its_block() -> None:
    region = queue(DpfByTime(20, 4))
    region.open_block("b", NOON)
    region.submit("r1", {"b": (12, 9, 0)}, NOON)
    region.balances.blocks["b"] = replace(region.balances.blocks["b"], queue="east")
    region.write(queueing.run_round(region.balances, NOON), NOON)
    claim = region.claim("r1")
    assert claim is not None
    assert claim.state == "rejected"
