"""The engine: claims wait for blocks, and after each single event those that fit are served.

Served in the order of their shares, all blocks of a claim at once. A claim that does not fit is
parked on one block that refuses it, until the step at which that block may have room for it: until
then it cannot fit, so it need not be looked at. The claims served, and when, are the same as if
all waiting claims were sorted and tried after each event.
"""

import heapq
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from dp_udfs import checks
from dp_udfs.amounts import Curve, ExactReading, Number, Numbers
from dp_udfs.blocks import NEVER, Block, BlockState, least_used
from dp_udfs.checks import Real
from dp_udfs.claims import HOLDING, Claim, ClaimState, Order
from dp_udfs.errors import ClaimError, InvalidParameterError
from dp_udfs.policies import ByTime, DpfByArrivals, FirstComeFirstServed

WAITING = ClaimState.WAITING
ACTIVE = BlockState.ACTIVE


class Decision(NamedTuple):
    """What became of a claim, and when; `at` is None while it waits."""

    claim_id: str
    state: str
    at: Number | None


class Shortage(NamedTuple):
    """Why a claim waits: what it needs from a block, and what is unlocked there, by order."""

    block_id: str
    needed: Curve
    unlocked: Curve


class Scheduler:
    """Blocks and claims under one policy; each method is one event, with its pass.

    Parameters
    ----------
    policy : FirstComeFirstServed, DpfByArrivals or DpfByTime
        How blocks open.
    reading : ExactReading
        How amounts are read; by default they are integers or fractions.
    lock_released : bool
        Whether budget that is given back is locked again, rather than unlocked.

    Attributes
    ----------
    blocks, claims : dict
        By their names.
    decisions : list of Decision
        Everything decided so far, in order.

    Notes
    -----
    Privacy: a claim is granted only where each of its blocks has an order with room for it, and is
    then charged at all orders. So each block's capacity holds for everything granted on it, in
    any order and however claims depend on earlier answers.

    A block that stops being named before it is wholly open keeps what is locked: under
    `DpfByArrivals` that part is lost.

    References
    ----------
    Luo et al. (2021), Privacy Budget Scheduling, algorithms 1 to 3.
    """

    def __init__(
        self,
        policy: FirstComeFirstServed | DpfByArrivals | ByTime,
        reading: ExactReading | None = None,
        *,
        lock_released: bool = False,
    ) -> None:
        self.policy = policy
        self.blocks: dict[str, Block] = {}
        self.claims: dict[str, Claim] = {}
        self.decisions: list[Decision] = []
        self.now: Number | None = None
        self._waits = not isinstance(policy, FirstComeFirstServed)
        self._by_arrivals = policy if isinstance(policy, DpfByArrivals) else None
        self._by_time = policy if isinstance(policy, ByTime) else None
        self._opening = policy.opening()
        arrivals = range(self._opening.steps + 1 if self._by_arrivals else 0)
        self._opened_after = [self._opening.opened(step) for step in arrivals]
        self._reading = reading or ExactReading()
        self._lock_released = lock_released
        self._totals: dict[Curve, Curve] = {}  # equal totals are one object: quick to compare
        self._ticks: list[tuple[Number, int, Block]] = []
        self._deadlines: list[tuple[Number, int, Claim]] = []
        self._answers: dict[Hashable, Claim] = {}
        self._orders = 0
        self._serial = 0
        if lock_released and not self._waits:
            raise InvalidParameterError("first come, first served locks nothing")

    # --- events -----------------------------------------------------------------------------------

    def open_block(self, block_id: str, capacity: Numbers, at: Number) -> Block:
        """Create a block; under FirstComeFirstServed it is wholly open at once."""
        if block_id in self.blocks:
            raise InvalidParameterError(f"block {block_id} exists already")
        total = self._reading.capacity(capacity)
        if self.blocks and len(total) != self._orders:
            raise InvalidParameterError(f"block {block_id} has another number of orders")
        self._go_to(at)
        block = Block(block_id, self._totals.setdefault(total, total), at, self._opening.parts)
        if not self._waits:
            block.opened = block.parts
        self._orders = len(total)
        self.blocks[block_id] = block
        return block

    def submit(
        self,
        claim_id: str,
        demand: Mapping[str, Numbers],
        at: Number,
        *,
        timeout: Number | None = None,
        weight: Real = 1,
        any_of: int | None = None,
    ) -> Claim:
        """Ask for budget on all the blocks named, or on the `any_of` least used of them.

        Parameters
        ----------
        claim_id : str
            The caller's name; the same claim submitted again is answered as before.
        demand : mapping of str to number or sequence
            For each block, the loss at each order.
        at : float
            Now; never before an earlier event.
        timeout : float or None
            How long it waits. It may still be served at the very end of that time.
        weight : number
            Shares are divided by it.
        any_of : int or None
            How many of the blocks it needs; all if None. The choice is made now, for good.

        Returns
        -------
        Claim
            Its state is ALLOCATED, WAITING, or REJECTED if it could never be served.

        Raises
        ------
        InvalidParameterError
            If the demand is empty, malformed or names an unknown block, or the clock went back.
        ClaimError
            If the same name was used for another demand.
        """
        blocks = tuple(map(self._block, demand))
        curves = self._read(claim_id, demand)
        if claim_id in self.claims:
            return self._submitted_before(claim_id, blocks, curves)
        claim = Claim(claim_id, len(self.claims), at, blocks, curves)
        _set_terms(claim, timeout, weight, any_of)
        self._go_to(at)
        self.claims[claim_id] = claim
        problem = self._problem(claim)
        if problem:
            self._decide(claim, ClaimState.REJECTED, problem)
        else:
            self._enter(claim)
        return claim

    def advance(self, to: Number | None = None) -> None:
        """Let time pass: blocks open at their ticks, and claims time out. None: until all is done.

        At one instant ticks come first, then submissions and other calls, then deadlines.
        """
        if to is None:
            self._run_until(math.inf)
        else:
            self._go_to(to)
            self._run_until(to)

    def consume(
        self,
        claim_id: str,
        amounts: Mapping[str, Numbers] | None = None,
        *,
        request_id: Hashable | None = None,
    ) -> Claim:
        """Use a claim's budget; None means all of it. A repeated request changes nothing."""
        if request_id is not None and request_id in self._answers:
            return self._answers[request_id]
        claim = self._claim(claim_id)
        read = None
        if amounts is not None:
            read = {block_id: self._reading.amounts(curve) for block_id, curve in amounts.items()}
        claim.consume(read)
        for block in claim.blocks:
            self._reject_hopeless(block)
        return self._answer(request_id, claim)

    def release(self, claim_id: str, at: Number, *, request_id: Hashable | None = None) -> Claim:
        """Give back what a claim holds and did not consume; others may be served by it."""
        if request_id is not None and request_id in self._answers:
            return self._answers[request_id]
        claim = self._claim(claim_id)
        self._check_holding(claim)
        self._go_to(at)
        claim.release(lock=self._lock_released)
        for block in claim.blocks:
            block.lot.wake(NEVER)
        self._pass(claim.blocks)
        return self._answer(request_id, claim)

    def cancel(self, claim_id: str, at: Number) -> Claim:
        """Stop waiting. What the claim unlocked stays unlocked."""
        claim = self._claim(claim_id)
        if claim.state is ClaimState.CANCELLED:
            return claim
        self._go_to(at)
        if claim.state is not WAITING:
            raise ClaimError(f"claim {claim_id} is {claim.state}: it does not wait any more")
        self._decide(claim, ClaimState.CANCELLED)
        return claim

    def retire_block(self, block_id: str, at: Number) -> None:
        """Say that a block's data are gone: claims waiting for it are rejected, grants stay."""
        block = self._block(block_id)
        self._go_to(at)
        block.state = BlockState.RETIRED
        self._reject_hopeless(block)

    # --- what is asked ----------------------------------------------------------------------------

    def waiting(self) -> list[Claim]:
        """Return the claims that wait, first to be served first."""
        waiting = (c for c in self.claims.values() if c.state is WAITING)
        return sorted(waiting, key=Claim.order)

    def shortages(self, claim_id: str) -> list[Shortage]:
        """Say why a claim waits: the blocks that refuse it, needed and unlocked budget."""
        claim = self._claim(claim_id)
        self._open_by_time(claim.blocks)
        return [
            Shortage(block.block_id, curve, block.budget().unlocked)
            for block, curve in zip(claim.blocks, claim.demand, strict=True)
            if claim.state is WAITING and not block.admits(curve)
        ]

    def refresh(self) -> None:
        """Open all blocks as far as they should be by now, to look at their parts."""
        self._open_by_time(self.blocks.values())

    # --- passes -----------------------------------------------------------------------------------

    def _pass(self, risen: Iterable[Block], newcomer: Claim | None = None) -> None:
        """Serve those that fit, in order: the newcomer, and those awake on blocks that have risen.

        One sweep is complete, for room only shrinks in it.
        """
        queue: list[tuple[Order, Claim, Block | None]] = []
        for block in risen:
            self._queue_next(block, queue)
        if newcomer is not None and not queue:
            self._serve(newcomer)
            return
        if newcomer is not None:
            heapq.heappush(queue, (newcomer.order(), newcomer, None))
        while queue:
            _, claim, come_from = heapq.heappop(queue)
            self._serve(claim)
            if come_from is not None:
                self._queue_next(come_from, queue)

    def _queue_next(self, block: Block, queue: list[tuple[Order, Claim, Block | None]]) -> None:
        """Put the next claim that this block may have room for in the queue of a pass."""
        lot = block.lot
        while lot.awake:
            opening = block.opening_for(lot.least)
            if opening:
                break
            claim = lot.pop()
            if claim.state is WAITING:
                heapq.heappush(queue, (claim.order(), claim, block))
                return
        step = self._step_with_room(block, opening) if lot.awake else NEVER
        lot.rest_until(step)
        self._tick_at(block, step)

    def _serve(self, claim: Claim) -> None:
        """Grant a claim if it fits; else let it wait, or reject it where nobody waits."""
        place, opening = self._refusal(claim)
        if not opening:
            claim.allocate()
            self._decide(claim, ClaimState.ALLOCATED)
        elif self._waits:
            self._park(claim, place, opening)
        else:
            self._decide(claim, ClaimState.REJECTED, "not enough is left")

    def _refusal(self, claim: Claim) -> tuple[int, float]:
        """Find the block that makes a claim wait longest, and how far that must open; or 0.

        The block that the claim was parked on is asked first: an earlier grant may have taken
        its room, and then the others need not be asked.
        """
        blocks, demand, place = claim.blocks, claim.demand, claim.parked_at
        if self._by_time:
            self._open_by_time(blocks)
        if place >= 0:
            opening = blocks[place].opening_for(demand[place])
            if opening:
                return place, opening
        longest, refusal = 0.0, (-1, 0.0)
        for place, block in enumerate(blocks):
            opening = block.opening_for(demand[place])
            if opening and opening - block.opened > longest:
                longest, refusal = opening - block.opened, (place, opening)
                if opening == NEVER:
                    break
        return refusal

    def _park(self, claim: Claim, place: int, opening: float) -> None:
        """Leave a claim until a block has opened that far."""
        block = claim.blocks[place]
        step = self._step_with_room(block, opening)
        claim.parked_at = place
        block.lot.park(claim, step)
        self._tick_at(block, step)

    def _step_with_room(self, block: Block, opening: float) -> float:
        """Return the step by which a block will have opened that far, if nothing is released."""
        if block.relocked is not None:
            return block.step + 1
        return NEVER if opening == NEVER else self._opening.step_for(int(opening))

    def _tick_at(self, block: Block, step: float) -> None:
        """Look at a block again at this tick of it."""
        if self._by_time and step != NEVER:
            self._serial += 1
            tick = block.created_at + int(step) * self._by_time.tick
            heapq.heappush(self._ticks, (tick, self._serial, block))

    # --- time passes ------------------------------------------------------------------------------

    def _go_to(self, at: Number) -> None:
        """Run what happens before an event of now."""
        if not math.isfinite(at):
            raise InvalidParameterError(f"{at} is not a time")
        if self.now is not None and at < self.now:
            raise InvalidParameterError(f"the clock went back from {self.now} to {at}")
        self._run_until(at, with_deadlines_then=False)
        self.now = at

    def _run_until(self, end: Number, *, with_deadlines_then: bool = True) -> None:
        """Run ticks and deadlines one by one, in the order of time."""
        ticks, deadlines = self._ticks, self._deadlines
        while ticks or deadlines:
            is_tick = not deadlines or (bool(ticks) and ticks[0][0] <= deadlines[0][0])
            at = ticks[0][0] if is_tick else deadlines[0][0]
            if at > end or (at == end and not is_tick and not with_deadlines_then):
                break
            self.now = at
            if is_tick:
                self._tick()
            else:
                self._expire()

    # --- blocks open ------------------------------------------------------------------------------

    def _arrive(self, claim: Claim) -> list[Block]:
        """Open one more share of each block a claim names; return those where others wait."""
        table, steps = self._opened_after, len(self._opened_after) - 1
        risen = []
        for block in claim.blocks:
            block.step = step = block.step + 1
            if step <= steps:
                block.opened = table[step]
            elif block.relocked is not None:
                block.unlock_again(steps)
            if block.lot.next_step <= step:
                block.lot.wake(step)
                risen.append(block)
        return risen

    def _open_by_time(self, blocks: Iterable[Block]) -> None:
        """Open blocks as far as they should be by now."""
        policy, now = self._by_time, self.now
        if policy is None or now is None:
            return
        for block in blocks:
            step = policy.step_at(block.created_at, now)
            if step == block.step:
                continue
            while block.relocked is not None and block.step < step:
                block.step += 1
                if block.step > self._opening.steps:
                    block.unlock_again(self._opening.steps)
            block.step = step
            block.opened = self._opening.opened(step)

    def _tick(self) -> None:
        """Hold one pass for all blocks that tick at this instant."""
        at = self._ticks[0][0]
        risen: dict[str, Block] = {}
        while self._ticks and self._ticks[0][0] == at:
            block = heapq.heappop(self._ticks)[2]
            self._open_by_time([block])
            block.lot.wake(block.step)
            risen[block.block_id] = block
        self._pass(risen.values())

    # --- claims come and go -----------------------------------------------------------------------

    def _problem(self, claim: Claim) -> str:
        """Say why a claim could never be served; an empty text if it could. Settle its blocks."""
        problems = list(map(refusal_for_good, claim.blocks, claim.demand))
        if claim.needs == len(problems):
            return next(filter(None, problems), "")
        able = [place for place, problem in enumerate(problems) if not problem]
        if len(able) < claim.needs:
            return f"only {len(able)} of {claim.needs} blocks could serve it"
        best = least_used([claim.blocks[place] for place in able], claim.needs)
        claim.narrow([able[place] for place in best])
        return ""

    def _enter(self, claim: Claim) -> None:
        """Count an arrival on the claim's blocks, serve whom that helps, or let the claim wait."""
        self._pass(self._arrive(claim) if self._by_arrivals else (), claim)
        if claim.state is WAITING:
            self._start_waiting(claim)

    def _start_waiting(self, claim: Claim) -> None:
        if claim.deadline is not None:
            heapq.heappush(self._deadlines, (claim.deadline, claim.number, claim))
        for block in claim.blocks:
            block.named_by.append(claim)

    def _expire(self) -> None:
        claim = heapq.heappop(self._deadlines)[2]
        if claim.state is WAITING:
            self._decide(claim, ClaimState.TIMED_OUT)

    def _reject_hopeless(self, block: Block) -> None:
        """Reject waiting claims that this block can never serve again."""
        block.named_by = [claim for claim in block.named_by if claim.state is WAITING]
        for claim in block.named_by:
            place = claim.blocks.index(block)
            problem = refusal_for_good(block, claim.demand[place]) and self._problem(claim)
            if problem:
                self._decide(claim, ClaimState.REJECTED, problem)

    def _decide(self, claim: Claim, state: ClaimState, reason: str = "") -> None:
        claim.state, claim.decided_at, claim.reason = state, self.now, reason
        self.decisions.append(Decision(claim.claim_id, state, self.now))

    # --- looking things up ------------------------------------------------------------------------

    def _block(self, block_id: str) -> Block:
        block = self.blocks.get(block_id)
        if block is None:
            raise InvalidParameterError(f"there is no block {block_id}")
        return block

    def _claim(self, claim_id: str) -> Claim:
        claim = self.claims.get(claim_id)
        if claim is None:
            raise ClaimError(f"there is no claim {claim_id}")
        return claim

    def _check_holding(self, claim: Claim) -> None:
        if claim.state not in HOLDING:
            raise ClaimError(f"claim {claim.claim_id} is {claim.state}: it holds nothing")

    def _read(self, claim_id: str, demand: Mapping[str, Numbers]) -> tuple[Curve, ...]:
        """Read a demand; most have the same curve on each block."""
        if not demand:
            raise InvalidParameterError(f"claim {claim_id} names no block")
        curves = []
        last: object = self  # no amount
        for value in demand.values():
            if value is not last:
                last, curve = value, self._reading.demand(value)
                if len(curve) != self._orders:
                    raise InvalidParameterError(
                        f"claim {claim_id} has {len(curve)} amounts, its blocks {self._orders}"
                    )
            curves.append(curve)
        return tuple(curves)

    def _submitted_before(
        self, claim_id: str, blocks: tuple[Block, ...], curves: tuple[Curve, ...]
    ) -> Claim:
        claim = self.claims[claim_id]
        demand = dict(zip(blocks, curves, strict=True))
        before = zip(claim.blocks, claim.demand, strict=True)
        if len(blocks) != claim.named or any(demand.get(block) != curve for block, curve in before):
            raise ClaimError(f"claim {claim_id} was submitted before, with another demand")
        return claim

    def _answer(self, request_id: Hashable | None, claim: Claim) -> Claim:
        if request_id is not None:
            self._answers[request_id] = claim
        return claim


def _set_terms(claim: Claim, timeout: Number | None, weight: Real, any_of: int | None) -> None:
    """Add what a claim may say beyond its demand."""
    if timeout is not None:
        if not timeout >= 0:
            raise InvalidParameterError(f"timeout = {timeout} must not be negative")
        claim.deadline = claim.submitted_at + timeout
    if weight != 1:
        claim.weight = checks.exact(weight=weight)
        checks.positive(weight=claim.weight)
    if any_of is not None:
        checks.positive_integers(any_of=any_of)
        if any_of > len(claim.blocks):
            raise InvalidParameterError(f"any {any_of} of {len(claim.blocks)} blocks: too few")
        claim.needs = any_of


def refusal_for_good(block: Block, demand: Curve) -> str:
    """Say why a block can never serve a demand; an empty text if it could."""
    if block.state is not ACTIVE:
        return f"block {block.block_id} is {block.state}"
    if not block.could_serve(demand):
        return f"the demand on block {block.block_id} is more than it has at every order"
    return ""
