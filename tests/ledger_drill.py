"""Processes for the ledger's tests: they race for an account, or are killed while they work.

A script, so that workers are forked from a process that has loaded everything and done nothing.
`race PATH` lets workers grab what is left; `kill PATH` runs jobs, kills workers at random moments
and starts them again. Both print what was acknowledged to whom, as JSON.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa

from dp_udfs.errors import BudgetExhaustedError, PrivacyError
from jobs.lake.ledger import Ledger

RESERVE = 5
DATASET = "films"


def main() -> None:
    """Run one drill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drill", choices=["race", "kill"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--analysts", nargs="+", default=["research"])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pa.Table.from_pylist([{"loads": "pandas"}])  # once, not in every worker
    told = options.path.with_suffix(".told")
    if options.drill == "race":
        _race(options, told)
    else:
        _kill(options, told)
    sys.stdout.write(told.read_text())


def _race(options: argparse.Namespace, told: Path) -> None:
    start = time.time() + 0.5

    def worker(number: int) -> Callable[[Callable[..., None]], None]:
        return lambda say: _grab(options, number, start, say)

    workers = [_fork(told, worker(number)) for number in range(options.processes)]
    for process in workers:
        os.waitpid(process, 0)


def _grab(options: argparse.Namespace, number: int, start: float, say: Callable[..., None]) -> None:
    """Allocate until refused."""
    ledger = Ledger(options.path)
    analyst = options.analysts[number % len(options.analysts)]
    time.sleep(max(0.0, start - time.time()))
    for attempt in range(100):
        begin = time.perf_counter()
        run_id = f"{number}-{attempt}"
        try:
            ledger.allocate(run_id, analyst=analyst, dataset=DATASET, units=RESERVE, calls=1)
        except BudgetExhaustedError as error:
            say(worker=number, refused=run_id, message=str(error))
            return
        say(worker=number, granted=run_id, analyst=analyst, seconds=time.perf_counter() - begin)


def _kill(options: argparse.Namespace, told: Path) -> None:
    chance = random.Random(options.seed)
    workers = [_started(options, number, told) for number in range(options.processes)]
    for _ in range(options.kills):
        time.sleep(chance.uniform(0.0, 0.3))
        victim = chance.randrange(len(workers))
        os.kill(workers[victim], signal.SIGKILL)
        os.waitpid(workers[victim], 0)
        workers[victim] = _started(options, victim, told)
    time.sleep(0.5)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def _started(options: argparse.Namespace, number: int, told: Path) -> int:
    """Fork a worker that goes on where its predecessor may have stopped: with its last job."""
    return _fork(told, lambda say: _work(options, number, _jobs_begun(told, number), say))


def _work(options: argparse.Namespace, number: int, job: int, say: Callable[..., None]) -> None:
    """Do jobs, one after the other, and tell after each step that it is acknowledged."""
    ledger = Ledger(options.path)
    while True:
        run_id = f"{number}-{job}"
        say(worker=number, begun=job)
        try:
            for step in _steps(ledger, run_id, random.Random(f"{options.seed} {run_id}")):
                say(worker=number, run=run_id, step=step)
        except BudgetExhaustedError:
            say(worker=number, run=run_id, step="refused")
        job += 1


def _steps(ledger: Ledger, run_id: str, chance: random.Random) -> Iterator[str]:
    """One job. A repeat makes the same choices."""
    ledger.allocate(run_id, analyst="research", dataset=DATASET, units=RESERVE, calls=1)
    yield "allocate"
    way, cost = chance.choice(["two steps", "one step", "give back", "lost"]), chance.randint(1, 5)
    if way == "two steps":
        ledger.release(run_id, label=f"label {run_id}", digest="digest")
        yield "release"
        ledger.settle(run_id, units=cost, calls=1)
        yield "settle"
    elif way == "one step":
        ledger.settle(run_id, units=cost, calls=1, publish=(f"label {run_id}", "digest"))
        yield "release"
        yield "settle"
    elif way == "give back":
        ledger.give_back(run_id, "nothing was read")
        yield "give_back"


def _jobs_begun(told: Path, number: int) -> int:
    lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    return max(
        (line["begun"] for line in lines if line.get("worker") == number and "begun" in line),
        default=0,
    )


def _fork(told: Path, work: Callable[[Callable[..., None]], None]) -> int:
    child = os.fork()
    if child:
        return child
    with told.open("a", buffering=1) as out:
        try:
            work(lambda **facts: _tell(out, facts))
        except PrivacyError as error:
            _tell(out, {"error": f"{type(error).__name__}: {error}"})
        except BaseException:  # noqa: BLE001 (a child ends here, whatever happens)
            _tell(out, {"error": traceback.format_exc()})
        finally:
            os._exit(0)


def _tell(out: IO[str], facts: dict[str, object]) -> None:
    """Append one line, all at once."""
    os.write(out.fileno(), (json.dumps(facts) + "\n").encode())


if __name__ == "__main__":
    main()
