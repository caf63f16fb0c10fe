"""Say whether a demand would be granted now: exit code 0 if it fits, 3 if it does not.

    python -m jobs.check_budget --dataset movielens --analyst marketing --units 21 --calls 1
    python -m jobs.check_budget --dataset movielens --analyst marketing --block 2026-11=0.5

Nothing is written and nothing is held: another run may take it first. `jobs/quote.py` says what a
question asks for. A restored ledger that grants nothing yet says so (exit code 1).
"""

import argparse

from dp_udfs.budget import Loss
from jobs.lake import accounts, claims, options, program, reports
from jobs.lake.ledger import utc_now
from jobs.lake.settings import load_dataset, load_lake


def main(arguments: argparse.Namespace) -> int:
    """Print whether it fits, and why not."""
    lake = load_lake(arguments.conf)
    dataset = load_dataset(arguments.dataset, lake)
    account = accounts.account_of(lake, dataset)
    ledger = claims.open_ledger(lake)
    who = (ledger, dataset, account, arguments.analyst)
    demand, blocks = Loss(arguments.units, arguments.calls), dict(arguments.block)
    check = accounts.check_budget(*who, demand, utc_now(), blocks=blocks)
    budget = accounts.get_budget(*who, utc_now())
    facts = {
        "fits": check.fits,
        "asked_units": demand.units,
        "asked_calls": demand.calls,
        **accounts.facts(budget),
        **({"refused": str(check.refusal)} if check.refusal else {}),
        **({"tracked": check.note} if check.note else {}),
        **accounts.notes(dataset, budget),
    }
    reports.show(arguments, [], facts)
    return program.DONE if check.fits else program.REFUSED


def _block(text: str) -> tuple[str, list[str]]:
    block_id, given, curve = text.rpartition("=")
    if not given or not block_id:
        raise argparse.ArgumentTypeError(f"{text!r} is not a block and its epsilon, as 2026-11=0.5")
    return block_id, curve.split(",")


if __name__ == "__main__":
    parser = program.parser(__doc__)
    options.add_account(parser)
    parser.add_argument("--units", type=int, default=0, help="information units asked for")
    parser.add_argument("--calls", type=int, default=0, help="calls asked for")
    parser.add_argument(
        "--block",
        action="append",
        type=_block,
        default=[],
        metavar="BLOCK=EPSILON",
        help="taken of a privacy block too; one value per alpha, separated by commas; repeatable",
    )
    program.run(main, parser)
