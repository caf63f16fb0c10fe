"""The account of one analyst on one dataset: opened when needed, asked, checked and changed."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from dp_udfs import prices
from dp_udfs.budget import Loss
from dp_udfs.errors import SettingsError
from dp_udfs.filters import PrivacyFilter
from jobs.lake import refusals, snapshots
from jobs.lake.budgets import Account, Curve, Mode, Terms
from jobs.lake.ledger import Budget, Check, Ledger
from jobs.lake.periods import period_of
from jobs.lake.questions import Question
from jobs.lake.settings import DatasetSettings, LakeSettings


def account_of(lake: LakeSettings, dataset: DatasetSettings) -> str:
    """Name the dataset as the ledger does: by its table's id, which two settings files can share.

    Raises
    ------
    SettingsError
        If no snapshot of it is published.
    """
    return snapshots.latest(lake, dataset).tables["engagements"].table_id


def open_account(
    ledger: Ledger, dataset: DatasetSettings, account: str, analyst: str, now: datetime
) -> Budget:
    """Open the analyst's account for the current period if none is; return what it holds.

    An account that is open keeps the allowance and the terms that it was opened with, whatever the
    dataset file says by now: `differences` tells, `update_budget` changes the allowance.
    """
    fresh = _planned(dataset, account, analyst, now)
    if not ledger.exists() or ledger.find_budget(analyst, account) is None:
        try:
            ledger.open_account(
                analyst,
                account,
                fresh.period_start,
                fresh.opened_with.units,
                fresh.opened_with.calls,
                period_end=fresh.period_end,
                zone=fresh.zone,
                terms=fresh.terms,
                mode=fresh.mode,
                escrow=dataset.in_escrow,
            )
        except SettingsError:  # opened meanwhile, under another settings file perhaps
            if ledger.find_budget(analyst, account) is None:
                raise
    budget = ledger.get_budget(analyst, account)
    if dataset.in_escrow and budget.in_common:
        raise SettingsError(
            f"regions.mode: is 'escrow', but {analyst} has an older account on {dataset.name}, "
            f"which every region may spend whole; keep mode 'eventual' until it ends "
            f"({budget.resets_at})"
        )
    return budget


def get_budget(
    ledger: Ledger, dataset: DatasetSettings, account: str, analyst: str, now: datetime
) -> Budget:
    """Say what an analyst has; where no account is open yet, what one would be opened with.

    Nothing is written, so a period begins without any job having to run.
    """
    fresh = _planned(dataset, account, analyst, now)
    found = ledger.find_budget(analyst, account) if ledger.exists() else None
    return found or Budget.of(fresh)


def check_budget(
    ledger: Ledger,
    dataset: DatasetSettings,
    account: str,
    analyst: str,
    demand: Loss,
    now: datetime,
    *,
    blocks: Mapping[str, Curve] | None = None,
) -> Check:
    """Say whether a demand would be granted now. Nothing is written, and nothing is held."""
    ledger.require_complete()
    fresh = _planned(dataset, account, analyst, now)
    details = {"dataset_name": dataset.name}
    opened = ledger.exists() and ledger.find_budget(analyst, account) is not None
    if opened:
        asked = {"units": demand.units, "calls": demand.calls}
        return ledger.check_budget(analyst, account, blocks=blocks, details=details, **asked)
    short = refusals.shortages(fresh, demand, [])
    if short and fresh.mode == "enforce":
        return Check(refusals.explain(short, "", lambda *_: (), details))
    if blocks:
        return ledger.check_budget(analyst, account, blocks=blocks, details=details)
    return Check(note=refusals.note(short))


def update_budget(
    ledger: Ledger,
    dataset: DatasetSettings,
    account: str,
    analyst: str,
    now: datetime,
    *,
    reason: str,
    units: int | None = None,
    calls: int | None = None,
    mode: Mode | None = None,
) -> Budget:
    """Change an analyst's allowance for the rest of the period, by an entry with a reason.

    What is left out stays. The next period begins with the dataset file's allowance again.
    """
    open_account(ledger, dataset, account, analyst, now)
    ledger.update_budget(analyst, account, reason=reason, units=units, calls=calls, mode=mode)
    return ledger.get_budget(analyst, account)


def changed(
    budget: Budget, units: int | None = None, calls: int | None = None, mode: Mode | None = None
) -> Budget:
    """Return a budget as `update_budget` would leave it."""
    allowance = Loss(
        budget.units if units is None else units, budget.calls if calls is None else calls
    )
    before = PrivacyFilter(Loss(budget.units, budget.calls), budget.used)
    after = replace(before, capacity=allowance)
    return replace(
        budget,
        units=allowance.units,
        calls=allowance.calls,
        units_left=after.left.units,
        calls_left=after.left.calls,
        mode=mode or budget.mode,
        tracked=budget.tracked or mode == "track",
        in_all=budget.in_all.beyond(before.capacity_or_used) + after.capacity_or_used,
    )


def price(question: Question, terms: Terms | None) -> Loss:
    """Price a question in the units and calls of the account that pays for it.

    Raises
    ------
    SettingsError
        If it is Gaussian and the account's guarantee is for bounded-range steps alone.

    Notes
    -----
    Privacy: a unit stands for the account's epsilon. A question of another epsilon costs
    `Terms.weight` units for each of its own, and one of another delta as many calls as cover it.
    """
    if terms is None:
        return question.reserve
    mechanism = question.mechanism
    if mechanism.name == "fixed_gaussian" and not terms.gaussian:
        raise SettingsError(
            "question: mechanism: fixed_gaussian: the account was opened with gaussian = false; "
            "ask with another mechanism until its period ends"
        )
    calls = prices.charged_calls(
        mechanism.name,
        l0=mechanism.l0,
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        account_delta=terms.delta,
    )
    units = question.reserve.units * unit_weight(question, terms)
    return Loss(units, calls * question.cohorts_met)


def unit_weight(question: Question, terms: Terms | None) -> int:
    """Say how many of the account's units one unit of a question costs."""
    return 1 if terms is None else terms.weight(question.mechanism.epsilon)


