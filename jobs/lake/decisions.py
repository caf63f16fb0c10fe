"""What may be written: each operation on the ledger as a decision from balances alone.

A decision answers with the facts to append, or with none where everything is said already: so every
operation can be repeated. It raises where the operation is wrong. No storage, no clock.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, NamedTuple

from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import (
    BudgetExhaustedError,
    ClaimError,
    InvalidParameterError,
    SettingsError,
)
from jobs.lake import refusals
from jobs.lake.allocations import Allocation
from jobs.lake.balances import Balances, BlockQueue, UserCount
from jobs.lake.budgets import Account, Curve, Mode, Terms, write_curves
from jobs.lake.entries import Entry, Fact, Kind, canonical
from jobs.lake.periods import day_in


@dataclass(frozen=True, kw_only=True)
class Opening:
    """An account to be opened, or an allowance to be changed."""

    analyst: str
    dataset: str
    start: date
    end: date | None
    zone: str
    allowance: Loss
    reason: str
    terms: Terms | None = None
    mode: Mode = "enforce"
    escrow: bool = False  # the allowance is the share of this region alone


@dataclass(frozen=True, kw_only=True)
class BlockOpening:
    """A block to be opened."""

    block_id: str
    dataset: str
    capacity: RenyiCurve
    alphas: tuple[str, ...]
    mode: Mode
    details: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a run asks for: of an account, of blocks, or of both."""

    run_id: str
    analyst: str
    dataset: str
    loss: Loss
    fingerprint: str = ""
    blocks: Mapping[str, Curve] = field(default_factory=dict)
    period_start: date | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_account(self) -> bool:
        """Whether an account bears it: always, unless it takes from blocks alone."""
        return self.loss != NOTHING or not self.blocks


class Counted(NamedTuple):
    """The private count of users after one period, and what it lets be said of their number."""

    dataset: str
    terms: Mapping[str, Any]
    period: int
    sum: int  # of the periods that end with this one, with noise
    bound: int
    snapshot: int


class Sending(NamedTuple):
    """Part of a share that is to move to another region."""

    transfer_id: str
    analyst: str
    dataset: str
    receiver: str
    loss: Loss


def open_account(balances: Balances, now: datetime, asked: Opening) -> list[Fact]:
    """Open an account that is not open; change one only for a reason."""
    accounts = balances.accounts_of(asked.analyst, asked.dataset)
    known = accounts.get(asked.start)
    said: dict[str, Any] = {
        "units": asked.allowance.units,
        "calls": asked.allowance.calls,
        "reason": asked.reason or None,
    }
    if known is None:
        _require_new_days(accounts, now, asked)
        _require_same_mode(balances, asked)
        details: dict[str, Any] = {"zone": asked.zone}
        details |= {"terms": vars(asked.terms)} if asked.terms else {}
        details |= {"mode": asked.mode} if asked.mode != "enforce" else {}
        details |= {"escrow": True} if asked.escrow else {}
        fact = Fact(
            kind="open_account",
            analyst=asked.analyst,
            dataset=asked.dataset,
            period_start=asked.start,
            period_end=asked.end,
            details=canonical(details),
            **said,
        )
        return [fact]
    if asked.allowance == known.filter.capacity:
        return []
    if asked.reason:
        return [known.fact("override", details=canonical({"mode": known.mode}), **said)]
    if asked.allowance == known.opened_with:
        return []
    raise SettingsError(
        f"{known} was opened with {known.opened_with}, not {asked.allowance}; "
        f"give a reason to change it"
    )


def override(
    account: Account, units: int | None, calls: int | None, mode: Mode | None, reason: str
) -> list[Fact]:
    """Change what is given of an account's allowance and mode."""
    if not reason:
        raise InvalidParameterError("reason is missing: say why the allowance changes")
    now = account.filter.capacity
    changed = Loss(now.units if units is None else units, now.calls if calls is None else calls)
    if changed == now and mode in (None, account.mode):
        return []
    details = canonical({"mode": mode or account.mode})  # said each time: the latest one holds
    said = {"units": changed.units, "calls": changed.calls, "reason": reason, "details": details}
    return [account.fact("override", **said)]


