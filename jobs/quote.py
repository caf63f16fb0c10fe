"""Say what questions would cost and how noisy their answers would be, before anything is spent.

    python -m jobs.quote conf/releases/top-films.toml --analyst marketing --runs 30

From public numbers only: settings, the published snapshot and the analyst's own account. The
engagement table is never opened, so quotes can be asked for ever and teach nothing about it.
"""

import argparse
from typing import Any

from dp_udfs import checks
from dp_udfs.budget import Loss
from dp_udfs.errors import SettingsError
from jobs.lake import accounts, claims, guarantees, options, program, questions, reports, slices
from jobs.lake.budgets import Terms
from jobs.lake.ledger import utc_now
from jobs.lake.periods import day_in
from jobs.lake.questions import Question
from jobs.lake.settings import load_dataset, load_lake


def main(arguments: argparse.Namespace) -> None:
    """Print the quote of each question, for one run or for a period of scheduled ones."""
    checks.positive_integers(runs=arguments.runs)
    lake = load_lake(arguments.conf)
    asked = options.read_questions(arguments)
    dataset = load_dataset(asked[0].dataset, lake)
    if any(settings.dataset != dataset.name for settings in asked):
        raise SettingsError(
            "questions about different datasets have different accounts; quote apart"
        )
    found = [questions.pin(lake, dataset, settings, arguments.snapshot) for settings in asked]
    for question in found:
        question.require_retained(day_in(dataset.table.time_zone, utc_now()))
    ledger = claims.open_ledger(lake)
    account = found[0].account
    budget = accounts.get_budget(ledger, dataset, account, arguments.analyst, utc_now())
    quotes = [quote(question, arguments.runs, budget.terms) for question in found]
    facts: dict[str, Any] = {
        "most_that_all_can_cost": Loss(
            sum(q["units"] for q in quotes), sum(q["calls"] for q in quotes)
        ),
        "left": accounts.describe(budget),
    }
    facts |= guarantees.facts(dataset, budget) | accounts.notes(dataset, budget)
    reports.show(arguments, quotes, facts)


def quote(question: Question, runs: int = 1, terms: Terms | None = None) -> dict[str, Any]:
    """Price and noise of `runs` answers to one question, on an account with these terms.

    Returns
    -------
    dict
        `units` and `calls` are the most that all runs together can cost; a run that ends early
        costs less. `threshold_offset` is what an element needs beyond the count of the first one
        not considered (or beyond zero for fixed thresholds); where that count lies is secret.
    """
    noise, reserve = question.noise, accounts.price(question, terms)
    return {
        "question": question.describe(),
        "mechanism": question.mechanism.name,
        "cohorts": len(question.cohorts),
        "cohorts_per_user": question.cohorts_per_user,
        "runs": runs,
        "units": runs * reserve.units,
        "calls": runs * reserve.calls,
        "noise_deviation": noise.standard_deviation,
        "noise_95_percent": noise.half_width,
        "threshold_offset": noise.threshold_offset,
        **_of_blocks(question),
    }


def _of_blocks(question: Question) -> dict[str, Any]:
    """Say what one run takes of each privacy block; an answer that is out takes nothing more."""
    demands = slices.demands(question)
    if not demands:
        return {}
    return {"blocks": len(demands), "of_each_block": str(next(iter(demands.values())))}


if __name__ == "__main__":
    parser = program.parser(__doc__)
    options.add_question(parser, many=True)
    options.add_analyst(parser)
    parser.add_argument(
        "--runs", type=int, default=1, help="price so many runs, say 30 for a month"
    )
    program.run(main, parser)
