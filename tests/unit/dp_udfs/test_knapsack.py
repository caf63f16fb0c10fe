"""Packing against all subsets: the optimum is the best one, the greedy answer a good one."""

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from dp_udfs import knapsack
from dp_udfs.blocks import Block
from dp_udfs.claims import Claim

CASES = [(seed, orders) for seed in range(4) for orders in (1, 3)]


def random_round(seed: int, orders: int) -> list[Claim]:
    r = random.Random(seed)
    blocks = [Block(f"b{j}", (24,) * orders, 0, 1) for j in range(3)]
    for block in blocks:
        block.opened = 1
        block.take(tuple(r.randint(0, 8) for _ in range(orders)))
    claims = []
    for number in range(9):
        named = tuple(r.sample(blocks, r.randint(1, 3)))
        demand = tuple(tuple(r.randint(1, 14) for _ in range(orders)) for _ in named)
        claim = Claim(f"c{number}", number, 0, named, demand)
        claim.weight = Fraction(r.choice([1, 1, 2, 5]))
        claims.append(claim)
    return claims


def fit_together(claims: Sequence[Claim]) -> bool:
    blocks = {block.block_id: block for claim in claims for block in claim.blocks}
    return all(
        any(
            block.taken[a]
            + sum(c.demand[c.blocks.index(block)][a] for c in claims if block in c.blocks)
            <= block.total[a]
            for a in block.usable
        )
        for block in blocks.values()
    )


def best_weight(claims: Sequence[Claim]) -> float:
    subsets = itertools.chain.from_iterable(
        itertools.combinations(claims, size) for size in range(len(claims) + 1)
    )
    return max(float(sum(c.weight for c in subset)) for subset in subsets if fit_together(subset))


@pytest.mark.parametrize(("seed", "orders"), CASES)
def test_the_optimum_is_the_best_of_all_subsets(seed: int, orders: int) -> None:
    claims = random_round(seed, orders)
    grants = knapsack.optimum(claims, time_limit=10.0)
    assert grants is not None
    assert fit_together([grant.claim for grant in grants])
    assert knapsack.weight(grants) == best_weight(claims)


@pytest.mark.parametrize(("seed", "orders"), CASES)
def test_greedy_packing_fits_and_leaves_nobody_who_fits(seed: int, orders: int) -> None:
    claims = random_round(seed, orders)
    before = [block.taken for claim in claims for block in claim.blocks]
    for between in (1, 4):
        granted = [grant.claim for grant in knapsack.dpack(claims, between)]
        assert fit_together(granted)
        for claim in set(claims) - set(granted):
            assert not fit_together([*granted, claim])
        assert sum(c.weight for c in granted) >= best_weight(claims) / 2
    assert [block.taken for claim in claims for block in claim.blocks] == before
    assert all(
        block.taken == b.taken for c in claims for block, b in zip(c.blocks, c.blocks, strict=True)
    )


def test_the_order_that_fits_most_decides() -> None:
    """At the first order one claim fills the block, at the second three fit together."""
    block = Block("b", (10, 10), 0, 1)
    block.opened = 1
    demands = [(9, 9), (11, 3), (11, 3), (11, 3)]
    claims = [Claim(f"c{i}", i, 0, (block,), (demand,)) for i, demand in enumerate(demands)]
    assert [grant.claim.claim_id for grant in knapsack.dpack(claims)] == ["c1", "c2", "c3"]
