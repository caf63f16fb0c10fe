"""What the schedulers promise, on random traces in exact fractions; a pass after each event."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dp_udfs.amounts import Amount, Number, Numbers
from dp_udfs.blocks import Block
from dp_udfs.claims import HOLDING, Claim, ClaimState
from dp_udfs.errors import ClaimError
from dp_udfs.scheduler import Scheduler
from dp_udfs.scheduling import (
    BlockSpec,
    ClaimSpec,
    Decision,
    DPack,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
    Optimal,
    simulate,
)

Dpf = DpfByArrivals | DpfByTime
Curve = tuple[Fraction, ...]

# Small traces: the counterexamples to a broken engine are small.
few = settings(max_examples=40)


@dataclass(frozen=True)
class Trace:
    blocks: tuple[BlockSpec, ...]
    claims: tuple[ClaimSpec, ...]


def curve(amounts: Numbers) -> Curve:
    assert isinstance(amounts, tuple)
    return tuple(map(Fraction, amounts))


def scaled(trace: Trace, change: Callable[[Fraction], float | Fraction]) -> Trace:
    """The same trace with every amount changed."""
    blocks = [replace(b, capacity=tuple(map(change, curve(b.capacity)))) for b in trace.blocks]
    claims = [
        replace(c, demand={b: tuple(map(change, curve(d))) for b, d in c.demand.items()})
        for c in trace.claims
    ]
    return Trace(tuple(blocks), tuple(claims))


@st.composite
def traces(draw: st.DrawFn, *, largest: int = 14, timeouts: bool = False) -> Trace:
    """One to three blocks, one or three orders, up to twelve claims; twelfths everywhere."""
    orders = draw(st.sampled_from([1, 3]))
    amounts = st.integers(1, largest).map(lambda n: Fraction(n, 12))
    totals = st.tuples(*[st.sampled_from([Fraction(1), Fraction(2), Fraction(-1)])] * orders)
    blocks = [
        BlockSpec(f"b{j}", Fraction(draw(st.integers(0, 2))), total)
        for j, total in enumerate(
            draw(st.lists(totals.filter(lambda t: max(t) > 0), min_size=1, max_size=3))
        )
    ]
    claims = []
    at = Fraction(2)
    for i in range(draw(st.integers(1, 12))):
        at += Fraction(draw(st.integers(0, 3)), 2)
        names = draw(st.sets(st.sampled_from([b.block_id for b in blocks]), min_size=1))
        demand = {name: draw(st.tuples(*[amounts] * orders)) for name in sorted(names)}
        timeout = Fraction(draw(st.integers(0, 6))) if timeouts and draw(st.booleans()) else None
        claims.append(ClaimSpec(f"c{i}", at, demand, timeout))
    return Trace(tuple(blocks), tuple(claims))


policies = st.one_of(
    st.integers(1, 5).map(DpfByArrivals),
    st.tuples(st.integers(1, 6), st.sampled_from([Fraction(1), Fraction(1, 2)])).map(
        lambda both: DpfByTime(Fraction(both[0]), both[1])
    ),
)


def moments(trace: Trace, policy: Dpf) -> list[Fraction]:
    """All times at which blocks tick."""
    if isinstance(policy, DpfByArrivals):
        return []
    steps = range(1, math.ceil(Fraction(policy.lifetime) / Fraction(policy.tick)) + 1)
    return sorted(
        {Fraction(b.created_at) + i * Fraction(policy.tick) for b in trace.blocks for i in steps}
    )


def passes(trace: Trace, policy: Dpf) -> Iterator[tuple[Scheduler, list[Claim]]]:
    """Run a trace event by event; after each yield the scheduler and whom the event granted."""
    scheduler = Scheduler(policy)
    events: list[tuple[Fraction, int, BlockSpec | ClaimSpec | None]] = [
        *((Fraction(b.created_at), 0, b) for b in trace.blocks),
        *((at, 1, None) for at in moments(trace, policy)),
        *((Fraction(c.submitted_at), 2, c) for c in trace.claims),
    ]
    for at, _, what in sorted(events, key=lambda event: event[:2]):
        before = len(scheduler.decisions)
        if isinstance(what, BlockSpec):
            scheduler.open_block(what.block_id, what.capacity, at)
        elif isinstance(what, ClaimSpec):
            scheduler.submit(what.claim_id, what.demand, at, timeout=what.timeout)
        else:
            scheduler.advance(at)
        new = scheduler.decisions[before:]
        yield scheduler, [scheduler.claims[d.claim_id] for d in new if d.state == "ALLOCATED"]


def granted_at(trace: Trace, policy: Dpf, claim_id: str) -> float:
    by_id = {d.claim_id: d for d in simulate(trace.blocks, trace.claims, policy)}
    decision = by_id[claim_id]
    return float(decision.at or 0) if decision.state == "ALLOCATED" else math.inf


def usable(block: Block) -> list[int]:
    return [a for a, total in enumerate(block.total) if total > 0]


def check_sums(scheduler: Scheduler) -> None:
    """Invariants I1 to I4, exactly."""
    scheduler.refresh()
    for block in scheduler.blocks.values():
        parts = block.budget()
        sums = zip(parts.locked, parts.unlocked, parts.allocated, parts.consumed, strict=True)
        assert tuple(map(sum, sums)) == block.total
        for a in usable(block):
            assert min(parts.locked[a], parts.allocated[a], parts.consumed[a]) >= 0
        assert any(parts.unlocked[a] >= 0 for a in usable(block))
        assert any(parts.allocated[a] + parts.consumed[a] <= block.total[a] for a in usable(block))
        held: list[tuple[Amount, ...]] = [(0,) * len(block.total)]
        used = list(held)
        for claim in scheduler.claims.values():
            if block in claim.blocks and claim.state in HELD:
                left, consumed = holdings(claim, block)
                demand = claim.demand[claim.blocks.index(block)]
                assert all(x + y <= d for x, y, d in zip(left, consumed, demand, strict=True))
                held.append(left)
                used.append(consumed)
        assert tuple(map(sum, zip(*held, strict=True))) == parts.allocated
        assert tuple(map(sum, zip(*used, strict=True))) == parts.consumed


HELD = {*HOLDING, ClaimState.CONSUMED, ClaimState.RELEASED, ClaimState.CLOSED}


def holdings(claim: Claim, block: Block) -> tuple[tuple[Amount, ...], tuple[Amount, ...]]:
    """What a claim holds and has consumed of a block."""
    nothing = (0,) * len(block.total)
    demand = claim.demand[claim.blocks.index(block)]
    left = demand if claim.left is None else claim.left.get(block.block_id, nothing)
    return left, claim.consumed.get(block.block_id, nothing)


# --- fairness -------------------------------------------------------------------------------------


@few
@given(traces(largest=6), st.integers(1, 5))
def test_sharing_incentive(trace: Trace, n: int) -> None:
    """Among the first n on all its blocks and asking its share at most: granted at once."""
    arrivals: Counter[str] = Counter()
    seen = 0
    for scheduler, _ in passes(trace, DpfByArrivals(n)):
        if len(scheduler.claims) == seen:
            continue  # a block was created
        seen = len(scheduler.claims)
        claim = next(reversed(scheduler.claims.values()))
        if claim.state is ClaimState.REJECTED:
            continue
        arrivals.update(block.block_id for block in claim.blocks)
        fair = all(
            arrivals[block.block_id] <= n
            and all(demand[a] <= Fraction(block.total[a]) / n for a in usable(block))
            for block, demand in zip(claim.blocks, claim.demand, strict=True)
        )
        assert not fair or claim.state is ClaimState.ALLOCATED


@few
@given(traces(), policies, st.data())
def test_asking_for_more_is_never_served_sooner(
    trace: Trace, policy: Dpf, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(trace.claims) - 1))
    claim = trace.claims[place]
    more = {
        block: tuple(x + Fraction(data.draw(st.integers(0, 3)), 12) for x in curve(demand))
        for block, demand in claim.demand.items()
    }
    greedy = (*trace.claims[:place], replace(claim, demand=more), *trace.claims[place + 1 :])
    honest = granted_at(trace, policy, claim.claim_id)
    assert granted_at(replace(trace, claims=greedy), policy, claim.claim_id) >= honest


@few
@given(traces(), st.integers(1, 6), st.data())
def test_naming_more_blocks_is_never_served_sooner_by_time(
    trace: Trace, lifetime: int, data: st.DataObject
) -> None:
    policy = DpfByTime(lifetime, 1)
    narrow = [p for p, c in enumerate(trace.claims) if len(c.demand) < len(trace.blocks)]
    assume(narrow)
    place = data.draw(st.sampled_from(narrow))
    claim = trace.claims[place]
    others = [b.block_id for b in trace.blocks if b.block_id not in claim.demand]
    first = next(iter(claim.demand.values()))
    wider = {**claim.demand, data.draw(st.sampled_from(others)): first}
    manipulated = (*trace.claims[:place], replace(claim, demand=wider), *trace.claims[place + 1 :])
    honest = granted_at(trace, policy, claim.claim_id)
    assert granted_at(replace(trace, claims=manipulated), policy, claim.claim_id) >= honest


def asks_no_more(one: Claim, other: Claim) -> tuple[bool, bool]:
    """Whether `one` asks no more than `other` on its own blocks; and whether it asks less."""
    theirs = dict(zip((b.block_id for b in other.blocks), other.demand, strict=True))
    pairs = [
        (demand[a], theirs.get(block.block_id, (0,) * len(demand))[a])
        for block, demand in zip(one.blocks, one.demand, strict=True)
        for a in usable(block)
    ]
    return all(mine <= its for mine, its in pairs), any(mine < its for mine, its in pairs)


@few
@given(traces(timeouts=True), policies)
def test_no_envy_and_no_waste(trace: Trace, policy: Dpf) -> None:
    """Nobody waits who asks less than one just served; nobody waits who fits; sums are kept."""
    for scheduler, granted in passes(trace, policy):
        check_sums(scheduler)
        for waiting in scheduler.waiting():
            assert not all(map(Block.admits, waiting.blocks, waiting.demand))
            for served in granted:
                no_more, less = asks_no_more(waiting, served)
                same_blocks = set(waiting.blocks) == set(served.blocks)
                assert not (no_more and less)
                if no_more and same_blocks:
                    assert served.number < waiting.number


# --- invariances ----------------------------------------------------------------------------------


@few
@given(traces(timeouts=True), policies, st.fractions(Fraction(1, 50), 50))
def test_units_of_budget_do_not_matter(trace: Trace, policy: Dpf, factor: Fraction) -> None:
    other = scaled(trace, lambda amount: amount * factor)
    assert simulate(other.blocks, other.claims, policy) == simulate(
        trace.blocks, trace.claims, policy
    )


@few
@given(traces(timeouts=True), policies)
def test_names_and_places_of_blocks_do_not_matter(trace: Trace, policy: Dpf) -> None:
    names = {b.block_id: f"z{9 - j}" for j, b in enumerate(trace.blocks)}
    blocks = [replace(b, block_id=names[b.block_id]) for b in reversed(trace.blocks)]
    claims = [
        replace(c, demand={names[b]: d for b, d in reversed(list(c.demand.items()))})
        for c in trace.claims
    ]
    assert simulate(blocks, claims, policy) == simulate(trace.blocks, trace.claims, policy)


@few
@given(traces(timeouts=True), policies)
def test_integers_floats_and_fractions_are_scheduled_alike(trace: Trace, policy: Dpf) -> None:
    """The ledger's integers: all amounts are twelfths."""
    expected = simulate(trace.blocks, trace.claims, policy)
    for other in (
        scaled(trace, lambda amount: int(12 * amount)),
        scaled(trace, lambda amount: float(12 * amount)),
    ):
        assert simulate(other.blocks, other.claims, policy) == expected