def notes(dataset: DatasetSettings, budget: Budget) -> dict[str, str]:
    """Say what an analyst ought to know beside the numbers; nothing where all is as usual."""
    said = {
        "mode": "track: nothing is refused, and nothing guaranteed"
        if budget.mode == "track"
        else None,
        "differs": differences(dataset, budget),
        "warning": warning(dataset, budget),
    }
    return {name: text for name, text in said.items() if text}


def differences(dataset: DatasetSettings, budget: Budget) -> str | None:
    """Say where the dataset file differs from what the open account was opened with."""
    terms = terms_of(dataset)
    pairs = {
        "allowance": (Loss(*dataset.allowance(budget.analyst)), budget.opened_with),
        "mode": (dataset.budget.mode, budget.mode),
        **{
            name: (value, getattr(budget.terms or terms, name))
            for name, value in vars(terms).items()
        },
    }
    found = [f"{name} {now} (was {first})" for name, (now, first) in pairs.items() if now != first]
    if not found:
        return None
    return (
        f"the dataset file says {', '.join(found)}; this period's account keeps what it was opened "
        f"with, and only update_budget changes allowance and mode"
    )


def warning(dataset: DatasetSettings, budget: Budget) -> str | None:
    """Warn when an allowance is used to the share that the dataset file names, or beyond."""
    share = dataset.budget.warn_at
    amounts = {
        "units": (budget.used.units, budget.units),
        "calls": (budget.used.calls, budget.calls),
    }
    high = [
        f"{used} of {whole} {name}"
        for name, (used, whole) in amounts.items()
        if used and used >= share * whole
    ]
    if not high:
        return None
    return f"{' and '.join(high)} are used or reserved (warn_at = {share:g})"


def facts(budget: Budget) -> dict[str, Any]:
    """Collect the numbers of a budget, as programs print them."""
    return {
        "analyst": budget.analyst,
        "units": budget.units,
        "calls": budget.calls,
        "units_left": budget.units_left,
        "calls_left": budget.calls_left,
        "used_units": budget.used.units,
        "used_calls": budget.used.calls,
        "period_start": budget.period_start,
        "resets_at": budget.resets_at,
        "time_zone": budget.zone,
        "open_claims": len(budget.open),
    }


def describe(budget: Budget) -> str:
    """Say what is left, in one line."""
    return (
        f"{budget.units_left} of {budget.units} units, "
        f"{budget.calls_left} of {budget.calls} calls; resets on {budget.resets_at}"
    )


def terms_of(dataset: DatasetSettings) -> Terms:
    """Read what a unit and a call stand for from the dataset file."""
    budget = dataset.budget
    return Terms(
        epsilon=budget.epsilon,
        delta=budget.delta,
        delta_prime=budget.delta_prime,
        gaussian=budget.gaussian,
    )


def _planned(dataset: DatasetSettings, account: str, analyst: str, now: datetime) -> Account:
    """Make the account that would be opened now."""
    start, end = period_of(now, dataset.table.time_zone, dataset.budget.period)
    allowance = Loss(*dataset.allowance(analyst))
    mode = dataset.budget.mode
    return Account(
        analyst=analyst,
        dataset=account,
        period_start=start,
        period_end=end,
        zone=dataset.table.time_zone,
        opened_with=allowance,
        filter=PrivacyFilter(allowance),
        terms=terms_of(dataset),
        mode=mode,
        tracked=mode == "track",
    )
