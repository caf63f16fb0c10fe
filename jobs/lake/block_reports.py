"""Tables about privacy blocks and their queues, from the entries alone: what is where, who waits.

Whatever others see of a claim is its reserve, never what it did cost: so these tables tell nothing
about answers. Blocks of users that may not be named do not exist, so none is listed.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from dp_udfs.blocks import Parts
from dp_udfs.budget import NANO
from jobs.lake.balances import Balances
from jobs.lake.budgets import PURE, Block, read_curves
from jobs.lake.entries import Entry
from jobs.lake.queueing import waits_for
from jobs.lake.rounds import Round

QUANTILES = (0.5, 0.9, 0.99, 1.0)


def fold(entries: Iterable[Entry], region: str) -> Balances:
    """Fold all entries, those that carries leave out too."""
    balances = Balances(here=region)
    for entry in entries:
        balances.apply(entry)
    return balances


def blocks(balances: Balances, now: datetime, dataset: str | None = None) -> list[dict[str, Any]]:
    """Show the four parts of each block, as shares at the order with most room; they add up to 1.

    `epsilon_used` is what its reserves amount to at the block's own delta; `days_left` is how long
    the rest lasts at the pace so far, None where nothing was taken yet.
    """
    queued = _queued(balances, now)
    rows = []
    for block in sorted(balances.blocks.values(), key=lambda each: each.block_id):
        if dataset not in (None, block.dataset):
            continue
        order = roomiest(block)
        total = block.filter.capacity.nano[order]
        if total <= 0:
            continue
        parts = asdict(queued.get(block.block_id) or _without_queue(block))
        shares = {name: float(Fraction(curve[order]) / total) for name, curve in parts.items()}
        rows.append(
            {
                "block": block.block_id,
                **shares,
                "alpha": block.alphas[order],
                "epsilon_used": _epsilon_used(block),
                "days_left": _days_left(block, order, now),
                "state": "retired" if block.retired else "queued" if block.queue else "open",
            }
        )
    return rows


def waiting(balances: Balances, now: datetime) -> list[dict[str, Any]]:
    """List who waits, first to be served first, since when and for what."""
    rows = []
    for queue in balances.queues.values():
        round_ = Round(balances, queue, now)
        for run_id in round_.order():
            claim = balances.claims[queue.region, run_id]
            ticket = claim.ticket
            assert ticket is not None
            rows.append(
                {
                    "run_id": run_id,
                    "analyst": claim.analyst,
                    "dataset": claim.details.get("dataset_name", claim.dataset),
                    "since": ticket.submitted_at,
                    "until": ticket.until,
                    "waits_for": waits_for(round_.shortages(run_id)),
                }
            )
    return rows


def delays(balances: Balances) -> list[dict[str, Any]]:
    """Say by dataset how long claims waited that were granted, and how many were not."""
    waited: dict[str, list[float]] = defaultdict(list)
    ended: dict[str, Counter[str]] = defaultdict(Counter)
    for claim in balances.claims.values():
        if claim.ticket is None:
            continue
        name = claim.details.get("dataset_name", claim.dataset)
        ended[name]["granted" if claim.was_granted else claim.state] += 1
        if claim.was_granted and claim.waited is not None:
            waited[name].append(claim.waited)
    return [
        {
            "dataset": name,
            **{state: counts[state] for state in ("granted", "waiting", "rejected", "timed_out")},
            **{
                f"p{quantile * 100:g}_seconds": _quantile(waited[name], quantile)
                for quantile in QUANTILES
            },
        }
        for name, counts in sorted(ended.items())
    ]


def tenants(balances: Balances) -> list[dict[str, Any]]:
    """Say what each analyst has taken, in whole blocks' worth, at the order with most room."""
    worth: dict[str, Fraction] = defaultdict(Fraction)
    claims: Counter[str] = Counter()
    for claim in balances.claims.values():
        for block_id in claim.blocks:
            taken, block = claim.taken_of(block_id), balances.blocks[block_id]
            order = roomiest(block)
            total = block.filter.capacity.nano[order]
            if taken is not None and total > 0:
                worth[claim.analyst] += Fraction(taken.nano[order], total)
        claims[claim.analyst] += bool(claim.blocks and claim.was_granted)
    whole = sum(worth.values()) or 1
    return [
        {
            "analyst": analyst or "(none)",
            "claims": claims[analyst],
            "blocks_worth": float(amount),
            "share": float(amount / whole),
        }
        for analyst, amount in sorted(worth.items(), key=lambda pair: -pair[1])
    ]