@few
@given(traces())
def test_one_arrival_opens_all_like_first_come_first_served(trace: Trace) -> None:
    def served(decisions: Sequence[Decision]) -> list[tuple[str, object]]:
        return [(d.claim_id, d.at) for d in decisions if d.state == "ALLOCATED"]

    dpf = simulate(trace.blocks, trace.claims, DpfByArrivals(1))
    assert served(dpf) == served(simulate(trace.blocks, trace.claims, FirstComeFirstServed()))


@few
@given(st.integers(1, 40), st.integers(1, 60))
def test_equal_demands_on_one_block_fill_it_exactly(fit: int, claims: int) -> None:
    blocks = [BlockSpec("b", 0, 1)]
    specs = [ClaimSpec(f"c{i}", i, {"b": Fraction(1, fit)}) for i in range(claims)]
    for policy in (
        FirstComeFirstServed(),
        DpfByArrivals(1),
        DpfByTime(1, 1),
        DPack(1, 1),
    ):
        decisions = simulate(blocks, specs, policy)
        assert sum(d.state == "ALLOCATED" for d in decisions) == min(fit, claims)


# --- a life with consumption, release, cancellation and retirement --------------------------------


def consume_half(scheduler: Scheduler, claim: Claim, _: Number, number: int) -> None:
    half = {
        block.block_id: tuple(Fraction(x) / 2 for x in demand)
        for block, demand in zip(claim.blocks, claim.demand, strict=True)
    }
    scheduler.consume(claim.claim_id, half, request_id=("half", number))


