r"""Change an analyst's allowance for the rest of the period, by a ledger entry with a reason.

    python -m jobs.update_budget --dataset movielens --analyst marketing --units 400 \
        --reason "launch week, approved by the privacy officer"

What is left out stays. The next period begins with the allowance of the dataset file. No Spark.
"""

import argparse

from dp_udfs.errors import InvalidParameterError
from jobs.lake import accounts, claims, guarantees, options, program, reports
from jobs.lake.ledger import utc_now
from jobs.lake.settings import load_dataset, load_lake


def main(arguments: argparse.Namespace) -> None:
    """Change the allowance and print what it is now, or would be."""
    lake = load_lake(arguments.conf)
    dataset = load_dataset(arguments.dataset, lake)
    account = accounts.account_of(lake, dataset)
    ledger = claims.open_ledger(lake)
    change = {"units": arguments.units, "calls": arguments.calls, "mode": arguments.mode}
    if all(value is None for value in change.values()):
        raise InvalidParameterError("nothing to change: give --units, --calls or --mode")
    who = (ledger, dataset, account, arguments.analyst)
    before = accounts.get_budget(*who, utc_now())
    if arguments.dry_run:
        after = accounts.changed(before, **change)
    else:
        after = accounts.update_budget(*who, utc_now(), reason=arguments.reason, **change)
    facts = {
        "before": accounts.describe(before),
        **accounts.facts(after),
        **guarantees.facts(dataset, after),
        **accounts.notes(dataset, after),
        "dry_run": arguments.dry_run,
    }
    reports.show(arguments, [], facts)


if __name__ == "__main__":
    parser = program.parser(__doc__)
    options.add_account(parser)
    parser.add_argument("--units", type=int, help="information units of the allowance")
    parser.add_argument("--calls", type=int, help="calls of the allowance")
    parser.add_argument(
        "--mode",
        choices=["enforce", "track"],
        help="track refuses nothing; a period that was tracked once has no guarantee",
    )
    parser.add_argument("--reason", required=True, help="why; it stands in the ledger for good")
    parser.add_argument("--dry-run", action="store_true", help="only say what it would be")
    program.run(main, parser)
