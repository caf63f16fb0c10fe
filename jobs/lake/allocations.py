"""What one run asked for and was granted, and what became of it: the states of a claim.

    waiting -> allocated -> released (published) -> settled
    waiting -> rejected, timed_out or cancelled
    allocated -> expired (charged in full) or given_back

A claim on an account alone, or on blocks without a queue, begins as allocated. One that takes from
blocks alone may consume parts of its reserve one after the other, and give the rest back.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Literal, TypeVar

from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import ClaimError, LedgerConflictError
from jobs.lake.budgets import read_curves, write_curves
from jobs.lake.entries import Entry, Fact, Kind

State = Literal[
    "waiting", "rejected", "timed_out", "cancelled",
    "allocated", "released", "settled", "expired", "given_back",
]  # fmt: skip
T = TypeVar("T")

OPEN: tuple[State, ...] = ("allocated", "released")
UNSERVED: tuple[State, ...] = ("rejected", "timed_out", "cancelled")
_BEGINNINGS: Mapping[Kind, State] = {
    "allocate": "allocated",
    "submit": "waiting",
    "reject": "rejected",
}
_UNSERVED_BY: Mapping[Kind, State] = {
    "reject": "rejected",
    "time_out": "timed_out",
    "cancel": "cancelled",
}


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """How a claim stands in its queue.

    Attributes
    ----------
    number : int
        Number of the entry that put it there: equal claims are served in this order.
    submitted_at : datetime
        Since when it waits.
    until : datetime or None
        When it stops waiting; None for never.
    weight : str
        Shares of its blocks are divided by it.
    any_of : int or None
        How many of its blocks it needs; all if None.
    chosen : tuple of str
        Which of its blocks these are; empty as long as each round chooses again.
    decided_at : datetime or None
        When it was granted or stopped waiting: at the latest when that was recorded.
    reason : str or None
        Why it will not be served.
    """

    number: int
    submitted_at: datetime
    until: datetime | None = None
    weight: str = "1"
    any_of: int | None = None
    chosen: tuple[str, ...] = ()
    decided_at: datetime | None = None
    reason: str | None = None

    @classmethod
    def drawn(cls, entry: Entry, said: Mapping[str, Any]) -> "Ticket":
        """Read the ticket that an entry gives out."""
        until = said.get("until")
        rejected = entry.kind == "reject"
        return cls(
            number=entry.entry_no,
            submitted_at=entry.recorded_at,
            until=until and datetime.fromisoformat(until),
            weight=said.get("weight", "1"),
            any_of=said.get("any_of"),
            chosen=tuple(said.get("chosen", ())),
            decided_at=entry.recorded_at if rejected else None,
            reason=entry.reason if rejected else None,
        )


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One claim.

    Attributes
    ----------
    region : str
        Where it is: only there it is served, published and closed.
    state : str
        See the head of this module.
    analyst, dataset : str
        Whose account bears it; empty where a job takes from blocks alone and names none.
    period_start : date or None
        Period of the account; None where the run takes from blocks alone.
    units, calls : int
        The reserve: the most that the run can cost an account.
    blocks : mapping of str to RenyiCurve
        The reserve on each block, which is also its charge: blocks are shared, and what a run did
        cost would tell others about its answer. Of a claim that waits, what it asks for.
    recorded_at : datetime
        When it was granted; until then, when it was submitted.
    note : str or None
        In mode "track", why the run would have been refused.
    settled : Loss or None
        What it did cost, once settled.
    label, digest : str or None
        What was published.
    ticket : Ticket or None
        Of a claim on blocks that have a queue.
    consumed : mapping of str to RenyiCurve
        What it has used of its blocks so far, while it holds the rest.
    requests : mapping of str to str
        What was consumed, by the caller's key for it.
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
    ticket: Ticket | None = None
    consumed: Mapping[str, RenyiCurve] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def begun(cls, entry: Entry) -> "Allocation":
        """Make the claim that an entry begins."""
        details = json.loads(entry.details or "{}")
        queue = details.pop("queue", {})
        return cls(
            region=entry.region,
            run_id=said(entry.run_id),
            claim_id=said(entry.claim_id),
            state=_BEGINNINGS[entry.kind],
            analyst=entry.analyst or "",
            dataset=entry.dataset or "",
            period_start=entry.period_start,
            units=entry.units,
            calls=entry.calls,
            fingerprint=said(entry.fingerprint),
            details=details,
            recorded_at=entry.recorded_at,
            blocks=read_curves(entry.blocks),
            note=entry.reason if entry.kind == "allocate" else None,
            ticket=Ticket.drawn(entry, queue) if entry.kind != "allocate" else None,
        )

    @property
    def account_key(self) -> tuple[str, str, date | None]:
        """Which account bears it; no account has this key where there is no period."""
        return self.analyst, self.dataset, self.period_start

    @property
    def is_open(self) -> bool:
        """Whether the claim can still be published or settled."""
        return self.state in OPEN

    @property
    def waited(self) -> float | None:
        """Seconds from its submission to the decision; None without a queue, or while it waits."""
        ticket = self.ticket
        if ticket is None or ticket.decided_at is None:
            return None
        return (ticket.decided_at - ticket.submitted_at).total_seconds()

    @property
    def was_granted(self) -> bool:
        """Whether it holds or held anything."""
        return self.state != "waiting" and self.state not in UNSERVED

    @property
    def may_begin_again(self) -> bool:
        """Whether its run may take a new claim: it gave this one back whole."""
        return self.state == "given_back" and not self.consumed

    @property
    def may_still_serve(self) -> bool:
        """Whether its run may still get something out of it, or out of a new claim."""
        return self.state != "expired" and self.state not in UNSERVED

    def require_open(self) -> None:
        """Refuse to go on with a claim that is closed, or that waits."""
        if self.state == "waiting":
            raise ClaimError(f"the claim of run {self.run_id} waits in its queue: nothing is held")
        if not self.is_open:
            raise ClaimError(f"the claim of run {self.run_id} is {self.state}, not open any more")

    def fact(self, kind: Kind, **told: Any) -> Fact:
        """Write a fact on this claim, with the columns that people filter by."""
        return Fact(
            kind=kind,
            analyst=self.analyst or None,
            dataset=self.dataset or None,
            period_start=self.period_start,
            claim_id=self.claim_id,
            run_id=self.run_id,
            fingerprint=self.fingerprint,
            **told,
        )

    @property
    def reserve(self) -> Loss:
        """The most that the run can cost."""
        return Loss(self.units, self.calls)

    @property
    def charge(self) -> Loss:
        """What the account bears for it now."""
        if not self.was_granted or self.state == "given_back":
            return NOTHING
        return self.reserve if self.settled is None else self.settled

    @property
    def left(self) -> Mapping[str, RenyiCurve]:
        """What its reserve on each block is beyond what it has consumed."""
        if not self.consumed:
            return self.blocks
        return {
            block_id: curve - self.consumed[block_id] if block_id in self.consumed else curve
            for block_id, curve in self.blocks.items()
        }

    @property
    def held(self) -> list[tuple[str, Mapping[str, RenyiCurve]]]:
        """What it has of its blocks, by the part that this belongs to: allocated or consumed."""
        if not self.was_granted:
            return []
        parts = [("consumed", self.consumed)]
        if self.is_open:
            parts.append(("allocated", self.left))
        elif self.state != "given_back":
            parts.append(("consumed", self.left))
        return parts

    def taken_of(self, block_id: str) -> RenyiCurve | None:
        """Return what it has of a block; None where that is nothing."""
        curves = [curves[block_id] for _, curves in self.held if block_id in curves]
        return sum(curves[1:], curves[0]) if curves else None


def fold_claim(entries: Iterable[Entry]) -> Allocation | None:
    """Fold the entries of one run, in order."""
    claim: Allocation | None = None
    for entry in entries:
        if entry.kind != "refuse":
            claim = advance(claim, entry)
    return claim


def advance(claim: Allocation | None, entry: Entry) -> Allocation:
    """Say what one entry makes of a run's claim: the state machine of a claim."""
    if entry.kind in _BEGINNINGS and (claim is None or claim.may_begin_again):
        return Allocation.begun(entry)
    if claim is None or claim.claim_id != entry.claim_id:
        raise broken(entry, "is about another claim than the run has")
    if claim.ticket and claim.state == "waiting":
        return _after_waiting(claim, claim.ticket, entry)
    if not claim.is_open:
        raise broken(entry, "is about a claim that is not open")
    return _consumed(claim, entry) if entry.kind == "consume" else _ended(claim, entry)


