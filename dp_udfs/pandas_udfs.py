"""The bridge to Spark: functions over Arrow batches that answer every cohort of a partition.

Spark hands candidates to `DataFrame.mapInArrow(answer_cohorts(mechanism, key), ANSWER_SCHEMA)`, one
Python stage for a whole release. Arrow values become Python integers and text directly, never
through pandas, so 64-bit integers stay exact beside NULL. Nothing here imports pyspark, and
workers pay for nothing they do not use.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any
from zipimport import zipimporter

import numpy as np
import pyarrow as pa

from dp_udfs import checks, prices, rng, top_k
from dp_udfs.candidates import Counts, Elements, IntArray
from dp_udfs.errors import InvalidParameterError
from dp_udfs.rng import Element, SecureRandom
from dp_udfs.top_k import TopK

Batches = Iterable[pa.RecordBatch]  # what Spark's stubs say; what comes is an iterator

# One row for each released element ("element"), and one that closes each cohort ("stop").
ANSWER_SCHEMA = (
    "row_kind string, cohort string, rank int, element string, noisy_count bigint, "
    "stopped boolean, units int, calls int"
)
ARROW_ANSWER_SCHEMA = pa.schema(
    [
        ("row_kind", pa.string()),
        ("cohort", pa.string()),
        ("rank", pa.int32()),
        ("element", pa.string()),
        ("noisy_count", pa.int64()),
        ("stopped", pa.bool_()),
        ("units", pa.int32()),
        ("calls", pa.int32()),
    ]
)

_FUNCTIONS: dict[str, tuple[Callable[..., TopK], tuple[str, ...]]] = {
    "known_laplace": (top_k.known_laplace, ("l0",)),
    "known_gumbel": (top_k.known_gumbel, ("k", "with_counts")),
    "unknown_laplace": (top_k.unknown_laplace, ("l0", "max_candidates", "delta")),
    "unknown_gumbel": (
        top_k.unknown_gumbel,
        ("k", "l0", "max_candidates", "delta", "optimise_threshold", "with_counts"),
    ),
    "fixed_gaussian": (top_k.fixed_gaussian, ("l0", "delta")),
}
_OPTIONAL = {("unknown_gumbel", "l0")}
_ROWS_PER_BATCH = 10_000


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of `dp_udfs.top_k` with all its parameters, by name so that it can be labelled.

    Attributes
    ----------
    name : str
        One of `prices.MECHANISMS`.
    k, l0, max_candidates : int or None
        None where the mechanism does not use it.
    tau : int
        `linf`: most that one privacy unit adds to one count.
    epsilon, delta : str
        Decimals; delta is not used on known domains.
    with_counts, optimise_threshold : bool
        Of the Gumbel mechanisms; ignored by the others.
    domain : tuple of str or int, or None
        The public domain of a known one: absent elements count zero, others are dropped.
    """

    name: str
    k: int | None = None
    l0: int | None = None
    tau: int = 1
    max_candidates: int | None = None
    epsilon: str = ""
    delta: str | None = None
    with_counts: bool = True
    optimise_threshold: bool = True
    domain: tuple[Element, ...] | None = None

    def __post_init__(self) -> None:
        if self.name not in _FUNCTIONS:
            raise InvalidParameterError(
                f"mechanism = {self.name!r} is not one of {', '.join(_FUNCTIONS)}"
            )
        used = _FUNCTIONS[self.name][1]
        for name in used:
            if getattr(self, name) is None and (self.name, name) not in _OPTIONAL:
                raise InvalidParameterError(f"{name} is missing; {self.name} needs it")
        for name in ("k", "l0", "max_candidates"):
            if getattr(self, name) is not None and name not in used:
                raise InvalidParameterError(f"{name} is not used by {self.name}; leave it out")
            if getattr(self, name) is not None:
                checks.positive_integers(**{name: getattr(self, name)})
        checks.positive_integers(tau=self.tau)
        checks.exact_epsilon(self.epsilon)
        if (self.domain is not None) is not self.name.startswith("known"):
            raise InvalidParameterError("domain goes with the known mechanisms, and only with them")

    @property
    def elementwise(self) -> bool:
        """Whether each element is decided by itself, from the whole histogram."""
        return self.name == "fixed_gaussian"

    @property
    def limit(self) -> int | None:
        """How many of the largest elements of a cohort the mechanism reads; None for all."""
        return None if self.max_candidates is None else self.max_candidates + 1

    def run(self, elements: Elements, counts: Counts, rng: SecureRandom) -> TopK:
        """Answer for one cohort, given its candidates (or its whole histogram) in any order.

        On a known domain, elements that are absent count zero and others are dropped.
        """
        if self.domain is not None:
            elements, counts = self._over_domain(elements, counts)
        function, parameters = _FUNCTIONS[self.name]
        chosen: dict[str, Any] = {name: getattr(self, name) for name in parameters}
        return function(elements, counts, linf=self.tau, epsilon=self.epsilon, rng=rng, **chosen)

    def _over_domain(self, elements: Elements, counts: Counts) -> tuple[Elements, Counts]:
        """Fill the whole domain: zeros for elements that are absent, no elements beside it."""
        assert self.domain is not None
        positions = _positions(self.domain)
        filled = np.zeros(len(self.domain), dtype=np.int64)
        for element, count in zip(elements, counts, strict=True):
            position = positions.get(element)
            if position is not None:
                filled[position] = count
        return self.domain, filled