def debit(
    balances: Balances, now: datetime, asked: Sending, earlier: Iterable[Entry]
) -> list[Fact]:
    """Take part of this region's share out, for another region; once for each transfer id."""
    details = canonical({"to": asked.receiver, "transfer": asked.transfer_id})
    whose = asked.analyst, asked.dataset, asked.receiver, asked.loss
    for sent in earlier:
        said = json.loads(sent.details or "{}")
        if said.get("transfer") != asked.transfer_id:
            continue
        if (sent.analyst, sent.dataset, said["to"], Loss(sent.units, sent.calls)) != whose:
            raise ClaimError(f"transfer {asked.transfer_id} was another one; take a new id")
        return []
    account = balances.account_on(asked.analyst, asked.dataset, now)
    if account is None:
        raise no_account(balances, asked.analyst, asked.dataset, None)
    if not account.shares or asked.receiver == balances.here:
        raise SettingsError(f"{account} has no share to move to region {asked.receiver}")
    account.filter.admit(asked.loss)
    return [account.fact("debit", units=asked.loss.units, calls=asked.loss.calls, details=details)]


def credits(balances: Balances) -> list[Fact]:  # noqa: A001 (it is what they are)
    """Put into this region's shares what others have sent."""
    facts = []
    for debit_id, sent in balances.transfers.items():
        analyst, dataset, start = sent.account_key
        account = balances.accounts[analyst, dataset][start]
        if sent.receiver == balances.here and balances.here in account.shares:
            said = {"units": sent.loss.units, "calls": sent.loss.calls, "claim_id": debit_id}
            facts.append(account.fact("credit", **said))
    return facts


def open_blocks(balances: Balances, asked: Iterable[BlockOpening]) -> list[Fact]:
    """Open the blocks that are not open; days cut otherwise would be the same rows once more."""
    known = {
        (block.dataset, block.details["days"])
        for block in balances.blocks.values()
        if "days" in block.details
    }
    facts = []
    for each in asked:
        days = each.details.get("days")
        others = {cut for dataset, cut in known if dataset == each.dataset and cut != days}
        if days is not None and others:
            raise SettingsError(
                f"blocks.days: {days}, but dataset {each.dataset} has blocks of {min(others)} days "
                f"in the ledger; that never changes"
            )
        facts += _open_block(balances, each)
    return facts


def count_users(balances: Balances, counted: Counted, blocks: Iterable[BlockOpening]) -> list[Fact]:
    """Write down the count of one period, once, and open the blocks that its bound allows."""
    key = balances.here, counted.dataset
    for region, dataset in balances.counts:
        if dataset == counted.dataset and region != balances.here:
            raise SettingsError(f"the users of dataset {dataset} are counted in region {region}")
    known = balances.counts.get(key) or UserCount(*key, counted.terms)
    if known.terms != counted.terms:
        raise SettingsError(
            f"users: {counted.terms}, but users of dataset {counted.dataset} are counted on terms "
            f"{known.terms}; that never changes"
        )
    if counted.period <= len(known.sums):
        return []  # by another process; the sum is drawn once, and that one holds
    if counted.period != len(known.sums) + 1 or counted.bound < known.bound:
        raise InvalidParameterError(
            f"users of dataset {counted.dataset}: period {counted.period} with bound "
            f"{counted.bound} cannot follow period {len(known.sums)} with bound {known.bound}"
        )
    said = {
        "period": counted.period,
        "sum": counted.sum,
        "bound": counted.bound,
        "terms": counted.terms,
        "snapshot": counted.snapshot,
    }
    fact = Fact(kind="count_users", dataset=counted.dataset, details=canonical(said))
    return [fact, *open_blocks(balances, blocks)]


def _open_block(balances: Balances, asked: BlockOpening) -> list[Fact]:
    """Open a block that is not open; its capacity never changes."""
    known = balances.blocks.get(asked.block_id)
    if known is None:
        details = {**asked.details, "alphas": asked.alphas, "mode": asked.mode}
        queue = balances.queues.get((balances.here, asked.dataset))
        if queue is not None:
            _require_fit_for(queue, balances, asked)
            details["queue"] = True
        return [
            Fact(
                kind="open_block",
                dataset=asked.dataset,
                blocks=write_curves({asked.block_id: asked.capacity}),
                details=canonical(details),
            )
        ]
    first = known.dataset, known.filter.capacity, known.alphas, known.mode
    if first != (asked.dataset, asked.capacity, asked.alphas, asked.mode):
        raise SettingsError(
            f"block {asked.block_id} was opened on dataset {known.dataset} with capacity "
            f"{known.filter.capacity} at alpha {', '.join(known.alphas)} in mode {known.mode}; "
            f"that never changes"
        )
    return []


