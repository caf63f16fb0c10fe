"""Processes for the ledger's tests: they race for an account, or are killed while they work.

A script, so that workers are forked from a process that has loaded everything and done nothing.
`race PATH...` lets workers grab what is left in one ledger after the other; `kill PATH` runs jobs,
kills workers at random moments, checks the sums after each and starts them again. Both print what
was acknowledged to whom, one JSON object a line.
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
from datetime import timedelta
from pathlib import Path
from typing import IO, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa

from dp_udfs.budget import NOTHING
from dp_udfs.errors import BudgetExhaustedError, PrivacyError
from jobs.lake.balances import Balances
from jobs.lake.entries import from_table
from jobs.lake.ledger import Ledger

RESERVE = 5
DATASET = "films"


def main() -> None:
    """Run one drill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drill", choices=["race", "kill"])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--analysts", nargs="+", default=["research"])
    parser.add_argument("--blocks", nargs="*", default=[], help="each job takes 0.1 of these too")
    parser.add_argument("--queued", action="store_true", help="the blocks have a queue")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pa.Table.from_pylist([{"loads": "pandas"}])  # once, not in every worker
    for path in options.paths:
        drill = Drill(path, path.with_suffix(".told"), options)
        _race(drill) if options.drill == "race" else _kill(drill)
        sys.stdout.write(drill.told.read_text())


class Drill(NamedTuple):
    """One ledger, what its workers were told, and the options."""

    path: Path
    told: Path
    options: argparse.Namespace

    def allocate(self, ledger: Ledger, run_id: str, analyst: str) -> None:
        """Take what every job takes."""
        blocks = dict.fromkeys(self.options.blocks, 0.1)
        ledger.allocate(
            run_id, analyst=analyst, dataset=DATASET, units=RESERVE, calls=1, blocks=blocks
        )


def _race(drill: Drill) -> None:
    start = time.time() + 0.2

    def worker(number: int) -> Callable[[Callable[..., None]], None]:
        return lambda say: _grab(drill, number, start, say)

    for process in [_fork(drill, worker(number)) for number in range(drill.options.processes)]:
        os.waitpid(process, 0)


def _grab(drill: Drill, number: int, start: float, say: Callable[..., None]) -> None:
    """Allocate until refused."""
    ledger = Ledger(drill.path)
    analyst = drill.options.analysts[number % len(drill.options.analysts)]
    time.sleep(max(0.0, start - time.time()))
    for attempt in range(100):
        begin = time.perf_counter()
        run_id = f"{number}-{attempt}"
        try:
            drill.allocate(ledger, run_id, analyst)
        except BudgetExhaustedError as error:
            say(ledger=drill.path.name, refused=run_id, message=str(error))
            return
        seconds = time.perf_counter() - begin
        say(ledger=drill.path.name, granted=run_id, analyst=analyst, seconds=seconds)


def _kill(drill: Drill) -> None:
    chance = random.Random(drill.options.seed)
    workers = [_started(drill, number) for number in range(drill.options.processes)]
    for _ in range(drill.options.kills):
        time.sleep(chance.uniform(0.0, 0.3))
        victim = chance.randrange(len(workers))
        os.kill(workers[victim], signal.SIGKILL)
        os.waitpid(workers[victim], 0)
        checker = _fork(drill, lambda say: _check(drill, say))
        workers[victim] = _started(drill, victim)
        os.waitpid(checker, 0)
    time.sleep(0.5)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def _check(drill: Drill, _: Callable[..., None]) -> None:
    """Check the sums while others go on: nothing acknowledged is lost, nothing is overspent."""
    told = [json.loads(line) for line in drill.told.read_text().splitlines()]
    ledger = Ledger(drill.path)
    entries = from_table(ledger.entries())
    written = {(entry.run_id, entry.kind) for entry in entries}
    steps = [(line["run"], line["step"]) for line in told if "step" in line]
    assert {step for step in steps if step[1] != "refused"} <= written
    balances = Balances()
    for entry in entries:  # checks the chain and every transition
        balances.apply(entry)
    (account,) = balances.accounts["research", DATASET].values()
    assert account.filter.used == sum((c.charge for c in balances.claims.values()), NOTHING)
    assert account.filter.capacity.covers(account.filter.used)


def _started(drill: Drill, number: int) -> int:
    """Fork a worker that goes on where its predecessor may have stopped: with its last job."""
    return _fork(drill, lambda say: _work(drill, number, _last_job(drill, number), say))


def _work(drill: Drill, number: int, job: int, say: Callable[..., None]) -> None:
    """Do jobs, one after the other, and tell after each step that it is acknowledged."""
    ledger = Ledger(drill.path)
    while True:
        run_id = f"{number}-{job}"
        say(worker=number, begun=job)
        try:
            chance = random.Random(f"{drill.options.seed} {run_id}")
            for step in _steps(drill, ledger, run_id, chance):
                say(run=run_id, step=step)
        except BudgetExhaustedError:
            say(run=run_id, step="refused")
        job += 1


def _steps(drill: Drill, ledger: Ledger, run_id: str, chance: random.Random) -> Iterator[str]:
    """One job. A repeat makes the same choices."""
    if drill.options.queued:
        yield from _queued_steps(drill, ledger, run_id, chance)
        return
    drill.allocate(ledger, run_id, "research")
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


def _queued_steps(
    drill: Drill, ledger: Ledger, run_id: str, chance: random.Random
) -> Iterator[str]:
    """A job that waits for its blocks, uses a part of them and perhaps gives the rest back."""
    wanted = chance.sample(drill.options.blocks, chance.randint(1, len(drill.options.blocks)))
    blocks = {name: chance.choice([0.1, 0.3]) for name in wanted}
    timeout = timedelta(seconds=chance.uniform(0, 0.3))
    way = chance.choice(["give back", "consume", "lost"])
    claim = ledger.submit(run_id, blocks=blocks, timeout=timeout)
    yield "submit"
    while claim.state == "waiting":
        time.sleep(0.02)
        ledger.run_round()
        claim = ledger.submit(run_id, blocks=blocks, timeout=timeout)
    if claim.state in ("rejected", "timed_out"):
        return
    yield "allocate"
    part = dict.fromkeys(blocks, 0.05)
    ledger.consume(run_id, part, request_id="part")
    yield "consume"
    if way == "give back":
        ledger.give_back(run_id, "the rest was not used")
        yield "give_back"
    elif way == "consume":
        ledger.consume(run_id, request_id="rest")
        yield "settle"


def _last_job(drill: Drill, number: int) -> int:
    lines = drill.told.read_text().splitlines() if drill.told.exists() else []
    told = [json.loads(line) for line in lines]
    return max((line["begun"] for line in told if line.get("worker") == number), default=0)


def _fork(drill: Drill, work: Callable[[Callable[..., None]], None]) -> int:
    child = os.fork()
    if child:
        return child
    with drill.told.open("a") as out:
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
