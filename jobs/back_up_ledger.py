"""Copy ledger, released answers and snapshots into a new folder, and read the copy back.

    python -m jobs.back_up_ledger /backups/2026-11-29

A ledger that does not hold is not backed up (exit code 1). The backup has what analysts may see and
what they asked, no rows and no secret: keep that elsewhere, and the heads that are printed too.
"""

import argparse
from pathlib import Path

from jobs.lake import backups, program, reports
from jobs.lake.ledger import utc_now
from jobs.lake.settings import load_lake


def main(arguments: argparse.Namespace) -> None:
    """Take a backup and print what it holds."""
    lake = load_lake(arguments.conf)
    with program.progress("back up the ledger"):
        backup = backups.take(lake, arguments.folder, utc_now())
    reports.show(arguments, [], {"folder": str(arguments.folder), **backup.facts()})


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("folder", type=Path, help="a folder that is empty or not there yet")
    program.run(main, parser)
