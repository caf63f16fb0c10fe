"""Policies: how blocks open and who is served first. Values only: `scheduling` carries them out."""

import math
from dataclasses import dataclass
from fractions import Fraction

from dp_udfs import checks
from dp_udfs.amounts import Number
from dp_udfs.checks import Real
from dp_udfs.errors import InvalidParameterError


@dataclass(frozen=True)
class Opening:
    """How a block opens: after `step` steps, `opened(step) / parts` of it.

    Parameters
    ----------
    parts : int
        What `opened` ends at.
    early, late : int
        Parts opened by each step, up to step `half` and after it; positive.
    half : int
        The step at which the pace changes.
    """

    parts: int
    early: int
    late: int
    half: int = 0

    def opened(self, step: int) -> int:
        """Return how many parts are open after this many steps."""
        if step <= self.half:
            return min(self.parts, step * self.early)
        return min(self.parts, self.half * self.early + (step - self.half) * self.late)

    def step_for(self, opened: int) -> int:
        """Return the first step after which this many parts are open."""
        by_half = self.half * self.early
        if opened <= by_half:
            return -(-opened // self.early)
        return self.half - (-(opened - by_half) // self.late)

    @property
    def steps(self) -> int:
        """How many steps open a whole block."""
        return self.step_for(self.parts)


def _opening(steps: Fraction, slack: Real) -> Opening:
    """Open evenly in `steps` steps; with slack s, faster by it in the first half, then slower.

    The pace is (1 + s) / n, then (1 - s) / n (Cohere). The last step is cut to what is left.
    """
    pace = checks.exact(slack=slack)
    if not 0 <= pace < 1:
        raise InvalidParameterError(f"slack = {slack} must be at least 0 and below 1")
    if pace == 0:
        return Opening(steps.numerator, steps.denominator, steps.denominator)
    if steps.denominator > 1 or steps.numerator % 2:
        raise InvalidParameterError(f"slack needs an even number of steps, not {steps}")
    number, of = steps.numerator, pace.denominator
    return Opening(number * of, of + pace.numerator, of - pace.numerator, number // 2)


@dataclass(frozen=True)
class FirstComeFirstServed:
    """Everything is open from the start; a claim that does not fit at once is rejected."""

    def opening(self) -> Opening:
        """Return how blocks open: in one part, at once."""
        return Opening(1, 1, 1)


@dataclass(frozen=True)
class DpfByArrivals:
    """Dominant private-budget fairness: each claim opens 1/n of every block it names.

    Parameters
    ----------
    n : int
        Number of claims that share a block; each may count on 1/n of it.
    slack : number
        0 to open evenly; see Cohere's unlocking with slack.
    """

    n: int
    slack: Real = 0

    def __post_init__(self) -> None:
        checks.positive_integers(n=self.n)
        self.opening()

    def opening(self) -> Opening:
        """Return how blocks open."""
        return _opening(Fraction(self.n), self.slack)


@dataclass(frozen=True)
class ByTime:
    """A block opens at created_at + i * tick, wholly once `lifetime` is over."""

    lifetime: Number
    tick: Number
    slack: Real = 0

    def __post_init__(self) -> None:
        checks.positive(lifetime=self.lifetime, tick=self.tick)
        self.opening()

    def opening(self) -> Opening:
        """Return how blocks open."""
        lifetime, tick = checks.exact(lifetime=self.lifetime), checks.exact(tick=self.tick)
        return _opening(lifetime / tick, self.slack)

    def step_at(self, created_at: Number, now: Number) -> int:
        """Return the last i with created_at + i * tick <= now."""
        step = math.floor((now - created_at) / self.tick)
        while created_at + (step + 1) * self.tick <= now:
            step += 1
        while step > 0 and created_at + step * self.tick > now:
            step -= 1
        return step


@dataclass(frozen=True)
class DpfByTime(ByTime):
    """Dominant private-budget fairness with blocks that open over their lifetime.

    Parameters
    ----------
    lifetime : number
        Time until a block is wholly open.
    tick : number
        A block opens at created_at + i * tick, by tick / lifetime each time.
    slack : number
        0 to open evenly; see Cohere's unlocking with slack.
    """


@dataclass(frozen=True)
class RoundRobinByArrivals:
    """Each of the first n claims on a block adds 1/n of it, shared out among all that wait.

    A baseline for simulations: waiting claims hold partial amounts, which are lost on timeout.
    """

    n: int

    def __post_init__(self) -> None:
        checks.positive_integers(n=self.n)

    def opening(self) -> Opening:
        """Return how blocks open."""
        return _opening(Fraction(self.n), 0)


@dataclass(frozen=True)
class RoundRobinByTime(ByTime):
    """Each tick opens its share of a block, and shares it out among all that wait."""


@dataclass(frozen=True)
class DPack(ByTime):
    """Blocks open by time, and each round packs as many claims as it can, greedily.

    Parameters
    ----------
    lifetime, tick, slack
        As in `DpfByTime`; a round is held every tick.
    grants_between_updates : int
        How many grants are made before efficiencies are computed again: 1 packs best, 50 is fast.

    Notes
    -----
    More claims are served than by fairness, and no claim can count on its fair share.
    """

    grants_between_updates: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_integers(grants_between_updates=self.grants_between_updates)


@dataclass(frozen=True)
class Optimal(ByTime):
    """Like `DPack`, but each round is solved as an integer program: for small rounds.

    Parameters
    ----------
    lifetime, tick, slack
        As in `DpfByTime`.
    time_limit : float
        Seconds of one round's search. The best answer so far is taken, if it beats DPack's.
    """

    time_limit: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(time_limit=self.time_limit)


Policy = (
    FirstComeFirstServed
    | DpfByArrivals
    | DpfByTime
    | RoundRobinByArrivals
    | RoundRobinByTime
    | DPack
    | Optimal
)
