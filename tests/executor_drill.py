"""Release one question three times on two executors: in peace, losing an executor, losing a worker.

A script, because a Spark of several processes cannot share a process with the session of the other
tests. It takes the settings files of three equal lakes and prints what each release returned, what
was killed, and how often the last stage's function was started. Its tasks wait until the victim is
dead and another process has taken its place, so the loss always falls into the middle of the work.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dp_udfs import pandas_udfs
from jobs.lake.settings import load_dataset, load_lake
from jobs.release_counts import release_counts
from tests import lakes

CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",  # a task for each executor
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.executor.memory": "1g",
}
QUESTION: dict[str, Any] = {"k": 3, "max_candidates": 20, "cohorts": ["country"]}
PATIENCE = 120.0


def main(folder: Path, confs: list[str]) -> None:
    """Release in each lake, with another victim."""
    from jobs.lake.session import get_session

    spark = get_session("executor drill", CLUSTER)
    answer = pandas_udfs.answer_cohorts
    for conf, victim in zip(confs, (None, "executor", "worker"), strict=True):
        marks = folder / f"victim-{victim}"
        marks.mkdir()
        pandas_udfs.answer_cohorts = _waiting(answer, marks)
        killer = threading.Thread(target=_kill, args=(marks, victim), daemon=True)
        killer.start()
        lake = load_lake(conf)
        outcome = release_counts(
            lake,
            load_dataset("clips", lake),
            lakes.question(**QUESTION),
            "marketing",
            spark=spark,
            clock=lambda: lakes.NOON,
        )
        killer.join()
        said = {
            "rows": outcome.rows.to_pylist(),
            "started": len(list(marks.glob("started-*"))),
            "killed": victim,
            "plugins": spark.conf.get("spark.plugins", ""),
        }
        sys.stdout.write(json.dumps(said) + "\n")
    spark.stop()


def _waiting(answer: Callable[..., Any], marks: Path) -> Callable[..., Any]:
    """Wrap the function of the last stage: it says that it is there and waits to be let go."""

    def waiting(*args: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
        inner = answer(*args)

        def work(batches: Iterator[Any]) -> Iterator[Any]:
            (marks / f"started-{os.getpid()}-{time.time_ns()}").touch()
            while not (marks / "go").exists():
                time.sleep(0.02)
            yield from inner(batches)

        return work

    return waiting


def _kill(marks: Path, victim: str | None) -> None:
    """Kill a process of the first task, wait until its work is begun anew, then let all go."""
    try:
        _wait_for(marks, 2)
        if victim:
            worker = int(min(marks.glob("started-*")).name.split("-")[1])
            os.kill(worker if victim == "worker" else _executor(worker), signal.SIGKILL)
            _wait_for(marks, 3)
    finally:
        (marks / "go").touch()


def _wait_for(marks: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(list(marks.glob("started-*"))) < count and time.monotonic() < deadline:
        time.sleep(0.02)


def _executor(worker: int) -> int:
    """The Java process above a Python worker."""
    process = worker
    while "java" not in Path(f"/proc/{process}/comm").read_text():
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
    return process


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
