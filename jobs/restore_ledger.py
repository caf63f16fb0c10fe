"""Make a lost ledger again, or take a torn last commit off it; then say that it is complete.

    python -m jobs.restore_ledger --from /backups/2026-11-29 --from s3://east/ledger
    python -m jobs.restore_ledger --torn                   # after a power cut
    python -m jobs.restore_ledger --alone "no other region has a copy" --receipts kept.json

What is restored grants nothing yet: it may have forgotten charges. With other regions, the next
`replicate_ledger` brings them back and lets it grant again; where there are none, --alone does,
with a reason that stands in the ledger for good. Either way each answer that is stored without a
claim is charged to everybody who may have it, and each receipt that is given to its analyst.
"""

import argparse
from pathlib import Path
from typing import Any

from dp_udfs.errors import InvalidParameterError
from jobs.lake import backups, program, releases, replication, reports, torn, witnesses
from jobs.lake.entries import Entry
from jobs.lake.ledger import Ledger, utc_now
from jobs.lake.settings import LakeSettings, load_lake


def main(arguments: argparse.Namespace) -> None:
    """Do what the options ask for, in this order: restore or mend, then complete."""
    lake = load_lake(arguments.conf)
    ledger = Ledger(lake.tables.ledger, lake.region)
    if not (arguments.sources or arguments.torn or arguments.alone):
        raise InvalidParameterError("nothing to do: give --from, --torn or --alone")
    receipts = witnesses.read_receipts(arguments.receipts)
    facts: dict[str, Any] = {}
    if arguments.sources:
        facts |= restored(lake, ledger, arguments.sources)
    if arguments.torn:
        facts |= mended(lake, ledger)
    charged: list[witnesses.Charged] = []
    if arguments.alone:
        require_alone(lake, ledger)
        charged = witnesses.complete(lake, ledger, arguments.alone, receipts, utc_now())
    grants = ledger.exists() and not ledger.is_restored()
    reports.show(
        arguments,
        [vars(each) | {"charged": str(each.charged)} for each in charged],
        {**facts, "grants": grants, **({} if grants else {"next": NEXT})},
    )


NEXT = "jobs.replicate_ledger, or --alone REASON where no other region has a copy"


def restored(lake: LakeSettings, ledger: Ledger, sources: list[str]) -> dict[str, Any]:
    """Make the ledger of backups and of tables that can be read, and put lost answers back."""
    entries: list[list[Entry]] = []
    kept = []
    for source in sources:
        if (Path(source) / backups.MANIFEST).exists():
            kept.append(backups.read(Path(source)))
            entries.append(kept[-1].entries)
        else:
            entries.append(replication.read(Ledger(source, lake.region, create=False)))
    with program.progress("restore the ledger"):
        facts: dict[str, Any] = {"entries": backups.restore(lake, ledger, entries)}
        for backup in kept:
            facts |= backups.restore_others(lake, backup)
    return facts


def mended(lake: LakeSettings, ledger: Ledger) -> dict[str, Any]:
    """Take torn last commits off, and take back what their data files hold of the ledger."""
    found = {name: torn.find(place) for name, place in lake.tables.model_dump().items()}
    kept = {f"torn_{name}": str(torn.take_off(each)) for name, each in found.items() if each}
    if found["ledger"] or ledger.is_restored():
        kept["recovered"] = str(ledger.recover())
    return kept or {"torn": "nothing is"}


def require_alone(lake: LakeSettings, ledger: Ledger) -> None:
    """Refuse to go on without regions that are there, and to complete what is not restored."""
    if lake.regions and lake.regions.ledgers:
        raise InvalidParameterError(
            f"--alone: [regions.ledgers] names {', '.join(lake.regions.ledgers)}: run "
            f"jobs.replicate_ledger, or take out of the settings what is gone for good"
        )
    if not ledger.exists() and releases.manifests(lake.tables.releases):
        ledger.restore([])  # all that is known is what the answers know
    if not ledger.is_restored():
        raise InvalidParameterError("--alone: the ledger was not restored, so it is complete")


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument(
        "--from",
        dest="sources",
        action="append",
        default=[],
        metavar="BACKUP",
        help="a backup's folder, or a ledger's table that can be read; repeatable",
    )
    parser.add_argument("--torn", action="store_true", help="take torn last commits off")
    parser.add_argument("--alone", metavar="REASON", help="there is no other region: grant again")
    parser.add_argument(
        "--receipts",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="answers as release_counts printed them in JSON; with --alone, repeatable",
    )
    program.run(main, parser)
