"""The engine agrees with worked traces and with a plain scheduler, claim by claim and in time."""

import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest

from dp_udfs.scheduler import Scheduler
from dp_udfs.scheduling import (
    BlockSpec,
    ClaimSpec,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
    simulate,
)
from tests import plain_scheduler, scheduling_traces
from tests.plain_scheduler import Curve

# --- worked traces --------------------------------------------------------------------------------


def curve(text: str) -> Curve:
    return tuple(Fraction(amount) for amount in text.split(","))


def named(words: Sequence[str]) -> dict[str, Curve]:
    return {block: curve(amounts) for block, amounts in (word.split("=") for word in words)}


def act(scheduler: Scheduler, at: int, words: Sequence[str], timeouts: Mapping[str, int]) -> None:
    """Do what one line of a trace says."""
    match words:
        case ["submit", claim, *demand]:
            scheduler.submit(claim, named(demand), at, timeout=timeouts.get(claim))
        case ["consume", claim, *amounts]:
            scheduler.consume(claim, named(amounts))
        case ["release", claim]:
            scheduler.release(claim, at)
        case _:
            scheduler.advance(at)


@pytest.mark.parametrize(
    ("trace", "policy", "capacity", "timeouts", "ends"),
    [
        (
            scheduling_traces.BASIC,
            DpfByArrivals(4),
            "1",
            {"c9": 5},
            scheduling_traces.BASIC_ENDS,
        ),
        (
            scheduling_traces.RENYI,
            DpfByTime(40, 10),
            "1,4",
            {"r7": 16},
            scheduling_traces.RENYI_ENDS,
        ),
    ],
    ids=["basic", "renyi"],
)
def test_traces_step_by_step(
    trace: str,
    policy: DpfByArrivals | DpfByTime,
    capacity: str,
    timeouts: Mapping[str, int],
    ends: Mapping[str, str],
) -> None:
    scheduler = Scheduler(policy)
    for block_id in ("b1", "b2", "b3"):
        scheduler.open_block(block_id, curve(capacity), 0)
    for line in scheduling_traces.lines(trace):
        event, granted, waiting, *parts = (field.split() for field in line.split("|"))
        before = len(scheduler.decisions)
        act(scheduler, int(event[0]), event[1:], timeouts)
        new = scheduler.decisions[before:]
        assert [d.claim_id for d in new if d.state == "ALLOCATED"] == granted, line
        assert sorted(claim.claim_id for claim in scheduler.waiting()) == sorted(waiting), line
        scheduler.refresh()
        for block, (locked, unlocked, allocated, consumed) in zip(
            scheduler.blocks.values(), parts, strict=True
        ):
            budget = block.budget()
            assert budget.locked == curve(locked), (line, block.block_id)
            assert budget.unlocked == curve(unlocked), (line, block.block_id)
            assert budget.allocated == curve(allocated), (line, block.block_id)
            assert budget.consumed == curve(consumed), (line, block.block_id)
    assert {claim.claim_id: claim.state for claim in scheduler.claims.values()} == ends


@pytest.mark.parametrize(
    ("trace", "capacity", "granted"),
    [
        (scheduling_traces.BASIC, 1.0, scheduling_traces.BASIC_FIRST_COME),
        (scheduling_traces.RENYI, (1.0, 4.0), scheduling_traces.RENYI_FIRST_COME),
    ],
    ids=["basic", "renyi"],
)
def test_first_come_first_served_on_the_traces(
    trace: str, capacity: Any, granted: Sequence[str]
) -> None:
    claims = []
    for line in scheduling_traces.lines(trace):
        at, verb, *words = line.split("|")[0].split()
        if verb == "submit":
            demand = {
                block: tuple(map(float, amounts)) for block, amounts in named(words[1:]).items()
            }
            claims.append(ClaimSpec(words[0], float(at), demand))
    blocks = [BlockSpec(block_id, 0.0, capacity) for block_id in ("b1", "b2", "b3")]
    decisions = simulate(blocks, claims, FirstComeFirstServed())
    assert [d.claim_id for d in decisions if d.state == "ALLOCATED"] == granted


# --- agreement with the plain scheduler -----------------------------------------------------------

