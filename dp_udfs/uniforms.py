"""Uniform numbers with unlimited bits, of which as many are looked at as a comparison needs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dp_udfs import checks
from dp_udfs.intervals import Interval
from dp_udfs.rng import WORDS_PER_BLOCK, Element, SecureRandom, UInt64Array

Places = NDArray[np.intp]

WORD_BITS = 64


class Draws:
    """What is drawn: uniform numbers for each element, or for each place in a stream.

    Parameters
    ----------
    rng, purpose, elements
        As in `dp_udfs.noise.discrete_laplace`.
    numbers_each : int
        How many numbers of each draw are fetched at a time, 1 to 8.
    """

    def __init__(
        self,
        rng: SecureRandom,
        purpose: str,
        elements: Sequence[Element] | int,
        numbers_each: int = 1,
    ) -> None:
        if isinstance(elements, int):
            checks.non_negative_integers(elements=elements)
        self._rng, self._purpose, self._elements = rng, purpose, elements
        self._numbers_each = numbers_each
        self._fetched = -1
        self.size = elements if isinstance(elements, int) else len(elements)

    def uniforms(self, column: int = 0, places: Places | None = None) -> "Uniforms":
        """Return number `column` of each draw, or of those in `places`.

        Ask for the columns in ascending order, each for some of the places of the one before.
        """
        places = np.arange(self.size) if places is None else places
        block, within = divmod(column, self._numbers_each)
        if block != self._fetched:
            self._fetched, self._places, self._words = block, places, self._fetch(places, block)
        rows = np.searchsorted(self._places, places) if len(places) < len(self._places) else ...
        return Uniforms(self, column, places, self._words[rows, within])

    def more_bits(self, place: int, column: int, block: int) -> int:
        """Return 512 further bits of number `column` of one draw."""
        key: Element
        if isinstance(self._elements, int):
            kind, key = "place in a stream", place
        else:
            kind, key = "element", self._elements[place]
        words = self._rng.child("more bits", kind, column).words(self._purpose, [key], block)
        return int.from_bytes(words.astype(">u8").tobytes())

    def _fetch(self, places: Places, block: int) -> UInt64Array:
        """Return the first words of numbers, shape (len(places), numbers_each or more)."""
        whole = len(places) == self.size
        if isinstance(self._elements, int):
            words = self._rng.stream(self._purpose, self.size * self._numbers_each, block)
            words = words.reshape(-1, self._numbers_each)
            return words if whole else np.take(words, places, axis=0)
        wanted = self._elements if whole else [self._elements[i] for i in places.tolist()]
        return self._rng.words(self._purpose, wanted, block)


class Uniforms:
    """One uniform number in (0, 1) for each draw.

    Attributes
    ----------
    words : ndarray of shape (n_draws,), uint64
        The first 64 binary digits of each number.
    """

    def __init__(self, draws: Draws, column: int, places: Places, words: UInt64Array) -> None:
        self.words = words
        self._draws, self._column, self._places = draws, column, places
        self._seen: dict[int, tuple[int, int]] = {}  # row -> its bits so far, how many blocks

    def bits(self, row: int, count: int, skip: int = 0) -> int:
        """Return the first `count` binary digits of one number, after leaving out `skip`."""
        seen, blocks = self._seen.get(row, (int(self.words[row]), 0))
        while (known := WORD_BITS * (1 + WORDS_PER_BLOCK * blocks)) < skip + count:
            more = self._draws.more_bits(int(self._places[row]), self._column, blocks)
            seen = seen << WORD_BITS * WORDS_PER_BLOCK | more
            blocks += 1
        self._seen[row] = seen, blocks
        return seen >> (known - skip - count) & ((1 << count) - 1)

    def log(self, row: int, digits: int, skip: int = 0) -> Interval | None:
        """Enclose the logarithm of one number after `skip` bits; None while all bits are zero."""
        count = 3 * digits  # binary digits: more would not show in that many decimal ones
        first = self.bits(row, count, skip)
        if first == 0:
            return None
        low, high = Interval.of(first, digits).ln(), Interval.of(first + 1, digits).ln()
        unit = Interval.of(1 << count, digits).ln()
        return Interval(low.low, high.high, digits) - unit
