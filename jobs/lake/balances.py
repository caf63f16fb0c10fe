"""What the entries add up to: accounts, blocks and claims, folded one by one. No storage, no clock.

The fold is the only place that says what an entry means. The same entries always give the same
balances, whoever folds them, and an entry that cannot follow the ones before it is an error.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, TypeVar

from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import ClaimError, LedgerConflictError
from jobs.lake.budgets import Account, Block, read_curves, write_curves
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
    region : str
        Where it was granted: only there it is published and closed.
    state : str
        "allocated", then "released" once published, then "settled"; or "expired" (charged in
        full), or "given_back" (nothing was read, nothing is charged).
    analyst, dataset : str
        Whose account bears it; empty where a job takes from blocks alone and names none.
    period_start : date or None
        Period of the account; None where the run takes from blocks alone.
    units, calls : int
        The reserve: the most that the run can cost an account.
    blocks : mapping of str to RenyiCurve
        The reserve on each block, which is also its charge: blocks are shared, and what a run did
        cost would tell others about its answer.
    note : str or None
        In mode "track", why the run would have been refused.
    settled : Loss or None
        What it did cost, once settled.
    label, digest : str or None
        What was published.
    """

    region: str
    run_id: str
    claim_id: str
    state: State
    analyst: str
    dataset: str
    period_start: date | None
    units: int
    calls: int
    fingerprint: str
    details: Mapping[str, Any]
    recorded_at: datetime
    blocks: Mapping[str, RenyiCurve] = field(default_factory=dict)
    note: str | None = None
    settled: Loss | None = None
    label: str | None = None
    digest: str | None = None

    @property
    def account_key(self) -> tuple[str, str, date | None]:
        """Which account bears it; no account has this key where there is no period."""
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
            analyst=self.analyst or None,
            dataset=self.dataset or None,
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

    @property
    def held(self) -> tuple[str, Mapping[str, RenyiCurve]]:
        """Which part of its blocks it holds: "allocated" or "consumed"; and the curves."""
        if self.state == "given_back":
            return "allocated", {}
        return ("allocated" if self.is_open else "consumed"), self.blocks


class Head(NamedTuple):
    """Where the chain of one region ends."""

    entry_no: int
    hash: str
    recorded_at: datetime


class Transfer(NamedTuple):
    """Part of a share on its way to another region: what was sent and is not yet received."""

    sender: str
    receiver: str
    account_key: tuple[str, str, date]
    loss: Loss