def answer_cohorts(mechanism: Mechanism, key: bytes) -> Callable[[Batches], Batches]:
    """Return the function that answers every cohort it is handed, for `DataFrame.mapInArrow`.

    Parameters
    ----------
    mechanism : Mechanism
        Runs once for each cohort.
    key : bytes
        Key of this one question; each cohort gets its own from it.

    Returns
    -------
    callable
        From batches (cohort string, element string or bigint, n bigint), in which the rows of
        one cohort follow each other, to batches of `ANSWER_SCHEMA`. A cohort may span batches;
        rows without a cohort are dropped.

    Raises
    ------
    InvalidParameterError
        By the function returned, if the rows of a cohort do not follow each other.

    Notes
    -----
    Privacy: that of the mechanism for each cohort. What is returned may be published; what is
    handed in may not. Cohorts without rows do not reach the function: `complete` adds them.
    """

    def answer(batches: Batches) -> Batches:
        yield from _in_batches(
            (cohort, mechanism.run(elements, counts, _cohort_rng(key, cohort)))
            for cohort, elements, counts in _whole_cohorts(batches)
        )
        spare_next_task()

    return answer


def answer_elementwise(mechanism: Mechanism, key: bytes) -> Callable[[Batches], Batches]:
    """Return the function that decides each row of a whole histogram by itself.

    As `answer_cohorts`, but for rows in any order and on any partition, so that nothing needs to
    be grouped or collected first. It returns the element rows only, without ranks.

    Raises
    ------
    InvalidParameterError
        If the mechanism needs to see a cohort as a whole.
    """
    if not mechanism.elementwise:
        raise InvalidParameterError(f"{mechanism.name} does not decide elements one by one")

    def answer(batches: Batches) -> Batches:
        for batch in batches:
            rows = _Rows()
            for cohort, elements, counts in _whole_cohorts([batch.sort_by("cohort")]):
                released = mechanism.run(elements, counts, _cohort_rng(key, cohort))
                rows.add_elements(cohort, released, ranked=False)
            yield rows.batch()
        spare_next_task()

    return answer


def complete(
    answered: pa.Table, mechanism: Mechanism, key: bytes, cohorts: Sequence[str]
) -> pa.Table:
    """Make the answer whole: every cohort of the public list, the absent ones too.

    Parameters
    ----------
    answered : pyarrow.Table
        What `answer_cohorts` or `answer_elementwise` returned on all partitions. Cohorts that are
        not on the list are dropped.
    mechanism, key
        The same as there.
    cohorts : sequence of str
        The public list.

    Returns
    -------
    pyarrow.Table
        Columns of `ANSWER_SCHEMA`, with one closing row for each cohort.

    Notes
    -----
    Privacy: a cohort without rows runs the same mechanism, with noise and charge of its own, so
    that absence costs and shows nothing.
    """
    answered = answered.select(ARROW_ANSWER_SCHEMA.names).cast(ARROW_ANSWER_SCHEMA)
    listed = frozenset(cohorts)
    wanted = [cohort in listed for cohort in answered["cohort"].to_pylist()]
    answered = answered.filter(pa.array(wanted, pa.bool_()))
    if mechanism.elementwise:
        return _ranked_and_closed(answered, mechanism, cohorts)
    present = set(answered["cohort"].to_pylist())
    absent = (cohort for cohort in cohorts if cohort not in present)
    answers = ((cohort, mechanism.run([], [], _cohort_rng(key, cohort))) for cohort in absent)
    return pa.concat_tables([answered, _table(answers)])


def spare_next_task() -> None:
    """Spare the next task of this Python worker 0.12 CPU seconds that PySpark adds to each.

    Before a task it has all finders of modules read their directories again; for `pyspark.zip` that
    takes 0.1 s (python/cpython#103200). After a task it searches every object for cycles. Call it
    when the last batch is out; elsewhere than in a worker it does nothing.
    """
    if "pyspark.worker" not in sys.modules:
        return
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]  # made again by the next import from there
    _freeze_once()


