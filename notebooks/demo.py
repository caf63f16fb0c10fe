# Databricks notebook source
# MAGIC %md
# MAGIC # Private answers about real people's film choices
# MAGIC
# MAGIC Two analysts ask about MovieLens-100k: 943 people, 1,682 films, 100,000 ratings. Each answer
# MAGIC has noise on it, has a price, and is charged to the analyst's account before a row is read.
# MAGIC `make demo` makes the lake and runs this notebook from top to bottom.

# COMMAND ----------

import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from dp_udfs.errors import BudgetExhaustedError
from jobs.lake import accounts, guarantees, program, questions, reports
from jobs.lake.ledger import Ledger, utc_now
from jobs.lake.question_settings import QuestionSettings
from jobs.lake.questions import Question
from jobs.lake.settings import load_dataset, load_lake
from jobs.lake.toml_files import read
from jobs.quote import quote
from jobs.release_counts import ending, release_counts, shown

CONF = Path.cwd() / "conf"
started = time.monotonic()
program.configure_logging()
lake = load_lake(CONF / "local.toml")
ledger = Ledger(lake.tables.ledger, lake.region)


def heading(text: str) -> None:
    """Print a headline."""
    print(f"\n{'=' * 100}\n{text}\n{'=' * 100}", flush=True)


def ask(analyst: str, file: str, why: str = "", **changes: Any) -> None:
    """Quote a question, ask it, and show answer, charge and what is left."""
    settings = read(CONF / "releases" / f"{file}.toml", QuestionSettings, changes)
    dataset = load_dataset(settings.dataset, lake)
    question = questions.pin(lake, dataset, settings, None)
    price = quote(question)
    print(f"\n--- {analyst} asks: {question.describe()}" + (f"\n    {why}" if why else ""))
    print(
        f"    {price['mechanism']}, epsilon {dataset.budget.epsilon}: at most {question.reserve}; "
        f"counts within +-{price['noise_95_percent']} with 95 %{threshold(question)}",
        flush=True,
    )
    try:
        outcome = release_counts(lake, dataset, settings, analyst)
    except BudgetExhaustedError as refusal:
        print(f"\nrefused: {refusal}")
        return
    print()
    print(compact(outcome.rows))
    charged = "free: a repeat" if outcome.run_id is None else f"charged {outcome.charged}"
    print(f"\n{charged}; left {accounts.describe(outcome.budget)}", flush=True)


def threshold(question: Question) -> str:
    """Say how far above what an element has to be to show."""
    offset = question.noise.threshold_offset
    if offset is None:
        return ""
    fixed = question.mechanism.name == "fixed_gaussian"
    return f"; threshold {offset:.0f} above {'zero' if fixed else 'the first not considered'}"


def compact(rows: pa.Table) -> str:
    """Show one cohort as a table, several as one line each."""
    cohorts = sorted(set(rows["cohort"].to_pylist()))
    if len(cohorts) == 1:
        return f"{reports.table(shown(rows))}\n({ending(rows)})"
    lines = []
    for cohort in cohorts:
        found = [row for row in rows.to_pylist() if row["cohort"] == cohort]
        elements = [f"{r['element']} ({r['noisy_count']})" for r in found if r["rank"]]
        lines.append(
            {
                "cohort": cohort,
                "found": len(elements),
                "first three (noisy count)": "; ".join(elements[:3]),
                "ending": "stopped at the threshold" if found[-1]["stopped"] else "complete",
            }
        )
    return reports.table(lines)


def balances(name: str) -> None:
    """Show what each analyst has left and what the whole allowance guarantees."""
    dataset = load_dataset(name, lake)
    account = questions.pin(lake, dataset, any_question(name), None).account
    lines = []
    for analyst in dataset.analysts:
        accounts.open_account(ledger, dataset, account, analyst, utc_now())
        budget = ledger.get_budget(analyst, account)
        guarantee = guarantees.guarantee(dataset, budget)
        lines.append(
            {
                "analyst": analyst,
                "units": budget.units,
                "units left": budget.units_left,
                "calls": budget.calls,
                "calls left": budget.calls_left,
                "resets": budget.resets_at,
                "epsilon of the allowance": guarantee and guarantee.epsilon,
                "delta": guarantee and f"{guarantee.delta:.1e}",
            }
        )
    print(reports.table(lines))


def any_question(name: str) -> QuestionSettings:
    """Return some question about a dataset: its account is the table's."""
    return read(CONF / "releases" / "occupations.toml", QuestionSettings, {"dataset": name})


# COMMAND ----------

heading("Two analysts and what they may learn of MovieLens in one period")
balances("movielens")

# COMMAND ----------

heading("Films: found in the data, any number a person")
ask("marketing", "top-films", "20 candidates: the threshold is high", max_candidates=20)
ask("marketing", "top-films", "200 candidates: it lies lower, and all ten show")
ask("marketing", "top-films-by-audience", "eight audiences for the price of one: nobody is in two")

# COMMAND ----------

heading("Home areas: found in the data, one a person, two mechanisms at the same price")
ask("marketing", "areas", "threshold under Laplace noise")
ask("marketing", "areas-gaussian", "fixed threshold under Gaussian noise: lower")

# COMMAND ----------

heading("Occupations and genres: from a public list")
ask("research", "occupations", "every occupation has its own noise, absent ones too")
ask("research", "top-genres")
ask("research", "top-genres-by-ratings", "three ratings a person and genre: three times the noise")

# COMMAND ----------

heading("Asking again")
ask("marketing", "top-films", "the same question on the same snapshot: same numbers, free")
ask("marketing", "top-films", "the first three of that answer: free", k=3)
ask("research", "top-films", "another analyst: the same numbers, charged")
ask("research", "top-films", "too much for this account: refused before any row is read", k=190)

# COMMAND ----------

heading("The same people under the strict parameters made for millions of users")
ask("marketing", "top-films", "20 candidates", dataset="movielens-strict", max_candidates=20)
ask("marketing", "top-films", "200 candidates", dataset="movielens-strict")
ask("marketing", "top-films-by-audience", "eight small audiences", dataset="movielens-strict")
ask("marketing", "areas", "threshold 344", dataset="movielens-strict")
ask("marketing", "areas-gaussian", "threshold 86", dataset="movielens-strict")

# COMMAND ----------

heading("What is left, and where everything lies")
balances("movielens")
print()
print(reports.table([{"table": k, "path": v} for k, v in lake.tables.model_dump().items()]))
print(f"\nThe ledger's head is {ledger.head()}.")
print(f"Done in {time.monotonic() - started:.0f} s.", file=sys.stderr)
