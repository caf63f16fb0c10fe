"""What is protected: an event, a user, or a user in one stretch of time; and which blocks follow.

The privacy unit says what two neighbouring tables differ by, and so how a table is cut into blocks
and which of them a claim may name. Under user privacy even the existence of a user is private, so
blocks of users may be named, listed or shown only up to a private lower bound on their number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dp_udfs.amounts import Number
from dp_udfs.errors import InvalidParameterError


class PrivacyUnit(StrEnum):
    """What one person's protection covers."""

    EVENT = "event"
    USER = "user"
    USER_TIME = "user_time"

    @property
    def neighbours(self) -> str:
        """Say what neighbouring tables differ by."""
        return {
            PrivacyUnit.EVENT: "one event",
            PrivacyUnit.USER: "all rows of one user",
            PrivacyUnit.USER_TIME: "one user's rows in one stretch of time",
        }[self]

    @property
    def needs_counter(self) -> bool:
        """Whether blocks are of users, so that a private counter must say which exist."""
        return self is not PrivacyUnit.EVENT


@dataclass(frozen=True)
class Slice:
    """The rows that one block stands for: a stretch of time, users in order of joining, or both.

    Parameters
    ----------
    start, end : number or None
        Time from `start` up to but not including `end`; None for all time.
    first_user, end_user : int or None
        Users from `first_user` up to but not including `end_user`; None for all users. Numbers of
        users who left are never used again.
    """

    start: Number | None = None
    end: Number | None = None
    first_user: int | None = None
    end_user: int | None = None

    def __post_init__(self) -> None:
        for first, end in ((self.start, self.end), (self.first_user, self.end_user)):
            if (first is None) != (end is None) or (first is not None and not first < end):  # type: ignore[operator]
                raise InvalidParameterError(f"{self} is empty, or open at one end")

    @property
    def unit(self) -> PrivacyUnit:
        """The privacy unit that such slices protect."""
        if self.first_user is None:
            return PrivacyUnit.EVENT
        return PrivacyUnit.USER if self.start is None else PrivacyUnit.USER_TIME

    def overlaps(self, start: Number, end: Number) -> bool:
        """Whether rows of the slice may lie in this stretch of time."""
        if self.start is None or self.end is None:
            return True
        return self.start < end and start < self.end


def nameable(slices: Mapping[str, Slice], now: Number, users: Callable[[Number], int]) -> list[str]:
    """Return the blocks that claims may name, and that anybody may see, at this moment.

    Parameters
    ----------
    slices : mapping of str to Slice
        All blocks, of one privacy unit.
    now : number
        A stretch of time must have closed by now.
    users : callable
        The counter's lower bound on the number of users as of a moment.

    Notes
    -----
    Privacy: for user blocks the answer depends on the data through the counter alone, which is
    paid for when the blocks are created.
    """
    if len({piece.unit for piece in slices.values()}) > 1:
        raise InvalidParameterError("blocks of one table protect one privacy unit")
    named = []
    for block_id, piece in slices.items():
        closed = piece.end is None or piece.end <= now
        seen_at = now if piece.end is None else piece.end
        if closed and (piece.end_user is None or piece.end_user <= users(seen_at)):
            named.append(block_id)
    return named


def select(
    slices: Mapping[str, Slice],
    now: Number,
    users: Callable[[Number], int],
    *,
    start: Number,
    end: Number,
) -> list[str]:
    """Return the blocks that a claim on this stretch of time reads, once and for all.

    Raises
    ------
    InvalidParameterError
        If there is none. Blocks that may not be named are as if they did not exist.
    """
    chosen = [name for name in nameable(slices, now, users) if slices[name].overlaps(start, end)]
    if not chosen:
        raise InvalidParameterError(f"no block from {start} to {end} may be named yet")
    return chosen
