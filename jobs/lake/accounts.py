"""The account of one analyst on one dataset: its period, its allowance, and what that promises."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from dp_udfs import composition
from jobs.lake.ledger import Budget, Ledger
from jobs.lake.periods import period_of
from jobs.lake.settings import DatasetSettings


@dataclass(frozen=True)
class Guarantee:
    """Epsilon and delta of one analyst's allowance, in one period and over all that a row meets."""

    epsilon: float
    delta: float
    periods: int
    epsilon_over_periods: float
    delta_over_periods: float
    bound: str

    def facts(self) -> dict[str, str]:
        """Put the guarantee in words, as every report shows it."""
        once = f"({self.epsilon:.2f}, {self.delta:.1e})-DP"
        always = f"({self.epsilon_over_periods:.2f}, {self.delta_over_periods:.1e})-DP"
        return {
            "guarantee": f"{once} for the whole allowance of a period ({self.bound})",
            "over_periods": f"{always}, since a row can be read in up to {self.periods} periods",
        }


def guarantee(dataset: DatasetSettings, allowance: Budget) -> Guarantee:
    """State what an allowance promises, however adaptively it is spent."""
    units, calls = allowance.units, allowance.calls
    budget, table = dataset.budget, dataset.table
    step: dict[str, Any] = {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "delta_prime": budget.delta_prime,
        "gaussian": budget.gaussian,
    }
    periods = composition.periods_met(table.retention_days, table.purge_lag_days, budget.period)
    once = composition.account_guarantee(units, calls, **step)
    always = composition.guarantee_over_periods(periods, units, calls, **step)
    bound = "zCDP" if budget.gaussian else "bounded range"
    return Guarantee(*once, periods, *always, bound)


def open_account(
    ledger: Ledger, dataset: DatasetSettings, account: str, analyst: str, now: datetime
) -> date:
    """Open the analyst's account for the current period if it is not; return the period's start."""
    units, calls = dataset.allowance(analyst)
    start, end = period_of(now, dataset.table.time_zone, dataset.budget.period)
    zone = dataset.table.time_zone
    ledger.open_account(analyst, account, start, units, calls, period_end=end, zone=zone)
    return start


def describe(budget: Budget) -> str:
    """Say what is left, in one line."""
    return (
        f"{budget.units_left} of {budget.units} units, "
        f"{budget.calls_left} of {budget.calls} calls; resets on {budget.resets_at}"
    )
