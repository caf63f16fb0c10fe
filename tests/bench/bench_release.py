# ruff: noqa: T201 - the report is what this file is for
"""CPU time of private releases against plain Spark: `python tests/bench/bench_release.py`.

Three questions on the same synthetic Delta table, each with and without the Comet accelerator:

- plain: the true top 20 of 200 cohorts by distinct users, by the fastest Spark query known to us;
- private: the same, released by `unknown_gumbel` with 1,000 candidates per cohort;
- restricted: private, with one cohort and five elements per user enforced.

Figures are CPU seconds of the whole process tree (JVM and Python workers). Warm: runs of the three
questions take turns in one session, after a first round; the median counts. Cold: one question in
a fresh process, from start to end. To reach, under the same engine: private / plain at most 1.05
warm and 1.12 cold (20M rows), restricted / plain at most 1.7; private with Comet / plain without
at most 0.40; growth with rows at most linear.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dp_udfs.pandas_udfs import ANSWER_SCHEMA, Mechanism, answer_cohorts, complete
from jobs.lake import synthetic
from jobs.lake.bounding import bound_contributions
from jobs.lake.histograms import session_settings, top_candidates
from jobs.lake.session import get_session, temporary_settings
from jobs.lake.synthetic import Shape

COHORTS, ELEMENTS, USERS, ROWS_PER_FILE = 200, 50_000, 1_000_000, 2_000_000
NAMES = [f"audience-{number:03}" for number in range(1, COHORTS + 1)]
KEY = bytes(range(32))
ENGINES = {"spark": "0", "comet": "1"}  # value of DISCREET_COMET
K = 20
MECHANISM = Mechanism("unknown_gumbel", k=K, max_candidates=1000, epsilon="0.15", delta="1e-10")
TO_REACH = {("private", "warm"): 1.05, ("private", "cold"): 1.12, ("restricted", "warm"): 1.7}
COMET_TO_REACH = 0.40  # private with Comet / plain without
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Figures:
    """What one run of one question took."""

    engine: str
    rows: int
    question: str
    heat: str  # warm or cold
    cpu_s: float
    wall_s: float
    peak_mb: float
    driver_mb: float
    answer: str  # digest of the rows returned


def main() -> None:
    arguments = _arguments()
    if arguments.inside:
        print(json.dumps([asdict(figures) for figures in _inside(arguments)]))
        return
    figures = []
    for rows in arguments.rows:
        make_table(arguments.folder, rows)
        for engine in arguments.engines:
            for question in QUESTIONS if arguments.cold else ():
                figures += _in_fresh_process(arguments, engine, rows, question)
            figures += _in_fresh_process(arguments, engine, rows, None)
    report = _summary(figures)
    ratios = _ratios(report)
    _print(report, ratios)
    if arguments.json:
        runs = [asdict(one) for one in figures]
        everything = {"runs": runs, "ratios": [ratio._asdict() for ratio in ratios]}
        arguments.json.write_text(json.dumps(everything, indent=1), encoding="utf-8")


# --- the questions --------------------------------------------------------------------------------


def plain(rows: DataFrame) -> pa.Table:
    """One exchange, by cohort; all that follows happens where the rows are then.

    At 20M rows `count_distinct` and `distinct` with Spark's own exchanges took 1.4 times as much.
    """
    by_count = Window.partitionBy("cohort").orderBy(F.desc("n"), "element")
    return (
        rows.repartition("cohort")
        .distinct()
        .groupBy("cohort", "element")
        .agg(F.count(F.lit(1)).alias("n"))
        .withColumn("rank", F.row_number().over(by_count))
        .where(F.col("rank") <= K)
        .toArrow()
    )


def private(rows: DataFrame) -> pa.Table:
    return _release(bound_contributions(rows, cohorts_per_user=None, l0=None, salt="bench"))


def restricted(rows: DataFrame) -> pa.Table:
    return _release(
        bound_contributions(rows, cohorts_per_user=1, l0=5, salt="bench", cohorts=NAMES)
    )


def _release(bounded: DataFrame) -> pa.Table:
    """The steps of `jobs/release_counts.py` between reading and storing."""
    with temporary_settings(bounded.sparkSession, session_settings(MECHANISM.limit)):
        candidates = top_candidates(
            bounded, measure="users", limit=MECHANISM.limit, cohort_count=COHORTS
        )
        answered = candidates.mapInArrow(answer_cohorts(MECHANISM, KEY), ANSWER_SCHEMA).toArrow()
    return complete(answered, MECHANISM, KEY, NAMES)


QUESTIONS: dict[str, Callable[[DataFrame], pa.Table]] = {
    "plain": plain,
    "private": private,
    "restricted": restricted,
}


# --- measuring ------------------------------------------------------------------------------------


def _in_fresh_process(
    arguments: argparse.Namespace, engine: str, rows: int, question: str | None
) -> list[Figures]:
    """Run this file again: one question cold, or all of them warm."""
    command = [sys.executable, __file__, "--inside", engine, "--rows", str(rows)]
    command += ["--folder", str(arguments.folder), "--runs", str(arguments.runs)]
    command += ["--question", question] if question else []
    environment = {**os.environ, "DISCREET_COMET": ENGINES[engine]}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    figures = [Figures(**figures) for figures in json.loads(output)]
    for one in figures:
        _say(f"{one.engine:6}{one.rows:>11,}  {one.question:11}{one.heat:7}{one.cpu_s:8.2f}")
    return figures


def _inside(arguments: argparse.Namespace) -> list[Figures]:
    """Measure in this process; a cold run counts everything since the process began."""
    (rows,), engine, memory = arguments.rows, arguments.inside, Memory()
    started = time.monotonic()
    spark = get_session("bench")
    _refuse_unless(spark, engine)

    def measure(question: str, heat: str, cpu: float, begin: float) -> Figures:
        memory.reset()
        table = spark.read.format("delta").load(str(_table(arguments.folder, rows)))
        answer = QUESTIONS[question](_normal_form(table))
        return Figures(
            engine=engine,
            rows=rows,
            question=question,
            heat=heat,
            cpu_s=round(cpu_seconds() - cpu, 2),
            wall_s=round(time.monotonic() - begin, 2),
            peak_mb=memory.peak_mb,
            driver_mb=memory.driver_mb,
            answer=_digest(answer),
        )

    if arguments.question:
        return [measure(arguments.question, "cold", 0.0, started)]
    measured = [
        measure(question, "warm", cpu_seconds(), time.monotonic())
        for _ in range(arguments.runs + 1)
        for question in QUESTIONS
    ]
    return measured[len(QUESTIONS) :]  # the first round warms up


def _normal_form(table: DataFrame) -> DataFrame:
    return table.select(
        F.col("user_id").alias("user"),
        F.col("audience").alias("cohort"),
        F.col("article").alias("element"),
    )


def _refuse_unless(spark: SparkSession, engine: str) -> None:
    there = "CometPlugin" in (spark.conf.get("spark.plugins", "") or "")
    if there != (engine == "comet"):
        raise SystemExit(f"engine {engine} is not what this session runs; is Comet's jar there?")


def cpu_seconds() -> float:
    """CPU seconds of this process and all below it, those that ended included."""
    return sum(ticks for ticks, _, _ in _processes()) / TICKS


def _processes() -> list[tuple[int, int, str]]:
    """CPU ticks, resident bytes and name of this process and of all below it."""
    found: dict[int, tuple[int, int, str]] = {}
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = file.read_text().rpartition(")")
        except OSError:  # it ended meanwhile
            continue
        number, _, name = head.partition(" (")
        fields = tail.split()
        children.setdefault(int(fields[1]), []).append(int(number))
        # user, system, and the same of ended children; then resident pages
        found[int(number)] = (sum(map(int, fields[11:15])), int(fields[21]) * PAGE, name)
    inside, left = [], [os.getpid()]
    while left:
        process = left.pop()
        left += children.get(process, [])
        inside += [found[process]] if process in found else []
    return inside


class Memory(threading.Thread):
    """Watches resident memory: of the whole process tree, and of this driver alone."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.reset()
        self.start()

    def reset(self) -> None:
        self.peak_mb = self.driver_mb = 0.0

    def run(self) -> None:
        while True:
            sizes = [size / 2**20 for _, size, _ in _processes()]
            self.peak_mb = max(self.peak_mb, round(sum(sizes)))
            self.driver_mb = max(self.driver_mb, round(sizes[0]))
            time.sleep(0.25)


