"""`[users]` of a dataset file: privacy blocks of users, and the count that says which exist.

No key that moves privacy has a default.
"""

from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import Field, StrictInt, model_validator

from dp_udfs import curves
from dp_udfs.counters import CounterTerms, counter_cost
from jobs.lake.queue_settings import QueueSettings
from jobs.lake.toml_files import Alphas, Days, Delta, Epsilon, Table

Count = Annotated[StrictInt, Field(ge=1, le=10**9)]


class UserSettings(Table):
    """Buckets of users in the order in which they joined, each with a budget for good.

    Attributes
    ----------
    blocks : str
        "user": a block is `per_block` users for all time. "user_time": those users in one period.
    per_block : int
        Users in a block.
    begins, days, periods : date, int, int
        Users are counted after each of so many periods of so many days.
    count_epsilon : str
        What all counts together tell of one user; every block pays it when it is created.
    beta : str
        Probability that the bound is above the number of users, ever: of all periods together.
    cost : str
        How that is paid at Rényi orders: "exact", or "paper", which is larger.
    epsilon, delta, alphas : str, str, tuple of str
        What a block owns before it has paid for the count.
    queue : QueueSettings, optional
        With it claims wait for their turn, else whoever comes first is served.
    """

    blocks: Literal["user", "user_time"]
    per_block: Count
    begins: date
    days: Days
    periods: Annotated[StrictInt, Field(ge=1, le=100_000)]
    count_epsilon: Epsilon
    beta: Delta
    cost: Literal["exact", "paper"]
    epsilon: Epsilon
    delta: Delta
    alphas: Alphas
    queue: QueueSettings | None = None

    @model_validator(mode="after")
    def _usable(self) -> "UserSettings":
        if max(self.capacity) <= 0:
            raise ValueError("epsilon: nothing is left of it at any alpha once the count is paid")
        return self

    @property
    def terms(self) -> CounterTerms:
        """The counter."""
        return CounterTerms(self.periods, self.count_epsilon)

    @property
    def capacity(self) -> list[float]:
        """What a block owns at each alpha, the count paid."""
        whole = curves.block_capacity(self.epsilon, self.delta, self.alphas)
        orders = [float(alpha) for alpha in self.alphas]
        paid = counter_cost(self.count_epsilon, self.periods, orders, self.cost)
        return [value - cost for value, cost in zip(whole, paid, strict=True)]

    def window(self, period: int) -> tuple[date, date]:
        """Return the days of a period, numbered from 1: the first, and the first after it."""
        start = self.begins + timedelta(days=(period - 1) * self.days)
        return start, start + timedelta(days=self.days)
