"""Made-up engagements of any size: popular elements, unequal audiences, people who come back.

A row is a function of the seed and its number alone, in integers from end to end, so the same table
comes out whatever the number of partitions and the machine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_udfs import checks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UInt64Array: TypeAlias = npt.NDArray[np.uint64]
IntArray: TypeAlias = npt.NDArray[np.int64]

AS_OF = date(2024, 1, 31)
SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        ("event_date", pa.date32()),
        ("article", pa.string()),
        ("employer", pa.string()),
        ("audience", pa.string()),
    ]
)
_SPARK_TYPES = "user_id bigint, event_date date, article string, employer string, audience string"

# Share of rows outside a user's own audience, and of users who change employer: 1 in so many.
_ELSEWHERE, _CHANGERS = 10, 20
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Shape:
    """How large and how varied the table is; equal shapes give equal tables."""

    rows: int
    users: int
    elements: int
    cohorts: int
    days: int
    seed: int

    def __post_init__(self) -> None:
        checks.positive_integers(
            rows=self.rows,
            users=self.users,
            elements=self.elements,
            cohorts=self.cohorts,
            days=self.days,
        )
        checks.non_negative_integers(seed=self.seed)


def engagements(spark: "SparkSession", shape: Shape, as_of: date = AS_OF) -> "DataFrame":
    """Return the table as a DataFrame with the columns of `SCHEMA`; nothing is computed yet."""
    return spark.range(shape.rows).mapInArrow(partial(_batches, shape, as_of), _SPARK_TYPES)


def rows(numbers: IntArray, shape: Shape, as_of: date = AS_OF) -> pa.Table:
    """Make the rows of the given numbers, 0 to `shape.rows` - 1."""
    return _maker(shape, as_of)(numbers)


def _batches(
    shape: Shape, as_of: date, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    make = _maker(shape, as_of)
    for batch in numbers:
        table = make(batch.column(0).to_numpy(zero_copy_only=False))
        yield from table.to_batches(_ROWS_AT_ONCE)


def _maker(shape: Shape, as_of: date) -> Callable[[IntArray], pa.Table]:
    """Prepare what all rows share, once per partition."""
    employers = max(1, shape.elements // 10)
    users = _popularity(shape.users, 0.5)
    articles = _popularity(shape.elements, 1.0)
    works = _popularity(employers, 0.8)
    audiences = _popularity(shape.cohorts, 0.7)
    article_names = _names("article", shape.elements)
    employer_names = _names("employer", employers)
    audience_names = _names("audience", shape.cohorts)
    first_day = np.datetime64(as_of - timedelta(days=shape.days), "D")

    def bits(purpose: int, key: IntArray) -> UInt64Array:
        return _hash(np.uint64(shape.seed), np.uint64(purpose), key.astype(np.uint64))

    def make(number: IntArray) -> pa.Table:
        user = _pick(users, bits(1, number))
        day = (bits(2, number) % np.uint64(shape.days)).astype(np.int64)
        own = _pick(audiences, bits(3, user))
        visited = _pick(audiences, bits(4, number))
        audience = np.where(bits(5, number) % np.uint64(_ELSEWHERE) == 0, visited, own)
        changes = bits(6, user) % np.uint64(_CHANGERS) == 0
        job = changes & (day >= shape.days // 2)
        employer = _pick(works, bits(7, user * 2 + job))
        return pa.table(
            {
                "user_id": user + 1,
                "event_date": first_day + day,
                "article": article_names.take(_pick(articles, bits(8, number))),
                "employer": employer_names.take(employer),
                "audience": audience_names.take(audience),
            },
            schema=SCHEMA,
        )

    return make


def _popularity(size: int, exponent: float) -> UInt64Array:
    """Cut 64 bits into `size` parts with the k-th in proportion to k ** -exponent (zipf)."""
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    shares = np.cumsum(weights)
    cuts: UInt64Array = (shares[:-1] / shares[-1] * 2.0**64).astype(np.uint64)
    return cuts


def _pick(cuts: UInt64Array, bits: UInt64Array) -> IntArray:
    """Return the part, counted from 0, in which each number lies."""
    return np.searchsorted(cuts, bits, side="right").astype(np.int64)


def _names(kind: str, size: int) -> pa.Array:
    """Return `kind-001` and so on, numbered from 1 and as wide as the last needs."""
    width = max(3, len(str(size)))
    return pa.array([f"{kind}-{number:0{width}d}" for number in range(1, size + 1)])


def _hash(seed: np.uint64, purpose: np.uint64, key: UInt64Array) -> UInt64Array:
    """Mix seed, purpose and key to 64 bits (splitmix64; for shuffling, not for secrets)."""
    with np.errstate(over="ignore"):
        start = _mix(np.atleast_1d(seed) * np.uint64(0x9E3779B97F4A7C15) + purpose)
        return _mix(_mix(key + start) ^ start)


def _mix(bits: UInt64Array) -> UInt64Array:
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))
