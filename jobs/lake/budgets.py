"""Who owns budget: accounts of analysts and privacy blocks of data. Values; no storage, no clock.

An account bounds what one analyst learns in one period; a block bounds what all analysts and models
together learn from one slice of the data, for good.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from dp_udfs import checks
from dp_udfs.budget import Loss, RenyiCurve
from dp_udfs.errors import InvalidParameterError
from dp_udfs.filters import BlockFilter, PrivacyFilter
from jobs.lake.entries import Fact, Kind

Mode = Literal["enforce", "track"]
Curve = RenyiCurve | checks.Real | Sequence[checks.Real]

PURE = "inf"  # the order at which Rényi divergence is epsilon itself: basic composition
SMALLEST_ALPHA = 2  # below it the union over a grid costs more delta than the block says


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a unit and a call of an account stand for: fixed when it is opened, for all questions.

    Parameters
    ----------
    epsilon, delta : str
        Of one unit and of one call, as decimals.
    delta_prime : str
        Failure probability of the composition bound.
    gaussian : bool
        Whether Gaussian mechanisms may be asked for.
    """

    epsilon: str
    delta: str
    delta_prime: str
    gaussian: bool

    def __post_init__(self) -> None:
        checks.exact_epsilon(self.epsilon)
        checks.exact_delta(self.delta)
        checks.exact_delta(self.delta_prime)

    def weight(self, epsilon: checks.Real) -> int:
        """Return the units of this account that one step of another epsilon costs.

        Notes
        -----
        Privacy: a step of range c times epsilon costs at most ceil(c^2) steps of range epsilon
        under each bound that accounts state: zCDP grows with c^2, and drift and Rényi divergence of
        a bounded-range step grow more slowly than that. A smaller step counts as a whole one.
        """
        ratio: Fraction = checks.exact_epsilon(epsilon) / checks.exact_epsilon(self.epsilon)
        return math.ceil(ratio**2)


@dataclass(frozen=True)
class Account:
    """One analyst on one dataset in one period.

    Attributes
    ----------
    opened_with : Loss
        The allowance that it was opened with; overrides change the filter's capacity.
    terms : Terms or None
        What its units stand for; None where it was opened with bare numbers.
    mode : str
        "enforce", or "track": everything recorded, nothing refused.
    tracked : bool
        Whether it ever was in mode "track": then nothing is guaranteed for its period.
    """

    analyst: str
    dataset: str
    period_start: date
    period_end: date | None
    zone: str
    opened_with: Loss
    filter: PrivacyFilter
    terms: Terms | None = None
    mode: Mode = "enforce"
    tracked: bool = False

    @classmethod
    def opened(cls, fact: Fact) -> "Account":
        """Make an account from which nothing has been taken, as an entry says."""
        said = json.loads(fact.details or "{}")
        allowance = Loss(fact.units, fact.calls)
        mode: Mode = said.get("mode", "enforce")
        return cls(
            fact.analyst or "",
            fact.dataset or "",
            fact.period_start or date.min,
            fact.period_end,
            said.get("zone", "UTC"),
            allowance,
            PrivacyFilter(allowance),
            Terms(**said["terms"]) if said.get("terms") else None,
            mode,
            mode == "track",
        )

    def overridden(self, fact: Fact) -> "Account":
        """Return the account with another allowance, and another mode if the entry says one."""
        mode: Mode = json.loads(fact.details or "{}").get("mode", self.mode)
        capacity = Loss(fact.units, fact.calls)
        return replace(
            self,
            filter=replace(self.filter, capacity=capacity),
            mode=mode,
            tracked=self.tracked or mode == "track",
        )

    def __str__(self) -> str:
        return f"the account of {self.analyst} on {self.dataset} from {self.period_start} on"

    @property
    def key(self) -> tuple[str, str, date]:
        """Who, on what, when."""
        return self.analyst, self.dataset, self.period_start

    def covers(self, day: date) -> bool:
        """Whether a day lies in the period."""
        return self.period_start <= day and (self.period_end is None or day < self.period_end)

    def fact(self, kind: Kind, **said: Any) -> Fact:
        """Write a fact on this account."""
        return Fact(
            kind=kind,
            analyst=self.analyst,
            dataset=self.dataset,
            period_start=self.period_start,
            period_end=self.period_end,
            **said,
        )

    def overlaps(self, start: date, end: date | None) -> bool:
        """Whether another period shares a day with this one; an open end yields to what follows."""
        first_end, second_start = (
            (self.period_end, start) if self.period_start < start else (end, self.period_start)
        )
        return first_end is not None and first_end > second_start


@dataclass(frozen=True)
class Block:
    """A slice of data with a budget of its own, for all analysts and models together.

    Attributes
    ----------
    alphas : tuple of str
        The Rényi orders of its curves, as decimals; ("inf",) for basic composition.
    """

    block_id: str
    dataset: str
    alphas: tuple[str, ...]
    mode: Mode
    details: Mapping[str, Any]
    filter: BlockFilter

    @classmethod
    def opened(cls, fact: Fact) -> "Block":
        """Make a block from which nothing has been taken, as an entry says."""
        said = json.loads(fact.details or "{}")
        ((block_id, capacity),) = read_curves(fact.blocks).items()
        alphas = tuple(said.pop("alphas"))
        mode = said.pop("mode")
        whole = BlockFilter(capacity, capacity.zero, capacity.zero)
        return cls(block_id, fact.dataset or "", alphas, mode, said, whole)

    def demand(self, curve: Curve) -> RenyiCurve:
        """Read a demand on this block: a number per alpha, rounded up; a curve stays as it is."""
        asked = curve if isinstance(curve, RenyiCurve) else RenyiCurve.demand(curve)
        if len(asked.nano) != len(self.alphas) or min(asked.nano) < 0:
            raise InvalidParameterError(
                f"block {self.block_id}: {asked} must have one value, not negative, for each alpha "
                f"of {', '.join(self.alphas)}"
            )
        return asked

    def moved(self, part: str, curve: RenyiCurve, sign: int) -> "Block":
        """Return the block once one of its parts has grown or shrunk by a curve."""
        held: RenyiCurve = getattr(self.filter, part)
        changed = held + curve if sign > 0 else held - curve
        return replace(self, filter=replace(self.filter, **{part: changed}))


def grid(alphas: tuple[str, ...]) -> tuple[str, ...]:
    """Check the orders of a block's curves.

    Raises
    ------
    InvalidParameterError
        If they do not rise, or one is below 2, where a union over the grid would cost too much.
    """
    values = [math.inf if alpha == PURE else float(checks.exact(alpha=alpha)) for alpha in alphas]
    rising = all(a < b for a, b in pairwise(values))
    if not values or not rising or values[0] < SMALLEST_ALPHA:
        raise InvalidParameterError(
            f"alphas = {alphas} must rise from {SMALLEST_ALPHA} at least; '{PURE}' may end them"
        )
    return alphas


def write_curves(curves: Mapping[str, RenyiCurve]) -> str | None:
    """Write what is taken from blocks as an entry has it; None where no block is meant."""
    said = {block_id: curve.nano for block_id, curve in sorted(curves.items())}
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False) if said else None


def read_curves(text: str | None) -> dict[str, RenyiCurve]:
    """Read curves as they were written."""
    return {
        block_id: RenyiCurve(tuple(nano)) for block_id, nano in json.loads(text or "{}").items()
    }
