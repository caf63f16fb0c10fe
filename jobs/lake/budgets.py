"""Who owns budget: accounts of analysts and privacy blocks of data. Values; no storage, no clock.

An account bounds what one analyst learns in one period; a block bounds what all analysts and models
together learn from one slice of the data, for good.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, get_args

from dp_udfs import checks
from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import InvalidParameterError
from dp_udfs.filters import BlockFilter, PrivacyFilter
from jobs.lake.entries import Entry, Fact, Kind

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


Stamp = tuple[datetime, str, int]  # when, where and at which number: the order of overrides


@dataclass(frozen=True)
class Share:
    """What one region alone may spend of an account, and has spent."""

    opened_with: Loss
    filter: PrivacyFilter


@dataclass(frozen=True)
class Account:
    """One analyst on one dataset in one period.

    Attributes
    ----------
    opened_with : Loss
        The allowance that it was opened with; overrides change the filter's capacity.
    filter : PrivacyFilter
        What all regions without a share of their own may spend together, and have spent.
    opened_by : frozenset of str
        The regions that opened it.
    shares : mapping of str to Share
        By region: see `jobs.lake.merging`.
    overridden_at : Stamp or None
        Place of the override that holds.
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
    opened_by: frozenset[str] = frozenset()
    shares: Mapping[str, Share] = field(default_factory=dict)
    overridden_at: Stamp | None = None

    @classmethod
    def opened(cls, fact: Entry) -> "Account":
        """Make an account from which nothing has been taken, as an entry says."""
        said = json.loads(fact.details or "{}")
        share = Loss(fact.units, fact.calls)
        escrow = said.get("escrow", False)
        allowance = NOTHING if escrow else share
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
            frozenset([fact.region]),
            {fact.region: Share(share, PrivacyFilter(share))} if escrow else {},
        )

    @property
    def is_common(self) -> bool:
        """Whether a region opened it without a share of its own: what it has is common to all."""
        return bool(self.opened_by - set(self.shares))

    def joined(self, other: "Account") -> "Account":
        """Return the account that two regions opened: the stricter of what they say."""
        common = [account for account in (self, other) if account.is_common]
        opened = _smallest([account.opened_with for account in common])
        ends = [end for end in (self.period_end, other.period_end) if end]
        held = self.overridden_at is not None
        return replace(
            self,
            period_end=min(ends, default=None),
            zone=min(self.zone, other.zone),
            opened_with=opened,
            filter=self.filter if held else replace(self.filter, capacity=opened),
            terms=min((self.terms, other.terms), key=str),
            mode=self.mode if held else min(self.mode, other.mode),
            tracked=self.tracked or other.tracked,
            opened_by=self.opened_by | other.opened_by,
            shares={**self.shares, **other.shares},
        )

    def overridden(self, fact: Entry) -> "Account":
        """Return the account with another allowance, and another mode if the entry says one."""
        said: Mode | None = json.loads(fact.details or "{}").get("mode")
        stamp = fact.recorded_at, fact.region, fact.entry_no
        newest = self.overridden_at is None or stamp > self.overridden_at
        account = replace(self, tracked=self.tracked or said == "track")
        if newest:
            account = replace(account, mode=said or self.mode, overridden_at=stamp)
        if newest or fact.region in self.shares:
            return account.with_capacity(fact.region, Loss(fact.units, fact.calls))
        return account

    def seen_from(self, region: str) -> "Account":
        """Return the account as a region may spend it: its own share where it has one."""
        share = self.shares.get(region)
        return replace(self, **vars(share)) if share else self

    def filters(self) -> list[tuple[str, PrivacyFilter]]:
        """List what may be spent: in common under no name, and each region's share under its."""
        common = [("", self.filter)] if self.is_common else []
        return common + [(region, share.filter) for region, share in self.shares.items()]

    def with_capacity(self, region: str, capacity: Loss) -> "Account":
        """Return the account with another share of a region, or allowance where it has none."""
        return self._with_filter(region, capacity=capacity)

    def with_used(self, region: str, used: Loss) -> "Account":
        """Return the account with another use by a region, or by all without a share."""
        return self._with_filter(region, used=used)

    def _with_filter(self, region: str, **changes: Loss) -> "Account":
        share = self.shares.get(region)
        if share is None:
            return replace(self, filter=replace(self.filter, **changes))
        changed = replace(share, filter=replace(share.filter, **changes))
        return replace(self, shares={**self.shares, region: changed})

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
    queue : str
        The region whose queue serves it; empty where claims take from it directly.
    opened_at : datetime or None
        When it was opened; of several regions, the earliest.
    arrivals : int
        Claims that have entered its queue.
    retired : bool
        Whether its data are gone.
    """

    block_id: str
    dataset: str
    alphas: tuple[str, ...]
    mode: Mode
    details: Mapping[str, Any]
    filter: BlockFilter
    opened_by: frozenset[str] = frozenset()
    queue: str = ""
    opened_at: datetime | None = None
    arrivals: int = 0
    retired: bool = False

    @classmethod
    def opened(cls, fact: Entry) -> "Block":
        """Make a block from which nothing has been taken, as an entry says."""
        said = json.loads(fact.details or "{}")
        ((block_id, capacity),) = read_curves(fact.blocks).items()
        alphas = tuple(said.pop("alphas"))
        mode = said.pop("mode")
        queue = fact.region if said.pop("queue", False) else ""
        whole = BlockFilter(capacity, capacity.zero, capacity.zero)
        return cls(
            block_id,
            fact.dataset or "",
            alphas,
            mode,
            said,
            whole,
            frozenset([fact.region]),
            queue,
            fact.recorded_at,
        )

    def joined(self, other: "Block") -> "Block":
        """Return the block that two regions opened: the stricter of what they say."""
        capacities = self.filter.capacity.nano, other.filter.capacity.nano
        smaller = RenyiCurve(tuple(map(min, *capacities)))
        return replace(
            self,
            dataset=min(self.dataset, other.dataset),
            mode=min(self.mode, other.mode),
            details=min(self.details, other.details, key=str),
            filter=replace(self.filter, capacity=smaller),
            opened_by=self.opened_by | other.opened_by,
            queue=min(filter(None, (self.queue, other.queue)), default=""),
            opened_at=min(filter(None, (self.opened_at, other.opened_at)), default=None),
        )

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


def _smallest(losses: Sequence[Loss]) -> Loss:
    """Take the smallest of allowances, in units and in calls; nothing of none."""
    units = min((loss.units for loss in losses), default=0)
    return Loss(units, min((loss.calls for loss in losses), default=0))


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


def check_mode(mode: str) -> None:
    """Refuse what is no mode."""
    if mode not in get_args(Mode):
        raise InvalidParameterError(f"mode = {mode!r} must be one of {', '.join(get_args(Mode))}")


def write_curves(curves: Mapping[str, RenyiCurve]) -> str | None:
    """Write what is taken from blocks as an entry has it; None where no block is meant."""
    said = {block_id: curve.nano for block_id, curve in sorted(curves.items())}
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False) if said else None


def read_curves(text: str | None) -> dict[str, RenyiCurve]:
    """Read curves as they were written."""
    return {
        block_id: RenyiCurve(tuple(nano)) for block_id, nano in json.loads(text or "{}").items()
    }
