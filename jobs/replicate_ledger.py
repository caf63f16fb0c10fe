"""Copy ledger entries between data centres, so that each knows what the others have granted.

    python -m jobs.replicate_ledger                        # with the ledgers of [regions]
    python -m jobs.replicate_ledger west=/lake/ledger east=s3://east/ledger
    python -m jobs.replicate_ledger --simulate             # what a cut link costs in either mode

The union of all entries by id: any order, any repetition, the same result. Run it on a schedule,
and after a restore: only then the ledger grants again. Shares that were sent arrive with it.
"""

import argparse
import tempfile
from pathlib import Path

from dp_udfs.errors import InvalidParameterError
from jobs.lake import claims, program, replication, reports, witnesses
from jobs.lake.ledger import Ledger, utc_now
from jobs.lake.settings import load_lake


def main(arguments: argparse.Namespace) -> None:
    """Replicate, or show what a cut link does, and print it."""
    if arguments.simulate:
        reports.show(arguments, simulated())
        return
    ledgers = named(arguments.ledgers) if arguments.ledgers else configured(arguments.conf)
    with program.progress(f"replicate {len(ledgers)} ledgers"):
        copied = replication.replicate(ledgers)
    facts = {} if arguments.ledgers else completed(arguments.conf, ledgers)
    reports.show(arguments, [ledger._asdict() for ledger in copied], facts)


def configured(conf: Path) -> list[Ledger]:
    """Open the lake's ledger and those of the other regions in its settings."""
    lake = load_lake(conf)
    others = lake.regions.ledgers if lake.regions else {}
    if not others:
        raise InvalidParameterError(
            "no other ledger is known: name them here, or in [regions.ledgers] of the lake's file"
        )
    own = Ledger(lake.tables.ledger, lake.region)
    ledgers = [Ledger(path, region, create=False) for region, path in others.items()]
    if not own.exists() and not any(map(replication.read, ledgers)):
        claims.open_ledger(lake)  # a new one is refused where answers say that one is gone
    return [own, *ledgers]


def completed(conf: Path, ledgers: list[Ledger]) -> dict[str, object]:
    """Let this region's ledger grant again if it was restored: it has what the others know."""
    own, *others = ledgers
    if not own.is_restored():
        return {}
    reason = f"replicated with {', '.join(ledger.region for ledger in others)}"
    charged = witnesses.complete(load_lake(conf), own, reason, (), utc_now())
    replication.replicate(ledgers)
    return {"complete": reason, "charged": [vars(each) for each in charged]}


def named(texts: list[str]) -> list[Ledger]:
    """Open the ledgers that the command line names, each as REGION=TABLE; a missing one is made."""
    pairs = dict(text.split("=", 1) for text in texts if "=" in text)
    if len(pairs) != len(texts) or len(pairs) < 2:
        raise InvalidParameterError("give two ledgers or more, each as REGION=TABLE")
    return [Ledger(path, region) for region, path in pairs.items()]


def simulated() -> list[dict[str, object]]:
    """Cut a link in either mode."""
    rows = []
    for escrow in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(replication.simulate(Path(folder), escrow=escrow))
    return rows


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("ledgers", nargs="*", metavar="REGION=TABLE", help="default: [regions]")
    parser.add_argument(
        "--simulate", action="store_true", help="cut a link between two new ledgers"
    )
    program.run(main, parser)
