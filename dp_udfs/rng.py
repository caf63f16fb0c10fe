"""Secure random bits: fresh from the operating system, or keyed by a label so that they repeat.

Keyed bits are a pseudo-random function of (secret, label, purpose, element, block) and of nothing
else: not of the order of the elements, the batch they arrive in, or what others drew before.
"""

import hashlib
import hmac
import numbers
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dp_udfs import checks
from dp_udfs.errors import InvalidParameterError

Label = str | int | bytes
Element = str | int | bytes | None  # None is the NULL element, different from any text
UInt64Array = NDArray[np.uint64]

WORDS_PER_BLOCK = 8
SHORTEST_SECRET = 32

_WORD = np.dtype("<u8")  # little-endian everywhere, so that keyed answers travel between machines
_BLOCK_BYTES = WORDS_PER_BLOCK * _WORD.itemsize


class SecureRandom(ABC):
    """A source of independent uniform bits, addressed by what they are for."""

    @abstractmethod
    def words(self, purpose: str, elements: Sequence[Element], block: int = 0) -> UInt64Array:
        """Draw 512 bits for each element.

        Parameters
        ----------
        purpose : str
            What the bits are for; other purposes get other bits.
        elements : sequence of str, int, bytes or None
            Keys of the rows; equal keys get equal bits from a keyed source.
        block : int
            Number of the piece of each element's unlimited stream; not negative.

        Returns
        -------
        ndarray of shape (len(elements), 8), uint64
            Independent uniform words; read only.

        Raises
        ------
        InvalidParameterError
            If an element is of another type (a bool or a float, say), or `block` is negative.
        """

    @abstractmethod
    def stream(self, purpose: str, size: int, block: int = 0) -> UInt64Array:
        """Draw `size` uniform words, shape (size,); a longer stream begins with the shorter one."""

    @abstractmethod
    def child(self, *label: Label) -> "SecureRandom":
        """Return a source of its own for this label, such as one cohort."""


def fresh() -> SecureRandom:
    """Return a source that reads the operating system's randomness; it never repeats."""
    return _Fresh()


def keyed(secret: bytes, *label: Label) -> SecureRandom:
    """Return a source that repeats: its bits depend on the secret and the label only.

    Parameters
    ----------
    secret : bytes
        At least 32 bytes from a good source, kept from everybody who sees answers.
    *label : str, int or bytes
        Everything that tells this question and its data from any other. Labels that differ in
        any part, or in how the same text is divided into parts, give independent bits.

    Returns
    -------
    SecureRandom
        It can be pickled (the pickle holds a key for this label, not the secret).

    Raises
    ------
    InvalidParameterError
        If the secret is too short or a part of the label has another type.

    Notes
    -----
    Privacy: computational. As far as BLAKE2b, HMAC-SHA-256 and SHAKE-256 cannot be told from
    random functions, noise made from these bits is as good as noise from fresh ones, provided
    that no label is used for two different questions or states of the data. Whoever holds the
    secret can take the noise off again.
    """
    if not isinstance(secret, bytes):
        raise InvalidParameterError(f"secret must be bytes, not {type(secret).__name__}")
    if len(secret) < SHORTEST_SECRET:
        raise InvalidParameterError(
            f"secret has {len(secret)} bytes and must have at least {SHORTEST_SECRET}; "
            "make one with: openssl rand -hex 32"
        )
    return _Keyed(hmac.digest(secret, encode_label(*label), "sha256"))


def encode_label(*label: Label) -> bytes:
    """Encode a label injectively: each part as its type, its length and its content."""
    return b"".join(_with_length(_encode(part)) for part in label)


@dataclass(frozen=True)
class _Fresh(SecureRandom):
    """The operating system's generator; purposes, elements and labels are ignored."""

    def words(self, purpose: str, elements: Sequence[Element], block: int = 0) -> UInt64Array:
        checks.non_negative_integers(block=block)
        _encode_all(elements)  # the same keys are refused as by a keyed source
        return self.stream(purpose, WORDS_PER_BLOCK * len(elements)).reshape(-1, WORDS_PER_BLOCK)

    def stream(
        self,
        purpose: str,  # noqa: ARG002 - no two calls share bits anyway
        size: int,
        block: int = 0,
    ) -> UInt64Array:
        checks.non_negative_integers(size=size, block=block)
        return _as_words(os.urandom(size * _WORD.itemsize))

    def child(self, *label: Label) -> "SecureRandom":
        encode_label(*label)
        return self


@dataclass(frozen=True)
class _Keyed(SecureRandom):
    """Bits from keyed BLAKE2b; what they are for is told apart by its personalisation."""

    seed: bytes = field(repr=False)

    def words(self, purpose: str, elements: Sequence[Element], block: int = 0) -> UInt64Array:
        checks.non_negative_integers(block=block)
        copy = self._hash(b"words", _BLOCK_BYTES, encode_label(purpose, block)).copy
        blocks = []
        for element in _encode_all(elements):
            one = copy()
            one.update(element)
            blocks.append(one.digest())
        return _as_words(b"".join(blocks)).reshape(-1, WORDS_PER_BLOCK)

    def stream(self, purpose: str, size: int, block: int = 0) -> UInt64Array:
        checks.non_negative_integers(size=size, block=block)
        key = self._hash(b"stream", 64, encode_label(purpose, block)).digest()
        return _as_words(hashlib.shake_256(key).digest(size * _WORD.itemsize))

    def child(self, *label: Label) -> "SecureRandom":
        return _Keyed(self._hash(b"child", 32, encode_label(*label)).digest())

    def _hash(self, use: bytes, size: int, message: bytes) -> "hashlib.blake2b":
        return hashlib.blake2b(message, digest_size=size, key=self.seed, person=use)


def _as_words(data: bytes) -> UInt64Array:
    return np.frombuffer(data, dtype=_WORD).astype(np.uint64, copy=False)


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part


def _encode_text(part: str) -> bytes:
    return b"s" + part.encode("utf-8", "surrogatepass")


def _encode_int(part: int) -> bytes:
    return b"i%d" % part


def _encode_bytes(part: bytes) -> bytes:
    return b"b" + part


_ENCODERS: dict[type, Callable[..., bytes]] = {
    str: _encode_text,
    int: _encode_int,
    bytes: _encode_bytes,
    type(None): lambda _: b"n",
}


def _encode(part: Label) -> bytes:
    """Encode one part of a label: a letter for its type, then its content."""
    if part is None:
        raise InvalidParameterError("a part of a label is None; name what is missing in words")
    return _encoder(type(part))(part)


def _encode_all(elements: Sequence[Element]) -> list[bytes]:
    """Encode elements: a letter for the type, then the content."""
    encoders = {kind: _encoder(kind) for kind in set(map(type, elements))}
    if len(encoders) == 1:
        (encode,) = encoders.values()
        return list(map(encode, elements))
    return [encoders[type(element)](element) for element in elements]


def _encoder(kind: type) -> Callable[..., bytes]:
    """Return the encoder of a type; numpy's scalars count as what they hold."""
    if kind in _ENCODERS:
        return _ENCODERS[kind]
    for plain in (str, bytes):
        if issubclass(kind, plain):
            return _ENCODERS[plain]
    if issubclass(kind, numbers.Integral) and not issubclass(kind, bool):
        return lambda part: _encode_int(int(part))
    raise InvalidParameterError(
        f"a key is of type {kind.__name__}; use text, whole numbers, bytes or (for elements) None"
    )
