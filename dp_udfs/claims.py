"""Claims: requests for budget, what they may do in each state, and the order they are served in."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from operator import le

from dp_udfs.amounts import Amount, Curve, Number
from dp_udfs.blocks import Block
from dp_udfs.errors import ClaimError, InvalidParameterError

Order = tuple[tuple[tuple[int, int], ...], int]
_Kinds = tuple[tuple[tuple[Curve, Curve], int], ...]

# Shares are compared as whole multiples of 1 / _FINE. That is exact: two different fractions with
# denominators below 2**256 differ by more, and equal ones stay equal.
_FINE = 2**512


class ClaimState(StrEnum):
    """Where a claim is in its life."""

    WAITING = "WAITING"
    REJECTED = "REJECTED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    ALLOCATED = "ALLOCATED"
    PARTIALLY_CONSUMED = "PARTIALLY_CONSUMED"
    CONSUMED = "CONSUMED"
    RELEASED = "RELEASED"  # with nothing consumed
    CLOSED = "CLOSED"  # with something consumed


WAITING = ClaimState.WAITING
HOLDING = (ClaimState.ALLOCATED, ClaimState.PARTIALLY_CONSUMED)


class Claim:
    """A demand on a fixed list of blocks, served on all of them at once or not at all.

    Parameters
    ----------
    claim_id : str
        The caller's name for it.
    number : int
        Its place among all claims in the order of submission: the last tie-break.
    submitted_at : float
        On the scheduler's clock.
    blocks : tuple of Block
        The blocks it names, all different.
    demand : tuple of tuple of int or Fraction
        For each block, its demand at each order.

    Attributes
    ----------
    weight : int or Fraction
        How much it matters: shares are divided by it.
    deadline : float or None
        When it stops waiting.
    named, needs : int
        How many blocks it named, and how many of them it needs.
    """

    __slots__ = (
        "_order",
        "blocks",
        "claim_id",
        "consumed",
        "deadline",
        "decided_at",
        "demand",
        "left",
        "named",
        "needs",
        "number",
        "reason",
        "state",
        "submitted_at",
        "weight",
    )

    def __init__(
        self,
        claim_id: str,
        number: int,
        submitted_at: Number,
        blocks: tuple[Block, ...],
        demand: tuple[Curve, ...],
    ) -> None:
        self.claim_id = claim_id
        self.number = number
        self.submitted_at = submitted_at
        self.blocks = blocks
        self.demand = demand
        self.weight: Amount = 1
        self.deadline: Number | None = None
        self.named = self.needs = len(blocks)
        self.state = ClaimState.WAITING
        self.decided_at: Number | None = None  # when it left WAITING
        self.reason = ""
        self.left: dict[str, Curve] | None = None  # allocated and not used yet; None: all of it
        self.consumed: dict[str, Curve] = {}
        self._order: Order | None = None

    def order(self) -> Order:
        """Return the sort key: all shares from the largest down, then the order of submission.

        Equal shares are counted, so that fifty equal blocks cost one entry. A list that is the
        beginning of another one comes first, as if it ended in zeros.
        """
        if self._order is None:
            kinds = _kinds(self.demand, [block.total for block in self.blocks])
            self._order = (_runs(kinds, self.weight), self.number)
        return self._order

    def shares(self) -> list[Fraction]:
        """Return all shares from the largest down: the first is the dominant one."""
        return sorted(
            (
                Fraction(amount) / (total * self.weight)
                for block, demand in zip(self.blocks, self.demand, strict=True)
                for amount, total in zip(demand, block.total, strict=True)
                if total > 0
            ),
            reverse=True,
        )

    def asks_no_more_than(self, other: "Claim") -> bool:
        """Whether it asks at most as much as another one of the same blocks, at every order."""
        seen: tuple[Curve, Curve] | None = None
        for mine, theirs in zip(self.demand, other.demand, strict=True):
            if mine is theirs or (seen and mine is seen[0] and theirs is seen[1]):
                continue
            if not all(map(le, mine, theirs)):
                return False
            seen = mine, theirs
        return True

    def narrow(self, places: Sequence[int]) -> None:
        """Settle which of its blocks the claim is to have."""
        self.blocks = tuple(self.blocks[place] for place in places)
        self.demand = tuple(self.demand[place] for place in places)
        self.needs = len(places)

    def allocate(self) -> None:
        """Take the demand from every block."""
        for block, demand in zip(self.blocks, self.demand, strict=True):
            block.take(demand)

    def consume(self, amounts: Mapping[str, Curve] | None = None) -> None:
        """Use allocated budget, at every order; None means everything left.

        Raises
        ------
        ClaimError
            If the claim holds nothing, or an amount is more than it holds; nothing is changed.
        """
        left = self._held("consume")
        wanted = left if amounts is None else amounts
        for block_id, curve in wanted.items():
            self._check_amount(block_id, curve, left)
        for block in self.blocks:
            if block.block_id not in wanted:
                continue
            curve = wanted[block.block_id]
            before = self.consumed.get(block.block_id, (0,) * len(curve))
            self.consumed[block.block_id] = _pairwise(lambda a, b: a + b, before, curve)
            left[block.block_id] = _pairwise(lambda a, b: a - b, left[block.block_id], curve)
            block.consume(curve)
        self.left = left
        spent = not any(any(curve) for curve in left.values())
        self.state = ClaimState.CONSUMED if spent else ClaimState.PARTIALLY_CONSUMED

    def release(self, *, lock: bool) -> None:
        """Give back everything allocated and not consumed.

        Raises
        ------
        ClaimError
            If the claim holds nothing.
        """
        left = self._held("release")
        for block in self.blocks:
            block.give_back(left[block.block_id], lock=lock)
        self.left = {}
        partly = self.state is ClaimState.PARTIALLY_CONSUMED
        self.state = ClaimState.CLOSED if partly else ClaimState.RELEASED

    def _held(self, verb: str) -> dict[str, Curve]:
        if self.state not in HOLDING:
            raise ClaimError(f"claim {self.claim_id} is {self.state}: nothing to {verb}")
        if self.left is not None:
            return dict(self.left)
        blocks = (block.block_id for block in self.blocks)
        return dict(zip(blocks, self.demand, strict=True))

    def _check_amount(self, block_id: str, curve: Curve, left: Mapping[str, Curve]) -> None:
        if block_id not in left:
            raise ClaimError(f"claim {self.claim_id} does not name block {block_id}")
        if len(curve) != len(left[block_id]):
            raise InvalidParameterError(
                f"{len(curve)} amounts for block {block_id}, which has {len(left[block_id])} orders"
            )
        if not all(0 <= used <= held for used, held in zip(curve, left[block_id], strict=True)):
            raise ClaimError(
                f"claim {self.claim_id} cannot consume {curve} on block {block_id}; "
                f"it holds {left[block_id]}: ask for no more than that at any order"
            )


def _kinds(demand: tuple[Curve, ...], totals: list[Curve]) -> _Kinds:
    """Count equal pairs of demand and total that follow each other; mostly all are equal."""
    if demand.count(demand[0]) == totals.count(totals[0]) == len(totals):
        return (((demand[0], totals[0]), len(totals)),)
    pairs = zip(demand, totals, strict=True)
    return tuple((pair, len(list(same))) for pair, same in groupby(pairs))


@lru_cache(maxsize=4096)  # equal keys are then one object, quick to compare
def _runs(kinds: _Kinds, weight: Amount) -> tuple[tuple[int, int], ...]:
    """Count equal shares, the largest first, for so many blocks of each demand and total."""
    counts: dict[int, int] = {}
    for (demand, total), number in kinds:
        for amount, capacity in zip(demand, total, strict=True):
            if capacity > 0 and amount > 0:
                share = int(amount * _FINE // (capacity * weight))
                counts[share] = counts.get(share, 0) + number
    return tuple(sorted(counts.items(), reverse=True))


def _pairwise(combine: Callable[[Amount, Amount], Amount], one: Curve, other: Curve) -> Curve:
    return tuple(combine(a, b) for a, b in zip(one, other, strict=True))
