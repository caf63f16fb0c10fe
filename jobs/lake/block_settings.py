"""`[blocks]` of a dataset file: what everybody together may learn from slices of its days."""

from typing import Literal

from pydantic import model_validator

from dp_udfs.curves import block_capacity
from jobs.lake.queue_settings import QueueSettings
from jobs.lake.toml_files import Alphas, Days, Delta, Epsilon, Table


class BlockSettings(Table):
    """What all analysts and models together may learn from the rows of so many days, for good.

    `alphas` are the Rényi orders of the blocks' curves, rising from 2; "inf" alone is basic
    composition, where the losses themselves add up. With a `queue`, claims wait for their turn.
    """

    mode: Literal["enforce", "track"]
    days: Days
    epsilon: Epsilon
    delta: Delta
    alphas: Alphas
    queue: QueueSettings | None = None

    @model_validator(mode="after")
    def _usable(self) -> "BlockSettings":
        if self.queue and self.mode != "enforce":
            raise ValueError("queue: needs mode 'enforce': what is never refused never waits")
        if max(block_capacity(self.epsilon, self.delta, self.alphas)) <= 0:
            raise ValueError(
                f"alphas: epsilon {self.epsilon} leaves nothing at any of {', '.join(self.alphas)} "
                f"after ln(1/delta) / (alpha - 1); give a larger alpha or epsilon"
            )
        return self
