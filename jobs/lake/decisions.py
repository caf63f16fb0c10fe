"""What may be written: each operation on the ledger as a decision from balances alone.

A decision answers with the facts to append, or with none where everything is said already: so every
operation can be repeated. It raises where the operation is wrong. No storage, no clock.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

from dp_udfs.budget import Loss
from dp_udfs.errors import (
    BudgetExhaustedError,
    ClaimError,
    InvalidParameterError,
    SettingsError,
)
from jobs.lake.balances import Account, Allocation, Balances
from jobs.lake.entries import Fact
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


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a run asks for."""

    run_id: str
    analyst: str
    dataset: str
    loss: Loss
    fingerprint: str
    period_start: date | None
    details: Mapping[str, Any]


def open_account(balances: Balances, now: datetime, asked: Opening) -> list[Fact]:
    """Open an account that is not open; change one only for a reason."""
    accounts = balances.accounts.get((asked.analyst, asked.dataset), {})
    known = accounts.get(asked.start)
    said = {
        "units": asked.allowance.units,
        "calls": asked.allowance.calls,
        "reason": asked.reason or None,
    }
    if known is None:
        _require_new_days(accounts, now, asked)
        account = Account.opened(
            asked.analyst, asked.dataset, asked.start, asked.end, asked.zone, asked.allowance
        )
        return [account.fact("open_account", details=canonical({"zone": asked.zone}), **said)]
    if asked.allowance == known.filter.capacity:
        return []
    if asked.reason:
        return [known.fact("override", **said)]
    if asked.allowance == known.opened_with:
        return []
    raise SettingsError(
        f"{known} was opened with {known.opened_with}, not {asked.allowance}; "
        f"give a reason to change it"
    )


def allocate(
    balances: Balances, now: datetime, claim: Allocation | None, asked: Demand, claim_id: str
) -> tuple[list[Fact], BudgetExhaustedError | None]:
    """Grant a demand, or refuse it: then the refusal comes back beside its fact."""
    if claim:
        _require_same_question(claim, asked)
        if claim.state != "given_back":
            return [], None
    account = _running_account(balances, now, asked)
    said = {
        "units": asked.loss.units,
        "calls": asked.loss.calls,
        "run_id": asked.run_id,
        "fingerprint": asked.fingerprint,
        "details": canonical(asked.details),
    }
    try:
        account.filter.admit(asked.loss)
    except BudgetExhaustedError as short:
        refusal = _explained(short, account, asked)
        repeated = (asked.run_id, asked.fingerprint, asked.loss) in balances.refused
        facts = [] if repeated else [account.fact("refuse", reason=str(refusal), **said)]
        return facts, refusal
    return [account.fact("allocate", claim_id=claim_id, **said)], None


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
    return [*publication, claim.fact("settle", units=loss.units, calls=loss.calls)]


def close(claim: Allocation, kind: Literal["expire", "give_back"], reason: str) -> list[Fact]:
    """Charge the reserve, or give all of it back."""
    if not reason:
        raise InvalidParameterError(f"run {claim.run_id}: say why its claim is closed")
    if claim.state == ("expired" if kind == "expire" else "given_back"):
        return []
    claim.require_open()
    if kind == "give_back" and claim.state == "released":
        raise ClaimError(f"run {claim.run_id} has published and cannot give its claim back")
    return [claim.fact(kind, units=claim.units, calls=claim.calls, reason=reason)]


def no_account(balances: Balances, analyst: str, dataset: str, at: date | None) -> SettingsError:
    """Say that there is no account, and which there are."""
    when = f"on {at}" if at else "today"
    starts = sorted(balances.accounts.get((analyst, dataset), {}))
    periods = ", ".join(str(start) for start in starts) or "no day"
    return SettingsError(
        f"analyst {analyst} has no account on dataset {dataset} {when}; its periods begin on "
        f"{periods}: open one first"
    )


def canonical(details: Mapping[str, Any]) -> str:
    """Write details as JSON, the same for the same details."""
    try:
        return json.dumps(
            details, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"details cannot be written as JSON: {error}") from None


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


def _require_same_question(claim: Allocation, asked: Demand) -> None:
    """Refuse a run id that stands for another question."""
    bound = {
        "analyst": (claim.analyst, asked.analyst),
        "dataset": (claim.dataset, asked.dataset),
        "price": (claim.reserve, asked.loss),
        "fingerprint": (claim.fingerprint, asked.fingerprint),
    }
    for name, (first, now) in bound.items():
        if first != now:
            raise ClaimError(
                f"run {claim.run_id} was allocated for another question: {name} {first}, "
                f"now {now}; take a new run id"
            )


def _running_account(balances: Balances, now: datetime, asked: Demand) -> Account:
    account = balances.account_on(asked.analyst, asked.dataset, now)
    if account is None:
        raise no_account(balances, asked.analyst, asked.dataset, None)
    if asked.period_start not in (None, account.period_start):
        raise SettingsError(
            f"the period that begins on {asked.period_start} is not running; {account} is"
        )
    return account


def _explained(
    short: BudgetExhaustedError, account: Account, asked: Demand
) -> BudgetExhaustedError:
    """Say whom a refusal is about, and when there is more."""
    name = f"{account.analyst} on {asked.details.get('dataset_name') or account.dataset}"
    end = account.period_end
    resets = f"on {end} ({account.zone})" if end else "when the next period is opened"
    return type(short)(
        f"{name}, period {account.period_start}: {short}; resets {resets}",
        **short.facts,
        analyst=account.analyst,
        dataset=account.dataset,
        capacity=account.filter.capacity,
        period_start=account.period_start,
        resets_at=end,
    )
