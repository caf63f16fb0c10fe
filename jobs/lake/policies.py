"""How the ledger writes down by which policy a queue serves, and reads it again.

Time is in seconds where people and entries speak of it, in whole microseconds where it is counted.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from dp_udfs import checks
from dp_udfs.errors import InvalidParameterError
from dp_udfs.policies import (
    ByTime,
    DPack,
    DpfByArrivals,
    DpfByTime,
    FirstComeFirstServed,
    Optimal,
    Policy,
)

Served = FirstComeFirstServed | DpfByArrivals | DpfByTime | DPack | Optimal  # the others simulate

_KINDS: Mapping[str, type[Served]] = {
    "first_come_first_served": FirstComeFirstServed,
    "dpf_by_arrivals": DpfByArrivals,
    "dpf_by_time": DpfByTime,
    "dpack": DPack,
    "optimal": Optimal,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def write(policy: Policy) -> dict[str, Any]:
    """Write a policy whose times are in seconds.

    Raises
    ------
    InvalidParameterError
        If it is round robin, which loses what waiting claims hold: a baseline for simulations; or
        if a time is not a whole number of microseconds.
    """
    kind = next((kind for kind, known in _KINDS.items() if type(policy) is known), None)
    if kind is None:
        raise InvalidParameterError(
            f"policy = {policy} is for simulations; a queue is served by one of {', '.join(_KINDS)}"
        )
    said = {name: _text(value) for name, value in asdict(policy).items()}
    _counted(policy)  # type: ignore[arg-type]
    return {"kind": kind, **said}


def read(said: Mapping[str, Any]) -> Served:
    """Read a policy; its times are in microseconds."""
    values = dict(said)
    kind = _KINDS[values.pop("kind")]
    whole = {"n", "grants_between_updates"}
    typed: dict[str, Any] = {
        name: int(value) if name in whole else Fraction(value) for name, value in values.items()
    }
    if "time_limit" in typed:
        typed["time_limit"] = float(typed["time_limit"])
    return _counted(kind(**typed))


def microseconds(moment: datetime) -> int:
    """Count a moment from 1970 on."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(count: int) -> datetime:
    """Return the moment at that count."""
    return _EPOCH + count * _MICROSECOND


def _counted(policy: Served) -> Served:
    """Return a policy with its times in microseconds."""
    if not isinstance(policy, ByTime):
        return policy
    times = {
        "lifetime": checks.exact(lifetime=policy.lifetime) * 10**6,
        "tick": checks.exact(tick=policy.tick) * 10**6,
    }
    for name, value in times.items():
        if value.denominator != 1:
            raise InvalidParameterError(f"{name} = {value / 10**6} s is no whole microseconds")
    return replace(policy, lifetime=int(times["lifetime"]), tick=int(times["tick"]))


def _text(value: object) -> str:
    return str(checks.exact(value=value))  # type: ignore[arg-type]
