"""Release one private answer: pin, price, allocate, read, bound, count, add noise, store, settle.

    python -m jobs.release_counts conf/releases/top-films.toml --analyst marketing

Killed at any point and run again, it ends with one charge, one release and the same numbers: the
claim is bound to the question, the noise is keyed by it, and the answer is stored under its label.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dp_udfs import pandas_udfs
from dp_udfs.budget import NOTHING, Loss
from jobs.lake import (
    accounts,
    claims,
    options,
    program,
    questions,
    releases,
    reports,
    runs,
    slices,
)
from jobs.lake.ledger import Budget, Ledger, utc_now
from jobs.lake.periods import day_in
from jobs.lake.question_settings import QuestionSettings
from jobs.lake.questions import Question
from jobs.lake.releases import Release
from jobs.lake.settings import ALL, DatasetSettings, LakeSettings, load_dataset, load_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Outcome:
    """The answer, what it cost, and what is left.

    Attributes
    ----------
    rows : pyarrow.Table
        Element rows and one stop row per cohort (`jobs.lake.releases.SCHEMA`).
    charged : Loss
        What this run added to the account: nothing for a repeat.
    run_id : str or None
        The run that was charged; None where the analyst owned the answer already.
    notes : dict of str to str
        What the analyst ought to know about the account; empty where all is as usual.
    """

    question: Question
    rows: pa.Table
    run_id: str | None
    charged: Loss
    budget: Budget
    ledger_head: str
    notes: dict[str, str]


def main(arguments: argparse.Namespace) -> None:
    """Answer the question of the command line."""
    lake = load_lake(arguments.conf)
    settings = options.read_question(arguments)
    dataset = load_dataset(settings.dataset, lake)
    if arguments.dry_run:
        reports.show(arguments, [], dry_run(lake, dataset, settings, arguments))
        return
    outcome = release_counts(
        lake,
        dataset,
        settings,
        arguments.analyst,
        run_id=arguments.run_id,
        snapshot_id=arguments.snapshot,
    )
    program.warn(outcome.notes.get("warning"))
    reports.show(arguments, shown(outcome.rows), facts(outcome))


def dry_run(
    lake: LakeSettings,
    dataset: DatasetSettings,
    settings: QuestionSettings,
    arguments: argparse.Namespace,
) -> dict[str, str]:
    """Check and price a question as the run itself would; nothing is written."""
    now, named = utc_now(), questions.secret_id(lake.read_secret())
    question = questions.pin(lake, dataset, settings, arguments.snapshot, named)
    ledger = claims.open_ledger(lake)
    ledger.require_complete()
    budget = accounts.get_budget(ledger, dataset, question.account, arguments.analyst, now)
    runs.require_readable(question, day_in(dataset.table.time_zone, now))
    if ledger.exists():
        slices.require_settings(question, ledger.blocks(question.account))
    price = accounts.price(question, budget.terms)
    return {"question": question.describe(), "reserve": str(price)}


def release_counts(
    lake: LakeSettings,
    dataset: DatasetSettings,
    settings: QuestionSettings,
    analyst: str,
    *,
    run_id: str | None = None,
    snapshot_id: int | None = None,
    spark: "SparkSession | None" = None,
    clock: Callable[[], datetime] = utc_now,
) -> Outcome:
    """Answer one question for one analyst.

    Parameters
    ----------
    run_id : str, optional
        The caller's name for this run; it binds a retry to the snapshot that its first try pinned.
        Without one the run is named after analyst, question and snapshot.
    snapshot_id : int, optional
        A published snapshot; the newest by default.
    spark : SparkSession, optional
        The caller's session; else the active one, else a local one.
    clock : callable, optional
        Tells the ledger's time.

    Raises
    ------
    SettingsError, InvalidParameterError, UnboundedContributionError
        Before any budget is spent.
    BudgetExhaustedError
        If the reserve does not fit into what is left; nothing was read.
    ClaimError
        If the run id belongs to another question, or its claim is closed without an answer.

    Notes
    -----
    Privacy: see `dp_udfs.composition.account_guarantee`. The most that the answer can cost is
    allocated before a row is read; it is published and settled in one ledger entry after it is
    stored. Whatever happens in between can waste budget, not overspend it.
    """
    dataset.allowance(analyst)
    ledger = claims.open_ledger(lake, clock)
    earlier = None if run_id is None else ledger.find(run_id)
    question = questions.pin(lake, dataset, settings, *runs.pinned(lake, earlier, snapshot_id))
    budget = accounts.open_account(ledger, dataset, question.account, analyst, clock())

    owned = {p.label for p in ledger.released_labels(analyst, question.account)}
    if earlier is None:
        answer = releases.find_owned(lake.tables.releases, question, owned)
        if answer is not None:
            claims.require_same_numbers(ledger, question.account, answer)
            return _outcome(ledger, question, analyst, answer, None, NOTHING, clock())
    if run_id is None:
        run_id = runs.next_name(ledger, question.fingerprint(analyst))
    begun = ledger.find(run_id)
    if begun is None or begun.state in ("given_back", "waiting"):
        runs.require_readable(question, day_in(dataset.table.time_zone, clock()))
    answer = releases.find(lake.tables.releases, question.label)
    if answer is None:
        secret = lake.read_secret()  # once: it may be replaced while the ledger is waited for
        question.require_computable(secret)
    price, blocks = runs.demand(ledger, question, budget, run_id, begun)
    with program.progress(f"allocate {price}"):
        claim = runs.allocate(ledger, question, budget, run_id, price, blocks)
    if answer is None:
        runs.verify_or_expire(ledger, claim, question.snapshot)
        answer = compute(question, secret, spark)
        claims.require_same_numbers(ledger, question.account, answer)
        with program.progress("store the answer"):
            answer = releases.write(lake.tables.releases, question, answer)
    with program.progress("publish and settle"):
        charged = claims.publish(ledger, claim, answer)
    return _outcome(ledger, question, analyst, answer, claim.run_id, charged, clock())


def compute(question: Question, secret: bytes, spark: "SparkSession | None" = None) -> Release:
    """Read, bound, count and add noise; what returns may be seen."""
    from jobs.lake.bounding import bound_contributions
    from jobs.lake.engagements import select
    from jobs.lake.histograms import histogram, session_settings, top_candidates
    from jobs.lake.session import get_session, temporary_settings

    mechanism, key = question.mechanism, question.noise_key(secret)
    column, table = question.dataset.columns[question.element], question.dataset.table
    limit = None if mechanism.max_candidates is None else mechanism.max_candidates + 1
    counting: dict[str, Any] = {
        "measure": question.measure,
        "tau": mechanism.tau,
        "cohort_count": len(question.cohorts),
    }
    with program.progress("start Spark"):
        spark = spark or get_session("discreet release")
    with (
        program.progress("read, bound, count and add noise"),
        temporary_settings(spark, session_settings(limit)),
    ):
        rows = bound_contributions(
            select(spark, question),
            cohorts_per_user=question.cohorts_per_user,
            l0=column.l0,
            salt=table.bounding_salt,
            cohorts=question.cohorts,
        )
        if mechanism.elementwise:
            candidates = histogram(rows, **counting)
            answer = pandas_udfs.answer_elementwise(mechanism, key)
        else:
            candidates = top_candidates(rows, limit=limit, **counting)
            answer = pandas_udfs.answer_cohorts(mechanism, key)
        answered = candidates.mapInArrow(answer, pandas_udfs.ANSWER_SCHEMA).toArrow()
    whole = pandas_udfs.complete(answered, mechanism, key, question.cohorts)
    return releases.from_answer(question, whole)


def _outcome(
    ledger: Ledger,
    question: Question,
    analyst: str,
    answer: Release,
    run_id: str | None,
    charged: Loss,
    now: datetime,
) -> Outcome:
    # the period of the run may be over by now, and the next one not opened yet
    budget = accounts.get_budget(ledger, question.dataset, question.account, analyst, now)
    claim = ledger.find(run_id) if run_id else None
    passed = {"tracked": claim.note} if claim and claim.note else {}
    return Outcome(
        question=question,
        rows=answer.first(question.show),
        run_id=run_id,
        charged=charged,
        budget=budget,
        ledger_head=ledger.head(),
        notes=accounts.notes(question.dataset, budget) | passed,
    )


def shown(rows: pa.Table) -> list[dict[str, Any]]:
    """Arrange the elements for readers; without their cohort where there is but one."""
    keys = ["cohort", "rank", "element", "noisy_count", "low", "high"]
    if set(rows["cohort"].to_pylist()) == {ALL}:
        keys.remove("cohort")
    return [
        {key: row[key] for key in keys} for row in rows.to_pylist() if row["row_kind"] == "element"
    ]


def ending(rows: pa.Table) -> str:
    """Say which cohorts ended at the threshold, and so may have more elements than are shown."""
    stops = [row for row in rows.to_pylist() if row["row_kind"] == "stop"]
    stopped = [row["cohort"] for row in stops if row["stopped"]]
    if len(stopped) == len(stops):
        return "stopped at the threshold" if len(stops) == 1 else "all stopped at the threshold"
    return f"stopped at the threshold: {', '.join(stopped)}" if stopped else "complete"


def facts(outcome: Outcome) -> dict[str, Any]:
    """Collect what is said beside the rows: the question, its price and what is left."""
    return {
        "question": outcome.question.describe(),
        "dataset": outcome.question.dataset.name,
        "analyst": outcome.budget.analyst,
        "answer": ending(outcome.rows),
        "mechanism": outcome.question.mechanism.name,
        "snapshot": outcome.question.snapshot.snapshot_id,
        "label": outcome.question.label,
        "run_id": outcome.run_id,
        **({} if outcome.run_id else {"free": "a repeat of an answer that the analyst has"}),
        "charged_units": outcome.charged.units,
        "charged_calls": outcome.charged.calls,
        "units_left": outcome.budget.units_left,
        "calls_left": outcome.budget.calls_left,
        "resets_at": outcome.budget.resets_at,
        "ledger_head": outcome.ledger_head,
        **outcome.notes,
    }


if __name__ == "__main__":
    parser = program.parser(__doc__)
    options.add_question(parser)
    options.add_analyst(parser)
    parser.add_argument("--run-id", help="name of this run; a retry gives the same one")
    parser.add_argument("--dry-run", action="store_true", help="only check and price the question")
    program.run(main, parser)
