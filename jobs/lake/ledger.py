"""Who may still learn how much: accounts, blocks, claims, publications, from an append-only table.

Every operation reads to the head of the log, decides from what the entries add up to, and appends
only if nobody appended in between; else it reads again and decides again. So two processes never
spend the same budget, and a process that dies has either written its entries or has not. Every
operation is idempotent by run id: the caller may repeat it whenever it does not know.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dp_udfs import checks
from dp_udfs.budget import Loss, RenyiCurve
from dp_udfs.errors import (
    BudgetExhaustedError,
    ClaimError,
    InvalidParameterError,
)
from jobs.lake import decisions
from jobs.lake.balances import Allocation, Balances
from jobs.lake.budgets import PURE, Block, Curve, Mode, Terms, grid
from jobs.lake.decisions import BlockOpening, Demand, Opening
from jobs.lake.entries import Entry, Fact, from_table
from jobs.lake.ledger_reader import Budget, Check, LedgerReader, Published, utc_now

__all__ = ["Allocation", "Block", "Budget", "Check", "Ledger", "Published", "Terms", "utc_now"]


class Ledger(LedgerReader):
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

    def open_account(
        self,
        analyst: str,
        dataset: str,
        period_start: date,
        units: int,
        calls: int,
        *,
        period_end: date | None = None,
        zone: str = "UTC",
        reason: str = "",
        terms: Terms | None = None,
        mode: Mode = "enforce",
        escrow: bool = False,
    ) -> None:
        """Open an account with its allowance, or override the allowance of an open one.

        Parameters
        ----------
        analyst, dataset : str
            Who may ask, and the id of the table. Two settings files on one table share accounts.
        period_start, period_end : date
            First day, and first day after the period, in `zone`. Without an end the period lasts
            until the next one begins.
        units, calls : int
            The allowance.
        zone : str
            Time zone whose days count.
        reason : str
            Needed to change the allowance of an account that is open: without one, a call that
            repeats what the account was opened with changes nothing.
        terms : Terms, optional
            What a unit and a call stand for. They never change while the account is open.
        mode : str
            "enforce", or "track": everything is recorded and nothing refused, hence nothing
            guaranteed.
        escrow : bool
            Whether `units` and `calls` are a share, of which this region alone may spend. The
            allowance is then what all regions open together.

        Raises
        ------
        SettingsError
            If the period overlaps another one, is over, or the allowance differs without a reason.
        """
        checks.identifiers(analyst=analyst, dataset=dataset)
        _check_zone(zone)
        _check_mode(mode)
        if period_end is not None and period_end <= period_start:
            raise InvalidParameterError(f"the period {period_start} ends on {period_end}")
        asked = Opening(
            analyst=analyst,
            dataset=dataset,
            start=period_start,
            end=period_end,
            zone=zone,
            allowance=Loss(units, calls),
            reason=reason,
            terms=terms,
            mode=mode,
            escrow=escrow,
        )
        self._journal.prepare(create=self._create)
        self._journal.append(lambda balances, now: decisions.open_account(balances, now, asked))

    def update_budget(
        self,
        analyst: str,
        dataset: str,
        *,
        reason: str,
        units: int | None = None,
        calls: int | None = None,
        mode: Mode | None = None,
    ) -> None:
        """Change the allowance or the mode of the account that is running, from now on.

        Parameters
        ----------
        analyst, dataset : str
            Whose account, and the table's id.
        reason : str
            Why: it stands in the ledger for good.
        units, calls : int, optional
            The new allowance; what is left out stays. It may be below what is used already.
        mode : str, optional
            "enforce" or "track". A period that was tracked once has no guarantee.

        Raises
        ------
        SettingsError
            If there is no such account.
        """
        _check_mode(mode or "enforce")

        def decide(balances: Balances, now: datetime) -> list[Fact]:
            account = balances.account_on(analyst, dataset, now)
            if account is None:
                raise decisions.no_account(balances, analyst, dataset, None)
            return decisions.override(account, units, calls, mode, reason)

        self._journal.append(decide)

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
        _check_mode(mode)
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
            names what used it up and is recorded.
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
        checks.identifiers(run_id=run_id)
        names = {"analyst": analyst, "dataset": dataset}
        needed = asked.needs_account
        checks.identifiers(**{name: said for name, said in names.items() if said or needed})
        refusal: BudgetExhaustedError | None = None

        def decide(balances: Balances, now: datetime) -> list[Fact]:
            nonlocal refusal
            claim = self._journal.claim(run_id)
            if claim and claim.state != "given_back":
                self._require_own(claim)
            claim_id = self._journal.new_id()
            facts, refusal = decisions.allocate(
                balances, now, claim, asked, claim_id, self._claims_of
            )
            return facts

        self._journal.append(decide)
        if refusal:
            raise refusal
        return self._known(run_id)

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
        self._on_claim(run_id, lambda claim: decisions.release(claim, label, digest))

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
        self._on_claim(run_id, lambda claim: decisions.settle(claim, loss, publish))

    def give_back(self, run_id: str, reason: str) -> None:
        """Return the whole reserve of a run that provably read nothing and drew no noise.

        Raises
        ------
        ClaimError
            If the claim is unknown, published or closed.
        """
        self._on_claim(run_id, lambda claim: decisions.close(claim, "give_back", reason))

    def expire(self, run_id: str, reason: str) -> None:
        """Charge the whole reserve of a run that may have read and will not be heard of again.

        Raises
        ------
        ClaimError
            If the claim is unknown or closed otherwise.
        """
        self._on_claim(run_id, lambda claim: decisions.close(claim, "expire", reason))

    def send_share(
        self, transfer_id: str, analyst: str, dataset: str, *, to: str, units: int, calls: int
    ) -> None:
        """Take part of what is left of this region's share out, for the share of another region.

        Parameters
        ----------
        transfer_id : str
            The caller's key: a repeat sends nothing more.
        analyst, dataset : str
            Whose account, and the table's id; the period that is running.
        to : str
            The region that `receive_shares` there, once the entry has been replicated.
        units, calls : int
            How much.

        Raises
        ------
        BudgetExhaustedError
            If less is left here.
        ClaimError
            If the key stands for another transfer.
        SettingsError
            If there is no such account, or it has no shares.
        """
        checks.identifiers(transfer_id=transfer_id, to=to)
        asked = decisions.Sending(transfer_id, analyst, dataset, to, Loss(units, calls))

        def decide(balances: Balances, now: datetime) -> list[Fact]:
            sent = self._journal.query(
                f"SELECT * FROM ledger WHERE kind = 'debit' AND region = '{self.region}' "  # noqa: S608
                f"ORDER BY position"
            )
            return decisions.debit(balances, now, asked, from_table(sent))

        self._journal.append(decide)

    def receive_shares(self) -> None:
        """Put into this region's shares what others have sent and is not received yet."""
        self._journal.append(lambda balances, _: decisions.credits(balances))

    def copy_from(self, entries: Sequence[Entry]) -> int:
        """Copy entries of another table that this one lacks; return how many.

        Raises
        ------
        LedgerConflictError
            If an entry is here with other content, does not continue its region's chain, or says
            what cannot follow from the ones before it. Nothing is copied then.
        """
        self._journal.prepare(create=self._create)
        return self._journal.append_copies(entries)

    def restore(self, entries: Sequence[Entry]) -> int:
        """Make this ledger of entries that were kept elsewhere; return how many it lacked.

        Until `complete` it grants nothing: what was kept may be older than what was acknowledged.
        """
        self._journal.prepare(create=True, restored=True)
        return self._journal.append_copies(entries)

    def recover(self) -> int:
        """Take back the entries of a torn commit, as far as its data file has them."""
        self._journal.mark(restored=True)
        return self._journal.append_copies(self._journal.loose_entries())

    @contextmanager
    def completing(self) -> Iterator[None]:
        """Let forgotten charges be written into a restored ledger; nothing else does that."""
        self._journal.completing = True
        try:
            yield
        finally:
            self._journal.completing = False

    def complete(self, reason: str, details: Mapping[str, Any]) -> None:
        """Say that a restored ledger has what it had forgotten: from now on it grants again.

        Parameters
        ----------
        reason : str
            Where the rest came from, or why there is none. It stands in the ledger for good.
        details : mapping
            What was charged, as JSON.
        """
        checks.identifiers(reason=reason)
        fact = Fact(kind="restore", reason=reason, details=decisions.canonical(details))
        with self.completing():
            self._journal.append(lambda _, __: [fact])
        self._journal.mark(restored=False)

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

    def _on_claim(self, run_id: str, decide: Callable[[Allocation], list[Fact]]) -> None:
        def decide_own(_: Balances, __: datetime) -> list[Fact]:
            claim = self._known(run_id)
            self._require_own(claim)
            return decide(claim)

        self._journal.append(decide_own)


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidParameterError(f"zone = {zone!r} is not a time zone, as UTC is") from None


def _check_mode(mode: str) -> None:
    if mode not in get_args(Mode):
        raise InvalidParameterError(f"mode = {mode!r} must be one of {', '.join(get_args(Mode))}")
