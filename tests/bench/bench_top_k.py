"""CPU time of the mechanisms: `python tests/bench/bench_top_k.py`.

To reach: a keyed unknown_gumbel call with 1,000 candidates in at most 5 ms.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dp_udfs import top_k
from dp_udfs.pandas_udfs import Mechanism, answer_cohorts
from dp_udfs.rng import keyed

SECRET = bytes(range(32))
ELEMENTS = [f"film {place:07}" for place in np.random.default_rng(1).permutation(1001).tolist()]
COUNTS = (50_000 / np.arange(1, 1002)).astype(np.int64)
STANDARD: dict[str, Any] = {"linf": 1, "epsilon": "0.15", "delta": "1e-10"}


def main() -> None:
    for name, call, calls in (
        ("unknown_gumbel, k 50, 1,000 candidates", unknown_gumbel, 100),
        ("the same without the optimal threshold", unknown_gumbel_fixed, 100),
        ("unknown_laplace, 1,000 candidates", unknown_laplace, 100),
        ("known_laplace, 1,000 elements", known_laplace, 100),
        ("fixed_gaussian, 1,000 elements", fixed_gaussian, 100),
        ("bridge: 200 cohorts of 1,001, a call each", bridge, 1),
        ("bridge: 20,000 cohorts of 10, a call each", bridge_of_many, 1),
    ):
        print(f"{name:45} {milliseconds(call, calls):9.2f} ms a call")  # noqa: T201  # the report


def milliseconds(call: Callable[[int], object], calls: int) -> float:
    """CPU milliseconds of one call, the best of 5 rounds after a first one."""
    call(0)
    best = float("inf")
    for round_ in range(5):
        start = time.process_time()
        for place in range(calls):
            call(round_ * calls + place)
        best = min(best, time.process_time() - start)
    return best / calls * 1000


def unknown_gumbel(seed: int, *, optimise: bool = True) -> object:
    return top_k.unknown_gumbel(
        ELEMENTS,
        COUNTS,
        k=50,
        max_candidates=1000,
        optimise_threshold=optimise,
        rng=keyed(SECRET, seed),
        **STANDARD,
    )


def unknown_gumbel_fixed(seed: int) -> object:
    return unknown_gumbel(seed, optimise=False)


def unknown_laplace(seed: int) -> object:
    return top_k.unknown_laplace(
        ELEMENTS, COUNTS, l0=1, max_candidates=1000, rng=keyed(SECRET, seed), **STANDARD
    )


def known_laplace(seed: int) -> object:
    return top_k.known_laplace(
        ELEMENTS, COUNTS, l0=1, linf=1, epsilon="0.15", rng=keyed(SECRET, seed)
    )


def fixed_gaussian(seed: int) -> object:
    return top_k.fixed_gaussian(ELEMENTS, COUNTS, l0=1, rng=keyed(SECRET, seed), **STANDARD)


def bridge(_: int) -> object:
    return answer_all(cohorts=200, size=1001)


def bridge_of_many(_: int) -> object:
    return answer_all(cohorts=20_000, size=10)


def answer_all(cohorts: int, size: int) -> int:
    """Answer that many cohorts from Arrow batches; return the number of rows."""
    mechanism = Mechanism(
        "unknown_gumbel", k=20, max_candidates=1000, epsilon="0.15", delta="1e-10"
    )
    answered = answer_cohorts(mechanism, SECRET)(batches(cohorts, size))
    return sum(len(batch) for batch in answered)


def batches(cohorts: int, size: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, cohorts, max(1, 10_000 // size)):
        names = range(first, min(first + max(1, 10_000 // size), cohorts))
        yield pa.RecordBatch.from_pydict(
            {
                "cohort": [f"cohort {name}" for name in names for _ in range(size)],
                "element": ELEMENTS[:size] * len(names),
                "n": np.tile(COUNTS[:size], len(names)),
            }
        )


if __name__ == "__main__":
    main()
