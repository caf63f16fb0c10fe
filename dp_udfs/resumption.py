"""A scheduler that goes on where an earlier one stopped: for a process that lives one event long.

Between events no waiting claim fits. So all there is to keep of a queue are its blocks, how far
they have opened and what was taken from them, and the claims that wait.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dp_udfs.amounts import Amount, Curve, Number
from dp_udfs.blocks import Block, BlockState
from dp_udfs.claims import Claim
from dp_udfs.policies import DpfByArrivals
from dp_udfs.scheduler import Scheduler


@dataclass(frozen=True)
class BlockRecord:
    """A block as it stands.

    Parameters
    ----------
    block_id : str
        Its name.
    total : tuple of int or Fraction
        Budget at each order; positive at one at least.
    created_at : number
        When it was created.
    arrivals : int
        How many claims have named it that were not rejected at once.
    taken, consumed : tuple of int or Fraction
        What was allocated or consumed, at each order; and of that, what was consumed.
    retired : bool
        Whether its data are gone.
    """

    block_id: str
    total: Curve
    created_at: Number
    arrivals: int
    taken: Curve
    consumed: Curve
    retired: bool = False


@dataclass(frozen=True)
class ClaimRecord:
    """A claim that waits.

    Parameters
    ----------
    claim_id : str
        Its name.
    submitted_at, deadline : number
        When it began to wait, and when it ends; None for never.
    demand : mapping of str to tuple
        What it asks of each block that it may be served by.
    needs : int
        How many of these blocks it needs.
    weight : int or Fraction
        Shares are divided by it.
    """

    claim_id: str
    submitted_at: Number
    demand: Mapping[str, Curve]
    needs: int
    deadline: Number | None = None
    weight: Amount = 1


class ResumedScheduler(Scheduler):
    """A scheduler without the claims of the past; parameters are those of `Scheduler`."""

    def resume(
        self, blocks: Iterable[BlockRecord], claims: Iterable[ClaimRecord], at: Number
    ) -> None:
        """Begin from what is on record.

        Parameters
        ----------
        blocks : iterable of BlockRecord
            All that later events may name.
        claims : iterable of ClaimRecord
            All that wait, in the order of their submission.
        at : number
            When the last event was.
        """
        for block in sorted(blocks, key=_created_at):
            self._keep_block(block)
        waiting = [self._kept_claim(claim) for claim in claims]
        self.now = at
        self._queue.resume(waiting, at)
        for claim in waiting:
            self._start_waiting(claim)

    def free(self, amounts: Mapping[str, Curve], at: Number) -> None:
        """Return budget that a claim of the past gives back; others may be served by it."""
        self.go_to(at)
        for block_id, curve in amounts.items():
            self._block(block_id).give_back(curve, lock=False)
        self._queue.freed(map(self._block, amounts), at)

    def use(self, amounts: Mapping[str, Curve], at: Number) -> None:
        """Consume budget that a claim of the past holds; for some that wait it may be too much."""
        self.go_to(at)
        for block_id, curve in amounts.items():
            self._block(block_id).consume(curve)
        for block_id in amounts:
            self._reject_hopeless(self._block(block_id))

    def _keep_block(self, record: BlockRecord) -> None:
        total = self._totals.setdefault(record.total, record.total)
        block = Block(record.block_id, total, record.created_at, self._queue.opening.parts)
        block.taken, block.consumed = list(record.taken), list(record.consumed)
        if record.retired:
            block.state = BlockState.RETIRED
        elif block.is_consumed:
            block.state = BlockState.EXHAUSTED
        self._queue.created(block)
        if isinstance(self.policy, DpfByArrivals):
            block.step = record.arrivals
            block.opened = self._queue.opening.opened(block.step)
        self._orders = len(total)
        self.blocks[block.block_id] = block

    def _kept_claim(self, record: ClaimRecord) -> Claim:
        blocks = tuple(map(self._block, record.demand))
        curves = tuple(record.demand.values())
        claim = Claim(record.claim_id, len(self.claims), record.submitted_at, blocks, curves)
        claim.needs, claim.weight, claim.deadline = record.needs, record.weight, record.deadline
        self.claims[claim.claim_id] = claim
        return claim


def _created_at(record: BlockRecord) -> Number:
    return record.created_at
