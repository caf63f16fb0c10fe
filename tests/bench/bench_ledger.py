"""How fast the ledger grants: alone at many entries, in a new process, and from several at once.

Run it as a script: `python tests/bench/bench_ledger.py [--entries 10000] [--processes 4]`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from jobs.lake.ledger import Ledger

FINGERPRINT = "f" * 64
QUESTION = {"question": {"element": "title", "k": 10, "text": "x" * 300}, "snapshot": 7}


def main() -> None:
    """Print the figures as JSON, one measurement a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--directory", default=None, help="where the tables go, then removed")
    parser.add_argument("--worker", nargs=2, metavar=("PATH", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        path, name = options.worker
        _work(path, name, options.seconds)
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        alone = Path(directory, "alone")
        _say("uncontended", **uncontended(alone, options.entries))
        _say("new process", **new_process(alone))
        path = Path(directory, "together")
        _say("contended", **contended(path, options.processes, options.seconds))


def uncontended(path: Path, entries: int) -> dict[str, float]:
    """Allocate and settle until the ledger has `entries`, then time allocations."""
    ledger = _opened(path)
    begin = time.perf_counter()
    for number in range(entries // 3):
        _allocate(ledger, f"fill-{number}")
        ledger.settle(f"fill-{number}", units=14, calls=1, publish=(f"label-{number}", "digest"))
    filled = time.perf_counter() - begin
    taken, worked = [], []
    for number in range(300):
        begin, cpu = time.perf_counter(), time.process_time()
        _allocate(ledger, f"timed-{number}")
        taken.append(time.perf_counter() - begin)
        worked.append(time.process_time() - cpu)
    return _quantiles(taken) | {
        "p50_cpu_ms": _quantiles(worked)["p50_ms"],
        "entries": ledger.entries().num_rows,
        "fill_seconds": round(filled),
    }


def new_process(path: Path) -> dict[str, float]:
    """Time what a command does: start Python, load, answer or allocate, exit."""
    code = (
        "import sys, time; begin = time.perf_counter(); sys.path.insert(0, sys.argv[1]);"
        "from jobs.lake.ledger import Ledger; ledger = Ledger(sys.argv[2]);"
        "loaded = time.perf_counter(); ledger.get_budget('research', 'films');"
        "asked = time.perf_counter();"
        "ledger.allocate(sys.argv[3], analyst='research', dataset='films', units=21, calls=1);"
        "print(loaded - begin, asked - loaded, time.perf_counter() - asked)"
    )
    rows = []
    for number in range(7):
        begin = time.perf_counter()
        arguments = [sys.executable, "-c", code, str(Path(__file__).parents[2]), str(path)]
        out = subprocess.run([*arguments, f"new-{number}"], capture_output=True, check=True)
        rows.append([time.perf_counter() - begin, *map(float, out.stdout.split())])
    names = ("whole_ms", "import_ms", "balance_ms", "allocate_ms")
    return {
        name: round(1000 * statistics.median(column), 1)
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def contended(path: Path, processes: int, seconds: float) -> dict[str, object]:
    """Allocate from several processes on one table at once."""
    _opened(path)
    command = [sys.executable, __file__, "--seconds", str(seconds), "--worker", str(path)]
    running = [
        subprocess.Popen([*command, f"w{number}"], stdout=subprocess.PIPE)
        for number in range(processes)
    ]
    results = [json.loads(process.communicate()[0]) for process in running]
    waits = [wait for result in results for wait in result["taken"]]
    granted = [len(result["taken"]) for result in results]
    span = max(r["end"] for r in results) - min(r["begin"] for r in results)
    return _quantiles(waits) | {
        "per_second": round(sum(granted) / span, 1),
        "granted_by_each": granted,
        "entries": Ledger(path).entries().num_rows,
    }


def _work(path: str, name: str, seconds: float) -> None:
    ledger = Ledger(path)
    ledger.get_budget("research", "films")
    begin = time.time()
    taken: list[float] = []
    while time.time() < begin + seconds:
        start = time.perf_counter()
        _allocate(ledger, f"{name}-{len(taken)}")
        taken.append(time.perf_counter() - start)
    sys.stdout.write(json.dumps({"begin": begin, "end": time.time(), "taken": taken}))


def _opened(path: Path) -> Ledger:
    ledger = Ledger(path)
    ledger.open_account("research", "films", date(2020, 1, 1), 10**9, 10**9)
    return ledger


def _allocate(ledger: Ledger, run_id: str) -> None:
    ledger.allocate(
        run_id,
        analyst="research",
        dataset="films",
        units=21,
        calls=1,
        fingerprint=FINGERPRINT,
        details=QUESTION,
    )


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * second for second in seconds)
    return {
        "p50_ms": round(statistics.median(ordered), 1),
        "p95_ms": round(ordered[int(0.95 * len(ordered))], 1),
        "max_ms": round(ordered[-1], 1),
    }


def _say(what: str, **figures: object) -> None:
    line = json.dumps({"measured": what, **figures, "load": round(os.getloadavg()[0], 1)})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