def broken(entry: Entry, why: str) -> LedgerConflictError:
    """Say why an entry cannot be folded."""
    return LedgerConflictError(
        f"ledger entry {entry.entry_no} of region {entry.region} ({entry.kind}) {why}"
    )


def said(value: T | None) -> T:
    """Return what an entry of its kind must say."""
    if value is None:
        raise LedgerConflictError("a ledger entry lacks what its kind must say")
    return value


def loss_of(entry: Entry) -> Loss:
    """Return what an entry is about, of an account."""
    return Loss(entry.units, entry.calls)


def _ended(claim: Allocation, entry: Entry) -> Allocation:
    """Publish a claim, or close it."""
    if entry.blocks != (None if entry.kind == "release" else write_curves(claim.left)):
        raise broken(entry, "moves other amounts of blocks than the claim holds")
    if entry.kind == "release" and claim.state == "allocated":
        return replace(claim, state="released", label=entry.label, digest=entry.digest)
    if entry.kind == "settle" and claim.reserve.covers(loss_of(entry)):
        requests = _with_request(claim, entry)
        return replace(claim, state="settled", settled=loss_of(entry), requests=requests)
    if entry.kind == "expire":
        return replace(claim, state="expired")
    if entry.kind == "give_back" and claim.state == "allocated":
        return replace(claim, state="given_back")
    raise broken(entry, f"cannot follow on a claim that is {claim.state}")


