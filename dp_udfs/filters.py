"""May this demand be taken? A decision from numbers alone: no ledger, no clock, no data."""

from dataclasses import dataclass, replace

from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import BudgetExhaustedError, CallLimitError


@dataclass(frozen=True)
class PrivacyFilter:
    """A capacity and what has been taken from it, open reserves included.

    Parameters
    ----------
    capacity : Loss
        What may be taken in all.
    used : Loss
        What has been taken. It may exceed a capacity that was lowered later; nothing is left then.

    Notes
    -----
    Privacy: since a demand is the most a run can lose, admitting only what is covered keeps the
    total within the capacity for every order of answers and every choice made after seeing them.
    """

    capacity: Loss
    used: Loss = NOTHING

    @property
    def left(self) -> Loss:
        """What may still be taken."""
        return self.capacity.beyond(self.used)

    @property
    def capacity_or_used(self) -> Loss:
        """What a guarantee has to count with: more than the capacity if more was taken."""
        return self.capacity + self.used.beyond(self.capacity)

    def after(self, loss: Loss) -> "PrivacyFilter":
        """Return the filter once `loss` has been taken too."""
        return replace(self, used=self.used + loss)

    def admit(self, demand: Loss) -> None:
        """Refuse a demand larger than what is left.

        Raises
        ------
        CallLimitError
            If only the calls are short.
        BudgetExhaustedError
            If the units are.
        """
        left = self.left
        if left.covers(demand):
            return
        error = CallLimitError if demand.units <= left.units else BudgetExhaustedError
        raise error(f"asked for {demand}, left {left} of {self.capacity}", demand=demand, left=left)


@dataclass(frozen=True)
class BlockFilter:
    """A block's capacity and what claims hold of it: open ones allocated, closed ones consumed.

    Parameters
    ----------
    capacity : RenyiCurve
        What all analysts and models together may ever take. An order where it is not positive is
        never used.
    allocated, consumed : RenyiCurve
        Reserves of open claims; what closed ones were charged.

    Notes
    -----
    Privacy: at every time the sum of what was granted keeps within the capacity at one usable order
    or more, whatever is asked and in whatever order; see `curves.block_guarantee`.
    """

    capacity: RenyiCurve
    allocated: RenyiCurve
    consumed: RenyiCurve

    @property
    def used(self) -> RenyiCurve:
        """What was taken: the reserves of all claims, whether or not they are closed."""
        return self.allocated + self.consumed

    @property
    def left(self) -> RenyiCurve:
        """What may still be taken; no more than the negative of an overdraft at some orders."""
        return self.capacity - self.used

    @property
    def is_overspent(self) -> bool:
        """Whether more than the capacity was taken at every usable order: never, if all is well."""
        return not self.admits(self.capacity.zero)

    def admits(self, demand: RenyiCurve) -> bool:
        """Whether a demand fits at some usable order. It is then taken at every order."""
        usable = [
            (left, asked)
            for left, asked, capacity in zip(
                self.left.nano, demand.nano, self.capacity.nano, strict=True
            )
            if capacity > 0
        ]
        return any(asked <= left for left, asked in usable)
