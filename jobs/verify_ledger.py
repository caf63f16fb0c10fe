"""Check that the ledger still says what was written, and that every release was charged.

    python -m jobs.verify_ledger --head 9f86d081...

Folds everything again from the first entry on: the hash chain of each region, the sums, the carries
that shorten the reading, each publication against its charge and against the numbers that are
stored. One line for each entry that is wrong, and exit code 1 if there is any. Only a head that was
kept elsewhere shows that the end of a ledger was cut off: receipts and reports have one.
"""

import argparse
import re

from dp_udfs.errors import SettingsError
from jobs.lake import evidence, program, releases, reports
from jobs.lake.entry_log import EntryLog
from jobs.lake.settings import load_lake


def main(arguments: argparse.Namespace) -> int:
    """Check the ledger and print what is wrong, and what it holds."""
    for head in arguments.head:
        if not re.fullmatch("[0-9a-f]{64}", head):  # else a slip would pass for a rewritten ledger
            raise SettingsError(f"--head {head}: is not whole; a head has 64 of 0-9 and a-f")
    lake = load_lake(arguments.conf)
    location = arguments.ledger or lake.tables.ledger
    with program.progress("verify the ledger"):
        audited = evidence.audit(
            EntryLog(location),
            heads=arguments.head,
            region=lake.region,
            answers=releases.find_all(lake.tables.releases),
        )
    rows = [finding._asdict() for finding in audited.findings]
    verdict = f"{len(rows)} wrong" if rows else "nothing is wrong"
    reports.show(arguments, rows, {**evidence.summary(audited), "result": verdict})
    return program.FAILED if rows else program.DONE


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument(
        "--head", action="append", default=[], metavar="HASH", help="must be in a chain; repeatable"
    )
    parser.add_argument("--ledger", help="another table, such as a backup (default: the lake's)")
    program.run(main, parser)
