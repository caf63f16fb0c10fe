"""A scheduler that is made anew for every event decides what one that lives through all decides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs.claims import WAITING, Claim, ClaimState
from dp_udfs.policies import DPack, DpfByArrivals, DpfByTime, FirstComeFirstServed, Optimal
from dp_udfs.resumption import BlockRecord, ClaimRecord, ResumedScheduler
from dp_udfs.scheduler import Decision, Scheduler

Policy = FirstComeFirstServed | DpfByArrivals | DpfByTime | DPack | Optimal

POLICIES: tuple[Policy, ...] = (
    FirstComeFirstServed(),
    DpfByArrivals(4),
    DpfByArrivals(6, slack="0.4"),
    DpfByTime(20, 4),
    DpfByTime(20, 5, slack="0.5"),
    DPack(20, 4),
)
CAPACITY = (12, 24, -3)  # the third order is never used


@dataclass(frozen=True)
class Event:
    at: int
    kind: str
    name: str
    demand: Mapping[str, tuple[int, ...]]
    timeout: int | None = None
    weight: int = 1
    any_of: int | None = None


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Blocks that come one by one, claims on them, and some that give back what they got."""
    at, blocks, claims = 0, 0, 0
    events = []
    for _ in range(draw(st.integers(2, 14))):
        at += draw(st.integers(0, 6))
        kind = draw(st.sampled_from(["block", "claim", "claim", "claim", "free", "use"]))
        if kind == "block" or not blocks:
            events.append(Event(at, "block", f"b{blocks}", {}))
            blocks += 1
        elif kind == "claim":
            names = draw(st.sets(st.sampled_from([f"b{n}" for n in range(blocks)]), min_size=1))
            curve = draw(st.tuples(st.integers(0, 9), st.integers(1, 18), st.integers(0, 9)))
            events.append(
                Event(
                    at,
                    "claim",
                    f"c{claims}",
                    dict.fromkeys(sorted(names), curve),
                    timeout=draw(st.none() | st.integers(0, 12)),
                    weight=draw(st.integers(1, 2)),
                    any_of=draw(st.none() | st.integers(1, len(names))),
                )
            )
            claims += 1
        elif claims:
            events.append(Event(at, kind, f"c{draw(st.integers(0, claims - 1))}", {}))
    return events


def lived(events: list[Event], policy: Policy) -> list[Decision]:
    """One scheduler, from the first event to the last."""
    scheduler = Scheduler(policy)
    for event in events:
        claim = scheduler.claims.get(event.name)
        if event.kind == "block":
            scheduler.open_block(event.name, CAPACITY, event.at)
        elif event.kind == "claim":
            submit(scheduler, event)
        else:
            scheduler.go_to(event.at)
            if claim and claim.state is ClaimState.ALLOCATED:
                if event.kind == "free":
                    scheduler.release(event.name, event.at)
                else:
                    scheduler.consume(event.name)
    scheduler.advance()
    return scheduler.decisions


def resumed(events: list[Event], policy: Policy) -> list[Decision]:
    """A scheduler for each event, which knows what is on record of the ones before."""
    scheduler = ResumedScheduler(policy)
    decisions: list[Decision] = []
    held: dict[str, Mapping[str, tuple[int, ...]]] = {}
    for event in events:
        scheduler, known = successor(scheduler, policy), 0
        if event.kind == "block":
            scheduler.open_block(event.name, CAPACITY, event.at)
        elif event.kind == "claim":
            submit(scheduler, event)
        else:
            scheduler.go_to(event.at)
            held |= granted(scheduler, 0)
            amounts = held.pop(event.name, None)
            known = len(scheduler.decisions)
            if amounts is not None:
                (scheduler.free if event.kind == "free" else scheduler.use)(amounts, event.at)
        held |= granted(scheduler, known)
        decisions += scheduler.decisions
    scheduler = successor(scheduler, policy)
    scheduler.advance()
    return decisions + scheduler.decisions


def submit(scheduler: Scheduler, event: Event) -> None:
    scheduler.submit(
        event.name,
        event.demand,
        event.at,
        timeout=event.timeout,
        weight=event.weight,
        any_of=event.any_of,
    )


def granted(scheduler: ResumedScheduler, since: int) -> dict[str, Mapping[str, tuple[int, ...]]]:
    return {
        name: demanded(scheduler.claims[name])
        for name, state, _ in scheduler.decisions[since:]
        if state == ClaimState.ALLOCATED
    }


def demanded(claim: Claim) -> dict[str, tuple[int, ...]]:
    return {b.block_id: c for b, c in zip(claim.blocks, claim.demand, strict=True)}  # type: ignore[misc]


def successor(before: ResumedScheduler, policy: Policy) -> ResumedScheduler:
    after = ResumedScheduler(policy)
    if before.now is None:
        return after
    steps = before.blocks.values()
    blocks = [
        BlockRecord(b.block_id, b.total, b.created_at, b.step, tuple(b.taken), tuple(b.consumed))
        for b in steps
    ]
    claims = [
        ClaimRecord(c.claim_id, c.submitted_at, demanded(c), c.needs, c.deadline, c.weight)
        for c in before.claims.values()
        if c.state is WAITING
    ]
    after.resume(blocks, claims, before.now)
    assert after.decisions == []  # nobody fits between events
    return after


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@settings(max_examples=25)
@given(histories())
def test_it_does_not_matter_when_a_scheduler_is_made(policy: Policy, events: list[Event]) -> None:
    assert resumed(events, policy) == lived(events, policy)


def test_a_choice_of_blocks_stays_open_until_the_round() -> None:
    policy = Optimal(20, 4)
    events = [Event(0, "block", f"b{n}", {}) for n in range(3)]
    wanted = {f"b{n}": (2, 2, 2) for n in range(3)}
    events += [Event(1, "claim", f"c{n}", wanted, any_of=2) for n in range(4)]
    assert resumed(events, policy) == lived(events, policy)
    assert len(lived(events, policy)) == 4


def test_an_objection_rejects_what_would_have_been_granted() -> None:
    def object_to(name: str) -> Callable[[Claim], str]:
        return lambda claim: "no account" if claim.claim_id == name else ""

    for policy in (FirstComeFirstServed(), DpfByArrivals(1), DPack(2, 1)):
        scheduler = ResumedScheduler(policy, objection=object_to("c1"))
        scheduler.open_block("b", (10,), 0)
        for name in ("c1", "c2"):
            scheduler.submit(name, {"b": (6,)}, 1)
        scheduler.advance()
        assert scheduler.claims["c1"].reason == "no account"
        assert scheduler.claims["c2"].state is ClaimState.ALLOCATED
        assert scheduler.blocks["b"].taken == [6]
