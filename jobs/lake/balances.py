"""What the entries add up to: accounts and claims, folded one by one. No storage, no clock.

The fold is the only place that says what an entry means. The same entries always give the same
balances, whoever folds them, and an entry that cannot follow the ones before it is an error.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, TypeVar

from dp_udfs.budget import NOTHING, Loss
from dp_udfs.errors import ClaimError, LedgerConflictError
from dp_udfs.filters import PrivacyFilter
from jobs.lake.entries import GENESIS, SCHEMA_VERSION, Entry, Fact, Kind
from jobs.lake.periods import day_in

State = Literal["allocated", "released", "settled", "expired", "given_back"]
T = TypeVar("T")
_OPEN: tuple[State, ...] = ("allocated", "released")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What one run was granted, and what became of it.

    Attributes
    ----------
    state : str
        "allocated", then "released" once published, then "settled"; or "expired" (charged in
        full), or "given_back" (nothing was read, nothing is charged).
    units, calls : int
        The reserve: the most that the run can cost.
    settled : Loss or None
        What it did cost, once settled.
    label, digest : str or None
        What was published.
    """

    run_id: str
    claim_id: str
    state: State
    analyst: str
    dataset: str
    period_start: date
    units: int
    calls: int
    fingerprint: str
    details: Mapping[str, Any]
    recorded_at: datetime
    settled: Loss | None = None
    label: str | None = None
    digest: str | None = None

    @property
    def account_key(self) -> tuple[str, str, date]:
        """Which account bears it."""
        return self.analyst, self.dataset, self.period_start

    @property
    def is_open(self) -> bool:
        """Whether the claim can still be published or settled."""
        return self.state in _OPEN

    def require_open(self) -> None:
        """Refuse to go on with a claim that is closed."""
        if not self.is_open:
            raise ClaimError(f"the claim of run {self.run_id} is {self.state}, not open any more")

    def fact(self, kind: Kind, **said: Any) -> Fact:
        """Write a fact on this claim, with the columns that people filter by."""
        return Fact(
            kind=kind,
            analyst=self.analyst,
            dataset=self.dataset,
            period_start=self.period_start,
            claim_id=self.claim_id,
            run_id=self.run_id,
            fingerprint=self.fingerprint,
            **said,
        )

    @property
    def reserve(self) -> Loss:
        """The most that the run can cost."""
        return Loss(self.units, self.calls)

    @property
    def charge(self) -> Loss:
        """What the account bears for it now."""
        if self.state == "given_back":
            return NOTHING
        return self.reserve if self.settled is None else self.settled


@dataclass(frozen=True)
class Account:
    """One analyst on one dataset in one period."""

    analyst: str
    dataset: str
    period_start: date
    period_end: date | None
    zone: str
    opened_with: Loss
    filter: PrivacyFilter

    @classmethod
    def opened(
        cls, analyst: str, dataset: str, start: date, end: date | None, zone: str, allowance: Loss
    ) -> "Account":
        """Make an account from which nothing has been taken."""
        return cls(analyst, dataset, start, end, zone, allowance, PrivacyFilter(allowance))

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


class Head(NamedTuple):
    """Where the chain of one region ends."""

    entry_no: int
    hash: str
    recorded_at: datetime


