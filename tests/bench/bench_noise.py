"""CPU seconds of the noise, against its aims: `python tests/bench/bench_noise.py`."""

import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from dp_udfs import noise, rng, tails

EPSILON = Fraction("0.15")
SCALE = 2 / EPSILON
SOURCE = rng.keyed(bytes(32), "bench")
ELEMENTS = [f"element {i}" for i in range(300_000)]
COUNTS = (10_000 / np.arange(1, 1_002)).astype(np.int64)  # zipf, 1,001 candidates


def select() -> None:
    """The keyed draws of one UnkGumb call: 1,000 candidates and the stop symbol, k = 50, counts."""
    terms = noise.LogTerms([Fraction(1, candidates) for candidates in range(50, 1_001)])
    noise.gumbel_order(-COUNTS[50:], EPSILON, terms, SOURCE, "optimal-threshold", 951, limit=1)
    noise.gumbel_order(COUNTS, EPSILON, None, SOURCE, "selection", ELEMENTS[:1_001], limit=50)
    noise.discrete_laplace(SCALE, SOURCE, "count", ELEMENTS[:50])


def threshold() -> None:
    tails.gaussian_threshold.cache_clear()
    tails.gaussian_threshold(SCALE**2, Fraction(1, 10**10))


JOBS: list[tuple[str, float | None, Callable[[], object]]] = [
    (
        "1,000,000 discrete Laplace draws, one stream",
        1.0,
        lambda: noise.discrete_laplace(SCALE, SOURCE, "count", 1_000_000),
    ),
    (
        "300,000 discrete Laplace draws, own keys",
        1.0,
        lambda: noise.discrete_laplace(SCALE, SOURCE, "count", ELEMENTS),
    ),
    (
        "1,000,000 discrete Gaussian draws, one stream",
        None,
        lambda: noise.discrete_gaussian(SCALE**2, SOURCE, "count", 1_000_000),
    ),
    (
        "300,000 discrete Gaussian draws, own keys",
        None,
        lambda: noise.discrete_gaussian(SCALE**2, SOURCE, "count", ELEMENTS),
    ),
    (
        "100,000 discrete Gaussian draws, deviation 1e6",
        None,
        lambda: noise.discrete_gaussian(Fraction(10**12), SOURCE, "count", 100_000),
    ),
    ("all draws of an UnkGumb call, 1,000 candidates", 0.005, select),
    ("a Gaussian threshold, not cached", None, threshold),
]


def cpu_seconds(job: Callable[[], object]) -> float:
    """Median of five, after one to warm up."""
    times = []
    for _ in range(6):
        start = time.process_time()
        job()
        times.append(time.process_time() - start)
    return sorted(times[1:])[2]


def main() -> None:
    for name, aim, job in JOBS:
        seconds = cpu_seconds(job)
        verdict = "" if aim is None else f"  aim {aim:g} s: {'met' if seconds <= aim else 'MISSED'}"
        print(f"{name:50s} {seconds:8.4f} s{verdict}")  # noqa: T201 - the report


if __name__ == "__main__":
    main()
