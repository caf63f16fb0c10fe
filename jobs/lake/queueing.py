"""What may be written about queues: each operation as a decision from balances alone.

As in `jobs.lake.decisions`, a decision answers with the facts to append, those of other claims
included that are decided by now; or with none where everything is said already.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from dp_udfs.budget import NOTHING, RenyiCurve
from dp_udfs.errors import (
    BudgetExhaustedError,
    BudgetWaitingError,
    ClaimError,
    InvalidParameterError,
    SettingsError,
)
from dp_udfs.policies import Policy
from dp_udfs.scheduler import Shortage
from jobs.lake import policies, refusals
from jobs.lake.allocations import Allocation
from jobs.lake.balances import Balances, BlockQueue
from jobs.lake.budgets import Curve, write_curves
from jobs.lake.decisions import Demand, read_demand, require_same_question, running_account
from jobs.lake.entries import Fact, canonical
from jobs.lake.rounds import Round, Waiting


def open_queue(balances: Balances, dataset: str, policy: Policy) -> list[Fact]:
    """Open this region's queue for the blocks that it will open on a dataset."""
    said = policies.write(policy)
    known = balances.queues.get((balances.here, dataset))
    if known is not None and known.policy == said:
        return []
    served = [
        block.block_id
        for block in balances.blocks.values()
        if block.dataset == dataset and balances.here in block.opened_by
    ]
    if known is not None or served:
        now = f"by policy {known.policy}" if known else "without a queue, first come first served"
        raise SettingsError(
            f"policy: {said}, but the blocks of dataset {dataset} are served {now}; that never "
            f"changes, because claims were made in reliance on it"
        )
    return [Fact(kind="open_queue", dataset=dataset, details=canonical({"policy": said}))]


def is_queued(balances: Balances, blocks: Iterable[str]) -> bool:
    """Whether a claim on these blocks is for a queue to decide.

    Raises
    ------
    SettingsError
        If no queue serves them, and the data of one are gone.
    """
    known = [balances.blocks[name] for name in blocks if name in balances.blocks]
    if any(block.queue for block in known):
        return True
    for block in known:
        if block.retired:
            raise SettingsError(f"block {block.block_id} is retired: its data are gone")
    return False


def submit(
    balances: Balances,
    now: datetime,
    claim: Allocation | None,
    asked: Demand,
    terms: Waiting,
    claim_id: str,
    spenders: refusals.Spenders,
) -> tuple[list[Fact], BudgetExhaustedError | None]:
    """Put a claim into the queue of its blocks, once; let the queue decide what is due by now.

    A demand larger than what its account has left is refused: then the refusal comes back beside
    its fact, and the queue never hears of it.
    """
    curves = read_demand(balances, asked)
    if claim and not claim.may_begin_again:
        _require_same_terms(claim, asked, curves, terms)
        return (run_round(balances, now, claim.dataset) if claim.state == "waiting" else []), None
    queue = _queue_of(balances, curves)
    asked = replace(asked, dataset=queue.dataset)
    if "queue" in asked.details:
        raise InvalidParameterError("details: 'queue' is the ledger's own word")
    entered = Allocation(
        region=balances.here,
        run_id=asked.run_id,
        claim_id=claim_id,
        state="waiting",
        analyst=asked.analyst,
        dataset=queue.dataset,
        period_start=asked.period_start,
        units=asked.loss.units,
        calls=asked.loss.calls,
        fingerprint=asked.fingerprint,
        details=asked.details,
        recorded_at=now,
        blocks=curves,
    )
    refusal = _account_refusal(balances, now, asked, spenders)
    if refusal is not None:
        return _refused(balances, entered, refusal), refusal
    return Round(balances, queue, now).submit(entered, terms), None


def check(
    balances: Balances, now: datetime, asked: Demand, spenders: refusals.Spenders
) -> BudgetExhaustedError | None:
    """Say why a demand would not be granted at once; None if it would be."""
    facts, refusal = submit(balances, now, None, asked, Waiting(), "check", spenders)
    if refusal is not None:
        return refusal
    own = [fact for fact in facts if fact.claim_id == "check"]
    if own[-1].kind == "allocate":
        return None
    if own[-1].kind == "reject":
        return BudgetExhaustedError(f"would be rejected: {own[-1].reason}")
    return BudgetWaitingError("would wait in the queue of its blocks")