@dataclass
class Balances:
    """The fold so far. `apply` moves it on by one entry.

    The same entries of several regions give the same balances in any order that keeps each entry
    behind those that it depends on: `jobs.lake.merging` says why.
    """

    heads: dict[str, Head] = field(default_factory=dict)
    accounts: dict[tuple[str, str], dict[date, Account]] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    claims: dict[tuple[str, str], Allocation] = field(default_factory=dict)  # by region and run
    transfers: dict[str, Transfer] = field(default_factory=dict)  # on their way, by the debit's id
    refused: set[tuple[str, str, Loss, str | None]] = field(default_factory=set)
    here: str = field(default="", compare=False)  # the region that looks at them

    def apply(self, entry: Entry) -> None:
        """Fold one more entry.

        Raises
        ------
        LedgerConflictError
            If the entry breaks the chain, or says what cannot follow from the ones before it.
        """
        self._link(entry)
        if entry.kind in ("carry", "restore"):
            pass  # says again what the entries before it say, or that they are complete
        elif entry.kind in ("open_account", "override"):
            self._open(entry)
        elif entry.kind == "open_block":
            self._open_block(entry)
        elif entry.kind == "refuse":
            said = _said(entry.run_id), _said(entry.fingerprint), _loss(entry), entry.blocks
            self.refused.add(said)
        elif entry.kind in ("debit", "credit"):
            self._transfer(entry)
        else:
            self._move_claim(entry)

    def copy(self) -> "Balances":
        """Return balances that can move on without these."""
        accounts = {key: dict(of_analyst) for key, of_analyst in self.accounts.items()}
        return Balances(
            dict(self.heads),
            accounts,
            dict(self.blocks),
            dict(self.claims),
            dict(self.transfers),
            set(self.refused),
            self.here,
        )

    def accounts_of(self, analyst: str, dataset: str) -> dict[date, Account]:
        """Find the accounts of an analyst by their first days, as they may be spent from here."""
        return {
            start: account.seen_from(self.here)
            for start, account in self.accounts.get((analyst, dataset), {}).items()
            if not account.shares or self.here in account.opened_by or not self.here
        }

    def account_on(self, analyst: str, dataset: str, moment: datetime | date) -> Account | None:
        """Find the account whose period holds a moment, as its own time zone has it."""
        of_analyst = self.accounts_of(analyst, dataset)
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
        opens = entry.kind == "open_account"
        if (not opens and not known) or (opens and known and entry.region in known.opened_by):
            raise _broken(entry, "opens what is open, or overrides what is not")
        if not opens:
            of_analyst[start] = _said(known).overridden(entry)
        else:
            account = Account.opened(entry)
            of_analyst[start] = known.joined(account) if known else account

    def _open_block(self, entry: Entry) -> None:
        block = Block.opened(entry)
        known = self.blocks.get(block.block_id)
        if known and (entry.region in known.opened_by or known.alphas != block.alphas):
            raise _broken(entry, "opens a block that is open")
        self.blocks[block.block_id] = known.joined(block) if known else block

    def _transfer(self, entry: Entry) -> None:
        """Take what a debit sends out of a share; put what a credit receives into another."""
        key = _said(entry.analyst), _said(entry.dataset), _said(entry.period_start)
        account, loss = self._account(entry, key), _loss(entry)
        share = account.shares.get(entry.region)
        if share is None:
            raise _broken(entry, "is about a share that was never opened")
        if entry.kind == "debit":
            if not share.filter.left.covers(loss):
                raise _broken(entry, "sends more than is left of the share")
            receiver = json.loads(_said(entry.details))["to"]
            self.transfers[entry.entry_id] = Transfer(entry.region, receiver, key, loss)
            capacity = share.filter.capacity - loss
        else:
            sent = self.transfers.pop(_said(entry.claim_id), None)
            if sent is None or sent[1:] != (entry.region, key, loss):
                raise _broken(entry, "receives what was not sent to it")
            capacity = share.filter.capacity + loss
        self._put(account.with_capacity(entry.region, capacity))

    def _move_claim(self, entry: Entry) -> None:
        key = entry.region, _said(entry.run_id)
        before = self.claims.get(key)
        after = advance(before, entry)
        if after.period_start is not None:
            account = self._account(entry, (after.analyst, after.dataset, after.period_start))
            used = account.seen_from(entry.region).filter.used + after.charge
            used -= before.charge if before else NOTHING
            self._put(account.with_used(entry.region, used))
        elif after.reserve != NOTHING:
            raise _broken(entry, "names no period to charge")
        self._charge_blocks(entry, before, after)
        self.claims[key] = after

    def _account(self, entry: Entry, key: tuple[str, str, date]) -> Account:
        account = self.accounts.get(key[:2], {}).get(key[2])
        if account is None:
            raise _broken(entry, "names an account that was never opened")
        return account

    def _put(self, account: Account) -> None:
        self.accounts[account.analyst, account.dataset][account.period_start] = account

    def _charge_blocks(self, entry: Entry, before: Allocation | None, after: Allocation) -> None:
        for sign, claim in ((-1, before), (1, after)):
            part, curves = claim.held if claim else ("allocated", {})
            for block_id, curve in curves.items():
                block = self.blocks.get(block_id)
                if block is None:
                    raise _broken(entry, f"names block {block_id}, which was never opened")
                self.blocks[block_id] = block.moved(part, curve, sign)


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
            region=entry.region,
            run_id=_said(entry.run_id),
            claim_id=_said(entry.claim_id),
            state="allocated",
            analyst=entry.analyst or "",
            dataset=entry.dataset or "",
            period_start=entry.period_start,
            units=entry.units,
            calls=entry.calls,
            fingerprint=_said(entry.fingerprint),
            details=json.loads(entry.details or "{}"),
            recorded_at=entry.recorded_at,
            blocks=read_curves(entry.blocks),
            note=entry.reason,
        )
    if claim is None or claim.claim_id != entry.claim_id or not claim.is_open:
        raise _broken(entry, "is about a claim that is not open")
    if entry.blocks != (None if entry.kind == "release" else write_curves(claim.blocks)):
        raise _broken(entry, "moves other amounts of blocks than the claim holds")
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
