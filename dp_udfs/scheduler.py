"""The engine: blocks and claims under one policy, event by event.

It reads and checks what is asked, keeps the clock, and remembers; `queues` and `rounds` say who is
served.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple

from dp_udfs import checks
from dp_udfs.amounts import Curve, ExactReading, Number, Numbers
from dp_udfs.blocks import Block, BlockState, least_used
from dp_udfs.checks import Real
from dp_udfs.claims import HOLDING, WAITING, Claim, ClaimState
from dp_udfs.errors import ClaimError, InvalidParameterError
from dp_udfs.policies import DPack, DpfByArrivals, DpfByTime, FirstComeFirstServed, Optimal
from dp_udfs.queues import FairQueue, Queue
from dp_udfs.rounds import RoundQueue


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
    policy : FirstComeFirstServed, DpfByArrivals, DpfByTime, DPack or Optimal
        How blocks open, and who is served first.
    reading : ExactReading
        How amounts are read; by default they are integers or fractions.
    lock_released : bool
        Whether budget that is given back is locked again, rather than unlocked.
    objection : callable
        Asked of each claim whose blocks have room: a text says why it is rejected all the same. It
        may count on a claim being granted to which it does not object.

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
        policy: FirstComeFirstServed | DpfByArrivals | DpfByTime | DPack | Optimal,
        reading: ExactReading | None = None,
        *,
        lock_released: bool = False,
        objection: Callable[[Claim], str] = lambda _: "",
    ) -> None:
        self.policy = policy
        self.blocks: dict[str, Block] = {}
        self.claims: dict[str, Claim] = {}
        self.decisions: list[Decision] = []
        self.now: Number | None = None
        self._queue: Queue
        if isinstance(policy, DPack | Optimal):
            self._queue = RoundQueue(policy, self._decide)
        else:
            self._queue = FairQueue(policy, self._decide)
        self._reading = reading or ExactReading()
        self._lock_released = lock_released
        self._objection = objection
        self._totals: dict[Curve, Curve] = {}  # equal totals are one object: quick to compare
        self._deadlines: list[tuple[Number, int, Claim]] = []
        self._answers: dict[Hashable, Claim] = {}
        self._orders = 0
        if lock_released and isinstance(policy, FirstComeFirstServed):
            raise InvalidParameterError("first come, first served locks nothing")

    # --- events -----------------------------------------------------------------------------------

    def open_block(self, block_id: str, capacity: Numbers, at: Number) -> Block:
        """Create a block; under FirstComeFirstServed it is wholly open at once."""
        if block_id in self.blocks:
            raise InvalidParameterError(f"block {block_id} exists already")
        total = self._reading.capacity(capacity)
        if self.blocks and len(total) != self._orders:
            raise InvalidParameterError(f"block {block_id} has another number of orders")
        self.go_to(at)
        block = Block(
            block_id, self._totals.setdefault(total, total), at, self._queue.opening.parts
        )
        self._queue.created(block)
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
        try:
            blocks = tuple(map(self.blocks.__getitem__, demand))
        except KeyError as unknown:
            raise _no_block(unknown.args[0]) from None
        curves = self._read(claim_id, demand)
        if claim_id in self.claims:
            return self._submitted_before(claim_id, blocks, curves)
        claim = Claim(claim_id, len(self.claims), at, blocks, curves)
        _set_terms(claim, timeout, weight, any_of)
        self.go_to(at)
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
            self.go_to(to)
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
        self.go_to(at)
        claim.release(lock=self._lock_released)
        self._queue.freed(claim.blocks, at)
        return self._answer(request_id, claim)

    def cancel(self, claim_id: str, at: Number) -> Claim:
        """Stop waiting. What the claim unlocked stays unlocked."""
        claim = self._claim(claim_id)
        if claim.state is ClaimState.CANCELLED:
            return claim
        self.go_to(at)
        if claim.state is not WAITING:
            raise ClaimError(f"claim {claim_id} is {claim.state}: it does not wait any more")
        self._decide(claim, ClaimState.CANCELLED)
        return claim

    def retire_block(self, block_id: str, at: Number) -> None:
        """Say that a block's data are gone: claims waiting for it are rejected, grants stay."""
        block = self._block(block_id)
        self.go_to(at)
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
        self._open(claim.blocks)
        return [
            Shortage(block.block_id, curve, block.budget().unlocked)
            for block, curve in zip(claim.blocks, claim.demand, strict=True)
            if claim.state is WAITING and not block.admits(curve)
        ]

    def refresh(self) -> None:
        """Open all blocks as far as they should be by now, to look at their parts."""
        self._open(self.blocks.values())

    # --- time passes ------------------------------------------------------------------------------

    def go_to(self, at: Number) -> None:
        """Run what happens before an event of now: all ticks, and the deadlines before now."""
        if not math.isfinite(at):
            raise InvalidParameterError(f"{at} is not a time")
        if self.now is not None and at < self.now:
            raise InvalidParameterError(f"the clock went back from {self.now} to {at}")
        self._run_until(at, with_deadlines_then=False)
        self.now = at

    def _run_until(self, end: Number, *, with_deadlines_then: bool = True) -> None:
        """Run ticks and deadlines one by one, in the order of time."""
        while True:
            tick = self._queue.next_tick()
            deadline = self._deadlines[0][0] if self._deadlines else None
            if tick is not None and tick <= end and (deadline is None or tick <= deadline):
                self.now = tick
                self._queue.tick()
            elif deadline is not None and (
                deadline < end or (deadline == end and with_deadlines_then)
            ):
                self.now = deadline
                self._expire()
            else:
                return

    # --- claims come and go -----------------------------------------------------------------------

    def _problem(self, claim: Claim) -> str:
        """Say why a claim could never be served; an empty text if it could. Settle its blocks."""
        if claim.needs == len(claim.blocks) and all(
            map(Block.could_serve, claim.blocks, claim.demand)
        ):
            return ""
        problems = list(map(_refusal_for_good, claim.blocks, claim.demand))
        if claim.needs == len(problems):
            return next(filter(None, problems), "")
        able = [place for place, problem in enumerate(problems) if not problem]
        if len(able) < claim.needs:
            return f"only {len(able)} of {claim.needs} blocks could serve it"
        if isinstance(self.policy, Optimal):
            return ""  # each round chooses again
        best = least_used([claim.blocks[place] for place in able], claim.needs)
        claim.narrow([able[place] for place in best])
        return ""

    def _enter(self, claim: Claim) -> None:
        """Count an arrival on the claim's blocks, serve whom that helps, or let the claim wait."""
        self._queue.enter(claim, claim.submitted_at)
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
            problem = _refusal_for_good(block, claim.demand[place]) and self._problem(claim)
            if problem:
                self._decide(claim, ClaimState.REJECTED, problem)

    def _decide(self, claim: Claim, state: ClaimState, reason: str = "") -> None:
        """Say what becomes of a claim; one that is granted takes its demand."""
        if state is ClaimState.ALLOCATED:
            reason = self._objection(claim)
            if reason:
                state = ClaimState.REJECTED
            else:
                claim.allocate()
        claim.state, claim.decided_at, claim.reason = state, self.now, reason
        self.decisions.append(Decision(claim.claim_id, state, self.now))

    def _open(self, blocks: Iterable[Block]) -> None:
        if self.now is not None:
            self._queue.open_by_time(blocks, self.now)

    # --- looking things up ------------------------------------------------------------------------

    def _block(self, block_id: str) -> Block:
        block = self.blocks.get(block_id)
        if block is None:
            raise _no_block(block_id)
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


def _no_block(block_id: str) -> InvalidParameterError:
    return InvalidParameterError(f"there is no block {block_id}")


def _refusal_for_good(block: Block, demand: Curve) -> str:
    """Say why a block can never serve a demand; an empty text if it could."""
    if block.state is not BlockState.ACTIVE:
        return f"block {block.block_id} is {block.state}"
    if not block.could_serve(demand):
        return f"the demand on block {block.block_id} is more than it has at every order"
    return ""
