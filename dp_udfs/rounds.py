"""Scheduling in rounds: claims are collected, and each tick as many as possible are granted."""

import heapq
from collections.abc import Iterable, Sequence

from dp_udfs import knapsack
from dp_udfs.amounts import ExactReading, Number
from dp_udfs.blocks import Block
from dp_udfs.claims import Claim, ClaimState
from dp_udfs.policies import DPack, Optimal
from dp_udfs.scheduler import WAITING, Scheduler, refusal_for_good


class RoundScheduler(Scheduler):
    """Blocks that open by time, and a round every tick from the creation of the first block.

    Parameters
    ----------
    policy : DPack or Optimal
        How a round chooses.
    reading : ExactReading
        How amounts are read.
    """

    def __init__(self, policy: DPack | Optimal, reading: ExactReading | None = None) -> None:
        super().__init__(policy, reading)
        self._rounds = policy
        self._collected: list[Claim] = []
        self._next_round: Number | None = None

    def _problem(self, claim: Claim) -> str:
        """Say why a claim could never be served. The optimum settles later which blocks it has."""
        if isinstance(self._rounds, DPack):
            return super()._problem(claim)
        problems = list(map(refusal_for_good, claim.blocks, claim.demand))
        able = problems.count("")
        return "" if able >= claim.needs else next(filter(None, problems))

    def _pass(self, risen: Iterable[Block], newcomer: Claim | None = None) -> None:  # noqa: ARG002
        """Leave everything to the next round."""
        if newcomer is not None:
            self._collected.append(newcomer)
        self._call_round()

    def _call_round(self) -> None:
        assert self.now is not None
        start = next(iter(self.blocks.values())).created_at
        step = self._rounds.step_at(start, self.now) + 1
        at = start + step * self._rounds.tick
        if self._next_round is None or self._next_round <= self.now:
            self._next_round = at
            heapq.heappush(self._ticks, (at, 0, next(iter(self.blocks.values()))))

    def _tick(self) -> None:
        """Hold a round, and call the next one if time alone may help those that wait."""
        heapq.heappop(self._ticks)
        waiting = [claim for claim in self._collected if claim.state is WAITING]
        named = {block.block_id: block for claim in waiting for block in claim.blocks}
        self._open_by_time(named.values())
        for claim, places in self._choose(waiting):
            self._grant(claim, places)
        for claim in waiting:  # an answer that is not quite the best may leave room
            if claim.state is WAITING and all(map(Block.admits, claim.blocks, claim.demand)):
                self._grant(claim, range(claim.needs))
        self._collected = [claim for claim in waiting if claim.state is WAITING]
        opening = any(b.opened < b.parts for claim in self._collected for b in claim.blocks)
        if opening:
            self._call_round()

    def _grant(self, claim: Claim, places: Sequence[int]) -> None:
        claim.narrow(places)
        claim.allocate()
        self._decide(claim, ClaimState.ALLOCATED)

    def _choose(self, waiting: list[Claim]) -> list[knapsack.Grant]:
        if not waiting:
            return []
        if isinstance(self._rounds, DPack):
            return knapsack.dpack(waiting, self._rounds.grants_between_updates)
        best = knapsack.optimum(waiting, self._rounds.time_limit)
        if any(claim.needs < len(claim.blocks) for claim in waiting):
            return best or []
        greedy = knapsack.dpack(waiting)
        if best is None or knapsack.weight(greedy) >= knapsack.weight(best):
            return greedy
        return best
