"""Who is served next: the queue of waiting claims under fairness, or none under first come.

After each event the claims that fit are served in the order of their shares, all blocks of a claim
at once. A claim that does not fit is parked on one block that refuses it until that block may have
room for it: until then it cannot fit, so it need not be looked at. If it is then refused again, it
joins the line of those on the same blocks, which waits as one. The claims served, and when, are the
same as if all waiting claims were sorted and tried after each event.
"""

import functools
import heapq
from collections.abc import Callable, Iterable
from typing import Protocol

from dp_udfs.amounts import Number
from dp_udfs.blocks import NEVER, Block
from dp_udfs.claims import Claim, ClaimState, Order
from dp_udfs.parking import Line
from dp_udfs.policies import ByTime, DpfByArrivals, FirstComeFirstServed, Opening

_LINES_TRIED = 4  # of those on the same blocks, before a claim gets a line of its own

_Due = list[tuple[Order, Line, Block | None]]  # lines to be served in a pass; where they come from
Decide = Callable[[Claim, ClaimState, str], None]  # a claim's new state, and why; it may be refused


class Queue(Protocol):
    """What a scheduler asks of its queue. Times are `at`, and never go back."""

    opening: Opening

    def created(self, block: Block) -> None:
        """Take note of a new block."""

    def enter(self, claim: Claim, at: Number) -> None:
        """Take in a new claim, and serve whom that helps."""

    def resume(self, claims: Iterable[Claim], at: Number) -> None:
        """Go on with claims that wait since earlier, in the order of their numbers."""

    def freed(self, blocks: Iterable[Block], at: Number) -> None:
        """Serve whom budget helps that was given back on these blocks."""

    def next_tick(self) -> Number | None:
        """Return when time alone may next help somebody."""

    def tick(self) -> None:
        """Do what is due at that time."""

    def open_by_time(self, blocks: Iterable[Block], at: Number) -> None:
        """Open blocks as far as they should be by now."""