def allocate(
    balances: Balances,
    now: datetime,
    claim: Allocation | None,
    asked: Demand,
    claim_id: str,
    spenders: refusals.Spenders,
) -> tuple[list[Fact], BudgetExhaustedError | None]:
    """Grant a demand, or refuse it: then the refusal comes back beside its fact.

    All or nothing: what is short anywhere refuses everything. `spenders` finds the claims that a
    refusal names.
    """
    curves = read_demand(balances, asked)
    if claim:
        require_same_question(claim, asked, curves)
        if not claim.may_begin_again:
            return [], None
    account = running_account(balances, now, asked) if asked.needs_account else None
    said: dict[str, Any] = {
        "analyst": asked.analyst or None,
        "dataset": asked.dataset or None,
        "period_start": account and account.period_start,
        "period_end": account and account.period_end,
        "units": asked.loss.units,
        "calls": asked.loss.calls,
        "blocks": write_curves(curves),
        "run_id": asked.run_id,
        "fingerprint": asked.fingerprint,
        "details": canonical(asked.details),
    }
    blocks = [(balances.blocks[block_id], curve) for block_id, curve in curves.items()]
    short = refusals.shortages(account, asked.loss, blocks)
    if any(each.mode != "track" for each in short):
        refusal = refusals.explain(short, asked.analyst, spenders, asked.details)
        known = asked.run_id, asked.fingerprint, asked.loss, said["blocks"]
        repeated = known in balances.refused
        facts = [] if repeated else [Fact(kind="refuse", reason=str(refusal), **said)]
        return facts, refusal
    note = refusals.note(short)
    return [Fact(kind="allocate", claim_id=claim_id, reason=note, **said)], None


def release(claim: Allocation, label: str, digest: str) -> list[Fact]:
    """Publish on a claim that is still open."""
    if claim.label is None:
        claim.require_open()
        return [claim.fact("release", label=label, digest=digest)]
    if (claim.label, claim.digest) != (label, digest):
        raise ClaimError(f"run {claim.run_id} has published other rows, under {claim.label}")
    return []


def settle(claim: Allocation, loss: Loss, publish: tuple[str, str] | None) -> list[Fact]:
    """Charge the loss, and publish before if asked to."""
    if not claim.reserve.covers(loss):
        raise InvalidParameterError(
            f"run {claim.run_id}: {loss} is more than its reserve of {claim.reserve}"
        )
    publication = release(claim, *publish) if publish else []
    if claim.state == "settled" and claim.settled == loss:
        return []
    claim.require_open()
    return [*publication, _closing(claim, "settle", units=loss.units, calls=loss.calls)]


def close(claim: Allocation, kind: Literal["expire", "give_back"], reason: str) -> list[Fact]:
    """Charge the reserve, or give all of it back."""
    if not reason:
        raise InvalidParameterError(f"run {claim.run_id}: say why its claim is closed")
    if claim.state == ("expired" if kind == "expire" else "given_back"):
        return []
    claim.require_open()
    if kind == "give_back" and claim.state == "released":
        raise ClaimError(f"run {claim.run_id} has published and cannot give its claim back")
    return [_closing(claim, kind, units=claim.units, calls=claim.calls, reason=reason)]


def no_account(balances: Balances, analyst: str, dataset: str, at: date | None) -> SettingsError:
    """Say that there is no account, and which there are."""
    when = f"on {at}" if at else "today"
    starts = sorted(balances.accounts_of(analyst, dataset))
    periods = ", ".join(str(start) for start in starts) or "no day"
    return SettingsError(
        f"analyst {analyst} has no account on dataset {dataset} {when}; its periods begin on "
        f"{periods}: open one first"
    )