def over_time(entries: Sequence[Entry], region: str) -> list[dict[str, Any]]:
    """Show the four parts of each block at the end of each day on which anything was written."""
    balances, rows = Balances(here=region), []
    for place, entry in enumerate(entries):
        balances.apply(entry)
        day = entry.recorded_at.date()
        if place + 1 == len(entries) or entries[place + 1].recorded_at.date() > day:
            parts = blocks(balances, entry.recorded_at)
            rows += [{"day": day, **row} for row in parts]
    return rows


def decisions_by_day(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Count what happened to queued claims, day by day."""
    kinds = ("submit", "allocate", "reject", "time_out", "cancel")
    days: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        said = entry.details or "{}"
        if entry.kind == "submit" or (entry.kind in kinds and "queue" in json.loads(said)):
            days[entry.recorded_at.date().isoformat()][entry.kind] += 1
    return [
        {"day": day, **{kind: counts[kind] for kind in kinds}}
        for day, counts in sorted(days.items())
    ]


def trail(entries: Iterable[Entry], run_id: str) -> list[dict[str, Any]]:
    """List everything that the ledger says of one run, in order."""
    rows = []
    for entry in entries:
        if entry.run_id != run_id:
            continue
        queue = json.loads(entry.details or "{}").get("queue", {})
        rows.append(
            {
                "recorded_at": entry.recorded_at,
                "kind": entry.kind,
                "decided_at": queue.get("at"),
                "blocks": {name: str(curve) for name, curve in read_curves(entry.blocks).items()},
                "units": entry.units,
                "reason": entry.reason or "",
                "region": entry.region,
                "entry_no": entry.entry_no,
            }
        )
    return rows


def roomiest(block: Block) -> int:
    """Find the order at which the largest part of a block is left."""
    pairs = list(zip(block.filter.left.nano, block.filter.capacity.nano, strict=True))
    usable = [place for place, (_, total) in enumerate(pairs) if total > 0]
    return max(usable, key=lambda place: Fraction(*pairs[place]), default=0)


def _queued(balances: Balances, now: datetime) -> Mapping[str, Parts]:
    """Show the four parts of all blocks that have a queue."""
    found: dict[str, Parts] = {}
    for queue in balances.queues.values():
        found |= Round(balances, queue, now).parts()
    return found


def _without_queue(block: Block) -> Parts:
    """Show a block that is open from the start."""
    owned = block.filter
    return Parts(owned.left.zero.nano, owned.left.nano, owned.allocated.nano, owned.consumed.nano)


def _epsilon_used(block: Block) -> float:
    """Turn what was taken of a block into an epsilon, at the delta that it was made with."""
    delta = block.details.get("delta")
    values = []
    pairs = zip(block.filter.used.nano, block.filter.capacity.nano, block.alphas, strict=True)
    for used, total, alpha in pairs:
        if total <= 0:
            continue
        if alpha == PURE:
            values.append(used / NANO)
        elif delta is not None and used > 0:
            values.append(used / NANO - math.log(float(delta)) / (float(alpha) - 1))
        else:
            values.append(used / NANO)
    return min(values, default=0.0)


def _days_left(block: Block, order: int, now: datetime) -> float | None:
    """Say how long the rest lasts at the pace so far."""
    used = block.filter.used.nano[order]
    if block.opened_at is None or used <= 0:
        return None
    days = max(now - block.opened_at, timedelta(minutes=1)) / timedelta(days=1)
    return max(0, block.filter.left.nano[order]) / used * days


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
