"""A release in plain Python, slow and obvious: what the fast one must equal, row by row.

It takes the question as it was asked, counts from the rows, and draws the same keyed noise.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dp_udfs import rng
from dp_udfs.budget import Loss
from dp_udfs.pandas_udfs import Mechanism
from dp_udfs.top_k import TopK
from jobs.lake.question_settings import Condition, QuestionSettings
from jobs.lake.questions import Question
from jobs.lake.settings import DatasetSettings

Row = Mapping[str, Any]
Engagement = tuple[Any, str, Any]  # user, cohort, element
Histogram = dict[str, Counter[Any]]  # by cohort


class PlainAnswer(NamedTuple):
    """Rows as (cohort, rank, element, noisy count, stopped), the true counts, and the price."""

    rows: list[tuple[Any, ...]]
    truth: Histogram
    loss: Loss


def plain_release(
    asked: QuestionSettings,
    question: Question,
    rows: Iterable[Row],
    opt_outs: Iterable[Any],
    secret: bytes,
) -> PlainAnswer:
    """Answer a question; of `question` only its dates, its mechanism and its key are used."""
    dataset, mechanism = question.dataset, question.mechanism
    cohorts = public_cohorts(asked, dataset)
    truth = plain_histogram(asked, question, rows, opt_outs)
    answers = {}
    for cohort in cohorts:
        keyed = rng.keyed(question.noise_key(secret), "cohort", cohort)
        elements, counts = largest(truth[cohort], mechanism.limit)
        answers[cohort] = mechanism.run(elements, counts, keyed)
    return PlainAnswer(
        [row for cohort in cohorts for row in _rows(cohort, answers[cohort], question.show)],
        truth,
        price(mechanism, list(answers.values()), _cohorts_per_user(asked, dataset)),
    )


def plain_histogram(
    asked: QuestionSettings, question: Question, rows: Iterable[Row], opt_outs: Iterable[Any]
) -> Histogram:
    """Count what each user adds: at most tau an element, in the kept cohorts and elements."""
    dataset = question.dataset
    engagements = list(_select(asked, question, rows, set(opt_outs)))
    salt = dataset.table.bounding_salt
    engagements = _capped(engagements, 1, _cohorts_per_user(asked, dataset), salt)
    engagements = _capped(engagements, 2, dataset.columns[asked.element].l0, salt)
    counts: Histogram = defaultdict(Counter)
    for (_, cohort, element), times in Counter(engagements).items():
        counts[cohort][element] += min(times, asked.tau or 1)
    return counts


def public_cohorts(asked: QuestionSettings, dataset: DatasetSettings) -> list[str]:
    """List the cohorts in order."""
    if not asked.cohorts:
        return ["all"]
    lists = [dataset.columns[name].domain for name in sorted(asked.cohorts)]
    return sorted(" | ".join(map(str, parts)) for parts in itertools.product(*lists))


def largest(counts: Mapping[Any, int], limit: int | None) -> tuple[list[Any], list[int]]:
    """Cut to the largest counts; equal ones by element, NULL first, then by UTF-8 bytes."""

    def place(item: tuple[Any, int]) -> tuple[Any, ...]:
        element, count = item
        name = element.encode() if isinstance(element, str) else element
        return -count, element is not None, name

    kept = sorted(counts.items(), key=place)[:limit]
    return [element for element, _ in kept], [count for _, count in kept]


def price(mechanism: Mechanism, answers: Sequence[TopK], cohorts_per_user: int | None) -> Loss:
    """Charge by the table of costs: a stop counts like an element, but shows no count."""
    units = [_units(mechanism, len(answer.elements), answer.stopped) for answer in answers]
    calls = 1
    if mechanism.name == "unknown_laplace":  # what a lone user can do to it, in doubled deltas
        assert mechanism.l0 is not None
        calls = math.ceil((1 + math.exp(mechanism.l0 * float(mechanism.epsilon) / 2)) / 4)
    times = len(answers) if cohorts_per_user is None else cohorts_per_user
    return Loss(min(sum(units), times * max(units)), times * calls)


def _units(mechanism: Mechanism, shown: int, stopped: bool) -> int:
    if not mechanism.name.endswith("gumbel"):
        assert mechanism.l0 is not None
        return mechanism.l0
    selections = shown + stopped
    counts = shown if mechanism.with_counts else 0
    return selections + counts + mechanism.optimise_threshold


def _rows(cohort: str, answer: TopK, show: int | None) -> Iterator[tuple[Any, ...]]:
    """Rows of one cohort, cut to the first `show`, and how it ended."""
    counts = answer.counts or [None] * len(answer.elements)
    pairs = list(zip(answer.elements, counts, strict=True))[:show]
    for rank, (element, count) in enumerate(pairs, start=1):
        yield cohort, rank, None if element is None else str(element), count, None
    yield cohort, None, None, None, answer.stopped and len(pairs) != show


def _select(
    asked: QuestionSettings, question: Question, rows: Iterable[Row], opt_outs: set[Any]
) -> Iterator[Engagement]:
    """Window, filters, consent, cohorts and elements: what may count at all."""
    dataset = question.dataset
    column = dataset.columns[asked.element]
    cohorts = set(public_cohorts(asked, dataset))
    for row in rows:
        user = row["user_id"]
        if user is None or user in opt_outs:
            continue
        if not question.start <= row["event_date"] < question.end or not _passes(
            asked, dataset, row
        ):
            continue
        parts = [row.get(name) for name in sorted(asked.cohorts)]
        cohort = " | ".join(map(str, parts)) if parts else "all"
        if None in parts or cohort not in cohorts:
            continue
        value = row.get(asked.element)
        for element in (value or [None]) if column.many else [value]:
            if element is None and not column.keep_nulls:
                continue
            if question.mechanism.domain is None or element in question.mechanism.domain:
                yield user, cohort, element


def _passes(asked: QuestionSettings, dataset: DatasetSettings, row: Row) -> bool:
    return all(_holds(condition, row, dataset) for condition in asked.filters.all) and all(
        any(_holds(condition, row, dataset) for condition in group) for group in asked.filters.any
    )


def _holds(condition: Condition, row: Row, dataset: DatasetSettings) -> bool:
    """NULL and what is not on a public list pass no condition."""
    value, domain = row.get(condition.column), dataset.columns[condition.column].domain
    if value is None or (domain != "unknown" and value not in domain):
        return False
    if condition.any_of is not None:
        return value in condition.any_of
    low = -math.inf if condition.at_least is None else condition.at_least
    high = math.inf if condition.at_most is None else condition.at_most
    return bool(low <= value <= high)


def _cohorts_per_user(asked: QuestionSettings, dataset: DatasetSettings) -> int | None:
    caps = [dataset.columns[name].max_per_user for name in asked.cohorts]
    if not caps or None in caps:
        return None
    return min(math.prod(cap for cap in caps if cap), len(public_cohorts(asked, dataset)))


def _capped(rows: list[Engagement], place: int, cap: int | None, salt: str) -> list[Engagement]:
    """Keep at most `cap` values of each user, by the order of a salted hash."""
    if cap is None:
        return rows
    name = ("user", "cohort", "element")[place]
    seen: dict[Any, set[Any]] = defaultdict(set)
    for row in rows:
        seen[row[0]].add(row[place])
    kept = {
        user: sorted(values, key=lambda value: spark_hash(user, spark_hash(salt, name, value)))[
            :cap
        ]
        for user, values in seen.items()
    }
    return [row for row in rows if row[place] in kept[row[0]]]


# --- Spark's xxhash64 -----------------------------------------------------------------------------

_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def spark_hash(*values: str | int | None) -> int:
    """Hash as Spark's `xxhash64` does: each value is seeded by the one before, NULL is passed."""
    seed = 42
    for value in values:
        if value is not None:
            data = (
                value.encode()
                if isinstance(value, str)
                else value.to_bytes(8, "little", signed=True)
            )
            seed = xxh64(data, seed)
    return seed - 2**64 if seed >= 2**63 else seed


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 of Yann Collet's specification."""
    length, rest = len(data), data
    if length >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while len(rest) >= 32:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], _word(rest[8 * lane : 8 * lane + 8]))
            rest = rest[32:]
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        digest = sum(_rotated(lane, turn) for lane, turn in turns) & _MASK
        for lane in lanes:
            digest = ((digest ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        digest = (seed + _P5) & _MASK
    digest = (digest + length) & _MASK
    while len(rest) >= 8:
        digest ^= _round(0, _word(rest[:8]))
        digest, rest = (_rotated(digest, 27) * _P1 + _P4) & _MASK, rest[8:]
    if len(rest) >= 4:
        digest ^= (_word(rest[:4]) * _P1) & _MASK
        digest, rest = (_rotated(digest, 23) * _P2 + _P3) & _MASK, rest[4:]
    for byte in rest:
        digest = (_rotated(digest ^ ((byte * _P5) & _MASK), 11) * _P1) & _MASK
    digest = ((digest ^ (digest >> 33)) * _P2) & _MASK
    digest = ((digest ^ (digest >> 29)) * _P3) & _MASK
    return digest ^ (digest >> 32)


def _round(lane: int, word: int) -> int:
    return (_rotated((lane + word * _P2) & _MASK, 31) * _P1) & _MASK


def _rotated(word: int, bits: int) -> int:
    word &= _MASK
    return ((word << bits) | (word >> (64 - bits))) & _MASK


def _word(data: bytes) -> int:
    return int.from_bytes(data, "little")
