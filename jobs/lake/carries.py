"""Carries: all that later entries can depend on, written down so that a fold may begin there.

A carry holds the accounts that are not over and the last one of every analyst on every dataset, all
blocks and queues, the claims that are open or wait, with their accounts, what is on its way between
shares, and the heads of the regions. All else is in the entries before it.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from dp_udfs.budget import Loss, RenyiCurve
from dp_udfs.filters import BlockFilter, PrivacyFilter
from jobs.lake.allocations import Allocation, Ticket
from jobs.lake.balances import Balances, BlockQueue, Head, Transfer, UserCount
from jobs.lake.budgets import Account, Block, Share, Stamp, Terms
from jobs.lake.periods import day_in


def write(balances: Balances, now: datetime) -> str:
    """Write balances down as JSON."""
    claims = [
        claim for claim in balances.claims.values() if claim.is_open or claim.state == "waiting"
    ]
    needed = {claim.account_key for claim in claims}
    needed |= {transfer.account_key for transfer in balances.transfers.values()}
    accounts = [
        account
        for of_analyst in balances.accounts.values()
        for account in of_analyst.values()
        if account.key in needed
        or account.period_start == max(of_analyst)
        or account.period_end is None
        or day_in(account.zone, now) < account.period_end
    ]
    said = {
        "heads": {region: _head_to_json(head) for region, head in balances.heads.items()},
        "accounts": [_account_to_json(account) for account in accounts],
        "blocks": [_block_to_json(block) for block in balances.blocks.values()],
        "queues": [_queue_to_json(queue) for queue in balances.queues.values()],
        "counts": [vars(count) for count in balances.counts.values()],
        "claims": [_claim_to_json(claim) for claim in claims],
        "transfers": {key: _transfer_to_json(sent) for key, sent in balances.transfers.items()},
    }
    return json.dumps(said, sort_keys=True, separators=(",", ":"))


def read(text: str) -> Balances:
    """Read balances as they were written down."""
    said = json.loads(text)
    balances = Balances({region: _head_from_json(head) for region, head in said["heads"].items()})
    for values in said["accounts"]:
        account = _account_from_json(values)
        of_analyst = balances.accounts.setdefault((account.analyst, account.dataset), {})
        of_analyst[account.period_start] = account
    for values in said.get("blocks", ()):
        balances.blocks[values["block_id"]] = _block_from_json(values)
    for values in said.get("queues", ()):
        queue = BlockQueue(**values | {"at": datetime.fromisoformat(values["at"])})
        balances.queues[queue.key] = queue
    for values in said.get("counts", ()):
        count = UserCount(**values | {"sums": tuple(values["sums"])})
        balances.counts[count.key] = count
    for values in said["claims"]:
        claim = _claim_from_json(values)
        balances.claims[claim.region, claim.run_id] = claim
    for key, values in said.get("transfers", {}).items():
        balances.transfers[key] = _transfer_from_json(values)
    return balances


def _head_to_json(head: Head) -> tuple[int, str, str]:
    return head.entry_no, head.hash, head.recorded_at.isoformat()


def _head_from_json(values: tuple[int, str, str]) -> Head:
    return Head(values[0], values[1], datetime.fromisoformat(values[2]))


def _account_to_json(account: Account) -> dict[str, Any]:
    return {
        "analyst": account.analyst,
        "dataset": account.dataset,
        "period_start": account.period_start.isoformat(),
        "period_end": account.period_end and account.period_end.isoformat(),
        "zone": account.zone,
        "opened_with": _loss_to_json(account.opened_with),
        "capacity": _loss_to_json(account.filter.capacity),
        "used": _loss_to_json(account.filter.used),
        "terms": account.terms and vars(account.terms),
        "mode": account.mode,
        "tracked": account.tracked,
        "opened_by": sorted(account.opened_by),
        "shares": {region: _share_to_json(share) for region, share in account.shares.items()},
        "overridden_at": _stamp_to_json(account.overridden_at),
    }


def _account_from_json(values: Mapping[str, Any]) -> Account:
    end = values["period_end"]
    return Account(
        values["analyst"],
        values["dataset"],
        date.fromisoformat(values["period_start"]),
        end and date.fromisoformat(end),
        values["zone"],
        Loss(*values["opened_with"]),
        PrivacyFilter(Loss(*values["capacity"]), Loss(*values["used"])),
        Terms(**values["terms"]) if values.get("terms") else None,
        values.get("mode", "enforce"),
        values.get("tracked", False),
        frozenset(values["opened_by"]),
        {region: _share_from_json(share) for region, share in values["shares"].items()},
        _stamp_from_json(values["overridden_at"]),
    )


def _share_to_json(share: Share) -> list[tuple[int, int]]:
    return [_loss_to_json(x) for x in (share.opened_with, share.filter.capacity, share.filter.used)]


def _share_from_json(values: Sequence[tuple[int, int]]) -> Share:
    opened_with, capacity, used = (Loss(*value) for value in values)
    return Share(opened_with, PrivacyFilter(capacity, used))


def _stamp_to_json(stamp: Stamp | None) -> tuple[str, str, int] | None:
    return stamp and (stamp[0].isoformat(), *stamp[1:])


def _stamp_from_json(values: tuple[str, str, int] | None) -> Stamp | None:
    return values and (datetime.fromisoformat(values[0]), values[1], values[2])


def _transfer_to_json(sent: Transfer) -> list[Any]:
    analyst, dataset, start = sent.account_key
    return [
        sent.sender,
        sent.receiver,
        analyst,
        dataset,
        start.isoformat(),
        *vars(sent.loss).values(),
    ]


def _transfer_from_json(values: Sequence[Any]) -> Transfer:
    sender, receiver, analyst, dataset, start, units, calls = values
    key = analyst, dataset, date.fromisoformat(start)
    return Transfer(sender, receiver, key, Loss(units, calls))


def _block_to_json(block: Block) -> dict[str, Any]:
    curves = {name: curve.nano for name, curve in vars(block.filter).items()}
    return vars(block) | {
        "filter": curves,
        "opened_by": sorted(block.opened_by),
        "opened_at": block.opened_at and block.opened_at.isoformat(),
    }


def _block_from_json(values: Mapping[str, Any]) -> Block:
    curves = {name: RenyiCurve(tuple(nano)) for name, nano in values["filter"].items()}
    opened_at = values.get("opened_at")
    typed = {
        "alphas": tuple(values["alphas"]),
        "filter": BlockFilter(**curves),
        "opened_by": frozenset(values["opened_by"]),
        "opened_at": opened_at and datetime.fromisoformat(opened_at),
    }
    return Block(**{**values, **typed})


def _claim_to_json(claim: Allocation) -> dict[str, Any]:
    return vars(claim) | {
        "period_start": claim.period_start and claim.period_start.isoformat(),
        "blocks": _curves_to_json(claim.blocks),
        "consumed": _curves_to_json(claim.consumed),
        "ticket": claim.ticket and _ticket_to_json(claim.ticket),
        "recorded_at": claim.recorded_at.isoformat(),
    }


def _claim_from_json(values: Mapping[str, Any]) -> Allocation:
    start, ticket = values["period_start"], values.get("ticket")
    typed = {
        "period_start": start and date.fromisoformat(start),
        "blocks": _curves_from_json(values.get("blocks", {})),
        "consumed": _curves_from_json(values.get("consumed", {})),
        "ticket": ticket and _ticket_from_json(ticket),
        "recorded_at": datetime.fromisoformat(values["recorded_at"]),
    }
    return Allocation(**{**values, **typed})


def _curves_to_json(curves: Mapping[str, RenyiCurve]) -> dict[str, Sequence[int]]:
    return {block_id: curve.nano for block_id, curve in curves.items()}


def _curves_from_json(curves: Mapping[str, Sequence[int]]) -> dict[str, RenyiCurve]:
    return {block_id: RenyiCurve(tuple(nano)) for block_id, nano in curves.items()}


def _queue_to_json(queue: BlockQueue) -> dict[str, Any]:
    return vars(queue) | {"at": queue.at.isoformat()}


_MOMENTS = ("submitted_at", "until", "decided_at")  # of a ticket


def _ticket_to_json(ticket: Ticket) -> dict[str, Any]:
    moments = {name: getattr(ticket, name) for name in _MOMENTS}
    return vars(ticket) | {name: at and at.isoformat() for name, at in moments.items()}


def _ticket_from_json(values: Mapping[str, Any]) -> Ticket:
    moments = {name: values[name] and datetime.fromisoformat(values[name]) for name in _MOMENTS}
    return Ticket(**{**values, **moments, "chosen": tuple(values["chosen"])})


def _loss_to_json(loss: Loss) -> tuple[int, int]:
    return loss.units, loss.calls
