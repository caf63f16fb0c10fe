"""Releases and repairs in processes of their own, to be killed or stopped at a named moment.

A script, so that each release is forked from a process that has loaded everything and done nothing:
hundreds of kills take a minute. It reads requests from stdin and answers each with a line of JSON:
one with a `question` starts a release (without one, the repair of claims) and answers its `pid`,
one with a `pid` waits until that process has ended or stands still. A process tells what it does in
the file `told`, a line for each moment, and at the end its answer or error. Only Spark's part is
replaced: the histogram is fixed.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa
from deltalake.table import TableAlterer

from dp_udfs import pandas_udfs
from dp_udfs.errors import PrivacyError
from jobs import release_counts, settle_claims
from jobs.lake import accounts, claims, commits, entry_log, questions, releases, tables
from jobs.lake.ledger import Ledger
from jobs.lake.question_settings import QuestionSettings
from jobs.lake.questions import Question
from jobs.lake.releases import Release
from jobs.lake.session import errors_without_values
from jobs.lake.settings import load_dataset, load_lake
from jobs.lake.toml_files import build

# Two films can be found, so that a top 3 ends at the threshold and costs less than its reserve.
FILMS = {"film 1": 5000, "film 2": 4000, "film 3": 3, "film 4": 2, "film 5": 1}

# What a release does, from the outside in: a kill can strike before and after each.
STEPS: list[tuple[Any, str]] = [
    (accounts, "open_account"),
    (tables, "verify"),
    (Ledger, "allocate"),
    (releases, "find"),
    (release_counts, "compute"),
    (releases, "write"),
    (claims, "publish"),
    (Ledger, "settle"),
    (Ledger, "expire"),
    (TableAlterer, "add_constraint"),
    (entry_log, "write_deltalake"),
    (entry_log, "make_durable"),
    (commits, "open_or_create"),
    (commits, "write_deltalake"),
    (commits, "make_durable"),
]


def main() -> None:
    """Serve requests until stdin ends."""
    pa.Table.from_pylist([{"loads": "pandas"}])  # once, not in every release
    with errors_without_values("nothing"):  # loads what looks after Spark's messages
        pass
    for line in sys.stdin:
        request = json.loads(line)
        answer = _wait(request["pid"]) if "pid" in request else _start(request)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _start(request: dict[str, Any]) -> dict[str, int]:
    child = os.fork()
    if child:
        return {"pid": child}
    with Path(request["told"]).open("a", buffering=1) as told:

        def say(**facts: Any) -> None:
            told.write(json.dumps(facts) + "\n")

        try:
            FILMS.update(request.get("films", {}))
            questions.CODE_VERSION += request.get("newer", 0)
            _watch(say, request.get("at"), request.get("signal"))
            time.sleep(max(0.0, request.get("start", 0.0) - time.time()))
            say(**(_release(request) if "question" in request else _repair(request)))
        except PrivacyError as error:
            say(error=type(error).__name__, message=str(error))
        except BaseException:  # noqa: BLE001 (a child ends here, whatever happens)
            say(error="unforeseen", message=traceback.format_exc())
        finally:
            os._exit(0)


def _wait(pid: int) -> dict[str, Any]:
    status = os.waitpid(pid, os.WUNTRACED)[1]
    return {
        "stopped": os.WIFSTOPPED(status),
        "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
    }


def _release(request: dict[str, Any]) -> dict[str, Any]:
    """The job itself, as the command line runs it, but for Spark."""
    lake = load_lake(request["conf"])
    settings = build("drill", QuestionSettings, request["question"])
    now = datetime.fromisoformat(request["now"])
    outcome = release_counts.release_counts(
        lake,
        load_dataset(settings.dataset, lake),
        settings,
        request["analyst"],
        run_id=request.get("run_id"),
        snapshot_id=request.get("snapshot_id"),
        clock=lambda: now,
    )
    return {
        "rows": outcome.rows.to_pylist(),
        "run_id": outcome.run_id,
        "charged": [outcome.charged.units, outcome.charged.calls],
        "label": outcome.question.label,
    }


def _repair(request: dict[str, Any]) -> dict[str, Any]:
    """The repair of claims, as the command line runs it."""
    now = datetime.fromisoformat(request["now"])
    lake, day = load_lake(request["conf"]), timedelta(days=1)
    closings = settle_claims.settle_claims(lake, day, clock=lambda: now)
    return {"closed": {closing.claim.run_id: closing.done for closing in closings}}


def compute(question: Question, secret: bytes, spark: Any = None) -> Release:  # noqa: ARG001
    """Answer from the fixed histogram; noise, price and everything after are the real ones."""
    mechanism, key = question.mechanism, question.noise_key(secret)
    films = {"cohort": ["all"] * len(FILMS), "element": list(FILMS), "n": list(FILMS.values())}
    batches = pandas_udfs.answer_cohorts(mechanism, key)(iter([pa.RecordBatch.from_pydict(films)]))
    answered = pa.Table.from_batches(batches)
    whole = pandas_udfs.complete(answered, mechanism, key, question.cohorts)
    return releases.from_answer(question, whole)


def _watch(say: Callable[..., None], at: int | str | None, signal_number: int | None) -> None:
    """Tell each moment of this process, and strike at the one asked for, by number or name."""
    release_counts.compute = compute
    count = 0

    def moment(name: str) -> None:
        nonlocal count
        say(moment=name)
        if signal_number is not None and at in (count, name):
            os.kill(os.getpid(), signal_number)
        count += 1

    def watched(step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            moment(f"before {name}")
            result = step(*args, **options)
            moment(f"after {name}")
            return result

        return wrapper

    for holder, name in STEPS:
        label = f"{holder.__name__.rpartition('.')[2]}.{name}"
        setattr(holder, name, watched(getattr(holder, name), label))


if __name__ == "__main__":
    main()
