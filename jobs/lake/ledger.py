"""Who may still learn how much: accounts, claims and what was published, from an append-only table.

Every operation reads to the head of the log, decides from what the entries add up to, and appends
only if nobody appended in between; else it reads again and decides again. So two processes never
spend the same budget, and a process that dies has either written its entries or has not. Every
operation is idempotent by run id: the caller may repeat it whenever it does not know.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from dp_udfs import checks
from dp_udfs.budget import Loss
from dp_udfs.errors import (
    BudgetExhaustedError,
    ClaimError,
    InvalidParameterError,
)
from jobs.lake import decisions
from jobs.lake.balances import Allocation, Balances
from jobs.lake.decisions import Demand, Opening
from jobs.lake.entries import COLUMNS, GENESIS, Fact
from jobs.lake.journal import Journal

__all__ = ["Allocation", "Budget", "Ledger", "Published", "utc_now"]


def utc_now() -> datetime:
    """Tell the time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Budget:
    """What an account owns and what is left of it.

    Attributes
    ----------
    units, calls : int
        The allowance of the period.
    units_left, calls_left : int
        What may still be asked for; open claims are counted with their reserves.
    resets_at : date or None
        First day of the next period, in the account's time zone; None while not known.
    open : tuple of Allocation
        Claims that are neither settled, expired nor given back.
    """

    analyst: str
    dataset: str
    units: int
    calls: int
    units_left: int
    calls_left: int
    period_start: date
    resets_at: date | None
    open: tuple[Allocation, ...] = ()


class Published(NamedTuple):
    """One publication: which answer, to whom, by which run."""

    label: str
    analyst: str
    run_id: str


class Ledger:
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

    def __init__(
        self,
        path: str | Path,
        region: str = "local",
        clock: Callable[[], datetime] = utc_now,
        *,
        create: bool = True,
    ) -> None:
        if not (
            region.isascii() and region.replace("-", "").isalnum() and region == region.lower()
        ):
            raise InvalidParameterError(
                f"region = {region!r} must be small letters, digits and hyphens"
            )
        self.path = str(path)
        self.region = region
        self._create = create
        self._journal = Journal(self.path, region, clock)

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

        Raises
        ------
        SettingsError
            If the period overlaps another one, is over, or the allowance differs without a reason.
        """
        checks.identifiers(analyst=analyst, dataset=dataset)
        _check_zone(zone)
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
        )
        self._journal.prepare(create=self._create)
        self._journal.append(lambda balances, now: decisions.open_account(balances, now, asked))

    def allocate(
        self,
        run_id: str,
        *,
        analyst: str,
        dataset: str,
        units: int = 0,
        calls: int = 0,
        blocks: Mapping[str, Any] | None = None,
        fingerprint: str = "",
        period_start: date | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Allocation:
        """Take the most that a run can cost, before it reads anything.

        Parameters
        ----------
        run_id : str
            The caller's key for this attempt. A repeat returns what the first one got; a run that
            gave its claim back may take a new one.
        analyst, dataset : str
            Whose account, and the table's id.
        units, calls : int
            The reserve.
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
            If the account has less left (`CallLimitError`: fewer calls); the refusal is recorded.
        ClaimError
            If the run id is bound to another question.
        SettingsError
            If there is no such account, or not for this period.
        """
        checks.identifiers(run_id=run_id, analyst=analyst, dataset=dataset)
        if blocks:
            raise InvalidParameterError("blocks = ... : this ledger keeps no privacy blocks yet")
        asked = Demand(
            run_id=run_id,
            analyst=analyst,
            dataset=dataset,
            loss=Loss(units, calls),
            fingerprint=fingerprint,
            period_start=period_start,
            details=details or {},
        )
        refusal: BudgetExhaustedError | None = None

        def decide(balances: Balances, now: datetime) -> list[Fact]:
            nonlocal refusal
            claim = self._journal.claim(run_id)
            claim_id = self._journal.new_id()
            facts, refusal = decisions.allocate(balances, now, claim, asked, claim_id)
            return facts

        self._journal.append(decide)
        if refusal:
            raise refusal
        return self._known(run_id)

    def find(self, run_id: str) -> Allocation | None:
        """Look up what a run was granted and what became of it; None if it never was."""
        if self._create and not self._journal.exists():
            return None  # the first account has yet to make the table
        with self._journal.reading():
            return self._journal.claim(run_id)

    def open_claims(self) -> tuple[Allocation, ...]:
        """List all claims that are neither settled, expired nor given back, oldest first."""
        with self._journal.reading() as balances:
            return tuple(claim for claim in balances.claims.values() if claim.is_open)

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

    def get_budget(self, analyst: str, dataset: str, at: date | None = None) -> Budget:
        """Say what an account owns and what is left.

        Parameters
        ----------
        analyst, dataset : str
            Whose account, and the table's id.
        at : date, optional
            A day of the period in question; without it, now.

        Raises
        ------
        SettingsError
            If there is no such account.
        """
        with self._journal.reading() as balances:
            moment = at or self._journal.now()
            account = balances.account_on(analyst, dataset, moment)
            if account is None:  # of a period that is over, perhaps
                balances = self._journal.all_balances()  # noqa: PLW2901
                account = balances.account_on(analyst, dataset, moment)
            if account is None:
                raise decisions.no_account(balances, analyst, dataset, at)
            left = account.filter.left
            return Budget(
                analyst,
                dataset,
                account.filter.capacity.units,
                account.filter.capacity.calls,
                left.units,
                left.calls,
                account.period_start,
                account.period_end,
                balances.open_claims(account),
            )

    def released_labels(
        self, analyst: str | None = None, dataset: str | None = None
    ) -> list[Published]:
        """List what was published, oldest first; to one analyst or from one table if given."""
        with self._journal.reading():
            rows = self._journal.query(
                "SELECT label, analyst, run_id, dataset FROM ledger WHERE kind = 'release' "
                "ORDER BY position"
            ).to_pylist()
        return [
            Published(row["label"], row["analyst"], row["run_id"])
            for row in rows
            if analyst in (None, row["analyst"]) and dataset in (None, row["dataset"])
        ]

    def entries(self) -> pa.Table:
        """Read all entries in order."""
        with self._journal.reading():
            rows = self._journal.query("SELECT * FROM ledger ORDER BY position")
            return rows.select(COLUMNS.names).cast(COLUMNS)

    def head(self) -> str:
        """Return the hash of this region's last entry, on which all before it depend."""
        with self._journal.reading() as balances:
            head = balances.heads.get(self.region)
            return head.hash if head else GENESIS

    def _known(self, run_id: str) -> Allocation:
        claim = self._journal.claim(run_id)
        if claim is None:
            raise ClaimError(f"run {run_id} has no claim; allocate first")
        return claim

    def _on_claim(self, run_id: str, decide: Callable[[Allocation], list[Fact]]) -> None:
        self._journal.append(lambda _, __: decide(self._known(run_id)))


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidParameterError(f"zone = {zone!r} is not a time zone, as UTC is") from None
