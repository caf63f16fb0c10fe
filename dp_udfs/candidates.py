"""Candidates of one cohort, checked and in the one total order that the proofs rely on.

Count descending, then element ascending by a fixed byte order. What arrives in another order, or
with numpy's types, is the same candidates.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dp_udfs.errors import InvalidParameterError
from dp_udfs.rng import Element

IntArray = NDArray[np.int64]
Elements = Sequence[Element] | NDArray[Any]
Counts = Sequence[int] | NDArray[np.integer[Any]]

LARGEST_COUNT = 2**53  # counts, bounds and noise then fit 64 bits with room to spare


def positive_top(
    elements: Elements, counts: Counts, max_candidates: int
) -> tuple[list[Element], IntArray]:
    """Sort candidates and drop zeros; refuse more of them than the mechanism may see."""
    if len(elements) > max_candidates + 1:
        raise InvalidParameterError(
            f"more than max_candidates + 1 = {max_candidates + 1} elements; cut to the true top"
        )
    return in_total_order(elements, counts, positive=True)


def in_total_order(
    elements: Elements, counts: Counts, *, positive: bool = False
) -> tuple[list[Element], IntArray]:
    """Check elements and counts and sort both; drop zeros where `positive`."""
    names = _plain_elements(elements)
    numbers = np.asarray(counts) if len(counts) else np.zeros(0, dtype=np.int64)
    if numbers.shape != (len(names),):
        raise InvalidParameterError("elements and counts must be flat and of equal length")
    if numbers.dtype.kind not in "iu":
        raise InvalidParameterError("counts must be whole numbers within 64 bits")
    if len(numbers) and (numbers.min() < 0 or numbers.max() > LARGEST_COUNT):
        raise InvalidParameterError(f"counts must lie between 0 and {LARGEST_COUNT}")
    true = numbers.astype(np.int64)
    order = total_order(names, true)
    if positive:
        order = order[: np.count_nonzero(true)]
    return [names[i] for i in order.tolist()], true[order]


def _plain_elements(elements: Elements) -> list[Element]:
    """Read elements as plain Python values: all text or all whole numbers, or None; none twice."""
    names: list[Any] = elements.tolist() if isinstance(elements, np.ndarray) else list(elements)
    kinds = set(map(type, names))
    if kinds - {str, int, type(None)}:
        names = [name.item() if isinstance(name, np.generic) else name for name in names]
        kinds = set(map(type, names))
    if not (kinds <= {str, type(None)} or kinds <= {int, type(None)}):
        raise InvalidParameterError(
            "elements must be all text or all whole numbers, or None for NULL"
        )
    if len(set(names)) != len(names):
        raise InvalidParameterError("elements must not hold the same element twice")
    return names


def total_order(names: Sequence[Element], values: IntArray) -> IntArray:
    """Sort by value descending, then element ascending: None first, text by its UTF-8 bytes.

    Returns the indices in that order.
    """
    plain = cast(Sequence[str], names)  # or whole numbers: one type, but for one None
    if _is_in_order(plain, values):  # as Spark hands them over
        return np.arange(len(names))
    nulls = [place for place, name in enumerate(names) if name is None]
    others = (place for place, name in enumerate(names) if name is not None)
    by_name = sorted(others, key=plain.__getitem__)  # code points sort as their UTF-8 bytes do
    order = np.array(nulls + by_name, dtype=np.int64)
    return order[np.argsort(-values[order], kind="stable")]


def _is_in_order(names: Sequence[str], values: IntArray) -> bool:
    """Say whether all is in the total order already; no if a None is among equal values."""
    if (values[:-1] < values[1:]).any():
        return False
    ties = np.flatnonzero(values[:-1] == values[1:]).tolist()
    try:
        return all(names[place] < names[place + 1] for place in ties)
    except TypeError:
        return False


def count_at(true: IntArray, place: int) -> int:
    """Return the count at a place of the total order, from 0; beyond its end that is 0."""
    return int(true[place]) if place < len(true) else 0
