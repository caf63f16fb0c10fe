"""May this demand be taken? A decision from numbers alone: no ledger, no clock, no data."""

from dataclasses import dataclass, replace

from dp_udfs.budget import NOTHING, Loss
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