POLICIES: list[Callable[[random.Random], plain_scheduler.Policy]] = [
    lambda r: FirstComeFirstServed(),  # noqa: ARG005
    lambda r: DpfByArrivals(r.randint(1, 12)),
    lambda r: DpfByTime(
        Fraction(r.choice(["4", "6", "7.5"])), Fraction(r.choice(["1", "0.5", "4"]))
    ),
]


def random_workload(
    r: random.Random, claims: int, orders: int
) -> tuple[list[BlockSpec], list[ClaimSpec]]:
    """Small whole numbers, so that ties and exact fits are everywhere."""
    blocks = [
        BlockSpec(
            f"b{j}",
            r.choice([0, 0, j]),
            (*(r.choice([-3, 6, 12, 24]) for _ in range(orders - 1)), 12),
        )
        for j in range(r.randint(1, 6))
    ]
    specs = []
    for i in range(claims):
        at = Fraction(r.randint(0, 4 * claims // 3), 4)
        known = [block for block in blocks if block.created_at <= at or r.random() < 0.05]
        names = (
            r.sample([block.block_id for block in known], r.randint(1, len(known)))
            if known
            else ["b0"]
        )
        whole = {name: tuple(r.randint(1, 16) for _ in range(orders)) for name in names}
        same = tuple(r.randint(1, 8) for _ in range(orders))
        specs.append(
            ClaimSpec(
                f"c{i}",
                at,
                whole if r.random() < 0.5 else dict.fromkeys(names, same),
                timeout=r.choice([None, Fraction(r.randint(0, 12), 2)]),
                weight=Fraction(r.choice(["1", "1", "2", "1/3"])),
            )
        )
    return blocks, specs


def crowded_workload(
    r: random.Random, claims: int, orders: int
) -> tuple[list[BlockSpec], list[ClaimSpec]]:
    """Many small claims on few sets of blocks, so that they are refused often and wait in lines."""
    blocks = [
        BlockSpec(f"b{j}", 0, (*(r.choice([-3, 60, 120]) for _ in range(orders - 1)), 120))
        for j in range(r.randint(2, 4))
    ]
    names = [block.block_id for block in blocks]
    sets = [r.sample(names, r.randint(1, len(names))) for _ in range(r.randint(1, 3))]
    shapes = [tuple(r.randint(1, 6) for _ in range(orders)) for _ in range(r.randint(1, 3))]
    specs = []
    at = Fraction(0)
    for i in range(claims):
        at += Fraction(r.choice([0, 1, 1, 2]), 4)
        shape = r.choice(shapes)
        sizes = [r.randint(1, 9)] * len(names) if r.random() < 0.8 else r.choices(range(1, 9), k=4)
        demand = {
            name: tuple(size * amount for amount in shape)
            for name, size in zip(r.choice(sets), sizes, strict=False)
        }
        timeout = r.choice([None, None, Fraction(r.randint(0, 60), 2)])
        weight = Fraction(r.choice([1, 1, 1, 2]))
        specs.append(ClaimSpec(f"c{i}", at, demand, timeout=timeout, weight=weight))
    return blocks, specs


@pytest.mark.parametrize("seed", range(40))
def test_grants_and_times_equal_the_plain_scheduler_where_lines_are_long(seed: int) -> None:
    r = random.Random(seed)
    blocks, claims = crowded_workload(r, claims=r.randint(10, 60), orders=r.choice([1, 1, 2, 3]))
    by_time = DpfByTime(Fraction(r.randint(4, 30)), Fraction(r.choice(["1", "0.5", "0.25"])))
    policy = by_time if seed % 2 else DpfByArrivals(r.randint(5, 60))
    expected = plain_scheduler.decide(blocks, claims, policy)
    assert simulate(blocks, claims, policy) == expected


@pytest.mark.parametrize("seed", range(150))
def test_grants_and_times_equal_the_plain_scheduler(seed: int) -> None:
    r = random.Random(seed)
    blocks, claims = random_workload(r, claims=r.randint(5, 60), orders=r.choice([1, 1, 2, 4]))
    policy = POLICIES[seed % 3](r)
    expected = plain_scheduler.decide(blocks, claims, policy)
    assert simulate(blocks, claims, policy) == expected