def _after_waiting(claim: Allocation, ticket: Ticket, entry: Entry) -> Allocation:
    """Grant a claim, or end its wait."""
    told = json.loads(entry.details or "{}").get("queue", {}).get("at")
    at = datetime.fromisoformat(told) if told else entry.recorded_at
    if entry.kind in _UNSERVED_BY:
        ticket = replace(ticket, decided_at=at, reason=entry.reason)
        return replace(claim, state=_UNSERVED_BY[entry.kind], ticket=ticket)
    granted = read_curves(entry.blocks)
    fits = len(granted) == (ticket.any_of or len(claim.blocks)) and all(
        claim.blocks.get(block_id) == curve for block_id, curve in granted.items()
    )
    if entry.kind != "allocate" or not fits or loss_of(entry) != claim.reserve:
        raise broken(entry, "cannot follow on a claim that waits, or grants something else")
    return replace(
        claim,
        state="allocated",
        blocks=granted,
        period_start=entry.period_start,
        recorded_at=entry.recorded_at,
        note=entry.reason,
        ticket=replace(ticket, decided_at=at),
    )


def _consumed(claim: Allocation, entry: Entry) -> Allocation:
    """Move a part of what a claim holds to what it has used."""
    amounts, left = read_curves(entry.blocks), claim.left
    for block_id, curve in amounts.items():
        held = left.get(block_id)
        if held is None or any(used > had for used, had in zip(curve.nano, held.nano, strict=True)):
            raise broken(entry, f"consumes more of block {block_id} than the claim holds")
    consumed = {
        block_id: curve + claim.consumed[block_id] if block_id in claim.consumed else curve
        for block_id, curve in amounts.items()
    }
    return replace(
        claim,
        consumed={**claim.consumed, **consumed},
        requests=_with_request(claim, entry),
    )


def _with_request(claim: Allocation, entry: Entry) -> Mapping[str, str]:
    """Note what was consumed under a caller's key, so that a repeat consumes nothing."""
    request = json.loads(entry.details or "{}").get("request")
    return {**claim.requests, request: entry.blocks or ""} if request else claim.requests