class FairQueue:
    """Smallest dominant share first, with all tie-breaks; or nobody waits.

    Parameters
    ----------
    policy : FirstComeFirstServed, DpfByArrivals or DpfByTime
        How blocks open.
    decide : callable
        Told what becomes of claims.
    """

    def __init__(
        self, policy: FirstComeFirstServed | DpfByArrivals | ByTime, decide: Decide
    ) -> None:
        self.opening = policy.opening()
        self._decide = decide
        self._waits = not isinstance(policy, FirstComeFirstServed)
        self._by_arrivals = isinstance(policy, DpfByArrivals)
        self._by_time = policy if isinstance(policy, ByTime) else None
        self._opened_after = functools.lru_cache(maxsize=None)(self.opening.opened)
        self._ticks: list[tuple[Number, int, Block]] = []
        self._serial = 0
        self._lines: dict[tuple[Block, ...], list[Line]] = {}

    def created(self, block: Block) -> None:
        """Open a block wholly where nobody waits."""
        if not self._waits:
            block.opened = block.parts

    def enter(self, claim: Claim, at: Number) -> None:
        """Count an arrival on the claim's blocks, and hold a pass."""
        self._pass(self._arrive(claim) if self._by_arrivals else (), at, claim)

    def resume(self, claims: Iterable[Claim], at: Number) -> None:
        """Try all of them in order, as one pass does; where nothing has changed they all wait."""
        for claim in sorted(claims, key=Claim.order):
            self._pass((), at, claim)

    def freed(self, blocks: Iterable[Block], at: Number) -> None:
        """Look at everybody parked on these blocks: they may fit before their step comes."""
        blocks = list(blocks)
        self.open_by_time(blocks, at)
        for block in blocks:
            block.lot.wake(NEVER)
        self._pass(blocks, at)

    def next_tick(self) -> Number | None:
        """Return when the next block ticks that somebody is parked on."""
        return self._ticks[0][0] if self._ticks else None

    def tick(self) -> None:
        """Hold one pass for all blocks that tick at this instant."""
        at = self._ticks[0][0]
        risen: dict[str, Block] = {}
        while self._ticks and self._ticks[0][0] == at:
            block = heapq.heappop(self._ticks)[2]
            self.open_by_time([block], at)
            block.lot.wake(block.step)
            risen[block.block_id] = block
        self._pass(risen.values(), at)

    def open_by_time(self, blocks: Iterable[Block], at: Number) -> None:
        """Open blocks as far as they should be by now."""
        if self._by_time:
            for block in blocks:
                open_until(block, self._by_time.step_at(block.created_at, at), self.opening)

    # --- blocks open by arrivals ------------------------------------------------------------------

    def _arrive(self, claim: Claim) -> list[Block]:
        """Open one more share of each block a claim names; return those where others wait."""
        opened_after, steps = self._opened_after, self.opening.steps
        risen = []
        for block in claim.blocks:
            block.step = step = block.step + 1
            if step <= steps:
                block.opened = opened_after(step)
            elif block.relocked is not None:
                block.unlock_again(steps)
            if block.lot.next_step <= step:
                block.lot.wake(step)
                risen.append(block)
        return risen

    # --- passes -----------------------------------------------------------------------------------

    def _pass(self, risen: Iterable[Block], at: Number, newcomer: Claim | None = None) -> None:
        """Serve those that fit, in order: the newcomer, and those awake on blocks that have risen.

        One sweep is complete, for room only shrinks in it.
        """
        due: _Due = []
        for block in risen:
            self._find_next(block, due)
        if newcomer is not None and not due:
            self._serve(Line(newcomer), at, due)  # without its order, which takes time to find
        elif newcomer is not None:
            _add(due, Line(newcomer), None)
        while due:
            _, line, come_from = heapq.heappop(due)
            self._serve(line, at, due)
            if come_from is not None:
                self._find_next(come_from, due)

    def _find_next(self, block: Block, due: _Due) -> None:
        """Put the next line that this block may have room for among those due in a pass."""
        lot = block.lot
        while lot.awake:
            opening = block.opening_for(lot.least)
            if opening:
                break
            line = lot.next_awake()
            if line is not None:
                _add(due, line, block)
                return
        step = self._step_with_room(block, opening) if lot.awake else NEVER
        lot.rest_until(step)
        self._tick_at(block, step)

    def _serve(self, line: Line, at: Number, due: _Due) -> None:
        """Grant the first claim of a line if it fits; else let the line wait, or reject the claim.

        It is rejected where nobody waits.
        """
        claim = line.first()
        assert claim is not None
        self.open_by_time(claim.blocks, at)
        place, opening = _refusal(claim, line.place)
        if not opening:
            self._decide(claim, ClaimState.ALLOCATED, "")
            if line.first() is not None:
                _add(due, line, None)
        elif not self._waits:
            self._decide(claim, ClaimState.REJECTED, "not enough is left")
        elif line.place < 0 or line.is_joint:
            self._park(line, claim, place, opening)
        else:
            line = self._join(line, claim)
            if line.first() is claim:
                self._park(line, claim, place, opening)

    def _join(self, alone: Line, claim: Claim) -> Line:
        """Let a claim join a line of claims on the same blocks, or make its own such a line."""
        lines = self._lines.setdefault(claim.blocks, [])
        for line in lines[-_LINES_TRIED:]:
            if line.take_in(claim):
                return line
        alone.is_joint = True
        lines.append(alone)
        return alone

    def _park(self, line: Line, first: Claim, place: int, opening: float) -> None:
        """Leave a line until a block has opened far enough for its first claim."""
        block = first.blocks[place]
        step = self._step_with_room(block, opening)
        line.place = place
        block.lot.park(line, first.number, step)
        self._tick_at(block, step)

    def _step_with_room(self, block: Block, opening: float) -> float:
        """Return the step by which a block will have opened that far, if nothing is released."""
        if block.relocked is not None:
            return block.step + 1
        return NEVER if opening == NEVER else self.opening.step_for(int(opening))

    def _tick_at(self, block: Block, step: float) -> None:
        """Look at a block again at this tick of it."""
        if self._by_time and step != NEVER:
            self._serial += 1
            tick = block.created_at + int(step) * self._by_time.tick
            heapq.heappush(self._ticks, (tick, self._serial, block))


def open_until(block: Block, step: int, opening: Opening) -> None:
    """Open a block as far as it should be after so many ticks."""
    if step == block.step:
        return
    while block.relocked is not None and block.step < step:
        block.step += 1
        if block.step > opening.steps:
            block.unlock_again(opening.steps)
    block.step = step
    block.opened = opening.opened(step)


def _add(due: _Due, line: Line, come_from: Block | None) -> None:
    first = line.first()
    assert first is not None
    heapq.heappush(due, (first.order(), line, come_from))


def _refusal(claim: Claim, place: int) -> tuple[int, float]:
    """Find the block that makes a claim wait longest, and how far that must open; or 0.

    The block at this place is asked first, if any: an earlier grant may have taken its room, and
    then the others need not be asked.
    """
    blocks, demand = claim.blocks, claim.demand
    if place >= 0:
        opening = blocks[place].opening_for(demand[place])
        if opening:
            return place, opening
    longest, refusal = 0.0, (-1, 0.0)
    for place, block in enumerate(blocks):
        if demand[place][block.best] <= block.room:
            continue
        opening = block.opening_for(demand[place])
        if opening and opening - block.opened > longest:
            longest, refusal = opening - block.opened, (place, opening)
            if opening == NEVER:
                break
    return refusal