def consume_all(scheduler: Scheduler, claim: Claim, _: Number, number: int) -> None:
    scheduler.consume(claim.claim_id, request_id=("all", number))


def release(scheduler: Scheduler, claim: Claim, at: Number, number: int) -> None:
    scheduler.release(claim.claim_id, at, request_id=("back", number))


def cancel(scheduler: Scheduler, claim: Claim, at: Number, _: int) -> None:
    if claim.state is ClaimState.WAITING:
        scheduler.cancel(claim.claim_id, at)


def retire(scheduler: Scheduler, claim: Claim, at: Number, number: int) -> None:
    if number % 4 == 3:
        scheduler.retire_block(claim.blocks[0].block_id, at)


DEEDS = [consume_half, consume_all, release, cancel, retire]


@few
@given(traces(), policies, st.data(), st.booleans())
def test_sums_hold_through_every_operation_and_requests_may_repeat(
    trace: Trace, policy: Dpf, data: st.DataObject, lock: bool
) -> None:
    scheduler = Scheduler(policy, lock_released=lock)
    for block in trace.blocks:
        scheduler.open_block(block.block_id, block.capacity, 2)
    consumed: Mapping[str, tuple[Amount, ...]] = {}
    for number, spec in enumerate(trace.claims):
        scheduler.submit(spec.claim_id, spec.demand, spec.submitted_at)
        deed = data.draw(st.sampled_from(DEEDS))
        target = data.draw(st.sampled_from(list(scheduler.claims.values())))
        for _ in range(data.draw(st.integers(1, 2))):  # whoever hears no answer asks again
            try:
                deed(scheduler, target, spec.submitted_at, number)
            except ClaimError:
                assert target.state is not ClaimState.ALLOCATED
            scheduler.submit(spec.claim_id, spec.demand, spec.submitted_at)
            check_sums(scheduler)
        for waiting in scheduler.waiting():
            assert not all(map(Block.admits, waiting.blocks, waiting.demand))
            assert all(map(Block.could_serve, waiting.blocks, waiting.demand))
        now = {b.block_id: tuple(b.consumed) for b in scheduler.blocks.values()}
        for block_id, before in consumed.items():
            assert all(x <= y for x, y in zip(before, now[block_id], strict=True))
        consumed = now


@pytest.mark.parametrize(
    "policy", [DPack(4, 1), DPack(4, 1, grants_between_updates=3), Optimal(4, 1)]
)
@settings(max_examples=15)
@given(traces())
def test_rounds_waste_nothing_and_keep_the_sums(policy: DPack | Optimal, trace: Trace) -> None:
    demands = {c.claim_id: {b: curve(d) for b, d in c.demand.items()} for c in trace.claims}
    left = {b.block_id: list(curve(b.capacity)) for b in trace.blocks}
    used = {b: [a for a, total in enumerate(room) if total > 0] for b, room in left.items()}
    decisions = simulate(trace.blocks, trace.claims, policy)
    for decision in decisions:
        if decision.state == "ALLOCATED":
            for block_id, demand in demands[decision.claim_id].items():
                left[block_id] = [x - d for x, d in zip(left[block_id], demand, strict=True)]
    for block_id, room in left.items():
        assert any(room[a] >= 0 for a in used[block_id])
    for decision in decisions:  # all is open by the last round: nobody waits who fits
        if decision.state == "WAITING":
            assert not all(
                any(demand[a] <= left[b][a] for a in used[b])
                for b, demand in demands[decision.claim_id].items()
            )
