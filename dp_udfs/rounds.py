"""Serving in rounds: claims are collected, and each tick as many as possible are granted."""

from collections.abc import Iterable, Sequence

from dp_udfs import knapsack
from dp_udfs.amounts import Number
from dp_udfs.blocks import Block
from dp_udfs.claims import WAITING, Claim, ClaimState
from dp_udfs.policies import DPack, Optimal
from dp_udfs.queues import Decide, open_until


class RoundQueue:
    """Blocks that open by time, and a round every tick from the creation of the first block.

    Parameters
    ----------
    policy : DPack or Optimal
        How a round chooses.
    decide : callable
        Told what becomes of claims.
    """

    def __init__(self, policy: DPack | Optimal, decide: Decide) -> None:
        self.opening = policy.opening()
        self._policy = policy
        self._decide = decide
        self._collected: list[Claim] = []
        self._start: Number | None = None
        self._next_round: Number | None = None

    def created(self, block: Block) -> None:
        """Count rounds from the first block."""
        if self._start is None:
            self._start = block.created_at

    def enter(self, claim: Claim, at: Number) -> None:
        """Let a claim wait for the next round."""
        self._collected.append(claim)
        self._call_round(at)

    def resume(self, claims: Iterable[Claim], at: Number) -> None:
        """Let them wait for the next round."""
        self._collected.extend(claims)
        if self._collected:
            self._call_round(at)

    def freed(self, blocks: Iterable[Block], at: Number) -> None:  # noqa: ARG002 - all are looked at
        """Hold a round at the next tick."""
        self._call_round(at)

    def next_tick(self) -> Number | None:
        """Return when the next round is held."""
        return self._next_round

    def tick(self) -> None:
        """Hold a round, and call the next one if time alone may help those that still wait."""
        assert self._next_round is not None
        at, self._next_round = self._next_round, None
        waiting = [claim for claim in self._collected if claim.state is WAITING]
        self.open_by_time({block for claim in waiting for block in claim.blocks}, at)
        for claim, places in self._choose(waiting):
            self._grant(claim, places)
        for claim in waiting:  # an answer that is not quite the best may leave room
            if claim.state is WAITING and all(map(Block.admits, claim.blocks, claim.demand)):
                self._grant(claim, range(claim.needs))
        self._collected = [claim for claim in waiting if claim.state is WAITING]
        if any(b.opened < b.parts for claim in self._collected for b in claim.blocks):
            self._call_round(at)

    def open_by_time(self, blocks: Iterable[Block], at: Number) -> None:
        """Open blocks as far as they should be by now."""
        for block in blocks:
            open_until(block, self._policy.step_at(block.created_at, at), self.opening)

    def _call_round(self, at: Number) -> None:
        if self._next_round is None and self._start is not None:
            step = self._policy.step_at(self._start, at) + 1
            self._next_round = self._start + step * self._policy.tick

    def _grant(self, claim: Claim, places: Sequence[int]) -> None:
        claim.narrow(places)
        self._decide(claim, ClaimState.ALLOCATED, "")

    def _choose(self, waiting: list[Claim]) -> list[knapsack.Grant]:
        """Say which claims a round serves, and on which of their blocks."""
        if not waiting:
            return []
        if isinstance(self._policy, DPack):
            return knapsack.dpack(waiting, self._policy.grants_between_updates)
        best = knapsack.optimum(waiting, self._policy.time_limit) or []
        if any(claim.needs < len(claim.blocks) for claim in waiting):
            return best  # the greedy answer knows no choice of blocks
        greedy = knapsack.dpack(waiting)
        return best if knapsack.weight(best) > knapsack.weight(greedy) else greedy
