"""How claims wait in lines, and how often they are looked at."""

import pytest

from dp_udfs import queues, workloads
from dp_udfs.claims import Claim
from dp_udfs.policies import DpfByArrivals
from dp_udfs.scheduler import Scheduler
from dp_udfs.scheduling import simulate


def test_a_line_whose_first_claim_leaves_takes_the_place_of_the_next() -> None:
    """The large one waits behind the small one; when that stops waiting, the middle one is next."""
    scheduler = Scheduler(DpfByArrivals(1))
    for block_id in ("b", "c", "d"):
        scheduler.open_block(block_id, 20, 0)
    for holder, demand in (("b20", {"b": 20}), ("c1", {"c": 1}), ("c9", {"c": 9})):
        scheduler.submit(holder, demand, 1)
    scheduler.submit("c10", {"c": 10}, 1)
    scheduler.submit("small", {"b": 2, "c": 2}, 2)
    scheduler.submit("large", {"b": 8, "c": 8}, 2)
    scheduler.submit("middle", {"c": 6, "d": 6}, 2)
    scheduler.release("b20", 3)  # now the first two wait for c, in one line
    scheduler.release("c1", 4)
    scheduler.cancel("small", 5)
    scheduler.release("c9", 6)
    assert scheduler.claims["middle"].state == "ALLOCATED"
    assert scheduler.claims["large"].state == "WAITING"


def test_claims_that_wait_are_looked_at_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims on ten blocks wait for room on all at once, while mice take it block by block.

    Looked at one by one whenever a block opens, they are looked at 20 times each.
    """
    looks = 0
    refusal = queues._refusal

    def counted(claim: Claim, place: int) -> tuple[int, float]:
        nonlocal looks
        looks += 1
        return refusal(claim, place)

    monkeypatch.setattr(queues, "_refusal", counted)
    workload = workloads.renyi_multi_block(1, duration=30.0)
    decisions = simulate(workload.blocks, workload.claims, DpfByArrivals(25_399))
    assert len(decisions) < looks < 4 * len(decisions)
