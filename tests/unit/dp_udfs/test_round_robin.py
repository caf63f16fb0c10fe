"""Round robin agrees with a plain sharing out of each block, in exact fractions."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from dp_udfs.errors import InvalidParameterError
from dp_udfs.scheduling import (
    BlockSpec,
    ClaimSpec,
    RoundRobinByArrivals,
    RoundRobinByTime,
    simulate,
)


@dataclass
class Pot:
    """One block of one: a residue, and what each waiting claim still misses."""

    residue: Fraction = Fraction(0)
    arrivals: int = 0
    stopped: bool = False
    missing: dict[str, Fraction] = field(default_factory=dict)

    def share_out(self) -> None:
        while self.missing and self.residue > 0:
            each = min(self.residue / len(self.missing), *self.missing.values())
            self.residue -= each * len(self.missing)
            left = {claim: want - each for claim, want in self.missing.items()}
            self.missing = {claim: want for claim, want in left.items() if want > 0}


def plain_by_arrivals(
    claims: Mapping[str, Mapping[str, Fraction]], n: int, blocks: Sequence[str]
) -> dict[str, str]:
    """Claims one after the other, none of which times out."""
    pots = {block: Pot() for block in blocks}
    states: dict[str, str] = {}
    for claim, demand in claims.items():
        if any(pots[block].stopped for block in demand):
            states[claim] = "REJECTED"
            continue
        states[claim] = "WAITING"
        for block, want in demand.items():
            pots[block].missing[claim] = want
        for block in demand:
            for waiter in arrive(pots[block], n):
                states[waiter] = "REJECTED"
                for pot in pots.values():
                    pot.missing.pop(waiter, None)
            for waiter, state in states.items():
                if state == "WAITING" and all(waiter not in pot.missing for pot in pots.values()):
                    states[waiter] = "ALLOCATED"
    return states


def arrive(pot: Pot, n: int) -> list[str]:
    """Count an arrival; return whom it makes the pot reject."""
    if pot.stopped:
        return []
    pot.arrivals += 1
    if pot.arrivals > n and pot.residue == 0:
        pot.stopped = True
        return list(pot.missing)
    pot.residue += Fraction(1, n) if pot.arrivals <= n else 0
    pot.share_out()
    return []


@pytest.mark.parametrize("seed", range(40))
def test_grants_equal_the_plain_sharing_out(seed: int) -> None:
    r = random.Random(seed)
    blocks = [f"b{j}" for j in range(r.randint(1, 3))]
    claims = {
        f"c{i}": {
            block: Fraction(r.choice([1, 2, 3, 8]), 20)
            for block in r.sample(blocks, r.randint(1, len(blocks)))
        }
        for i in range(r.randint(3, 30))
    }
    n = r.randint(1, 20)
    specs = [ClaimSpec(claim, i, demand) for i, (claim, demand) in enumerate(claims.items())]
    decisions = simulate([BlockSpec(b, 0, 1) for b in blocks], specs, RoundRobinByArrivals(n))
    assert {d.claim_id: str(d.state) for d in decisions} == plain_by_arrivals(claims, n, blocks)


def test_partial_amounts_are_lost_on_timeout() -> None:
    block = [BlockSpec("b", 0.0, 1.0)]
    claims = [
        ClaimSpec("large", 1.0, {"b": 0.9}, timeout=5.0),
        ClaimSpec("small", 10.0, {"b": 0.5}),
        ClaimSpec("last", 11.0, {"b": 0.5}),
    ]
    decisions = {d.claim_id: d for d in simulate(block, claims, RoundRobinByArrivals(2))}
    assert decisions["large"][1:] == ("TIMED_OUT", 6.0)  # it held half a block
    assert decisions["small"][1:] == ("ALLOCATED", 10.0)
    assert decisions["last"][1:] == ("REJECTED", 11.0)


def test_by_time_every_tick_is_shared_out() -> None:
    block = [BlockSpec("b", 0.0, 1.0)]
    claims = [ClaimSpec("a", 0.5, {"b": 0.3}), ClaimSpec("z", 0.6, {"b": 0.4})]
    decisions = {d.claim_id: d for d in simulate(block, claims, RoundRobinByTime(10.0, 1.0))}
    assert decisions["a"][1:] == ("ALLOCATED", 6.0)  # 0.05 each a tick
    assert decisions["z"][1:] == ("ALLOCATED", 7.0)


def test_by_time_a_block_with_nothing_left_rejects() -> None:
    block = [BlockSpec("b", 0.0, 1.0)]
    claims = [ClaimSpec("a", 0.5, {"b": 0.8}), ClaimSpec("z", 0.6, {"b": 0.8})]
    decisions = simulate(block, claims, RoundRobinByTime(4.0, 1.0))
    assert [d[1:] for d in decisions] == [("REJECTED", 5.0)] * 2
    late = ClaimSpec("late", 20.0, {"b": 0.1})
    assert simulate(block, [*claims, late], RoundRobinByTime(4.0, 1.0))[2].state == "REJECTED"
    alone = [ClaimSpec("a", 0.5, {"b": 0.5}), replace_at(late, 20.0)]
    assert [d[1:] for d in simulate(block, alone, RoundRobinByTime(4.0, 1.0))] == [
        ("ALLOCATED", 2.0),
        ("ALLOCATED", 21.0),
    ]


def replace_at(claim: ClaimSpec, at: float) -> ClaimSpec:
    return ClaimSpec(claim.claim_id, at, claim.demand)


def test_round_robin_is_for_basic_accounting() -> None:
    with pytest.raises(InvalidParameterError, match="basic accounting"):
        simulate([BlockSpec("b", 0, (1, 1))], [], RoundRobinByArrivals(1))
    with pytest.raises(InvalidParameterError, match="no weights"):
        simulate(
            [BlockSpec("b", 0, 1)], [ClaimSpec("c", 1, {"b": 1}, weight=2)], RoundRobinByArrivals(1)
        )