def _closing(claim: Allocation, kind: Kind, **said: Any) -> Fact:
    """Write how a claim ends; blocks are charged what was reserved, or get all of it back."""
    return claim.fact(kind, blocks=write_curves(claim.left), **said)


def _require_fit_for(queue: BlockQueue, balances: Balances, asked: BlockOpening) -> None:
    """Refuse a block that the queue of its dataset could not serve."""
    if asked.mode != "enforce":
        raise SettingsError(f"block {asked.block_id}: a queue refuses; mode must be enforce")
    if max(asked.capacity.nano) <= 0:
        raise InvalidParameterError(
            f"block {asked.block_id}: capacity {asked.capacity} is not positive at any alpha"
        )
    others = {block.alphas for block in balances.blocks_of(queue)} - {asked.alphas}
    if others:
        raise SettingsError(
            f"block {asked.block_id}: alphas {', '.join(asked.alphas)}, but the queue of dataset "
            f"{queue.dataset} has blocks at {', '.join(min(others))}; that never changes"
        )


def _require_new_days(accounts: Mapping[date, Account], now: datetime, asked: Opening) -> None:
    """Refuse a second allowance for days that have one, and a first one for days gone by."""
    period = f"the period {asked.start} to {asked.end or 'the next'}"
    for account in accounts.values():
        if account.overlaps(asked.start, asked.end):
            raise SettingsError(
                f"{period} overlaps {account}, which ends on {account.period_end}; "
                f"let periods of another length begin there"
            )
    if asked.end is not None and asked.end <= day_in(asked.zone, now):
        raise SettingsError(f"{period} is over; no account is opened for it")


def _require_same_mode(balances: Balances, asked: Opening) -> None:
    """Refuse a whole allowance beside shares, or a share beside a whole allowance."""
    other = balances.accounts.get((asked.analyst, asked.dataset), {}).get(asked.start)
    if other and not (asked.escrow and other.shares):
        raise SettingsError(
            f"{other} is in mode {'escrow' if other.shares else 'eventual'} in region "
            f"{', '.join(sorted(other.opened_by))}: set the same mode in all regions"
        )


def _listed(curves: Mapping[str, RenyiCurve]) -> str:
    """Name blocks and what is asked of each."""
    return ", ".join(f"{name} {curve}" for name, curve in sorted(curves.items())) or "none"


def require_same_question(
    claim: Allocation, asked: Demand, curves: Mapping[str, RenyiCurve]
) -> None:
    """Refuse a run id that stands for another question."""
    ticket = claim.ticket
    if ticket and ticket.any_of:  # it has settled for some of its blocks
        curves = {block_id: curves[block_id] for block_id in claim.blocks if block_id in curves}
    bound = {
        "analyst": (claim.analyst, asked.analyst),
        "dataset": (claim.dataset, asked.dataset or (claim.dataset if ticket else "")),
        "price": (claim.reserve, asked.loss),
        "blocks": (_listed(claim.blocks), _listed(curves)),
        "fingerprint": (claim.fingerprint, asked.fingerprint),
    }
    for name, (first, now) in bound.items():
        if first != now:
            raise ClaimError(
                f"run {claim.run_id} was allocated for another question: {name} {first}, "
                f"now {now}; take a new run id"
            )


def running_account(balances: Balances, now: datetime, asked: Demand) -> Account:
    """Find the account that bears a demand now."""
    account = balances.account_on(asked.analyst, asked.dataset, now)
    if account is None:
        raise no_account(balances, asked.analyst, asked.dataset, None)
    if asked.period_start not in (None, account.period_start):
        raise SettingsError(
            f"the period that begins on {asked.period_start} is not running; {account} is"
        )
    return account


def read_demand(balances: Balances, asked: Demand) -> dict[str, RenyiCurve]:
    """Read what is asked of each block, on that block's own grid."""
    curves = {}
    for block_id, curve in asked.blocks.items():
        block = balances.blocks.get(block_id)
        if block is None:
            raise SettingsError(f"there is no block {block_id}; open it first")
        if asked.dataset and asked.dataset != block.dataset:
            raise SettingsError(
                f"block {block_id} is a slice of dataset {block.dataset}, not of {asked.dataset}"
            )
        curves[block_id] = block.demand(curve)
    return curves