@cache
def _freeze_once() -> None:
    """Take what is loaded out of every later search; again and again it would keep garbage."""
    gc.freeze()


def _ranked_and_closed(
    released: pa.Table, mechanism: Mechanism, cohorts: Sequence[str]
) -> pa.Table:
    """Sort and close what was released element by element; ties go by the element as shown."""
    units, calls = prices.maximum_cost(mechanism.name, l0=mechanism.l0)
    found: dict[str, list[tuple[int, bool, str | None]]] = {cohort: [] for cohort in cohorts}
    columns = (released[name].to_pylist() for name in ("cohort", "noisy_count", "element"))
    for cohort, count, element in zip(*columns, strict=True):
        found[cohort].append((-count, element is not None, element))
    answers = []
    for cohort, rows in found.items():
        rows.sort()  # no element is there twice, so two NULLs are never compared
        elements = tuple(element for _, _, element in rows)
        counts = tuple(-negative for negative, _, _ in rows)
        answers.append((cohort, TopK(elements, counts, True, units, calls)))
    return _table(answers)


def _table(answers: Iterable[tuple[str, TopK]]) -> pa.Table:
    return pa.Table.from_batches(_in_batches(answers), schema=ARROW_ANSWER_SCHEMA)


def _cohort_rng(key: bytes, cohort: str) -> SecureRandom:
    return rng.keyed(key, "cohort", cohort)


@lru_cache(maxsize=16)
def _positions(domain: tuple[Element, ...]) -> dict[Element, int]:
    """Place of each element in the domain."""
    return {element: position for position, element in enumerate(domain)}


def _whole_cohorts(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[str, list[Element], IntArray]]:
    """Each cohort once, with the elements and counts of all its rows."""
    done: set[str] = set()
    current: str | None = None
    elements: list[Element] = []
    counts: list[IntArray] = []
    for cohort, rows in (run for batch in batches for run in _runs(batch)):
        if cohort != current:
            if current is not None:
                yield current, elements, np.concatenate(counts)
            if cohort in done:
                raise InvalidParameterError("the rows of a cohort must follow each other")
            done.add(cohort)
            current, elements, counts = cohort, [], []
        elements.extend(rows.column("element").to_pylist())
        counts.append(rows.column("n").to_numpy())
    if current is not None:
        yield current, elements, np.concatenate(counts)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Stretches of rows of one cohort, without copying; rows without a cohort are left out."""
    encoded = batch.column("cohort").dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(-1).to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-2)).tolist()
    for start, end in pairwise([*starts, len(codes)]):
        if codes[start] >= 0:
            yield names[codes[start]], batch.slice(start, end - start)


def _in_batches(answers: Iterable[tuple[str, TopK]]) -> Batches:
    """Rows of many answers, in batches of a good size."""
    rows = _Rows()
    for cohort, answer in answers:
        rows.add_elements(cohort, answer)
        rows.add("stop", cohort, stopped=answer.stopped, units=answer.units, calls=answer.calls)
        if len(rows.values) >= _ROWS_PER_BATCH:
            yield rows.batch()
            rows = _Rows()
    if rows.values:
        yield rows.batch()


class _Rows:
    """Rows of `ANSWER_SCHEMA` on their way into one batch."""

    def __init__(self) -> None:
        self.values: list[tuple[object, ...]] = []

    def add(
        self,
        row_kind: str,
        cohort: str,
        rank: int | None = None,
        element: str | None = None,
        noisy_count: int | None = None,
        stopped: bool | None = None,
        units: int | None = None,
        calls: int | None = None,
    ) -> None:
        self.values.append((row_kind, cohort, rank, element, noisy_count, stopped, units, calls))

    def add_elements(self, cohort: str, answer: TopK, *, ranked: bool = True) -> None:
        """One row for each element; a NULL element stays NULL, a number becomes its text."""
        for place, element in enumerate(answer.elements):
            text = None if element is None else str(element)
            count = None if answer.counts is None else answer.counts[place]
            self.add("element", cohort, place + 1 if ranked else None, text, count)

    def batch(self) -> pa.RecordBatch:
        columns = (
            zip(*self.values, strict=True) if self.values else ((),) * len(ARROW_ANSWER_SCHEMA)
        )
        arrays = [
            pa.array(column, type=field.type)
            for column, field in zip(columns, ARROW_ANSWER_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_ANSWER_SCHEMA)
