"""Where claims wait: each on one block that refuses it, and is not looked at until it may fit.

A parked claim sleeps until the step at which its block may have opened far enough. From then on it
is awake: it stands in the order of service with the others, and is looked at when its block has
room for the least that any of them asks.
"""

import heapq
import math
from typing import TYPE_CHECKING

from dp_udfs.amounts import Curve

if TYPE_CHECKING:
    from dp_udfs.claims import Claim, Order


class Lot:
    """The claims parked on one block.

    Attributes
    ----------
    next_step : float
        The first step at which it may be of use to look here.
    least : tuple of int or Fraction
        At each order, no more than any demand of those awake.
    """

    __slots__ = ("asleep", "awake", "least", "next_step")

    def __init__(self) -> None:
        self.next_step = math.inf
        self.least: Curve = ()
        self.asleep: list[tuple[float, int, Claim]] = []  # a heap, by the step to wake at
        self.awake: list[tuple[Order, Claim]] = []  # a heap, by the order of service

    def park(self, claim: "Claim", step: float) -> None:
        """Let a claim sleep until this step."""
        heapq.heappush(self.asleep, (step, claim.number, claim))
        if step < self.next_step:
            self.next_step = step

    def wake(self, step: float) -> None:
        """Wake those whose step has come."""
        asleep = self.asleep
        while asleep and asleep[0][0] <= step:
            claim = heapq.heappop(asleep)[2]
            demand = claim.demand[claim.parked_at]
            if not self.awake:
                self.least = demand
            elif demand is not self.least:
                self.least = tuple(map(min, self.least, demand))
            heapq.heappush(self.awake, (claim.order(), claim))

    def rest_until(self, step: float) -> None:
        """Leave those awake in peace until this step, or until a sleeper's step has come."""
        self.next_step = min(step, self.asleep[0][0]) if self.asleep else step

    def pop(self) -> "Claim":
        """Take out the first of those awake."""
        return heapq.heappop(self.awake)[1]