def _digest(answer: pa.Table) -> str:
    """Digest of the rows of an answer in a fixed order."""
    lines = sorted(json.dumps(row, sort_keys=True) for row in answer.to_pylist())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


# --- the table ------------------------------------------------------------------------------------


def _table(folder: Path, rows: int) -> Path:
    return folder / f"engagements-{rows}"


def make_table(folder: Path, rows: int) -> None:
    """Write the table unless it is there."""
    path = _table(folder, rows)
    done = path.with_suffix(".done")
    if done.exists():
        return
    _say(f"writing {rows:,} rows to {path}")
    shape = Shape(rows, USERS, ELEMENTS, COHORTS, days=30, seed=7)
    for start in range(0, rows, ROWS_PER_FILE):
        numbers = np.arange(start, min(start + ROWS_PER_FILE, rows))
        data = synthetic.rows(numbers, shape)
        write_deltalake(path, data, mode="append" if start else "overwrite")
    done.touch()


# --- the report -----------------------------------------------------------------------------------


class Key(NamedTuple):
    """What was measured."""

    rows: int
    engine: str
    question: str
    heat: str


class Ratio(NamedTuple):
    """A comparison of CPU seconds, and the most it should be."""

    name: str
    value: float
    to_reach: float | None


Summary = dict[Key, Figures]


