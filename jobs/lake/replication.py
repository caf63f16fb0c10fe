"""Carry entries between the ledgers of several regions; what happens when the link is cut.

Copies go into every ledger that lacks them. A ledger that is out of reach gets them later: nothing
is ever taken back, and it does not matter who starts first, or how often.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from dp_udfs.errors import BudgetExhaustedError
from jobs.lake.entries import Entry, from_table
from jobs.lake.ledger import Ledger

ANALYST, DATASET = "research", "films"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


class Copied(NamedTuple):
    """What one ledger lacked, and what it says now of every region."""

    ledger: str
    copied: int
    entries: Mapping[str, int]


def replicate(ledgers: Iterable[Ledger]) -> list[Copied]:
    """Copy into each ledger what it lacks of the others, then receive the shares sent to each.

    A ledger that was restored gets its own lost entries back, as far as another one has them; it
    grants nothing until it is said to be complete. Where nobody has an entry yet, those that are
    missing are made.

    Raises
    ------
    LedgerConflictError
        If two ledgers have different entries under one id or number.
    """
    ledgers = list(ledgers)
    known = {ledger.region: read(ledger) for ledger in ledgers}
    if not any(known.values()):
        for ledger in ledgers:
            ledger.copy_from([])  # makes it, where that is allowed
    copied = {
        ledger.region: sum(
            ledger.copy_from(entries)
            for region, entries in known.items()
            if region != ledger.region and entries
        )
        for ledger in ledgers
    }
    for ledger in ledgers:
        if not ledger.is_restored():  # else when it is complete
            ledger.receive_shares()
    return [Copied(each.region, copied[each.region], _counted(read(each))) for each in ledgers]


def read(ledger: Ledger) -> list[Entry]:
    """Read all entries in the order in which this ledger received them; none if it is not made."""
    return from_table(ledger.entries()) if ledger.exists() else []


def _counted(entries: Iterable[Entry]) -> dict[str, int]:
    last: dict[str, int] = {}
    for entry in entries:
        last[entry.region] = max(entry.entry_no, last.get(entry.region, 0))
    return dict(sorted(last.items()))


def simulate(folder: Path, *, escrow: bool, allowance: int = 100) -> dict[str, Any]:
    """Cut the link between two regions, let both spend all they can, and heal it.

    Parameters
    ----------
    folder : Path
        Where the two ledgers are made; empty.
    escrow : bool
        Whether each region has half of the allowance as its share, or sees all of it.

    Returns
    -------
    dict
        What was granted on either side, and how much more than the allowance that is.
    """
    west, east = (Ledger(folder / region, region, lambda: NOON) for region in ("west", "east"))
    for ledger in (west, east):
        own = allowance // 2 if escrow else allowance
        start, end = date(2026, 11, 1), date(2026, 12, 1)
        ledger.open_account(ANALYST, DATASET, start, own, own, period_end=end, escrow=escrow)
        replicate([west, east])
    granted = {ledger.region: _spend(ledger, "before", most=2) for ledger in (west, east)}
    replicate([west, east])
    for ledger in (west, east):  # nobody replicates now
        granted[ledger.region] += _spend(ledger, "cut off")
    replicate([east, west])
    after = {ledger.region: _spend(ledger, "healed") for ledger in (west, east)}
    total = sum(granted.values()) + sum(after.values())
    return {
        "mode": "escrow" if escrow else "eventual",
        "allowance": allowance,
        "granted_west": granted["west"],
        "granted_east": granted["east"],
        "granted_after_healing": sum(after.values()),
        "overspent": max(0, total - allowance),
    }


def _spend(ledger: Ledger, when: str, most: int = 1000) -> int:
    """Ask for claims of five units until one is refused; return the units that were granted."""
    for number in range(most):
        run_id = f"{when} in {ledger.region}: {number}"
        try:
            ledger.allocate(run_id, analyst=ANALYST, dataset=DATASET, units=5, calls=1)
        except BudgetExhaustedError:
            return 5 * number
    return 5 * most
