"""The shapes of the published curves, which hold on any seed, and the named workloads."""

from collections.abc import Callable, Sequence

import pytest

from dp_udfs import workloads
from dp_udfs.errors import InvalidParameterError
from dp_udfs.policies import (
    DPack,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
    Policy,
    RoundRobinByArrivals,
)
from dp_udfs.scheduling import simulate
from dp_udfs.workloads import Workload


def granted(workload: Workload, policy: Policy) -> int:
    decisions = simulate(workload.blocks, workload.claims, policy)
    return sum(decision.state == "ALLOCATED" for decision in decisions)


def by_arrivals(workload: Workload, ns: Sequence[int]) -> list[int]:
    return [granted(workload, DpfByArrivals(n)) for n in ns]


@pytest.mark.parametrize("seed", [1, 2])
def test_one_block_rises_to_a_plateau_and_falls(seed: int) -> None:
    workload = workloads.single_block(seed)
    first = granted(workload, FirstComeFirstServed())
    curve = by_arrivals(workload, [1, 50, 100, 150, 175, 325])
    assert curve[0] == first
    assert first <= curve[1] <= curve[2] <= curve[3] == curve[4] == 100 > curve[5]
    assert curve[3] >= 1.5 * first


@pytest.mark.parametrize("seed", [1, 2])
def test_round_robin_falls_to_nothing(seed: int) -> None:
    workload = workloads.single_block(seed)
    curve = [granted(workload, RoundRobinByArrivals(n)) for n in (10, 100, 325, 3000)]
    assert curve[1] > curve[0]
    assert curve[1] > curve[2] > curve[3] == 0
    assert curve[1] < granted(workload, DpfByArrivals(100))


@pytest.mark.parametrize(("mice", "fit"), [(0.0, 10), (1.0, 100)])
def test_equal_claims_fill_a_block_under_every_policy(mice: float, fit: int) -> None:
    workload = workloads.single_block(3, mice=mice)
    for policy in (FirstComeFirstServed(), DpfByArrivals(100), DpfByTime(100.0, 0.5)):
        assert granted(workload, policy) == fit


def test_many_blocks_are_near_the_published_curve() -> None:
    """Within 7 % of runs of the authors' own code: 1,065 at first come; 1,987, 2,290, 1,397."""
    workload = workloads.multi_block(3345)
    assert granted(workload, FirstComeFirstServed()) == pytest.approx(1065, rel=0.07)
    published = [1987, 2290, 1397]
    assert by_arrivals(workload, [100, 175, 750]) == pytest.approx(published, rel=0.07)
    assert granted(workload, RoundRobinByArrivals(100)) == pytest.approx(1258, rel=0.07)


def test_a_renyi_block_fits_14514_mice() -> None:
    capacity = workloads.renyi_capacity(1.0, 1e-6, workloads.PAPER_ALPHAS)
    mouse = workloads.gaussian_curve(0.01, workloads.PAPER_ALPHAS)
    fit = max(int(total / loss) for total, loss in zip(capacity, mouse, strict=True))
    assert fit == workloads.MICE_IN_A_RENYI_BLOCK


def test_a_renyi_block_under_time_and_arrivals() -> None:
    """A fifteenth of the published length: first come is far behind both."""
    workload = workloads.renyi_single_block(5, duration=2_300.0)
    first = granted(workload, FirstComeFirstServed())
    assert first == pytest.approx(640, rel=0.1)
    assert granted(workload, DpfByArrivals(1_451)) >= 1.5 * first
    assert granted(workload, DpfByTime(1_451.0, 5.0)) >= 1.5 * first


def test_packing_serves_more_than_fairness_and_that_more_than_first_come() -> None:
    workload = workloads.dpack_synthetic(1, claims=600, block_count=20)
    first = granted(workload, FirstComeFirstServed())
    fair = granted(workload, DpfByTime(10.0, 1.0))
    packed = granted(workload, DPack(10.0, 1.0, grants_between_updates=10))
    assert first < fair <= packed


@pytest.mark.parametrize(
    "make",
    [
        workloads.single_block,
        lambda seed: workloads.multi_block(seed, duration=20.0),
        lambda seed: workloads.renyi_multi_block(seed, duration=2.0),
        lambda seed: workloads.macro(seed, days=4),
        lambda seed: workloads.dpack_synthetic(seed, claims=100),
        lambda seed: workloads.alibaba_dp(seed, claims=100),
        lambda seed: workloads.cohere(seed, rounds=2, requests=50),
        lambda seed: workloads.newest_blocks(seed, claims=500, block_count=60, alphas=3),
    ],
)
def test_every_workload_is_in_order_and_repeats(make: Callable[[int], Workload]) -> None:
    workload = make(7)
    assert workload.claims == make(7).claims
    assert workload.claims != make(8).claims
    times = [claim.submitted_at for claim in workload.claims]
    assert times == sorted(times)
    born = {block.block_id: block.created_at for block in workload.blocks}
    for claim in workload.claims:
        assert all(born[block_id] <= claim.submitted_at for block_id in claim.demand)


def test_unknown_workloads_and_changes_are_named() -> None:
    with pytest.raises(InvalidParameterError, match="'big' is none of single-block"):
        workloads.named("big", 1)
    with pytest.raises(InvalidParameterError, match="workload macro has no mice"):
        workloads.named("macro", 1, mice=0.5)
