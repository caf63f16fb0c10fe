"""A plain scheduler for tests: after each event, sort everything that waits and try it all.

Exact fractions, no parking, no shortcuts: what the product's engine must agree with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dp_udfs.scheduling import (
    BlockSpec,
    ClaimSpec,
    Decision,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
)

Curve = tuple[Fraction, ...]
Policy = FirstComeFirstServed | DpfByArrivals | DpfByTime


@dataclass
class PlainBlock:
    total: Curve
    created_at: Fraction
    fraction: Fraction = Fraction(0)
    arrivals: int = 0
    used: list[Fraction] = field(default_factory=list)

    def usable(self) -> list[int]:
        return [a for a, total in enumerate(self.total) if total > 0]

    def unlocked(self, a: int) -> Fraction:
        return self.fraction * self.total[a] - self.used[a]


@dataclass
class PlainClaim:
    spec: ClaimSpec
    position: int
    demand: dict[str, Curve]
    key: list[Fraction]
    state: str = "WAITING"
    at: Fraction | None = None


@dataclass
class Pass:
    """One pass: who waited before it, and who was granted, in order."""

    at: Fraction
    queue: list[str]
    granted: list[str]


class PlainScheduler:
    def __init__(
        self, blocks: Sequence[BlockSpec], claims: Sequence[ClaimSpec], policy: Policy
    ) -> None:
        self.policy = policy
        self.specs = blocks
        self.blocks: dict[str, PlainBlock] = {}
        self.claims = {
            spec.claim_id: PlainClaim(
                spec, place, {b: curve(d) for b, d in spec.demand.items()}, []
            )
            for place, spec in enumerate(claims)
        }
        self.passes: list[Pass] = []

    def run(self) -> list[Decision]:
        events: list[tuple[Fraction, int, int, object]] = []
        for place, block in enumerate(self.specs):
            events.append((exact(block.created_at), 0, place, block))
            if isinstance(self.policy, DpfByTime):
                lifetime, tick = exact(self.policy.lifetime), exact(self.policy.tick)
                ticks = range(1, int(-(-lifetime // tick)) + 1)
                events += [(exact(block.created_at) + i * tick, 1, 0, None) for i in ticks]
        for claim in self.claims.values():
            spec = claim.spec
            events.append((exact(spec.submitted_at), 2, claim.position, claim))
            if spec.timeout is not None:
                end = exact(spec.submitted_at) + exact(spec.timeout)
                events.append((end, 3, claim.position, claim))
        for at, kind, _, what in sorted(events, key=lambda event: event[:3]):
            if isinstance(what, BlockSpec):
                self.create(what)
            elif isinstance(what, PlainClaim):
                self.submit(what, at) if kind == 2 else self.expire(what, at)
            else:
                self.sweep(at)
        return [Decision(c.spec.claim_id, c.state, c.at) for c in self.claims.values()]

    def create(self, spec: BlockSpec) -> None:
        total = curve(spec.capacity)
        block = PlainBlock(total, exact(spec.created_at), used=[Fraction(0)] * len(total))
        block.fraction = Fraction(isinstance(self.policy, FirstComeFirstServed))
        self.blocks[spec.block_id] = block

    def submit(self, claim: PlainClaim, at: Fraction) -> None:
        claim.state = "QUEUED"
        named = [(self.blocks.get(block_id), demand) for block_id, demand in claim.demand.items()]
        if any(
            block is None or not any(demand[a] <= block.total[a] for a in block.usable())
            for block, demand in named
        ):
            claim.state, claim.at = "REJECTED", at
            return
        claim.key = sorted(
            (
                demand[a] / block.total[a] / exact(claim.spec.weight)
                for block, demand in named
                if block is not None
                for a in block.usable()
            ),
            reverse=True,
        )
        for block, _ in named:
            assert block is not None
            block.arrivals += 1
            if isinstance(self.policy, DpfByArrivals):
                block.fraction = min(Fraction(1), Fraction(block.arrivals, self.policy.n))
        self.sweep(at)
        if isinstance(self.policy, FirstComeFirstServed) and claim.state == "QUEUED":
            claim.state, claim.at = "REJECTED", at

    def expire(self, claim: PlainClaim, at: Fraction) -> None:
        if claim.state == "QUEUED":
            claim.state, claim.at = "TIMED_OUT", at

    def fits(self, claim: PlainClaim) -> bool:
        return all(
            any(demand[a] <= block.unlocked(a) for a in block.usable())
            for block, demand in ((self.blocks[b], d) for b, d in claim.demand.items())
        )

    def sweep(self, at: Fraction) -> None:
        if isinstance(self.policy, DpfByTime):
            lifetime, tick = exact(self.policy.lifetime), exact(self.policy.tick)
            for block in self.blocks.values():
                ticks = (at - block.created_at) // tick
                block.fraction = min(Fraction(1), ticks * tick / lifetime)
        width = max((len(claim.key) for claim in self.claims.values()), default=0)
        queue = [claim for claim in self.claims.values() if claim.state == "QUEUED"]
        queue.sort(
            key=lambda c: (
                c.key + [Fraction(0)] * (width - len(c.key)),
                exact(c.spec.submitted_at),
                c.position,
            )
        )
        record = Pass(at, [claim.spec.claim_id for claim in queue], [])
        for claim in queue:
            if self.fits(claim):
                for block_id, demand in claim.demand.items():
                    block = self.blocks[block_id]
                    block.used = [u + d for u, d in zip(block.used, demand, strict=True)]
                claim.state, claim.at = "ALLOCATED", at
                record.granted.append(claim.spec.claim_id)
        assert not any(self.fits(claim) for claim in queue if claim.state == "QUEUED")
        self.passes.append(record)


def decide(
    blocks: Sequence[BlockSpec], claims: Sequence[ClaimSpec], policy: Policy
) -> list[Decision]:
    """What `simulate` must answer."""
    decisions = PlainScheduler(blocks, claims, policy).run()
    return [
        Decision(d.claim_id, "WAITING" if d.state == "QUEUED" else d.state, d.at) for d in decisions
    ]


def exact(value: Any) -> Fraction:
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def curve(value: Any) -> Curve:
    return tuple(map(exact, value)) if isinstance(value, tuple) else (exact(value),)
