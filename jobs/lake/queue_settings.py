"""`[blocks.queue]` of a dataset file: who is served first where claims wait for privacy blocks."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, model_validator

from dp_udfs.policies import (
    DPack,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
    Optimal,
    Policy,
)
from jobs.lake.toml_files import DecimalText, PositiveInt, Table

Seconds = Annotated[StrictInt, Field(ge=1, le=100 * 366 * 86_400)]

_POLICIES: Mapping[str, tuple[Callable[..., Policy], tuple[str, ...], tuple[str, ...]]] = {
    "first_come_first_served": (FirstComeFirstServed, (), ()),
    "dpf_by_arrivals": (DpfByArrivals, ("n",), ("slack",)),
    "dpf_by_time": (DpfByTime, ("lifetime", "tick"), ("slack",)),
    "dpack": (DPack, ("lifetime", "tick"), ("slack", "grants_between_updates")),
    "optimal": (Optimal, ("lifetime", "tick"), ("slack",)),
}  # what makes each, the keys that it needs, and those that it may have


class QueueSettings(Table):
    """How blocks unlock and who is served first; it never changes once a block is open.

    Attributes
    ----------
    policy : str
        "first_come_first_served": all is unlocked, what does not fit is rejected.
        "dpf_by_arrivals": each of the first `n` claims on a block unlocks 1/n of it.
        "dpf_by_time", "dpack", "optimal": a block unlocks over `lifetime` seconds, by `tick`
        seconds; the first serves the smallest dominant share, the others as many as fit.
    slack : number, optional
        Unlock faster by this share in the first half, and slower in the second.
    grants_between_updates : int, optional
        Of "dpack": 1 packs best, 50 is fast.
    """

    policy: Literal["first_come_first_served", "dpf_by_arrivals", "dpf_by_time", "dpack", "optimal"]
    n: PositiveInt | None = None
    lifetime: Seconds | None = None
    tick: Seconds | None = None
    slack: DecimalText | None = None
    grants_between_updates: PositiveInt | None = None

    @model_validator(mode="after")
    def _complete(self) -> "QueueSettings":
        _, needed, allowed = _POLICIES[self.policy]
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"{name}: missing; policy {self.policy!r} needs it")
        for name in self._given():
            if name not in needed + allowed:
                raise ValueError(f"{name}: policy {self.policy!r} has none")
        self.read()
        return self

    def read(self) -> Policy:
        """Return the policy; its times are in seconds."""
        return _POLICIES[self.policy][0](**self._given())

    def _given(self) -> dict[str, Any]:
        said = self.model_dump(exclude={"policy"})
        return {name: value for name, value in said.items() if value is not None}
