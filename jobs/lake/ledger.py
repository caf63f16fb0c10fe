"""Who may still learn how much: accounts, blocks, claims, publications, from an append-only table.

Every operation reads to the head of the log, decides from what the entries add up to, and appends
only if nobody appended in between; else it reads again and decides again. So two processes never
spend the same budget, and a process that dies has either written its entries or has not. Every
operation is idempotent by run id: the caller may repeat it whenever it does not know.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any

from dp_udfs import checks
from dp_udfs.budget import Loss
from dp_udfs.errors import BudgetExhaustedError, ClaimError
from jobs.lake import decisions, queueing
from jobs.lake.account_ledger import AccountLedger
from jobs.lake.allocations import Allocation
from jobs.lake.balances import Balances
from jobs.lake.block_ledger import BlockLedger
from jobs.lake.budgets import Block, Curve, Terms
from jobs.lake.copied_ledger import CopiedLedger
from jobs.lake.decisions import Demand
from jobs.lake.entries import Fact
from jobs.lake.ledger_reader import Budget, Check, Published, utc_now
from jobs.lake.rounds import Waiting

__all__ = ["Allocation", "Block", "Budget", "Check", "Ledger", "Published", "Terms", "utc_now"]


class Ledger(AccountLedger, BlockLedger, CopiedLedger):
    """The ledger of one region.

    Parameters
    ----------
    path : str or Path
        Directory or URL of the table; nothing but delta-rs may write it.
    region : str
        Name of the data centre: a short word of small letters, digits and hyphens.
    clock : callable
        Returns the time, with its zone. Time never runs backwards in the ledger: an entry is dated
        no earlier than the one before it.
    create : bool
        Whether the first account may make the table. False where a mistyped path must not be a
        fresh allowance.

    Notes
    -----
    Privacy: the reserves and charges of an account never exceed its allowance, whatever runs at the
    same time and whatever is killed, so that its guarantee is that of the allowance
    (`composition.account_guarantee`). Objects are safe between threads; other processes have their
    own, and fork before making one.
    """

    def allocate(
        self,
        run_id: str,
        *,
        analyst: str = "",
        dataset: str = "",
        units: int = 0,
        calls: int = 0,
        blocks: Mapping[str, Curve] | None = None,
        fingerprint: str = "",
        period_start: date | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Allocation:
        """Take the most that a run can cost, before it reads anything: all of it, or nothing.

        On blocks that a queue serves it is the same as `submit`, but for the answer: whoever has to
        wait asks again under the same run id.

        Parameters
        ----------
        run_id : str
            The caller's key for this attempt. A repeat returns what the first one got; a run that
            gave its claim back may take a new one.
        analyst, dataset : str
            Whose account, and the table's id. A job that takes from blocks alone may name none.
        units, calls : int
            The reserve on the account.
        blocks : mapping of str to number, sequence of numbers or RenyiCurve, optional
            What is taken of each block: one value per alpha, rounded up to billionths of epsilon.
        fingerprint : str
            Hash of question, snapshot and price: what the claim is bound to.
        period_start : date, optional
            The period that the caller means. It must be the one that is running.
        details : mapping, optional
            What a retry needs to know, as JSON; "dataset_name" is used in messages.

        Returns
        -------
        Allocation
            Durably recorded, also against a power cut on a local disk.

        Raises
        ------
        BudgetExhaustedError
            If the account or a block has less left (`CallLimitError`: fewer calls); the refusal
            names what used it up and is recorded. `BudgetWaitingError`: if the claim waits.
        ClaimError
            If the run id is bound to another question.
        SettingsError
            If there is no such account, not for this period, or no such block.
        """
        asked = Demand(
            run_id=run_id,
            analyst=analyst,
            dataset=dataset,
            loss=Loss(units, calls),
            fingerprint=fingerprint,
            blocks=blocks or {},
            period_start=period_start,
            details=details or {},
        )
        claim = self._ask(asked, Waiting())
        why_not = self.why_not(claim)
        if why_not is not None:
            raise why_not
        return claim

    def submit(
        self,
        run_id: str,
        *,
        blocks: Mapping[str, Curve],
        analyst: str = "",
        units: int = 0,
        calls: int = 0,
        timeout: timedelta | None = None,
        weight: checks.Real = 1,
        any_of: int | None = None,
        fingerprint: str = "",
        period_start: date | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Allocation:
        """Ask for budget of blocks that a queue serves, and wait for it if it is not unlocked yet.

        Parameters
        ----------
        run_id, blocks, fingerprint, period_start, details
            As in `allocate`. The list of blocks is fixed from here on.
        analyst : str
            Who asks, for reports; and whose account it is, if `units` or `calls` are asked of one.
            The account is charged when the blocks are granted, in the same entry.
        units, calls : int
            The reserve on the account.
        timeout : timedelta, optional
            How long to wait; for ever if None. It may still be served at the very end.
        weight : number
            Shares of blocks are divided by it.
        any_of : int, optional
            How many of the blocks are needed; all if None.

        Returns
        -------
        Allocation
            Its state is "waiting", "allocated" or "rejected" (it could never be served; then it has
            unlocked nothing for others). A repeat returns what became of it since.

        Raises
        ------
        BudgetExhaustedError
            If the account has less left even now.
        InvalidParameterError
            If amounts, weight, timeout or number of blocks make no sense.
        ClaimError
            If the run id is bound to another question, or to other terms.
        SettingsError
            If there is no such block or account, or no queue of this region serves the block.
        """
        asked = Demand(
            run_id=run_id,
            analyst=analyst,
            dataset="",
            loss=Loss(units, calls),
            fingerprint=fingerprint,
            blocks=blocks,
            period_start=period_start,
            details=details or {},
        )
        return self._ask(
            asked, Waiting(timeout, str(checks.exact(weight=weight)), any_of), queued=True
        )

    def release(self, run_id: str, *, label: str, digest: str) -> None:
        """Publish: from this entry on readers see the rows. Only on a claim that is still open.

        Parameters
        ----------
        run_id : str
            The run.
        label : str
            Name of the answer, which is evaluated once.
        digest : str
            Digest of its rows.

        Raises
        ------
        ClaimError
            If the claim is unknown, not open any more, or published with other rows.
        """
        checks.identifiers(label=label, digest=digest)
        self._close(run_id, lambda claim: decisions.release(claim, label, digest))

    def settle(
        self, run_id: str, *, units: int, calls: int, publish: tuple[str, str] | None = None
    ) -> None:
        """Charge what the run did cost and free the rest of its reserve.

        Parameters
        ----------
        run_id : str
            The run.
        units, calls : int
            Its loss, at most the reserve.
        publish : (label, digest), optional
            Publish too, in the same commit.

        Raises
        ------
        InvalidParameterError
            If the loss exceeds the reserve.
        ClaimError
            If the claim is unknown, not open any more, or settled or published otherwise.
        """
        loss = Loss(units, calls)
        if publish:
            checks.identifiers(label=publish[0], digest=publish[1])
        self._close(run_id, lambda claim: decisions.settle(claim, loss, publish))

    def consume(
        self, run_id: str, amounts: Mapping[str, Curve] | None = None, *, request_id: str
    ) -> None:
        """Use a part of what a run holds of blocks, before anything that it paid for gets out.

        Parameters
        ----------
        run_id : str
            The run; it charges no account.
        amounts : mapping of str to number, sequence of numbers or RenyiCurve, optional
            How much of which block; all that is left if None, and then the claim is settled. What
            is not consumed can be given back.
        request_id : str
            The caller's key: a repeat consumes nothing more.

        Raises
        ------
        ClaimError
            If the claim is unknown, not open, holds less at some alpha, charges an account, or the
            request id stands for other amounts.
        """
        checks.identifiers(request_id=request_id)

        def decide(balances: Balances, now: datetime, claim: Allocation) -> list[Fact]:
            return queueing.consume(balances, now, claim, amounts, request_id)

        self._on_claim(run_id, decide)

    def cancel(self, run_id: str, reason: str) -> Allocation:
        """Let a run wait no longer. What its claim has unlocked stays unlocked.

        Returns
        -------
        Allocation
            Not cancelled if it was decided by now: it may hold its blocks.
        """
        self._on_claim(
            run_id, lambda balances, now, claim: queueing.cancel(balances, now, claim, reason)
        )
        return self._known(run_id)

    def give_back(self, run_id: str, reason: str) -> None:
        """Return the whole reserve of a run that provably read nothing and drew no noise.

        Of a run that has consumed parts of its blocks, the rest: what it provably did not use.

        Raises
        ------
        ClaimError
            If the claim is unknown, published or closed.
        """
        self._close(run_id, lambda claim: decisions.close(claim, "give_back", reason))

    def expire(self, run_id: str, reason: str) -> None:
        """Charge the whole reserve of a run that may have read and will not be heard of again.

        Raises
        ------
        ClaimError
            If the claim is unknown or closed otherwise.
        """
        self._close(run_id, lambda claim: decisions.close(claim, "expire", reason))

    def _ask(self, asked: Demand, terms: Waiting, *, queued: bool = False) -> Allocation:
        """Put a demand to the queue of its blocks, or where there is none grant or refuse it."""
        checks.identifiers(run_id=asked.run_id)
        names = {"analyst": asked.analyst, "dataset": asked.dataset}
        needed = asked.needs_account and not queued
        checks.identifiers(**{name: said for name, said in names.items() if said or needed})
        refusal: BudgetExhaustedError | None = None

        def decide(balances: Balances, now: datetime) -> list[Fact]:
            nonlocal refusal
            claim = self._journal.claim(asked.run_id)
            if claim and not claim.may_begin_again:
                self._require_own(claim)
            claim_id = self._journal.new_id()
            known = claim is not None and claim.ticket is not None
            forgotten = self._journal.completing  # it was granted once: no queue is asked again
            if not forgotten and (queued or known or queueing.is_queued(balances, asked.blocks)):
                facts, refusal = queueing.submit(
                    balances, now, claim, asked, terms, claim_id, self._claims_of
                )
            else:
                facts, refusal = decisions.allocate(
                    balances, now, claim, asked, claim_id, self._claims_of
                )
            return facts

        self._journal.append(decide)
        if refusal:
            raise refusal
        return self._known(asked.run_id)

    def _require_own(self, claim: Allocation) -> None:
        """Refuse to go on with a claim of another region."""
        if claim.region != self.region:
            raise ClaimError(
                f"run {claim.run_id} has its claim in region {claim.region}; go on there, or take "
                f"a new run id"
            )

    def _known(self, run_id: str) -> Allocation:
        claim = self._journal.claim(run_id)
        if claim is None:
            raise ClaimError(f"run {run_id} has no claim; allocate first")
        return claim

    def _close(self, run_id: str, decide: Callable[[Allocation], list[Fact]]) -> None:
        """Say something of a claim, and let its queue decide what that and time have brought."""
        self._on_claim(
            run_id,
            lambda balances, now, claim: queueing.around(balances, now, claim, decide(claim)),
        )

    def _on_claim(
        self, run_id: str, decide: Callable[[Balances, datetime, Allocation], list[Fact]]
    ) -> None:
        def decide_own(balances: Balances, now: datetime) -> list[Fact]:
            claim = self._known(run_id)
            self._require_own(claim)
            return decide(balances, now, claim)

        self._journal.append(decide_own)
