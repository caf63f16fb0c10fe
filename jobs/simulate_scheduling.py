"""Simulate policies on a workload: how many claims each grants, and how long they wait.

    python -m jobs.simulate_scheduling multi-block --policy dpf_by_arrivals --picture out.svg
    python -m jobs.simulate_scheduling my-workload.jsonl --n 50 --n 200

Nothing is read or spent but the workload: a file (its format: jobs/lake/workload_files.py) or one
of these names: single-block, multi-block, renyi-single-block, renyi-multi-block, macro,
dpack-synthetic, alibaba-dp, cohere, newest-blocks. N claims share a block: policies "by arrivals"
open 1/N of it for each claim, the others but the first open it in the time in which N claims come.
"""

import argparse
from pathlib import Path
from typing import Any

from dp_udfs import sweeps, workloads
from dp_udfs.errors import SettingsError
from dp_udfs.sweeps import Outcome
from dp_udfs.workloads import Workload
from jobs.lake import pictures, program, reports, workload_files

CHANGES = ("mice", "duration", "timeout")


def main(arguments: argparse.Namespace) -> None:
    """Print a row for each policy and N, and draw them."""
    if arguments.picture is not None:
        pictures.check(arguments.picture)
    workload = read(arguments)
    known = sweeps.families(workload)
    names = arguments.policy or [name for name in known if name != "dpack"]
    outcomes: list[Outcome] = []
    for name in dict.fromkeys(names):
        with program.progress(f"simulating {name}"):
            outcomes += sweeps.sweep(workload, [name], arguments.n or workload.ns)
    if arguments.picture is not None:
        pictures.draw(
            outcomes, f"{arguments.workload}, {len(workload.claims):,} claims", arguments.picture
        )
    facts = {
        "claims": len(workload.claims),
        "blocks": len(workload.blocks),
        "delays": "of claims that were granted, in the workload's unit of time",
        **({"picture": arguments.picture} if arguments.picture else {}),
    }
    reports.show(arguments, [row(outcome) for outcome in outcomes], facts)


def read(arguments: argparse.Namespace) -> Workload:
    """Read the workload file, or draw the named workload."""
    changes = {name: getattr(arguments, name) for name in CHANGES}
    changes = {name: value for name, value in changes.items() if value is not None}
    if arguments.workload in workloads.NAMED:
        return workloads.named(arguments.workload, arguments.seed, **changes)
    if changes:
        raise SettingsError(f"a workload file says all itself: leave out {', '.join(changes)}")
    path = Path(arguments.workload)
    if not path.exists():
        names = ", ".join(workloads.NAMED)
        raise SettingsError(f"workload {path}: no such file, and none of {names}")
    return workload_files.read_workload(path)


def row(outcome: Outcome) -> dict[str, Any]:
    """Arrange an outcome for readers."""
    return {
        "policy": outcome.family,
        "n": outcome.n,
        "granted": outcome.granted,
        "rejected": outcome.states["REJECTED"],
        "timed_out": outcome.states["TIMED_OUT"],
        "waiting": outcome.states["WAITING"],
        "mean_delay": outcome.mean_delay,
        "median_delay": outcome.delay_of(0.5),
        "p95_delay": outcome.delay_of(0.95),
        "longest_delay": outcome.delay_of(1),
    }


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("workload", help="name of a workload, or a file")
    parser.add_argument(
        "--policy",
        action="append",
        choices=list(sweeps.FAMILIES),
        help="may be repeated; by default all that know the workload's accounting, but for dpack",
    )
    parser.add_argument(
        "--n", action="append", type=int, help="may be repeated; by default the workload's own"
    )
    parser.add_argument("--seed", type=int, default=1, help="of a named workload (default: 1)")
    parser.add_argument(
        "--mice", type=float, help="of a named workload: share of small claims, from 0 to 1"
    )
    parser.add_argument("--duration", type=float, help="of a named workload: how long claims come")
    parser.add_argument("--timeout", type=float, help="of a named workload: how long a claim waits")
    parser.add_argument("--picture", type=Path, help="where to draw the curves: .svg or .png")
    program.run(main, parser)
