"""Round robin: what a block opens is shared out evenly among all claims that wait for it.

A baseline for simulations. Claims hold partial amounts while they wait, and these are lost if they
time out, so it serves few where budget is short.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dp_udfs.amounts import Number, Numbers, RoundedReading
from dp_udfs.checks import Real
from dp_udfs.claims import ClaimState
from dp_udfs.errors import InvalidParameterError
from dp_udfs.policies import RoundRobinByArrivals, RoundRobinByTime

_FULL = 10**8  # a claim is full when no more than one part in this many of the block is missing


@dataclass
class _Block:
    """A block, its residue, and the level to which all that wait for it have been filled."""

    block_id: str
    total: int
    created_at: Number
    residue: int = 0
    level: int = 0
    step: int = 0
    stopped: bool = False
    ticking: bool = False
    unfilled: int = 0
    filling: list[tuple[int, int, "_Claim"]] = field(default_factory=list)  # by final level

    @property
    def dust(self) -> int:
        """What is too little to matter."""
        return self.total // _FULL


@dataclass
class _Claim:
    claim_id: str
    missing: set[str]  # blocks that it is not full on
    state: ClaimState = ClaimState.WAITING
    decided_at: Number | None = None


class RoundRobinScheduler:
    """The same calls as `scheduler.Scheduler`, as far as a simulation needs them.

    Parameters
    ----------
    policy : RoundRobinByArrivals or RoundRobinByTime
        How blocks open. Accounting is basic: each block has one amount.
    """

    def __init__(self, policy: RoundRobinByArrivals | RoundRobinByTime) -> None:
        self.policy = policy
        self.blocks: dict[str, _Block] = {}
        self.claims: dict[str, _Claim] = {}
        self._reading = RoundedReading()
        self._now: Number = -math.inf
        self._serial = 0
        self._events: list[tuple[Number, int, int, _Block | _Claim]] = []  # ticks, then deadlines
        self._opening = policy.opening()

    def open_block(self, block_id: str, capacity: Numbers, at: Number) -> None:
        """Create a block."""
        (total,) = _one(self._reading.amounts(capacity))
        if total <= 0:
            raise InvalidParameterError(f"block {block_id} has no budget")
        self._go_to(at)
        self.blocks[block_id] = block = _Block(block_id, int(total), at)
        self._tick_next(block)

    def submit(
        self,
        claim_id: str,
        demand: Mapping[str, Numbers],
        at: Number,
        *,
        timeout: Number | None = None,
        weight: Real = 1,
        any_of: int | None = None,
    ) -> None:
        """Ask for budget on all the blocks named."""
        if weight != 1 or any_of is not None:
            raise InvalidParameterError("round robin knows no weights, and no choice of blocks")
        if timeout is not None and not timeout >= 0:
            raise InvalidParameterError(f"timeout = {timeout} must not be negative")
        wanted = {
            block_id: int(_one(self._reading.demand(amount))[0])
            for block_id, amount in demand.items()
        }
        self._go_to(at)
        self.claims[claim_id] = claim = _Claim(claim_id, set(wanted))
        named = [self.blocks[block_id] for block_id in wanted]
        if not named or any(b.stopped or wanted[b.block_id] > b.total for b in named):
            self._decide(claim, ClaimState.REJECTED)
            return
        if timeout is not None:
            self._push(at + timeout, 1, claim)
        for block in named:
            self._join(block, claim, wanted[block.block_id])
        if isinstance(self.policy, RoundRobinByArrivals):
            for block in named:
                self._arrive(block)

    def advance(self, to: Number | None = None) -> None:
        """Let time pass, up to a moment or until all is done."""
        self._run_until(math.inf if to is None else to, with_deadlines_then=True)

    # --- sharing out ------------------------------------------------------------------------------

    def _join(self, block: _Block, claim: _Claim, wanted: int) -> None:
        self._serial += 1
        heapq.heappush(block.filling, (block.level + wanted, self._serial, claim))
        block.unfilled += 1
        if isinstance(self.policy, RoundRobinByTime) and not block.ticking:
            block.step = self.policy.step_at(block.created_at, self._now)
            self._tick_next(block)

    def _arrive(self, block: _Block) -> None:
        """Count an arrival: each of the first n adds a share; a later one may find nothing left."""
        if block.stopped:
            return
        block.step += 1
        if block.step > self._opening.steps and block.residue <= block.dust:
            self._stop(block)
        else:
            self._add(block)

    def _add(self, block: _Block) -> None:
        """Open one more share of a block, and share its residue out."""
        opened, parts = self._opening.opened, self._opening.parts
        block.residue += block.total * opened(block.step) // parts
        block.residue -= block.total * opened(block.step - 1) // parts
        while block.filling and block.residue:
            full_at, _, claim = block.filling[0]
            if claim.state is not ClaimState.WAITING:
                heapq.heappop(block.filling)
                continue
            rise = full_at - block.level
            if block.residue < rise * block.unfilled:
                block.level += block.residue // block.unfilled
                block.residue = 0
            else:
                block.level = full_at
                block.residue -= rise * block.unfilled
            self._fill_up_to(block, block.level + block.dust)

    def _fill_up_to(self, block: _Block, level: int) -> None:
        while block.filling and block.filling[0][0] <= level:
            self._fill(block, heapq.heappop(block.filling)[2])

    def _fill(self, block: _Block, claim: _Claim) -> None:
        if claim.state is not ClaimState.WAITING:
            return
        block.unfilled -= 1
        claim.missing.discard(block.block_id)
        if not claim.missing:
            self._decide(claim, ClaimState.ALLOCATED)

    def _stop(self, block: _Block) -> None:
        """Reject all that wait for a block with nothing left; what they hold is lost."""
        block.stopped = True
        for _, _, claim in block.filling:
            if claim.state is ClaimState.WAITING:
                self._leave(claim, ClaimState.REJECTED)

    def _leave(self, claim: _Claim, state: ClaimState) -> None:
        for block_id in claim.missing:
            self.blocks[block_id].unfilled -= 1
        self._decide(claim, state)

    def _decide(self, claim: _Claim, state: ClaimState) -> None:
        claim.state, claim.decided_at = state, self._now

    # --- time passes ------------------------------------------------------------------------------

    def _tick_next(self, block: _Block) -> None:
        if isinstance(self.policy, RoundRobinByTime):
            block.ticking = True
            self._push(block.created_at + (block.step + 1) * self.policy.tick, 0, block)

    def _push(self, at: Number, kind: int, what: _Block | _Claim) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at, kind, self._serial, what))

    def _go_to(self, at: Number) -> None:
        if not (math.isfinite(at) and at >= self._now):
            raise InvalidParameterError(f"the clock went back from {self._now} to {at}")
        self._run_until(at, with_deadlines_then=False)
        self._now = at

    def _run_until(self, end: Number, *, with_deadlines_then: bool) -> None:
        while self._events:
            at, kind, _, what = self._events[0]
            if at > end or (at == end and kind == 1 and not with_deadlines_then):
                return
            heapq.heappop(self._events)
            self._now = at
            if isinstance(what, _Block):
                self._tick(what)
            elif what.state is ClaimState.WAITING:
                self._leave(what, ClaimState.TIMED_OUT)

    def _tick(self, block: _Block) -> None:
        """Open one more share; after the last one, tick on only while claims wait for the block."""
        block.step += 1
        block.ticking = False
        if block.step > self._opening.steps and block.residue <= block.dust:
            self._stop(block)
            return
        self._add(block)
        if block.step < self._opening.steps or block.unfilled:
            self._tick_next(block)


def _one(curve: tuple[Number, ...]) -> tuple[Number]:
    if len(curve) != 1:
        raise InvalidParameterError("round robin is for basic accounting: one amount for a block")
    return (curve[0],)
