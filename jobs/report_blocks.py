"""Show privacy blocks and their queues: what is left, who waits for what, delays, spend, a trail.

    python -m jobs.report_blocks                      # blocks and how long they last
    python -m jobs.report_blocks waiting              # in the order of service, with the reason
    python -m jobs.report_blocks trail --run-id train-7

Nothing is written, and no Spark is started. Locked, unlocked, allocated and consumed are shares of
what a block owns at the one alpha with most room, and add up to 1; `epsilon used` is what has been
taken, at the block's own delta. `over-time` has them by day, `decisions` what happened to claims by
day, `delays` how long they waited, `tenants` who took what, in whole blocks.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dp_udfs.errors import InvalidParameterError
from jobs.lake import block_reports, claims, program, reports
from jobs.lake.entries import Entry, from_table
from jobs.lake.ledger import utc_now
from jobs.lake.settings import load_lake

Table = Callable[[Sequence[Entry], str], list[dict[str, Any]]]

TABLES: Mapping[str, Table] = {
    "blocks": lambda entries, region: block_reports.blocks(
        block_reports.fold(entries, region), utc_now()
    ),
    "over-time": block_reports.over_time,
    "waiting": lambda entries, region: block_reports.waiting(
        block_reports.fold(entries, region), utc_now()
    ),
    "delays": lambda entries, region: block_reports.delays(block_reports.fold(entries, region)),
    "decisions": lambda entries, _: block_reports.decisions_by_day(entries),
    "tenants": lambda entries, region: block_reports.tenants(block_reports.fold(entries, region)),
}
TRAIL = "trail"


def main(options: argparse.Namespace) -> None:
    """Print one table."""
    lake = load_lake(options.conf)
    ledger = claims.open_ledger(lake)
    entries = from_table(ledger.entries()) if ledger.exists() else []
    if options.table != TRAIL:
        rows = TABLES[options.table](entries, lake.region)
    elif options.run_id:
        rows = block_reports.trail(entries, options.run_id)
    else:
        raise InvalidParameterError("--run-id is missing: say whose trail")
    reports.show(options, rows, {"table": options.table, "rows_shown": len(rows)})


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("table", nargs="?", choices=[*TABLES, TRAIL], default="blocks")
    parser.add_argument("--run-id", help="whose trail")
    program.run(main, parser)
