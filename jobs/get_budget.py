"""Show what an analyst has left of a dataset, what used it, and what the allowance guarantees.

    python -m jobs.get_budget --dataset movielens --analyst marketing

Nothing is written, and no Spark is started. The rows are the analyst's own claims of this period;
of privacy blocks, which all analysts and models share, what is left counts everybody's reserves.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from jobs.lake import accounts, claims, guarantees, options, program, reports
from jobs.lake.ledger import Allocation, Block, Budget, utc_now
from jobs.lake.settings import load_dataset, load_lake


def main(arguments: argparse.Namespace) -> None:
    """Print the budget."""
    lake = load_lake(arguments.conf)
    dataset = load_dataset(arguments.dataset, lake)
    account = accounts.account_of(lake, dataset)
    ledger = claims.open_ledger(lake)
    budget = accounts.get_budget(ledger, dataset, account, arguments.analyst, utc_now())
    own: Sequence[Allocation] = ()
    blocks: Sequence[Block] = ()
    if ledger.exists():
        own = ledger.claims(arguments.analyst, account)
        blocks = ledger.blocks(account)
    notes = accounts.notes(dataset, budget)
    over_blocks = guarantees.over_blocks(dataset, blocks)
    facts = {
        **accounts.facts(budget),
        **guarantees.facts(dataset, budget),
        **({"optimum": guarantees.optimum(dataset, budget)} if arguments.optimum else {}),
        **_left_of(blocks),
        **({"over_blocks": over_blocks} if over_blocks else {}),
        **notes,
    }
    program.warn(notes.get("warning"))
    reports.show(arguments, shown(own, budget), facts)


def _left_of(blocks: Sequence[Block]) -> dict[str, Any]:
    """Say what is left of each block, and at which orders."""
    if not blocks:
        return {}
    left = {each.block_id: str(each.filter.left) for each in blocks}
    return {"left_of_blocks": left, "alphas": blocks[0].alphas}


def shown(own: Sequence[Allocation], budget: Budget) -> list[dict[str, Any]]:
    """Arrange the claims of the budget's period for readers, oldest first."""
    return [
        {
            "run_id": claim.run_id,
            "state": claim.state,
            "units": claim.charge.units,
            "calls": claim.charge.calls,
            "since": claim.recorded_at,
            **({"note": claim.note} if claim.note else {}),
        }
        for claim in own
        if claim.period_start == budget.period_start
    ]


if __name__ == "__main__":
    parser = program.parser(__doc__)
    options.add_account(parser)
    parser.add_argument(
        "--optimum", action="store_true", help="compute the tightest epsilon too; takes seconds"
    )
    program.run(main, parser)
