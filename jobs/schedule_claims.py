"""Let the queues of privacy blocks decide what is due: who is granted, who has waited too long.

    python -m jobs.schedule_claims                 # one round
    python -m jobs.schedule_claims --every 60      # until it is stopped

Claims are decided as of when they were due, so nothing depends on how often this runs, nor on who
runs it: `claim_budget` holds rounds too while it waits. A round is one commit; it may be killed.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from dp_udfs import checks
from jobs.lake import claims, program, reports
from jobs.lake.ledger import Allocation, Ledger
from jobs.lake.settings import load_lake


def main(arguments: argparse.Namespace) -> None:
    """Hold rounds and print what each has decided."""
    if arguments.every is not None:
        checks.positive(every=arguments.every)
    ledger = claims.open_ledger(load_lake(arguments.conf))
    while True:
        decided = schedule(ledger)
        if decided or arguments.every is None:
            waiting = len(ledger.waiting())
            reports.show(arguments, shown(decided), {"decided": len(decided), "waiting": waiting})
        if arguments.every is None:
            return
        time.sleep(arguments.every)


def schedule(ledger: Ledger) -> Sequence[Allocation]:
    """Hold one round of all queues of this region; a ledger that is not made yet has none."""
    return ledger.run_round() if ledger.exists() else ()


def shown(decided: Sequence[Allocation]) -> list[dict[str, Any]]:
    """Arrange the decisions of a round for readers."""
    return [
        {
            "run_id": claim.run_id,
            "analyst": claim.analyst,
            "dataset": claim.details.get("dataset_name", claim.dataset),
            "state": claim.state,
            "decided_at": claim.ticket and claim.ticket.decided_at,
            "waited_seconds": claim.waited,
            "reason": (claim.ticket and claim.ticket.reason) or "",
        }
        for claim in decided
    ]


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("--every", type=float, metavar="SECONDS", help="go on, with this pause")
    program.run(main, parser)
