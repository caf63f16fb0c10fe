"""Start releases that get killed or stopped, and check the books that they leave behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import QueryBuilder

from jobs.lake import commits, settings
from tests import lakes
from tests.lakes import NOON, SmallLake

SCRIPT = Path(__file__).with_name("release_drill.py")
TOP_3 = {"k": 3, "max_candidates": 4}  # ends after two films: `release_drill.FILMS`


@dataclass(frozen=True)
class Running:
    """A release in a process of its own."""

    pid: int
    told: Path


@dataclass(frozen=True)
class Ending:
    """How a release ended, or that it stands still; and what it told until then."""

    killed: bool
    stopped: bool
    moments: list[str]
    answer: dict[str, Any]  # rows, run_id, charged, label; or closed; or error and message

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of an answer, and nothing else will do."""
        assert "rows" in self.answer, self.answer
        rows: list[dict[str, Any]] = self.answer["rows"]
        return rows


class Drill:
    """The process that releases are forked from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self.kills = 0  # those that hit: a process that had ended does not count
        self._server = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(
        self,
        small: SmallLake,
        analyst: str = "marketing",
        *,
        now: datetime = NOON,
        question: dict[str, Any] | None = None,
        **rest: Any,
    ) -> Running:
        """Start a release; `at` is the moment at which it gets the signal `signal`."""
        asked = {"dataset": "clips", "element": "title", "measure": "users", "window": {"days": 30}}
        asked |= TOP_3 | (question or {})
        return self._start(small, now, {"analyst": analyst, "question": asked} | rest)

    def repair(self, small: SmallLake, *, now: datetime, **rest: Any) -> Ending:
        """Run the repair of claims, which gives up on those of a day."""
        return self.wait(self.start_repair(small, now=now, **rest))

    def start_repair(self, small: SmallLake, *, now: datetime, **rest: Any) -> Running:
        """Start the repair of claims."""
        return self._start(small, now, rest)

    def wait(self, running: Running) -> Ending:
        """Wait until a release has ended or stands still."""
        state = self._ask({"pid": running.pid})
        self.kills += state["killed"]
        lines = [json.loads(line) for line in running.told.read_text().splitlines()]
        moments = [line["moment"] for line in lines if "moment" in line]
        ended = lines[-1] if lines and "moment" not in lines[-1] else {}
        return Ending(state["killed"], state["stopped"], moments, ended)

    def run(self, small: SmallLake, analyst: str = "marketing", **rest: Any) -> Ending:
        """Start a release and wait for it."""
        return self.wait(self.start(small, analyst, **rest))

    def killed(self, small: SmallLake, analyst: str = "marketing", **rest: Any) -> Ending:
        """Start a release that does not survive its moment `at`."""
        ending = self.run(small, analyst, signal=signal.SIGKILL, **rest)
        assert ending.killed
        return ending

    def stopped(
        self, small: SmallLake, at: str, analyst: str = "marketing", **rest: Any
    ) -> Running:
        """Start a release that stands still at a moment."""
        running = self.start(small, analyst, at=at, signal=signal.SIGSTOP, **rest)
        assert self.wait(running).stopped
        return running

    def woken(self, running: Running) -> Ending:
        """Let a release go on that stands still, and wait for it."""
        os.kill(running.pid, signal.SIGCONT)
        return self.wait(running)

    def close(self) -> None:
        """End the process."""
        self._server.communicate()

    def _start(self, small: SmallLake, now: datetime, rest: dict[str, Any]) -> Running:
        told = self._folder / f"told-{next(self._numbers)}"
        told.touch()
        request = {"conf": small.lake.source, "now": now.isoformat(), "told": str(told)}
        return Running(self._ask(request | rest)["pid"], told)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer


@contextmanager
def drill_in(folder: Path) -> Iterator[Drill]:
    """Run a drill whose releases tell what they do in files of a folder."""
    drill = Drill(folder)
    yield drill
    drill.close()


def copy(small: SmallLake, root: Path) -> SmallLake:
    """Copy a lake, tables and all, so that the same question has the same answer there."""
    shutil.copytree(small.root, root)
    return opened(root)


def opened(root: Path) -> SmallLake:
    """Open the lake that lies in a folder."""
    lake = settings.load_lake(root / "conf" / "local.toml")
    return SmallLake(lake, settings.load_dataset("clips", lake))


def stored(small: SmallLake) -> list[dict[str, Any]]:
    """List the stored answers, published or not, with the number of rows that each does have."""
    table = commits.open_if_exists(small.lake.tables.releases)
    if table is None:
        return []
    answers = (
        QueryBuilder()
        .register("releases", table)
        .execute(
            "select label, max(digest) digest, max(row_count) row_count, count(digest) manifests, "
            "count(*) - count(digest) found from releases group by label"
        )
    )
    rows: list[dict[str, Any]] = pa.table(answers).to_pylist()
    return rows


def check_books(small: SmallLake) -> Counter[str]:
    """Check what must hold at every moment, from the entries alone; count them by kind.

    Each run is charged once: what it settled at or else its reserve, never more than the allowance.
    Whatever is visible has its charge, in the same claim, and is stored whole and once.
    """
    if not commits.open_if_exists(small.lake.tables.ledger):
        return Counter()
    ledger = small.ledger(NOON)  # its time never runs backwards, so this is that of the last entry
    entries = ledger.entries().to_pylist()
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in entries:
        if entry["run_id"] is not None:
            run = runs.setdefault(entry["run_id"], {})
            assert entry["kind"] not in run, "twice in one run"
            assert "allocate" in run or entry["kind"] in ("allocate", "refuse")
            run[entry["kind"]] = entry
    granted = [run for run in runs.values() if "allocate" in run]

    answers = {answer["label"]: answer for answer in stored(small)}
    for answer in answers.values():
        assert answer["manifests"] == 1
        assert answer["found"] == answer["row_count"]
    for run in granted:
        if "release" in run:
            assert answers[run["release"]["label"]]["digest"] == run["release"]["digest"]
            assert "settle" in run, "published without a charge"

    left = {
        entry["analyst"]: _amounts(entry["units"], entry["calls"])
        for entry in entries
        if entry["kind"] == "open_account"
    }
    for run in granted:
        charge = run.get("settle", run["allocate"])
        left[charge["analyst"]].subtract(_amounts(charge["units"], charge["calls"]))
    for analyst, amounts in left.items():
        budget = ledger.get_budget(analyst, entries[0]["dataset"])
        assert amounts == _amounts(budget.units_left, budget.calls_left)
        assert min(amounts.values()) >= 0
    return Counter(entry["kind"] for entry in entries)


def _amounts(units: int, calls: int) -> Counter[str]:
    return Counter({"units": units, "calls": calls})


def drill_lake(root: Path, secret: bytes, **changes: str) -> SmallLake:
    """Make a lake with one published snapshot; its rows do not matter to a drill."""
    small = lakes.make(root, secret, **changes)
    small.append([lakes.watched("u1", title="film 1")])
    small.publish()
    return small
