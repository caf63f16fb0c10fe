"""Privacy blocks: slices of data with a budget each, and the four parts their budget is in.

At any moment, at each order,

    total = locked + unlocked + allocated + consumed.

A block opens step by step, by one fraction for its whole curve. So its state is how far it has
opened, and what has been taken from it; the four parts are computed from these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from operator import add
from typing import TYPE_CHECKING

from dp_udfs.amounts import Amount, Curve, Number
from dp_udfs.parking import Lot

if TYPE_CHECKING:
    from dp_udfs.claims import Claim

NEVER = math.inf


class BlockState(StrEnum):
    """Where a block is in its life."""

    ACTIVE = "ACTIVE"
    EXHAUSTED = "EXHAUSTED"  # consumed at every order; kept for audit
    RETIRED = "RETIRED"  # its data are deleted


ACTIVE = BlockState.ACTIVE


@dataclass(frozen=True)
class Parts:
    """The four parts of a budget, each a curve; `unlocked` may be negative at some orders."""

    locked: Curve
    unlocked: Curve
    allocated: Curve
    consumed: Curve


class Block:
    """One block: `opened / parts` of its total is open, and `taken` of that is gone.

    Parameters
    ----------
    block_id : str
        Name of the block.
    total : tuple of int or Fraction
        Budget at each order. An order whose total is not positive is never used.
    created_at : float
        When it was created, on the scheduler's clock.
    parts : int
        How many parts it opens in.

    Notes
    -----
    Privacy: `take` is called only for demands that `admits` allowed. After each grant there is an
    order at which all that was taken is within the total; there the composition of everything
    allocated and consumed is bounded by the block's capacity.
    """

    __slots__ = (
        "best",
        "block_id",
        "consumed",
        "created_at",
        "lot",
        "named_by",
        "opened",
        "parts",
        "relocked",
        "room",
        "state",
        "step",
        "taken",
        "total",
        "usable",
    )

    def __init__(self, block_id: str, total: Curve, created_at: Number, parts: int) -> None:
        self.block_id = block_id
        self.total = total
        self.created_at = created_at
        self.parts = parts
        self.opened = 0
        self.step = 0  # arrivals or ticks so far
        self.usable = [order for order, amount in enumerate(total) if amount > 0]
        self.taken: list[Amount] = [0] * len(total)  # allocated, consumed, or locked again
        self.consumed: list[Amount] = [0] * len(total)
        self.relocked: list[Amount] | None = None
        self.state = BlockState.ACTIVE
        # A demand of at most `room` at the order `best` surely fits: that much was unlocked when
        # it was last looked at, and only `take` makes less of it.
        self.best = self.usable[0]
        self.room: Amount = -1
        # The scheduler's notes: claims that wait for this block first, and all that name it.
        self.lot = Lot()
        self.named_by: list[Claim] = []

    def admits(self, demand: Curve) -> bool:
        """Whether at some usable order the demand fits in what is unlocked."""
        return self.opening_for(demand) == 0

    def opening_for(self, demand: Curve) -> float:
        """Return 0 if the demand fits now; else the `opened` that would admit it, or NEVER."""
        taken, total, parts, best = self.taken, self.total, self.parts, self.best
        if demand[best] <= self.room:
            return 0
        opening = -(-(demand[best] + taken[best]) * parts // total[best])
        if opening > self.opened and len(self.usable) > 1:
            for order in self.usable:
                needed = -(-(demand[order] + taken[order]) * parts // total[order])
                if needed < opening:
                    opening, best = needed, order
            self.best = best
        self.room = total[best] * self.opened // parts - taken[best]
        if opening <= self.opened:
            return 0
        return opening if opening <= parts else NEVER

    def could_serve(self, demand: Curve) -> bool:
        """Whether the block lives, and has room if all but the consumed part were unlocked."""
        if self.state is not ACTIVE:
            return False
        for order in self.usable:
            if demand[order] + self.consumed[order] <= self.total[order]:
                return True
        return False

    def take(self, demand: Curve) -> None:
        """Allocate a demand, at all orders."""
        self.taken = list(map(add, self.taken, demand))
        self.room -= demand[self.best]

    def consume(self, amounts: Curve) -> None:
        """Move allocated budget to consumed, for good."""
        self.consumed = [old + new for old, new in zip(self.consumed, amounts, strict=True)]
        if self.state is BlockState.ACTIVE and self.is_consumed:
            self.state = BlockState.EXHAUSTED

    @property
    def is_consumed(self) -> bool:
        """Whether nothing is left at any order."""
        return all(self.consumed[a] >= self.total[a] for a in self.usable)

    def give_back(self, amounts: Curve, *, lock: bool) -> None:
        """Return allocated budget that was not used, to unlocked or to locked."""
        if lock:
            relocked = self.relocked or [0] * len(self.total)
            self.relocked = [old + new for old, new in zip(relocked, amounts, strict=True)]
        else:
            self.taken = [taken - amount for taken, amount in zip(self.taken, amounts, strict=True)]

    def unlock_again(self, steps: int) -> None:
        """Unlock one share of what was locked again; in `steps` shares all of it is open."""
        if self.relocked is None:
            return
        moved = [
            min(relocked, _share(total, steps))
            for relocked, total in zip(self.relocked, self.total, strict=True)
        ]
        self.taken = [taken - amount for taken, amount in zip(self.taken, moved, strict=True)]
        left = [relocked - amount for relocked, amount in zip(self.relocked, moved, strict=True)]
        self.relocked = left if any(left) else None

    def budget(self) -> Parts:
        """Return the four parts, exactly."""
        relocked = self.relocked or [0] * len(self.total)
        open_until_now = [_divided(amount * self.opened, self.parts) for amount in self.total]
        locked = [t - o + r for t, o, r in zip(self.total, open_until_now, relocked, strict=True)]
        unlocked = [o - u for o, u in zip(open_until_now, self.taken, strict=True)]
        allocated = [
            taken - consumed - again
            for taken, consumed, again in zip(self.taken, self.consumed, relocked, strict=True)
        ]
        return Parts(tuple(locked), tuple(unlocked), tuple(allocated), tuple(self.consumed))


def least_used(blocks: Sequence[Block], number: int) -> list[int]:
    """Return the places of the `number` blocks with the largest share left, in their order."""
    left = [
        max(1 - Fraction(block.taken[a]) / block.total[a] for a in block.usable) for block in blocks
    ]
    best = sorted(range(len(blocks)), key=lambda place: (-left[place], place))[:number]
    return sorted(best)


def _divided(amount: Amount, parts: int) -> Amount:
    fraction = Fraction(amount) / parts
    return fraction.numerator if fraction.denominator == 1 else fraction


def _share(total: Amount, steps: int) -> Amount:
    """Return one step's share of a total; of integers, rounded up so that steps never run out."""
    return -(-abs(total) // steps) if isinstance(total, int) else abs(total) / steps
