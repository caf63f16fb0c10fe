"""What a workload comes to under many policies: how many claims are granted, and how late."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dp_udfs import checks
from dp_udfs.errors import InvalidParameterError
from dp_udfs.policies import (
    DPack,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
    Policy,
    RoundRobinByArrivals,
    RoundRobinByTime,
)
from dp_udfs.scheduling import simulate
from dp_udfs.workloads import Workload

ROUNDS = 20  # in which `dpack` opens a block

# A family makes a policy of n claims that share a block, and the mean gap between two claims.
FAMILIES: dict[str, Callable[[int, float], Policy]] = {
    "first_come_first_served": lambda n, gap: FirstComeFirstServed(),  # noqa: ARG005
    "dpf_by_arrivals": lambda n, gap: DpfByArrivals(n),  # noqa: ARG005
    "dpf_by_time": lambda n, gap: DpfByTime(n * gap, gap / 2),
    "round_robin_by_arrivals": lambda n, gap: RoundRobinByArrivals(n),  # noqa: ARG005
    "round_robin_by_time": lambda n, gap: RoundRobinByTime(n * gap, gap / 2),
    "dpack": lambda n, gap: DPack(n * gap, n * gap / ROUNDS, grants_between_updates=50),
}


@dataclass(frozen=True)
class Outcome:
    """What became of all claims of a workload under one policy.

    Parameters
    ----------
    family : str
        A name in `FAMILIES`.
    n : int or None
        Number of claims that share a block; None under first come, first served.
    states : mapping of str to int
        How many claims ended in each state.
    delays : ndarray of shape (n_granted,), float64
        How long each claim waited that was granted, ascending, in the workload's unit of time.
    """

    family: str
    n: int | None
    states: Counter[str]
    delays: NDArray[np.float64]

    @property
    def granted(self) -> int:
        """How many claims were granted."""
        return len(self.delays)

    @property
    def mean_delay(self) -> float | None:
        """Mean time from submission to grant; None if nothing was granted."""
        return float(self.delays.mean()) if self.granted else None

    def delay_of(self, share: float) -> float | None:
        """Return the time within which this share of the granted claims had their budget."""
        if not self.granted:
            return None
        return float(self.delays[max(0, math.ceil(share * self.granted) - 1)])


def families(workload: Workload) -> list[str]:
    """Return the families that can serve a workload: round robin knows basic accounting only."""
    plain = all(claim.weight == 1 and claim.any_of is None for claim in workload.claims)
    basic = all(np.ravel(np.asarray(block.capacity)).size == 1 for block in workload.blocks)
    return [name for name in FAMILIES if (plain and basic) or not name.startswith("round_robin")]


def run(workload: Workload, family: str, n: int) -> Outcome:
    """Simulate one policy.

    Parameters
    ----------
    workload : Workload
        Blocks and claims.
    family : str
        A name in `FAMILIES`.
    n : int
        How many claims share a block. Policies that open blocks by time open them over as long as
        so many claims take to come.

    Raises
    ------
    InvalidParameterError
        If the family is unknown or cannot serve the workload, or `n` is not positive.
    """
    checks.positive_integers(n=n)
    if family not in FAMILIES:
        raise InvalidParameterError(f"policy = {family!r} is none of {', '.join(FAMILIES)}")
    decisions = simulate(workload.blocks, workload.claims, FAMILIES[family](n, workload.mean_gap))
    delays = [
        float(decision.at - claim.submitted_at)
        for claim, decision in zip(workload.claims, decisions, strict=True)
        if decision.state == "ALLOCATED" and decision.at is not None
    ]
    states = Counter(str(decision.state) for decision in decisions)
    return Outcome(
        family, None if family == "first_come_first_served" else n, states, np.sort(delays)
    )


def sweep(workload: Workload, names: Sequence[str], ns: Sequence[int]) -> list[Outcome]:
    """Simulate each family with each n; first come, first served once."""
    return [
        run(workload, family, n)
        for family in names
        for n in (ns[:1] if family == "first_come_first_served" else ns)
    ]
