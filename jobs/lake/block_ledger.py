"""What everybody together may still learn: privacy blocks, and the queues that serve them."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from dp_udfs import checks
from dp_udfs.budget import RenyiCurve
from dp_udfs.errors import InvalidParameterError
from dp_udfs.policies import Policy
from jobs.lake import decisions, queueing
from jobs.lake.allocations import Allocation
from jobs.lake.balances import Balances
from jobs.lake.budgets import PURE, Curve, Mode, check_mode, grid
from jobs.lake.decisions import BlockOpening, Counted
from jobs.lake.entries import Fact
from jobs.lake.ledger_reader import LedgerReader


class BlockLedger(LedgerReader):
    """The blocks and queues of a ledger; parameters are those of `Ledger`."""

    def open_queue(self, dataset: str, policy: Policy) -> None:
        """Let the blocks that this region opens on a dataset from now on be served by a queue.

        Parameters
        ----------
        dataset : str
            The table's id.
        policy : Policy
            How blocks unlock and who is served first; its times are in seconds. It never changes.

        Raises
        ------
        SettingsError
            If blocks were opened already that are served otherwise. Nothing changes then.
        InvalidParameterError
            If the policy is for simulations only.
        """
        checks.identifiers(dataset=dataset)
        self._journal.prepare(create=self._create)
        self._journal.append(lambda balances, _: queueing.open_queue(balances, dataset, policy))

    def open_block(
        self,
        block_id: str,
        dataset: str,
        capacity: Curve,
        *,
        alphas: tuple[str, ...] = (PURE,),
        mode: Mode = "enforce",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Open a privacy block: what all analysts and models together may learn from a slice.

        If the dataset has a queue here, the queue serves it.

        Parameters
        ----------
        block_id : str
            Its name, for good.
        dataset : str
            The table's id.
        capacity : number, sequence of numbers or RenyiCurve
            One value per alpha, rounded down to billionths of epsilon; where it is not positive the
            order is never used. `dp_udfs.curves.block_capacity` makes it of an epsilon and a delta.
        alphas : tuple of str
            The Rényi orders, rising from 2; "inf" alone is basic composition: one epsilon.
        mode : str
            "enforce", or "track": recorded and never refused.
        details : mapping, optional
            Which slice it is, as JSON.

        Raises
        ------
        SettingsError
            If it was opened with other numbers.
        """
        checks.identifiers(block_id=block_id, dataset=dataset)
        check_mode(mode)
        curve = capacity if isinstance(capacity, RenyiCurve) else RenyiCurve.capacity(capacity)
        if len(curve.nano) != len(grid(alphas)):
            raise InvalidParameterError(
                f"block {block_id}: capacity {curve} needs one value for each alpha of "
                f"{', '.join(alphas)}"
            )
        asked = BlockOpening(
            block_id=block_id,
            dataset=dataset,
            capacity=curve,
            alphas=alphas,
            mode=mode,
            details=details or {},
        )
        self.open_blocks([asked])

    def open_blocks(self, asked: Iterable[BlockOpening]) -> None:
        """Open several blocks in one commit; those that are open already stay as they are.

        Raises
        ------
        SettingsError
            If one was opened with other numbers, or blocks of other days are open on its dataset.
        """
        asked = list(asked)
        self._journal.prepare(create=self._create)
        self._journal.append(lambda balances, _: decisions.open_blocks(balances, asked))

    def count_users(self, counted: Counted, blocks: Iterable[BlockOpening]) -> None:
        """Record a private count, and open the blocks of users that it allows, in one commit.

        A repeat for the same period changes nothing: each sum is drawn once.

        Raises
        ------
        SettingsError
            If it was begun on other terms or in another region.
        """
        blocks = list(blocks)
        self._journal.prepare(create=self._create)
        self._journal.append(lambda balances, _: decisions.count_users(balances, counted, blocks))

    def retire_block(self, block_id: str, reason: str) -> None:
        """Say that a block's data are gone. Claims that wait for it are rejected; grants stay.

        Raises
        ------
        SettingsError
            If there is no such block, or another region's queue serves it.
        """
        checks.identifiers(reason=reason)
        self._journal.append(lambda balances, now: queueing.retire(balances, now, block_id, reason))

    def run_round(self, dataset: str | None = None) -> tuple[Allocation, ...]:
        """Let this region's queues decide what is due by now, in one commit.

        Anybody may call it, at any time and as often as they like: what time has brought is decided
        as of when it was due, so it does not matter who looks when.

        Returns
        -------
        tuple of Allocation
            The claims that were granted or will not be served, in the order of the decisions.
        """
        decided: list[str] = []

        def decide(balances: Balances, now: datetime) -> list[Fact]:
            facts = queueing.run_round(balances, now, dataset)
            decided[:] = [fact.run_id for fact in facts if fact.run_id]
            return facts

        self._journal.append(decide)
        claims = (self._journal.claim(run_id) for run_id in decided)
        return tuple(claim for claim in claims if claim is not None)