def run_round(balances: Balances, now: datetime, dataset: str | None = None) -> list[Fact]:
    """Let the queues of this region decide what is due by now; of one dataset if given."""
    facts: list[Fact] = []
    for queue in balances.queues.values():
        if queue.region == balances.here and dataset in (None, queue.dataset):
            round_ = Round(balances, queue, now)
            facts += round_.decided() or round_.note()
    return facts


def around(
    balances: Balances, now: datetime, claim: Allocation, facts: Sequence[Fact]
) -> list[Fact]:
    """Let a claim's queue decide what is due before and after facts that close the claim."""
    queue = balances.queues.get((claim.region, claim.dataset)) if claim.ticket else None
    if queue is None or not facts:
        return list(facts)
    return Round(balances, queue, now).around(claim, facts)


def cancel(balances: Balances, now: datetime, claim: Allocation, reason: str) -> list[Fact]:
    """Let a claim wait no longer, unless it is decided by now: the caller looks at its state."""
    if not reason:
        raise InvalidParameterError(f"run {claim.run_id}: say why its claim is cancelled")
    if claim.state != "waiting":
        return []
    queue = balances.queues[claim.region, claim.dataset]
    return Round(balances, queue, now).cancel(claim, reason)


def consume(
    balances: Balances,
    now: datetime,
    claim: Allocation,
    amounts: Mapping[str, Curve] | None,
    request_id: str,
) -> list[Fact]:
    """Use a part of what a claim holds of its blocks; all that is left if none is said."""
    if claim.reserve != NOTHING:
        raise ClaimError(f"run {claim.run_id} charges an account too: settle it")
    read = None if amounts is None else _amounts(balances, claim, amounts)
    if request_id in claim.requests:
        if read is not None and write_curves(read) != claim.requests[request_id]:
            raise ClaimError(
                f"run {claim.run_id}: request {request_id} consumed other amounts; take a new "
                f"request id"
            )
        return []
    claim.require_open()
    left = dict(claim.left)
    wanted = left if read is None else read
    for block_id, curve in wanted.items():
        held = left[block_id]
        if any(use > have for use, have in zip(curve.nano, held.nano, strict=True)):
            raise ClaimError(
                f"run {claim.run_id} cannot consume {curve} of block {block_id}: it holds {held}; "
                f"ask for no more than that at any alpha"
            )
    said = {"blocks": write_curves(wanted), "details": canonical({"request": request_id})}
    if wanted == left:
        return around(balances, now, claim, [claim.fact("settle", **said)])
    facts = [claim.fact("consume", **said)]
    queue = balances.queues.get((claim.region, claim.dataset)) if claim.ticket else None
    return Round(balances, queue, now).consume(wanted, facts) if queue else facts


def retire(balances: Balances, now: datetime, block_id: str, reason: str) -> list[Fact]:
    """Say that a block's data are gone: nobody is served by it any more."""
    block = balances.blocks.get(block_id)
    if block is None:
        raise SettingsError(f"there is no block {block_id}")
    if block.retired:
        return []
    details = canonical({"block": block_id})
    facts = [Fact(kind="retire_block", dataset=block.dataset, details=details, reason=reason)]
    if not block.queue:
        return facts
    return Round(balances, _queue_of(balances, [block_id]), now).retire(block_id, facts)


