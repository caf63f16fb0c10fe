"""Which waiting claims to grant in one round, so that as many as possible are served.

The privacy knapsack: choose claims of the largest total weight such that each block has an order
at which everything chosen fits. `dpack` is a greedy answer, `optimum` an integer program for small
rounds. Both estimate in floating point, and check what they choose in exact arithmetic.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dp_udfs.blocks import Block
from dp_udfs.claims import Claim

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_FORGIVEN = 1 + 1e-9  # rounding of sums that only rank
_NEAR = 1e-9  # of a block's total: far more than rounding may add up to


class Grant(NamedTuple):
    """A claim to be served, and the places of those of its blocks that it is to have."""

    claim: Claim
    places: tuple[int, ...]


def dpack(claims: Sequence[Claim], grants_between_updates: int = 1) -> list[Grant]:
    """Pack claims greedily: by weight for what they take of each block at its best order.

    Parameters
    ----------
    claims : sequence of Claim
        Those that wait, in the order of submission; each needs all of its blocks.
    grants_between_updates : int
        After how many grants the best orders and the efficiencies are computed again.

    Returns
    -------
    list of Grant
        In the order chosen. When it ends, no other of the claims fits.

    References
    ----------
    Tholoniat et al. (2022), DPack, algorithm 1.
    """
    table = _Table(claims)
    blocks = _copies(claims)
    grants: list[Grant] = []
    failed: set[int] = set()  # within a round room only shrinks
    while True:
        granted = 0
        for place in table.by_efficiency():
            if place in failed:
                continue
            claim = claims[place]
            if not _fits(claim, blocks):
                failed.add(place)
                continue
            for block, demand in zip(claim.blocks, claim.demand, strict=True):
                blocks[block.block_id].take(demand)
            table.take(place)
            grants.append(Grant(claim, tuple(range(len(claim.blocks)))))
            granted += 1
            if granted == grants_between_updates:
                break
        if not granted:
            return grants


def optimum(claims: Sequence[Claim], time_limit: float) -> list[Grant] | None:
    """Solve a round as an integer program.

    Parameters
    ----------
    claims : sequence of Claim
        Those that wait, in the order of submission; each needs any `needs` of its blocks.
    time_limit : float
        Seconds of search; the best answer so far is taken.

    Returns
    -------
    list of Grant or None
        None if no answer was found in time, or if it does not fit in exact arithmetic.

    Notes
    -----
    One binary variable for each claim, each of its blocks, and each order of a block that may be
    the one that everything fits at. Blocks that all claims together fit on need no row.
    """
    chosen = _Program(claims, _Table(claims)).solve(time_limit)
    if chosen is None:
        return None
    blocks = _copies(claims)
    for claim, places in chosen:
        for place in places:
            block = blocks[claim.blocks[place].block_id]
            if not block.admits(claim.demand[place]):
                return None
            block.take(claim.demand[place])
    return chosen


def weight(grants: Sequence[Grant]) -> float:
    """Return the total weight of what is granted."""
    return float(sum(grant.claim.weight for grant in grants))


# --- a round as arrays ----------------------------------------------------------------------------


class _Table:
    """Claims and blocks of a round as arrays, in shares of each block's total.

    An entry is one block of one claim: `claim`, `block` and `demand` (n_entries, n_orders). `room`
    (n_blocks, n_orders) is what is unlocked; negative at orders that are never used.
    """

    def __init__(self, claims: Sequence[Claim]) -> None:
        blocks = {block.block_id: block for claim in claims for block in claim.blocks}
        index = {block_id: place for place, block_id in enumerate(blocks)}
        self.weights = np.array([float(claim.weight) for claim in claims])
        self.waiting = np.ones(len(claims), dtype=bool)
        self.room = np.array([_room(block) for block in blocks.values()])
        self.claim = np.repeat(np.arange(len(claims)), [len(claim.blocks) for claim in claims])
        named = [block for claim in claims for block in claim.blocks]
        self.block = np.array([index[block.block_id] for block in named], dtype=np.int64)
        self.demand = _shares(claims)
        by_block = np.argsort(self.block, kind="stable")
        ends = np.cumsum(np.bincount(self.block, minlength=len(blocks)))
        self.entries_of = np.split(by_block, ends[:-1])
        self.best = np.zeros(len(blocks), dtype=np.int64)
        self._dirty = set(range(len(blocks)))

    def by_efficiency(self) -> Iterator[int]:
        """Return the places of waiting claims, the most efficient first."""
        for block in self._dirty:
            self.best[block] = self._best_order(block)
        self._dirty.clear()
        order = self.best[self.block]
        room = self.room[self.block, order]
        asked = self.demand[np.arange(len(order)), order]
        share = np.full(len(order), np.inf)
        np.divide(asked, room, out=share, where=room > 0)
        cost = np.bincount(self.claim, weights=share, minlength=len(self.weights))
        efficiency = np.full(len(cost), np.inf)
        np.divide(self.weights, cost, out=efficiency, where=cost > 0)
        eligible = self.waiting & np.isfinite(cost) & self._may_fit()
        ranked = np.argsort(-efficiency, kind="stable")
        return iter(ranked[eligible[ranked]].tolist())

    def _may_fit(self) -> NDArray[np.bool_]:
        """Leave out claims that surely do not fit; whoever is near is looked at exactly."""
        near = self.demand <= (self.room + _NEAR)[self.block]
        refused = np.bincount(self.claim, weights=~near.any(axis=1), minlength=len(self.weights))
        return np.asarray(refused == 0)

    def take(self, place: int) -> None:
        """Note that a claim was granted."""
        self.waiting[place] = False
        entries = np.flatnonzero(self.claim == place)
        self.room[self.block[entries]] -= self.demand[entries]
        self._dirty.update(self.block[entries].tolist())

    def _best_order(self, block: int) -> int:
        """Return the order at which the largest weight of waiting claims fits."""
        entries = self.entries_of[block]
        entries = entries[self.waiting[self.claim[entries]]]
        demand, weights = self.demand[entries], self.weights[self.claim[entries]]
        worth = [
            _one_knapsack(demand[:, order], weights, room) if room > 0 else -1.0
            for order, room in enumerate(self.room[block].tolist())
        ]
        return int(np.argmax(worth))


def _one_knapsack(demand: FloatArray, weights: FloatArray, room: float) -> float:
    """Return the largest weight that fits: exact for equal weights, else at least half of it."""
    ranked = np.argsort(demand / weights, kind="stable")
    fitting = np.cumsum(demand[ranked]) <= room * _FORGIVEN
    greedy = float(weights[ranked][fitting].sum())
    alone = weights[demand <= room * _FORGIVEN]
    return max(greedy, float(alone.max(initial=0.0)))


def _room(block: Block) -> list[float]:
    """Return what is unlocked at each order, as a share of the total."""
    return [
        float((total * block.opened - taken * block.parts) / (total * block.parts))
        if total > 0
        else -1.0
        for total, taken in zip(block.total, block.taken, strict=True)
    ]


def _shares(claims: Sequence[Claim]) -> FloatArray:
    """Return the demand of each entry at each order, as a share of the total; or infinity."""
    known: dict[tuple[int, int], int] = {}  # by identity: few curves are many entries
    rows: list[list[float]] = []
    places = []
    for claim in claims:
        for block, demand in zip(claim.blocks, claim.demand, strict=True):
            key = id(demand), id(block.total)
            if key not in known:
                known[key] = len(rows)
                shares = zip(demand, block.total, strict=True)
                rows.append([float(d / total) if total > 0 else np.inf for d, total in shares])
            places.append(known[key])
    return np.array(rows)[places]


def _copies(claims: Sequence[Claim]) -> dict[str, Block]:
    """Copy blocks, to try grants on: `take` replaces what a block has taken, and nothing else."""
    blocks = {block.block_id: block for claim in claims for block in claim.blocks}
    return {block_id: copy.copy(block) for block_id, block in blocks.items()}


def _fits(claim: Claim, blocks: dict[str, Block]) -> bool:
    return all(
        blocks[block.block_id].admits(demand)
        for block, demand in zip(claim.blocks, claim.demand, strict=True)
    )


# --- the integer program --------------------------------------------------------------------------


class _Program:
    """Binary variables y (a claim), x (an entry) and z (an order of a block), and rows on them."""

    def __init__(self, claims: Sequence[Claim], table: _Table) -> None:
        self.claims, self.table = claims, table
        self.columns = len(claims) + len(table.claim)  # y, then x; z as they come
        self.rows: list[dict[int, float]] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        for place, claim in enumerate(claims):  # sum of x >= needs * y
            entries = np.flatnonzero(table.claim == place)
            self._add({**self._x(entries, 1.0), place: -float(claim.needs)}, 0.0, np.inf)
        for block, entries in enumerate(table.entries_of):
            self._add_block(table.room[block], entries)

    def _add_block(self, room: FloatArray, entries: IntArray) -> None:
        """Everything chosen fits at one order at least, or nothing is chosen."""
        demand = self.table.demand[entries]
        possible = np.flatnonzero(room > 0)
        if any(demand[:, order].sum() <= room[order] for order in possible):
            return  # nobody contests it
        choices = {}
        for order in possible:
            z, self.columns = self.columns, self.columns + 1
            choices[z] = 1.0
            everything = float(demand[:, order].sum())
            scale = 1000 / everything  # demand <= room, or anything where z is 0
            row = {**self._x(entries, scale * demand[:, order])}
            self._add({**row, z: scale * (everything - float(room[order]))}, -np.inf, 1000.0)
        if choices:
            self._add(choices, 1.0, np.inf)
        else:
            self._add(self._x(entries, 1.0), -np.inf, 0.0)

    def _x(self, entries: IntArray, values: FloatArray | float) -> dict[int, float]:
        columns = (entries + len(self.claims)).tolist()
        return dict(zip(columns, np.broadcast_to(values, len(columns)).tolist(), strict=True))

    def _add(self, row: dict[int, float], low: float, high: float) -> None:
        self.rows.append(row)
        self.lower.append(low)
        self.upper.append(high)

    def solve(self, time_limit: float) -> list[Grant] | None:
        """Maximise the weight of the claims."""
        from scipy import optimize, sparse

        lengths = [len(row) for row in self.rows]
        at = np.repeat(np.arange(len(self.rows)), lengths)
        columns = [column for row in self.rows for column in row]
        values = [value for row in self.rows for value in row.values()]
        matrix = sparse.csr_matrix((values, (at, columns)), shape=(len(self.rows), self.columns))
        gain = np.zeros(self.columns)
        gain[: len(self.claims)] = self.table.weights
        result = optimize.milp(
            c=-gain,
            constraints=optimize.LinearConstraint(matrix, self.lower, self.upper),
            integrality=np.ones(self.columns, dtype=np.int64),
            bounds=optimize.Bounds(0, 1),
            options={"mip_rel_gap": 1e-4, "time_limit": time_limit},
        )
        return None if result.x is None else self._grants(result.x > 0.5)

    def _grants(self, chosen: NDArray[np.bool_]) -> list[Grant]:
        first = len(self.claims) + np.searchsorted(self.table.claim, np.arange(len(self.claims)))
        grants = []
        for place in np.flatnonzero(chosen[: len(self.claims)]).tolist():
            claim, start = self.claims[place], int(first[place])
            places = np.flatnonzero(chosen[start : start + len(claim.blocks)])[: claim.needs]
            grants.append(Grant(claim, tuple(places.tolist())))
        return grants
