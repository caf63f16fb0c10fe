"""Simulate the scheduling of privacy budget: blocks, claims and a policy in, decisions out."""

import gc
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dp_udfs.amounts import ExactReading, Number, Numbers, reading
from dp_udfs.checks import Real
from dp_udfs.claims import ClaimState
from dp_udfs.errors import InvalidParameterError
from dp_udfs.policies import (
    DPack,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
    Optimal,
    Policy,
    RoundRobinByArrivals,
    RoundRobinByTime,
)
from dp_udfs.round_robin import RoundRobinScheduler
from dp_udfs.scheduler import Decision, Scheduler

__all__ = [
    "BlockSpec",
    "ClaimSpec",
    "DPack",
    "Decision",
    "DpfByArrivals",
    "DpfByTime",
    "FirstComeFirstServed",
    "Optimal",
    "Policy",
    "RoundRobinByArrivals",
    "RoundRobinByTime",
    "simulate",
]


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """A block to be created.

    Parameters
    ----------
    block_id : str
        Its name.
    created_at : number
        On any clock, the same for all.
    capacity : number or sequence
        Budget at each order; one number is basic accounting.
    """

    block_id: str
    created_at: Number
    capacity: Numbers


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A claim to be submitted.

    Parameters
    ----------
    claim_id : str
        Its name.
    submitted_at : number
        On the clock of the blocks.
    demand : mapping of str to number or sequence
        For each block that it names, its loss at each order.
    timeout : number or None
        How long it waits; for ever if None.
    weight : number
        How much it matters.
    any_of : int or None
        How many of the blocks it needs; all if None.
    """

    claim_id: str
    submitted_at: Number
    demand: Mapping[str, Numbers]
    timeout: Number | None = None
    weight: Real = 1.0
    any_of: int | None = None


def simulate(
    blocks: Sequence[BlockSpec], claims: Sequence[ClaimSpec], policy: Policy
) -> list[Decision]:
    """Run all events in the order of time, each with its pass, until nothing can change any more.

    Parameters
    ----------
    blocks : sequence of BlockSpec
        All blocks that claims name.
    claims : sequence of ClaimSpec
        In any order; claims of one instant are submitted in the order given.
    policy : Policy
        Who is served when.

    Returns
    -------
    list of Decision
        One for each claim, in the order given: ALLOCATED, REJECTED or TIMED_OUT and when, or
        WAITING where nothing will ever decide it.

    Raises
    ------
    InvalidParameterError
        If numbers are not finite and positive, names repeat, or a claim names an unknown block.

    Notes
    -----
    At one instant, blocks are created first, then blocks open, then claims are submitted, then
    claims time out. A claim that names a block before it exists is rejected. Integers and fractions
    are exact; floats are read as the decimals they were written as.
    """
    _check(blocks, claims)
    demands = (amount for claim in claims for amount in claim.demand.values())
    read = reading([block.capacity for block in blocks], demands)
    scheduler = _scheduler(policy, read)
    with _collector_paused():
        _run(scheduler, blocks, claims)
        return [_decision(spec, scheduler) for spec in claims]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Spare the collector of cycles a search: a simulation makes much, and drops nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(
    scheduler: Scheduler | RoundRobinScheduler,
    blocks: Sequence[BlockSpec],
    claims: Sequence[ClaimSpec],
) -> None:
    """Let everything happen, in the order of time."""
    upcoming = sorted(blocks, key=_created_at)[::-1]
    for claim in sorted(claims, key=_submitted_at):
        while upcoming and upcoming[-1].created_at <= claim.submitted_at:
            _open(scheduler, upcoming.pop())
        _submit(scheduler, claim)
    while upcoming:
        _open(scheduler, upcoming.pop())
    scheduler.advance()


def _scheduler(policy: Policy, read: ExactReading) -> Scheduler | RoundRobinScheduler:
    if isinstance(policy, RoundRobinByArrivals | RoundRobinByTime):
        return RoundRobinScheduler(policy)
    return Scheduler(policy, read)


def _open(scheduler: Scheduler | RoundRobinScheduler, spec: BlockSpec) -> None:
    scheduler.open_block(spec.block_id, spec.capacity, spec.created_at)


def _submit(scheduler: Scheduler | RoundRobinScheduler, spec: ClaimSpec) -> None:
    """Submit a claim, unless it names blocks that do not exist yet."""
    if scheduler.blocks.keys() >= spec.demand.keys():
        scheduler.submit(
            spec.claim_id,
            spec.demand,
            spec.submitted_at,
            timeout=spec.timeout,
            weight=spec.weight,
            any_of=spec.any_of,
        )


def _decision(spec: ClaimSpec, scheduler: Scheduler | RoundRobinScheduler) -> Decision:
    claim = scheduler.claims.get(spec.claim_id)
    if claim is None:
        return Decision(spec.claim_id, ClaimState.REJECTED, spec.submitted_at)
    return Decision(spec.claim_id, claim.state, claim.decided_at)


def _check(blocks: Sequence[BlockSpec], claims: Sequence[ClaimSpec]) -> None:
    known = {block.block_id for block in blocks}
    if len(known) < len(blocks):
        raise InvalidParameterError("two blocks have the same block_id")
    if len({claim.claim_id for claim in claims}) < len(claims):
        raise InvalidParameterError("two claims have the same claim_id")
    for moment in itertools.chain(map(_created_at, blocks), map(_submitted_at, claims)):
        if not math.isfinite(moment):
            raise InvalidParameterError(f"{moment} is not a time")
    for claim in claims:
        if not known.issuperset(claim.demand):
            unknown = next(block_id for block_id in claim.demand if block_id not in known)
            raise InvalidParameterError(f"claim {claim.claim_id} names an unknown block {unknown}")


def _created_at(spec: BlockSpec) -> Number:
    return spec.created_at


def _submitted_at(spec: ClaimSpec) -> Number:
    return spec.submitted_at
