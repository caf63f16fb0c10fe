"""The shapes of the published curves, which hold on any seed, and the named workloads."""

from collections.abc import Callable, Sequence

import pytest

from dp_udfs import sweeps, workloads
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
from dp_udfs.sweeps import Outcome
from dp_udfs.workloads import Workload
from tests import plain_scheduler


def granted(workload: Workload, policy: Policy) -> int:
    decisions = simulate(workload.blocks, workload.claims, policy)
    return sum(decision.state == "ALLOCATED" for decision in decisions)


def by_arrivals(workload: Workload, ns: Sequence[int]) -> list[int]:
    return [granted(workload, DpfByArrivals(n)) for n in ns]


def outcomes(workload: Workload, family: str, ns: Sequence[int]) -> list[Outcome]:
    return [sweeps.run(workload, family, n) for n in ns]


def mean_delays(several: Sequence[Outcome]) -> list[float]:
    return [outcome.mean_delay or 0.0 for outcome in several]


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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_delays_grow_with_the_number_of_claims_that_share_a_block(seed: int) -> None:
    """Published means: 0.4 s with 100, 2.7 with 175, 7.4 with 325; round robin 10 to 45 times."""
    workload = workloads.single_block(seed)
    assert sweeps.run(workload, "first_come_first_served", 1).delay_of(1) == 0
    assert sweeps.run(workload, "dpf_by_arrivals", 1).delay_of(1) == 0
    few, more, many = mean_delays(outcomes(workload, "dpf_by_arrivals", (100, 175, 325)))
    assert 0.1 < few < 1.5 < more < 8 < many < 20
    (shared_out,) = mean_delays(outcomes(workload, "round_robin_by_arrivals", [100]))
    assert shared_out >= 10 * few


def test_delays_over_many_blocks_are_near_the_published_ones() -> None:
    """0.1 s with 100, 0.9 with 175, 17 with 375, 31 with 750; the peak is well above first come."""
    workload = workloads.multi_block(1)
    several = outcomes(workload, "dpf_by_arrivals", (100, 175, 375, 750))
    assert mean_delays(several) == pytest.approx([0.1, 0.9, 17, 31], rel=0.2)
    granted = [outcome.granted for outcome in several]
    assert granted[0] < granted[1] > granted[2] > granted[3]
    assert granted[1] >= 1.5 * sweeps.run(workload, "first_come_first_served", 1).granted
    assert sweeps.run(workload, "round_robin_by_arrivals", 750).granted == 0


def test_a_short_timeout_hurts_where_budget_waits_for_arrivals() -> None:
    """Published with 375: by arrivals 2,130 fall to 1,416; by time only 2,253 to 2,213."""
    patient, hasty = (workloads.multi_block(1, timeout=timeout) for timeout in (None, 20.0))
    by_arrivals = [
        sweeps.run(workload, "dpf_by_arrivals", 375).granted for workload in (patient, hasty)
    ]
    by_time = [sweeps.run(workload, "dpf_by_time", 375).granted for workload in (patient, hasty)]
    assert by_arrivals == pytest.approx([2130, 1416], rel=0.05)
    assert by_time == pytest.approx([2253, 2213], rel=0.05)


def test_a_renyi_block_has_a_plateau_and_falls() -> None:
    """The plateau is every mouse that fits."""
    workload = workloads.renyi_single_block(2)
    plateau, beyond = by_arrivals(workload, (25_399, 47_170))
    assert plateau == workloads.MICE_IN_A_RENYI_BLOCK
    assert beyond == pytest.approx(10_566, rel=0.05)  # in the authors' own code


def test_many_renyi_blocks_are_near_the_published_curve() -> None:
    """The first minute in the authors' own code: 3,528, 6,300 and 10,686 of 14,100."""
    workload = workloads.renyi_multi_block(2, duration=60.0)
    first = sweeps.run(workload, "first_come_first_served", 1)
    fair = outcomes(workload, "dpf_by_arrivals", (1_451, 14_514))
    granted = [outcome.granted for outcome in (first, *fair)]
    assert granted == pytest.approx([3528, 6300, 10_686], rel=0.07)


@pytest.mark.parametrize(
    ("workload", "policy"),
    [
        (workloads.single_block(4, duration=100.0), FirstComeFirstServed()),
        (workloads.single_block(4), DpfByArrivals(150)),
        (workloads.single_block(4, timeout=20.0), DpfByTime(100.0, 1.0)),
        (workloads.multi_block(4, duration=12.0), DpfByArrivals(75)),
        (workloads.multi_block(4, duration=8.0), DpfByTime(4.0, 0.25)),
        (workloads.renyi_multi_block(4, duration=0.3), DpfByArrivals(5_000)),
        (workloads.dpack_synthetic(4, claims=60, block_count=12), DpfByArrivals(20)),
    ],
)
def test_named_workloads_are_scheduled_as_by_the_plain_scheduler(
    workload: Workload, policy: plain_scheduler.Policy
) -> None:
    """Sets and times, not only numbers; the engine reads floats, the plain one their decimals."""
    expected = plain_scheduler.decide(workload.blocks, workload.claims, policy)
    decisions = simulate(workload.blocks, workload.claims, policy)
    assert [d.state for d in decisions] == [d.state for d in expected]
    assert {d.state for d in decisions} >= {"ALLOCATED"}
    assert [d.at or 0 for d in decisions] == pytest.approx([float(e.at or 0) for e in expected])


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