def verdict(balances: Balances, now: datetime, claim: Allocation) -> BudgetExhaustedError | None:
    """Say why a claim is not granted: it waits, or never will be; None if it is."""
    ticket = claim.ticket
    if claim.was_granted or ticket is None:
        return None
    name = claim.details.get("dataset_name", claim.dataset)
    facts = {"run_id": claim.run_id, "dataset": claim.dataset, "state": claim.state}
    if claim.state != "waiting":
        state = claim.state.replace("_", " ")
        return BudgetExhaustedError(
            f"run {claim.run_id} on dataset {name} was {state}: {ticket.reason}; ask for "
            f"less, or for other blocks, under a new run id",
            **facts,
        )
    round_ = Round(balances, balances.queues[claim.region, claim.dataset], now)
    short = round_.shortages(claim.run_id)
    until = f" until {ticket.until:%Y-%m-%dT%H:%M:%SZ}" if ticket.until else ""
    return BudgetWaitingError(
        f"run {claim.run_id} on dataset {name} waits{until}: {waits_for(short)}; ask "
        f"again under the same run id",
        **facts,
        shortages=short,
    )


def in_order(balances: Balances, now: datetime) -> tuple[Allocation, ...]:
    """List the claims that will still wait in this region's queues, in the order of service."""
    found: list[Allocation] = []
    for queue in balances.queues.values():
        if queue.region == balances.here:
            order = Round(balances, queue, now).order()
            found += [balances.claims[queue.region, run_id] for run_id in order]
    return tuple(found)


def waits_for(short: Sequence[Shortage]) -> str:
    """Say what a claim waits for: a block, what it needs there and what is unlocked."""
    if not short:
        return "the next round decides"
    first, *more = short
    others = f", and {len(more)} more" if more else ""
    return (
        f"block {first.block_id} has unlocked {as_epsilons(first.unlocked)}, needed "
        f"{as_epsilons(first.needed)}{others}"
    )


def as_epsilons(curve: Sequence[object]) -> str:
    """Show amounts in billionths as a curve in epsilons."""
    return str(RenyiCurve(tuple(int(amount) for amount in curve)))  # type: ignore[call-overload]


def _queue_of(balances: Balances, names: Iterable[str]) -> BlockQueue:
    """Find the one queue that serves these blocks, here."""
    keys = {(balances.blocks[name].queue, balances.blocks[name].dataset) for name in names}
    if not keys:
        raise InvalidParameterError("blocks: name at least one")
    for region, dataset in sorted(keys):
        if region != balances.here:
            where = f"served in region {region}: ask there" if region else "not served by a queue"
            raise SettingsError(f"blocks of dataset {dataset} are {where}")
    if len(keys) > 1:
        raise SettingsError("blocks: a claim names blocks of one dataset")
    return balances.queues[keys.pop()]


def _require_same_terms(
    claim: Allocation, asked: Demand, curves: Mapping[str, RenyiCurve], terms: Waiting
) -> None:
    """Refuse a run id that stands for another question, or for other terms of waiting."""
    require_same_question(claim, asked, curves)
    ticket = claim.ticket
    first = (ticket.weight, ticket.any_of) if ticket else None
    if first not in (None, (terms.weight, terms.any_of)):
        raise ClaimError(
            f"run {claim.run_id} was submitted with weight and any_of {first}; take a new run id"
        )


def _account_refusal(
    balances: Balances, now: datetime, asked: Demand, spenders: refusals.Spenders
) -> BudgetExhaustedError | None:
    """Refuse what its account has not left even now."""
    if not asked.needs_account:
        return None
    account = running_account(balances, now, asked)
    short = refusals.shortages(account, asked.loss, ())
    if all(each.mode == "track" for each in short):
        return None
    return refusals.explain(short, asked.analyst, spenders, asked.details)


def _refused(balances: Balances, claim: Allocation, refusal: BudgetExhaustedError) -> list[Fact]:
    said = write_curves(claim.blocks)
    if (claim.run_id, claim.fingerprint, claim.reserve, said) in balances.refused:
        return []
    fact = claim.fact(
        "refuse",
        units=claim.units,
        calls=claim.calls,
        blocks=said,
        details=canonical(claim.details),
        reason=str(refusal),
    )
    return [replace(fact, claim_id=None)]


def _amounts(
    balances: Balances, claim: Allocation, amounts: Mapping[str, Curve]
) -> dict[str, RenyiCurve]:
    for block_id in amounts:
        if block_id not in claim.blocks:
            raise ClaimError(f"run {claim.run_id} holds nothing of block {block_id}")
    return {name: balances.blocks[name].demand(curve) for name, curve in amounts.items()}
