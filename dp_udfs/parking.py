"""Where claims wait: in lines, each parked on one block that refuses it, until it may fit.

A parked line sleeps until the step at which its block may have opened far enough. From then on it
is awake: it stands in the order of service with the others, and is looked at when its block has
room for the least that any of them asks.
"""

import heapq
import math
from bisect import bisect
from typing import TYPE_CHECKING

from dp_udfs.amounts import Curve

if TYPE_CHECKING:
    from dp_udfs.claims import Claim, Order


class Line:
    """Claims on the same blocks, in the order of service, none asking less than the one before it.

    While the first does not fit, none of them does: so they wait as one.

    Attributes
    ----------
    place : int
        Place, among the claims' blocks, of the one that the line is parked on; -1 before that.
    is_joint : bool
        Whether others may join.
    ticket : int
        Number of the latest parking: what earlier ones noted is void.
    """

    __slots__ = ("_claims", "_start", "is_joint", "place", "ticket")

    def __init__(self, claim: "Claim") -> None:
        self._claims = [claim]
        self._start = 0
        self.place = -1
        self.is_joint = False
        self.ticket = 0

    def first(self) -> "Claim | None":
        """Return the first that still waits; None if nobody does."""
        claims, start = self._claims, self._start
        while start < len(claims) and claims[start].decided_at is not None:
            start += 1
        if start == len(claims):
            claims.clear()
            start = 0
        self._start = start
        return claims[start] if claims else None

    def take_in(self, claim: "Claim") -> bool:
        """Put a claim where it belongs; or refuse it, if there it would ask too little or too much.

        The claims before it may have left the line: they asked no more than the first does.
        """
        if self.first() is None:
            self._claims.append(claim)
            return True
        claims = self._claims
        place = bisect(claims, claim.order(), lo=self._start, key=type(claim).order)
        before = place == self._start or claims[place - 1].asks_no_more_than(claim)
        if not before or not (place == len(claims) or claim.asks_no_more_than(claims[place])):
            return False
        claims.insert(place, claim)
        return True

    def leave(self) -> None:
        """Leave the block that the line is parked on."""
        self.ticket += 1


class Lot:
    """The lines parked on one block.

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
        # Heaps, by the step to wake at and by the order of service. A line whose ticket is newer
        # than the one noted here has left.
        self.asleep: list[tuple[float, int, int, Line]] = []
        self.awake: list[tuple[Order, int, Line]] = []

    def park(self, line: Line, number: int, step: float) -> None:
        """Let a line sleep until this step; its first claim has this number."""
        line.ticket += 1
        heapq.heappush(self.asleep, (step, number, line.ticket, line))
        if step < self.next_step:
            self.next_step = step

    def wake(self, step: float) -> None:
        """Wake those whose step has come."""
        asleep = self.asleep
        while asleep and asleep[0][0] <= step:
            _, _, ticket, line = heapq.heappop(asleep)
            first = line.first() if line.ticket == ticket else None
            if first is None:
                continue
            demand = first.demand[line.place]
            if not self.awake:
                self.least = demand
            elif demand is not self.least:
                self.least = tuple(map(min, self.least, demand))
            heapq.heappush(self.awake, (first.order(), ticket, line))

    def rest_until(self, step: float) -> None:
        """Leave those awake in peace until this step, or until a sleeper's step has come."""
        self.next_step = min(step, self.asleep[0][0]) if self.asleep else step

    def next_awake(self) -> Line | None:
        """Take out the line whose first claim is served first; None if that was not to be told."""
        order, ticket, line = heapq.heappop(self.awake)
        first = line.first() if line.ticket == ticket else None
        if first is None:
            return None
        if first.order() != order:  # those before it have stopped waiting
            heapq.heappush(self.awake, (first.order(), ticket, line))
            return None
        line.leave()
        return line
