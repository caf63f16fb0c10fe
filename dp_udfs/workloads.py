"""Named workloads for simulations: the published ones, and one that measures speed.

Each function draws from its own seed and returns the blocks and the claims. Times are in seconds
unless said. The numbers are those of Luo et al. (2021), Tholoniat et al. (2022, DPack) and Küchler
et al. (2023, Cohere), where those are public.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dp_udfs import checks
from dp_udfs.amounts import Numbers
from dp_udfs.counters import laplace_renyi
from dp_udfs.errors import InvalidParameterError
from dp_udfs.scheduling import BlockSpec, ClaimSpec

DELTA_OF_A_CLAIM = 1e-9
MICE_IN_A_RENYI_BLOCK = 14_514  # basic composition: 100

PAPER_ALPHAS = (1.000001, 1.0001, 1.5, *(2.0**i for i in range(1, 12)), 20480.0)
DEFAULT_ALPHAS = (2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class Workload:
    """What `simulate` takes, but for the policy.

    Parameters
    ----------
    blocks : sequence of BlockSpec
        In the order of creation.
    claims : sequence of ClaimSpec
        In the order of submission.
    mean_gap : float
        Mean time between two claims: N claims take about N gaps.
    ns : tuple of int
        Numbers of claims to share a block among, from few to many, that show the whole curve.
    """

    blocks: Sequence[BlockSpec]
    claims: Sequence[ClaimSpec]
    mean_gap: float
    ns: tuple[int, ...]


def single_block(
    seed: int, *, mice: float = 0.75, duration: float = 236.0, timeout: float | None = 300.0
) -> Workload:
    """One block of epsilon 1 under basic composition; a claim a second."""
    ns = (1, 10, 50, 75, 100, 125, 175, 200, 225, 275, 325)
    return _micro(seed, mice, duration, 1.0, timeout, ns, renyi=False, grows=False)


def multi_block(
    seed: int, *, mice: float = 0.75, duration: float = 300.0, timeout: float | None = None
) -> Workload:
    """Twelve blocks at first and one every ten seconds; 12.8 claims a second."""
    ns = (1, 10, 50, 75, 100, 125, 175, 210, 275, 325, 375, 750, 1125, 1500, 3000, 6000, 10_000)
    return _micro(seed, mice, duration, 0.078125, timeout, ns, renyi=False, grows=True)


def renyi_single_block(
    seed: int, *, mice: float = 0.75, duration: float = 34_289.0, timeout: float | None = 300.0
) -> Workload:
    """One block of (1, 1e-6) under Rényi accounting; a claim a second."""
    ns = _parts_of_a_renyi_block(0.01, 0.1, 0.5, 0.75, 1, 1.25, 1.75, 2, 2.25, 2.75, 3.25)
    return _micro(seed, mice, duration, 1.0, timeout, ns, renyi=True, grows=False)


def renyi_multi_block(
    seed: int, *, mice: float = 0.75, duration: float = 300.0, timeout: float | None = None
) -> Workload:
    """As `multi_block`, under Rényi accounting; 234 claims a second."""
    ns = _parts_of_a_renyi_block(0.1, 0.5, 0.75, 1, 1.25, 1.75, 2.1)
    return _micro(seed, mice, duration, 0.004264781, timeout, ns, renyi=True, grows=True)


def macro(
    seed: int, *, days: int = 50, claims_a_day: int = 300, epsilon: float = 10.0, renyi: bool = True
) -> Workload:
    """One block a day; claims of very different size read one to 500 days back. Times in days."""
    random = np.random.default_rng(seed)
    capacity: Numbers = renyi_capacity(epsilon, 1e-7, DEFAULT_ALPHAS) if renyi else epsilon
    blocks = [BlockSpec(f"day {day}", float(day), capacity) for day in range(days)]
    claims = []
    for number, at in enumerate(_arrivals(random, 1 / claims_a_day, float(days))):
        sizes = (0.01, 0.05, 0.1) if random.random() < 0.75 else (0.5, 1.0, 5.0)
        size = float(random.choice(sizes))
        demand: Numbers = gaussian_curve(size, DEFAULT_ALPHAS) if renyi else size
        newest = min(int(at), days - 1)
        wanted = _log_uniform(random, 500)
        claims.append(_claim(number, at, _newest(blocks, newest, wanted), demand))
    ns = tuple(claims_a_day * share // 100 for share in (10, 25, 50, 100, 200, 400, 800, 1600))
    return Workload(blocks, claims, 1 / claims_a_day, ns)


def dpack_synthetic(seed: int, *, claims: int = 1200, block_count: int = 30) -> Workload:
    """Ten blocks at first and one per unit of time; Gaussian and Laplace claims of mixed size."""
    random = np.random.default_rng(seed)
    capacity = renyi_capacity(10.0, 1e-7, DEFAULT_ALPHAS)
    blocks = [
        BlockSpec(f"b{place}", float(max(0, place - 9)), capacity) for place in range(block_count)
    ]
    duration = float(block_count - 9)
    specs = []
    for number, at in enumerate(_arrivals(random, duration / claims, duration)):
        epsilon = float(np.exp(random.uniform(math.log(0.05), math.log(10.0))))
        curve = gaussian_curve if random.random() < 0.5 else laplace_curve
        newest = min(9 + int(at), block_count - 1)
        wanted = _log_uniform(random, 10)
        specs.append(
            _claim(number, at, _newest(blocks, newest, wanted), curve(epsilon, DEFAULT_ALPHAS))
        )
    ns = tuple(claims * share // 100 for share in (2, 5, 10, 20, 40, 60, 80, 100))
    return Workload(blocks, specs, duration / claims, ns)


def alibaba_dp(
    seed: int, *, claims: int = 3000, days: int = 30, starting_blocks: int = 100
) -> Workload:
    """Claims of very different size on 1 to 100 newest blocks, as in a data centre. Times in days.

    The smallest share that a claim has of a block is log-uniform from 0.001 to 1, as in DPack's
    Alibaba-DP; mechanisms and numbers of blocks are drawn here, for that trace is not public.
    """
    random = np.random.default_rng(seed)
    capacity = renyi_capacity(10.0, 1e-7, DEFAULT_ALPHAS)
    born = [0.0] * starting_blocks + [float(day) for day in range(1, days)]
    blocks = [BlockSpec(f"b{place}", at, capacity) for place, at in enumerate(born)]
    specs = []
    for number, at in enumerate(_arrivals(random, days / claims, float(days))):
        epsilon = float(np.exp(random.uniform(math.log(0.05), math.log(5.0))))
        curve = gaussian_curve if random.random() < 0.5 else laplace_curve
        loss = curve(epsilon, DEFAULT_ALPHAS)
        smallest = min(d / c for d, c in zip(loss, capacity, strict=True) if c > 0)
        factor = float(np.exp(random.uniform(math.log(0.001), 0))) / smallest
        names = _newest(blocks, starting_blocks - 1 + int(at), _log_uniform(random, 100))
        specs.append(_claim(number, at, names, tuple(factor * amount for amount in loss)))
    ns = tuple(claims * share // 100 for share in (2, 5, 10, 20, 40, 60, 80, 100))
    return Workload(blocks, specs, days / claims, ns)


def cohere(seed: int, *, rounds: int = 40, requests: int = 504, active: int = 12) -> Workload:
    """Weekly rounds; a group of users is active for twelve of them. Times in rounds.

    A request needs a quarter of the active groups, any of them, or all. Sizes are our own.
    """
    random = np.random.default_rng(seed)
    capacity = renyi_capacity(3.0, 1e-7, DEFAULT_ALPHAS)
    blocks = [
        BlockSpec(f"group {place}", float(max(0, place - active + 1)), capacity)
        for place in range(active + rounds - 1)
    ]
    claims = []
    for week in range(rounds):
        groups = [block.block_id for block in blocks[week : week + active]]
        for number in range(week * requests, (week + 1) * requests):
            curve = gaussian_curve(float(random.choice((0.05, 0.2, 0.75))), DEFAULT_ALPHAS)
            some = active // 4 if random.random() < 0.5 else None
            at = week + float(random.random())
            claims.append(ClaimSpec(f"c{number}", at, dict.fromkeys(groups, curve), any_of=some))
    claims.sort(key=lambda claim: claim.submitted_at)
    ns = tuple(requests * share // 100 for share in (10, 25, 50, 100, 200, 400, 800))
    return Workload(blocks, claims, 1 / requests, ns)


def newest_blocks(
    seed: int, *, claims: int = 100_000, block_count: int = 10_000, alphas: int = 1
) -> Workload:
    """Claims on the newest b blocks, b log-uniform from 1 to 50: the measure of speed.

    Three quarters ask a hundredth of a block, the others a tenth. A block is made each unit of
    time, and claims come evenly over the whole time.
    """
    random = np.random.default_rng(seed)
    capacity: Numbers = 1.0 if alphas == 1 else (1.0,) * alphas
    blocks = [BlockSpec(f"b{place}", float(place), capacity) for place in range(block_count)]
    curves = {
        share: share if alphas == 1 else tuple(share * (a + 1) / alphas for a in range(alphas))
        for share in (0.01, 0.1)
    }
    gap = block_count / claims
    times = np.cumsum(random.exponential(gap, claims))
    specs = []
    for number, at in enumerate(times.tolist()):
        newest = min(int(at), block_count - 1)
        demand = curves[0.01 if random.random() < 0.75 else 0.1]
        specs.append(_claim(number, at, _newest(blocks, newest, _log_uniform(random, 50)), demand))
    return Workload(blocks, specs, gap, (1, 50, 100, 200, 500, 1000))


NAMED: dict[str, Callable[..., Workload]] = {
    "single-block": single_block,
    "multi-block": multi_block,
    "renyi-single-block": renyi_single_block,
    "renyi-multi-block": renyi_multi_block,
    "macro": macro,
    "dpack-synthetic": dpack_synthetic,
    "alibaba-dp": alibaba_dp,
    "cohere": cohere,
    "newest-blocks": newest_blocks,
}


def named(name: str, seed: int, **changes: float | None) -> Workload:
    """Return a workload by its name.

    Parameters
    ----------
    name : str
        A name in `NAMED`.
    seed : int
        The same seed gives the same workload.
    changes : float
        What to change of it: parameters of its function, such as `mice` and `duration`.

    Raises
    ------
    InvalidParameterError
        If there is no such workload, or it has no such parameter.
    """
    if name not in NAMED:
        raise InvalidParameterError(f"workload = {name!r} is none of {', '.join(NAMED)}")
    checks.non_negative_integers(seed=seed)
    has = inspect.signature(NAMED[name]).parameters
    for change in changes:
        if change not in has:
            raise InvalidParameterError(f"workload {name} has no {change} to change")
    return NAMED[name](seed, **changes)


def renyi_capacity(epsilon: float, delta: float, alphas: Sequence[float]) -> tuple[float, ...]:
    """Give the capacity that makes (epsilon, delta) at each single order; it may be negative."""
    return tuple(epsilon - math.log(1 / delta) / (alpha - 1) for alpha in alphas)


def gaussian_curve(epsilon: float, alphas: Sequence[float]) -> tuple[float, ...]:
    """Give the loss of Gaussian noise made for (epsilon, 1e-9) by the classical formula."""
    variance = 2 * math.log(1.25 / DELTA_OF_A_CLAIM) / epsilon**2
    return tuple(alpha / (2 * variance) for alpha in alphas)


def laplace_curve(epsilon: float, alphas: Sequence[float]) -> tuple[float, ...]:
    """Give the loss of Laplace noise of scale 1 / epsilon."""
    return tuple(laplace_renyi(1 / epsilon, alpha) for alpha in alphas)


# --- helpers --------------------------------------------------------------------------------------


def _micro(
    seed: int,
    mice: float,
    duration: float,
    gap: float,
    timeout: float | None,
    ns: tuple[int, ...],
    *,
    renyi: bool,
    grows: bool,
) -> Workload:
    """Mice of 0.01 and elephants of 0.1, on the newest block or on the newest ten."""
    checks.positive(duration=duration)
    if not 0 <= mice <= 1:
        raise InvalidParameterError(f"mice = {mice} must be a share from 0 to 1")
    random = np.random.default_rng(seed)
    capacity: Numbers = renyi_capacity(1.0, 1e-6, PAPER_ALPHAS) if renyi else 1.0
    born = [0.0] * 12 + [10.0 * i for i in range(1, math.ceil(duration / 10))] if grows else [0.0]
    blocks = [BlockSpec(f"b{place}", at, capacity) for place, at in enumerate(born)]
    claims = []
    for number, at in enumerate(_arrivals(random, gap, duration)):
        size = 0.01 if random.random() < mice else 0.1
        size *= float(random.uniform(0.9999999, 1))
        demand: Numbers = gaussian_curve(size, PAPER_ALPHAS) if renyi else size
        newest = min(11 + int(at / 10), len(blocks) - 1) if grows else 0
        wanted = 10 if grows and random.random() < 0.25 else 1
        claims.append(_claim(number, at, _newest(blocks, newest, wanted), demand, timeout))
    return Workload(blocks, claims, gap, ns)


def _parts_of_a_renyi_block(*factors: float) -> tuple[int, ...]:
    return tuple(round(MICE_IN_A_RENYI_BLOCK * factor) for factor in factors)


def _arrivals(random: np.random.Generator, gap: float, duration: float) -> list[float]:
    """Draw the times of a Poisson process."""
    expected = duration / gap
    draws = int(expected + 10 * math.sqrt(expected) + 10)
    times = np.cumsum(random.exponential(gap, draws))
    return [float(at) for at in times[times < duration]]


def _log_uniform(random: np.random.Generator, largest: int) -> int:
    return min(largest, int(math.exp(random.uniform(0, math.log(largest + 1)))))


def _newest(blocks: Sequence[BlockSpec], newest: int, wanted: int) -> list[str]:
    return [block.block_id for block in blocks[max(0, newest - wanted + 1) : newest + 1]]


def _claim(
    number: int, at: float, names: list[str], demand: Numbers, timeout: float | None = None
) -> ClaimSpec:
    return ClaimSpec(f"c{number}", at, dict.fromkeys(names, demand), timeout)