@dataclass
class Balances:
    """The fold so far. `apply` moves it on by one entry."""

    heads: dict[str, Head] = field(default_factory=dict)
    accounts: dict[tuple[str, str], dict[date, Account]] = field(default_factory=dict)
    claims: dict[str, Allocation] = field(default_factory=dict)
    refused: set[tuple[str, str, Loss]] = field(default_factory=set)

    def apply(self, entry: Entry) -> None:
        """Fold one more entry.

        Raises
        ------
        LedgerConflictError
            If the entry breaks the chain, or says what cannot follow from the ones before it.
        """
        self._link(entry)
        if entry.kind == "carry":
            pass  # says again what the entries before it say
        elif entry.kind in ("open_account", "override"):
            self._open(entry)
        elif entry.kind == "refuse":
            self.refused.add((_said(entry.run_id), _said(entry.fingerprint), _loss(entry)))
        else:
            self._move_claim(entry)

    def account_on(self, analyst: str, dataset: str, moment: datetime | date) -> Account | None:
        """Find the account whose period holds a moment, as its own time zone has it."""
        of_analyst = self.accounts.get((analyst, dataset), {})
        for start in sorted(of_analyst, reverse=True):
            account = of_analyst[start]
            day = day_in(account.zone, moment) if isinstance(moment, datetime) else moment
            if start <= day:
                return account if account.covers(day) else None
        return None

    def open_claims(self, account: Account) -> tuple[Allocation, ...]:
        """List the claims of an account that are neither settled, expired nor given back."""
        return tuple(
            claim
            for claim in self.claims.values()
            if claim.is_open and claim.account_key == account.key
        )

    def _link(self, entry: Entry) -> None:
        if entry.schema_version > SCHEMA_VERSION:
            raise _broken(entry, "was written by a newer version of this program; update it")
        head = self.heads.get(entry.region)
        if head is None:
            follows = (entry.entry_no, entry.previous_hash) == (1, GENESIS)
        else:
            follows = (entry.entry_no, entry.previous_hash) == (head.entry_no + 1, head.hash)
        if not follows:
            raise _broken(entry, "does not follow the entry before it: the chain is broken")
        if head and entry.recorded_at < head.recorded_at:
            raise _broken(entry, "is dated before the entry before it")
        self.heads[entry.region] = Head(entry.entry_no, entry.hash, entry.recorded_at)

    def _open(self, entry: Entry) -> None:
        key = _said(entry.analyst), _said(entry.dataset)
        start = _said(entry.period_start)
        of_analyst = self.accounts.setdefault(key, {})
        known = of_analyst.get(start)
        if (known is None) != (entry.kind == "open_account"):
            raise _broken(entry, "opens what is open, or overrides what is not")
        if known:
            of_analyst[start] = replace(known, filter=replace(known.filter, capacity=_loss(entry)))
            return
        zone = json.loads(entry.details or "{}").get("zone", "UTC")
        of_analyst[start] = Account.opened(*key, start, entry.period_end, zone, _loss(entry))

    def _move_claim(self, entry: Entry) -> None:
        run_id = _said(entry.run_id)
        before = self.claims.get(run_id)
        after = advance(before, entry)
        accounts = self.accounts.get((after.analyst, after.dataset), {})
        account = accounts.get(after.period_start)
        if account is None:
            raise _broken(entry, "names an account that was never opened")
        charged = before.charge if before else NOTHING
        used = account.filter.used + after.charge - charged
        accounts[after.period_start] = replace(account, filter=replace(account.filter, used=used))
        self.claims[run_id] = after


def fold_claim(entries: Iterable[Entry]) -> Allocation | None:
    """Fold the entries of one run, in order."""
    claim: Allocation | None = None
    for entry in entries:
        if entry.kind != "refuse":
            claim = advance(claim, entry)
    return claim


def advance(claim: Allocation | None, entry: Entry) -> Allocation:
    """Say what one entry makes of a run's claim: the state machine of a claim."""
    if entry.kind == "allocate":
        if claim and claim.state != "given_back":
            raise _broken(entry, "allocates for a run that has its claim")
        return Allocation(
            run_id=_said(entry.run_id),
            claim_id=_said(entry.claim_id),
            state="allocated",
            analyst=_said(entry.analyst),
            dataset=_said(entry.dataset),
            period_start=_said(entry.period_start),
            units=entry.units,
            calls=entry.calls,
            fingerprint=_said(entry.fingerprint),
            details=json.loads(entry.details or "{}"),
            recorded_at=entry.recorded_at,
        )
    if claim is None or claim.claim_id != entry.claim_id or not claim.is_open:
        raise _broken(entry, "is about a claim that is not open")
    if entry.kind == "release" and claim.state == "allocated":
        return replace(claim, state="released", label=entry.label, digest=entry.digest)
    if entry.kind == "settle" and claim.reserve.covers(_loss(entry)):
        return replace(claim, state="settled", settled=_loss(entry))
    if entry.kind == "expire":
        return replace(claim, state="expired")
    if entry.kind == "give_back" and claim.state == "allocated":
        return replace(claim, state="given_back")
    raise _broken(entry, f"cannot follow on a claim that is {claim.state}")


def _broken(entry: Entry, why: str) -> LedgerConflictError:
    return LedgerConflictError(
        f"ledger entry {entry.entry_no} of region {entry.region} ({entry.kind}) {why}"
    )


def _said(value: T | None) -> T:
    """Return what an entry of its kind must say."""
    if value is None:
        raise LedgerConflictError("a ledger entry lacks what its kind must say")
    return value


def _loss(entry: Entry) -> Loss:
    return Loss(entry.units, entry.calls)
