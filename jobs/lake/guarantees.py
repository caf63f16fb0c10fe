"""What allowances promise: per period, over all periods that a row meets, over a person's years."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dp_udfs import composition, curves
from jobs.lake.budgets import PURE, Block
from jobs.lake.ledger import Budget
from jobs.lake.settings import DatasetSettings

NO_ODOMETER = (
    "units and calls used are counts; no epsilon is stated for what has been used so far, "
    "because at a moment chosen after seeing answers such a figure would promise nothing"
)


@dataclass(frozen=True)
class Guarantee:
    """Epsilon and delta of one analyst's allowance, in one period and over all that a row meets.

    Attributes
    ----------
    bound : str
        Which bound `epsilon` is by.
    tighter : dict of str to float
        Epsilon, at the same delta, by other bounds that hold for adaptive questions too.
    """

    epsilon: float
    delta: float
    periods: int
    epsilon_over_periods: float
    delta_over_periods: float
    bound: str
    tighter: dict[str, float]

    def facts(self) -> dict[str, str]:
        """Put the guarantee in words, as every report shows it."""
        once = f"({self.epsilon:.2f}, {self.delta:.1e})-DP"
        always = f"({self.epsilon_over_periods:.2f}, {self.delta_over_periods:.1e})-DP"
        tighter = ", ".join(
            f"epsilon {value:.2f} by {name}" for name, value in self.tighter.items()
        )
        return {
            "guarantee": f"{once} for the whole allowance of a period ({self.bound})",
            **({"tighter": f"{tighter}; also for adaptive questions"} if tighter else {}),
            "over_periods": f"{always}, since a row can be read in up to {self.periods} periods",
            "so_far": NO_ODOMETER,
        }


def guarantee(dataset: DatasetSettings, budget: Budget) -> Guarantee | None:
    """State what an allowance promises, however adaptively it is spent; nothing if it was tracked.

    An allowance that was lowered below what is used counts as what is used. Shares of other regions
    count too, heard of or not. Over the periods it is taken to be the same in each.
    """
    if budget.tracked:
        return None
    units, calls = max(budget.units, budget.used.units), max(budget.calls, budget.used.calls)
    units, calls = max(units, budget.in_all.units), max(calls, budget.in_all.calls)
    if dataset.in_escrow:
        planned = dataset.whole_allowance(budget.analyst)
        units, calls = max(units, planned[0]), max(calls, planned[1])
    terms, table = budget.terms or dataset.budget, dataset.table
    step: dict[str, Any] = {
        "epsilon": terms.epsilon,
        "delta": terms.delta,
        "delta_prime": terms.delta_prime,
        "gaussian": terms.gaussian,
    }
    periods = composition.periods_met(
        table.retention_days, table.purge_lag_days, dataset.budget.period
    )
    once = composition.account_guarantee(units, calls, **step)
    always = composition.guarantee_over_periods(periods, units, calls, **step)
    if terms.gaussian:
        return Guarantee(*once, periods, *always, "zCDP", {})
    numbers = units, terms.epsilon, terms.delta_prime
    tighter = {
        "zCDP": composition.zcdp_epsilon(*numbers),
        "the exact Rényi curve": composition.bounded_range_renyi_epsilon(*numbers),
    }
    tighter = {name: epsilon for name, epsilon in tighter.items() if epsilon < once[0]}
    return Guarantee(*once, periods, *always, "bounded range", tighter)


def facts(dataset: DatasetSettings, budget: Budget) -> dict[str, str]:
    """Put what an allowance promises in words: of one that was tracked, nothing."""
    found = guarantee(dataset, budget)
    if found is None:
        return {"guarantee": "none: mode track refuses nothing"}
    if dataset.regions and (budget.in_common or not dataset.in_escrow):
        number = len(dataset.regions.ledgers) + 1
        why = "opened before mode escrow" if dataset.in_escrow else "mode eventual"
        return found.facts() | {
            "regions": f"{number}, {why}: while they do not hear of each other, each can "
            f"spend the whole allowance; the guarantee is for what all of them together spend"
        }
    return found.facts()


def optimum(dataset: DatasetSettings, budget: Budget) -> str:
    """State the best figure there is for an allowance: it takes seconds, and changes nothing."""
    terms = budget.terms or dataset.budget
    if budget.tracked or terms.gaussian:
        return "none: it is for bounded-range steps alone, in mode enforce"
    epsilon = composition.adaptive_epsilon(budget.units, terms.epsilon, terms.delta_prime)
    return (
        f"epsilon {epsilon:.2f}, the least that holds for {budget.units} adaptive steps of epsilon "
        f"{terms.epsilon}; only while every question has that epsilon and the allowance stays"
    )


def over_blocks(dataset: DatasetSettings, blocks: Sequence[Block]) -> str | None:
    """Say what a person whose rows lie in all of these blocks can lose, to everybody together.

    None unless each block says what it promises: a capacity of basic composition, or an `epsilon`
    among the details it was opened with.
    """
    stated = [_promise(block) for block in blocks]
    known = [promise for promise in stated if promise is not None]
    if not known or len(known) < len(stated) or dataset.table.privacy_unit != "user":
        return None
    epsilon, delta = sum(promise[0] for promise in known), sum(promise[1] for promise in known)
    return (
        f"({epsilon:.2f}, {min(1.0, delta):.1e})-DP for a person in all {len(known)} blocks, to "
        f"all analysts and models together, by what was allocated since the blocks were opened; "
        f"deltas of their claims come on top"
    )


def _promise(block: Block) -> tuple[float, float] | None:
    if block.mode == "track":
        return None
    capacity = block.filter.capacity.epsilons
    if block.alphas == (PURE,):
        return capacity[0], 0.0
    if "epsilon" not in block.details:
        return None
    return curves.block_guarantee(capacity, block.alphas, block.details["epsilon"])
