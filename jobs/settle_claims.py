"""Close the claims that crashed runs left open, and say how each was closed.

    python -m jobs.settle_claims --older-than 24

A claim whose answer is stored whole is settled at what the answer costs and published, as its own
run would do, whatever its age. Nobody knows how far the others came: those older than --older-than
hours are charged their whole reserve, and their runs can publish nothing any more. So give more
hours than a run can take. A run that is still alive, or started again, may get there first.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from dp_udfs import checks
from dp_udfs.budget import Loss
from dp_udfs.errors import ClaimError
from jobs.lake import claims, program, releases, reports
from jobs.lake.ledger import Allocation, Ledger, utc_now
from jobs.lake.releases import Release
from jobs.lake.settings import LakeSettings, load_lake

SETTLED, EXPIRED, OPEN = "settled from its answer", "expired at its reserve", "left open"
MEANWHILE = "closed meanwhile"


@dataclass(frozen=True)
class Closing:
    """One claim that was open, what was done about it, and what it is charged now."""

    claim: Allocation
    age: timedelta
    done: str
    charged: Loss


def main(arguments: argparse.Namespace) -> None:
    """Close what can be closed and print it."""
    checks.positive_integers(older_than=arguments.older_than)
    closings = settle_claims(
        load_lake(arguments.conf),
        timedelta(hours=arguments.older_than),
        dry_run=arguments.dry_run,
    )
    numbers = Counter(closing.done for closing in closings)
    facts = {"found": len(closings), **numbers, "dry_run": arguments.dry_run}
    reports.show(arguments, [shown(closing) for closing in closings], facts)


def settle_claims(
    lake: LakeSettings,
    older_than: timedelta,
    *,
    dry_run: bool = False,
    clock: Callable[[], datetime] = utc_now,
) -> list[Closing]:
    """Close the open claims of a lake: each in one entry, so that it can be stopped at any time.

    Parameters
    ----------
    older_than : timedelta
        Age from which a claim without an answer is expired.
    dry_run : bool
        Only say what would be done.
    clock : callable
        Tells the ledger's time.

    Notes
    -----
    Privacy: a claim is closed at the loss of an answer that is stored whole, or at its reserve,
    never for less. Nothing is given back, because a run that reached Spark may have read.
    """
    ledger = Ledger(lake.tables.ledger, lake.region, clock, create=False)
    closings = []
    for claim in ledger.open_claims():
        age = clock() - claim.recorded_at
        answer = _answer(lake, ledger, claim)
        if answer is not None:
            done, charged = SETTLED, claims.cost(ledger, claim, answer)
        else:
            done, charged = (EXPIRED if age >= older_than else OPEN), claim.reserve
        closing = Closing(claim, age, done, charged)
        closings.append(closing if dry_run else _close(ledger, closing, answer))
    return closings


def _answer(lake: LakeSettings, ledger: Ledger, claim: Allocation) -> Release | None:
    """Find the whole answer of a claim's question, whoever stored it; a damaged one is none."""
    label = claim.details.get("label")
    try:
        answer = releases.find(lake.tables.releases, label) if label else None
        if answer is not None:
            claims.require_same_numbers(ledger, claim.dataset, answer)
    except ClaimError:
        return None
    return answer


def _close(ledger: Ledger, closing: Closing, answer: Release | None) -> Closing:
    """Do what was decided, unless the claim's own run was faster."""
    claim = closing.claim
    try:
        if answer is not None:
            return replace(closing, charged=claims.publish(ledger, claim, answer))
        if closing.done == EXPIRED:
            hours = closing.age / timedelta(hours=1)
            ledger.expire(claim.run_id, f"open for {hours:.1f} hours without an answer")
    except ClaimError:
        now = ledger.find(claim.run_id)
        if now is None or now.is_open:
            raise
        return replace(closing, done=MEANWHILE, charged=now.charge)
    return closing


def shown(closing: Closing) -> dict[str, Any]:
    """Arrange one closing for readers."""
    claim = closing.claim
    return {
        "run_id": claim.run_id,
        "analyst": claim.analyst,
        "dataset": claim.details.get("dataset_name", claim.dataset),
        "age_hours": round(closing.age / timedelta(hours=1), 1),
        "outcome": closing.done,
        "reserve_units": claim.units,
        "reserve_calls": claim.calls,
        "charged_units": closing.charged.units,
        "charged_calls": closing.charged.calls,
        **({"blocks": sorted(claim.blocks)} if claim.blocks else {}),  # charged the reserve
    }


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument(
        "--older-than", type=int, required=True, metavar="HOURS", help="when to give up on a claim"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    program.run(main, parser)