def _summary(figures: list[Figures]) -> Summary:
    """Medians of CPU and wall seconds, largest memory, and a check that answers never differ."""
    groups: dict[Key, list[Figures]] = {}
    for one in figures:
        groups.setdefault(Key(one.rows, one.engine, one.question, one.heat), []).append(one)
    for rows, _, question, _ in groups:
        answers = {one.answer for one in figures if (one.rows, one.question) == (rows, question)}
        assert len(answers) == 1, f"{question} on {rows} rows gave different answers"
    return {
        key: replace(
            group[0],
            cpu_s=statistics.median(one.cpu_s for one in group),
            wall_s=statistics.median(one.wall_s for one in group),
            peak_mb=max(one.peak_mb for one in group),
            driver_mb=max(one.driver_mb for one in group),
        )
        for key, group in groups.items()
    }


def _ratios(report: Summary) -> list[Ratio]:
    """Compare CPU seconds of releases with plain queries, and of many rows with few."""
    ratios = []

    def compare(above: Key, below: Key, to_reach: float | None, per: float = 1.0) -> None:
        if above in report and below in report and above != below:
            value = round(report[above].cpu_s / report[below].cpu_s / per, 2)
            name = f"{' '.join(map(str, above))} / {' '.join(map(str, below))}"
            ratios.append(Ratio(name, value, to_reach))

    for key in sorted(report):
        rows, engine, question, heat = key
        if question != "plain":
            compare(key, Key(rows, engine, "plain", heat), TO_REACH.get((question, heat)))
        if engine == "comet":
            aim = COMET_TO_REACH if (question, heat) == ("private", "warm") else None
            compare(key, Key(rows, "spark", "plain", heat), aim)
        fewest = min(one.rows for one in report)
        compare(key, Key(fewest, engine, question, heat), 1.0, per=rows / fewest)
    return ratios


def _print(report: Summary, ratios: list[Ratio]) -> None:
    print(f"\n{'rows':>11}  engine  question          {'CPU s':>8}{'wall s':>8}", end="")
    print(f"{'MB':>7}{'driver':>7}")
    for (rows, engine, question, heat), one in sorted(report.items()):
        print(
            f"{rows:>11,}  {engine:6}  {question:11}{heat:7}"
            f"{one.cpu_s:8.2f}{one.wall_s:8.2f}{one.peak_mb:7.0f}{one.driver_mb:7.0f}"
        )
    print("\n ratio  to reach  CPU seconds of (per row, where the numbers of rows differ)")
    for ratio in ratios:
        aim = "" if ratio.to_reach is None else f"{ratio.to_reach:.2f}"
        print(f"{ratio.value:6.2f}  {aim:>8}  {ratio.name}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 20_000_000])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--runs", type=int, default=3, help="warm runs of each question")
    parser.add_argument("--cold", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, help="file for all figures")
    default = Path(tempfile.gettempdir()) / "discreet-bench"
    parser.add_argument("--folder", type=Path, default=default, help="where the tables are kept")
    parser.add_argument("--inside", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--question", choices=QUESTIONS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
