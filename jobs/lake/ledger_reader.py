"""What the ledger says: budgets, blocks, claims, publications and the entries themselves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dp_udfs.budget import NOTHING, Loss
from dp_udfs.errors import BudgetExhaustedError, InvalidParameterError
from jobs.lake import decisions, queueing
from jobs.lake.allocations import Allocation, fold_claim
from jobs.lake.balances import UserCount
from jobs.lake.budgets import Account, Block, Curve, Mode, Terms
from jobs.lake.commits import widened
from jobs.lake.decisions import Demand
from jobs.lake.entries import COLUMNS, GENESIS, Entry, from_table
from jobs.lake.journal import Journal


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
    used : Loss
        What claims hold or were charged; above the allowance where that was lowered, or in "track".
    opened_with : Loss
        The allowance that the account was opened with.
    terms : Terms or None
        What a unit and a call stand for.
    mode : str
        "enforce" or "track".
    tracked : bool
        Whether it ever was in mode "track", so that nothing is guaranteed.
    in_all : Loss
        The allowance or, where that is more, the use in all regions that are heard of.
    in_common : bool
        Whether all regions may spend it, rather than each a share of its own.
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
    used: Loss = NOTHING
    opened_with: Loss = NOTHING
    zone: str = "UTC"
    terms: Terms | None = None
    mode: Mode = "enforce"
    tracked: bool = False
    in_all: Loss = NOTHING
    in_common: bool = True

    @classmethod
    def of(cls, account: Account, open_claims: tuple[Allocation, ...] = ()) -> "Budget":
        """Show an account."""
        left = account.filter.left
        return cls(
            account.analyst,
            account.dataset,
            account.filter.capacity.units,
            account.filter.capacity.calls,
            left.units,
            left.calls,
            account.period_start,
            account.period_end,
            open_claims,
            account.filter.used,
            account.opened_with,
            account.zone,
            account.terms,
            account.mode,
            account.tracked,
            sum((owned.capacity_or_used for _, owned in account.filters()), NOTHING),
            account.is_common,
        )


class Check(NamedTuple):
    """Whether a demand would be granted: the refusal if not, and what mode "track" would pass."""

    refusal: BudgetExhaustedError | None = None
    note: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it would be granted."""
        return self.refusal is None


class Published(NamedTuple):
    """One publication: which answer, to whom, by which run, and the digest of its rows."""

    label: str
    analyst: str
    run_id: str
    digest: str


class LedgerReader:
    """The ledger of one region, to be read; parameters are those of `Ledger`."""

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

    def find(self, run_id: str) -> Allocation | None:
        """Look up what a run was granted and what became of it; None if it never was."""
        if self._create and not self._journal.exists():
            return None  # the first account has yet to make the table
        with self._journal.reading():
            return self._journal.claim(run_id)

    def open_claims(self) -> tuple[Allocation, ...]:
        """List this region's claims that are neither settled, expired nor given back."""
        with self._journal.reading() as balances:
            claims = balances.claims.values()
            return tuple(c for c in claims if c.is_open and c.region == self.region)

    def exists(self) -> bool:
        """Whether there is a ledger: the first account makes it."""
        return self._journal.exists()

    def is_restored(self) -> bool:
        """Whether it was restored and grants nothing until it is complete again."""
        return self._journal.is_restored()

    def require_complete(self) -> None:
        """Refuse where it was restored and grants nothing yet."""
        self._journal.require_complete()

    def find_budget(self, analyst: str, dataset: str) -> Budget | None:
        """Say what an account owns now; None where none is open."""
        with self._journal.reading() as balances:
            account = balances.account_on(analyst, dataset, self._journal.now())
            return Budget.of(account, balances.open_claims(account)) if account else None

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
            if account is None and at is not None:  # of a period that is over, perhaps
                balances = self._journal.all_balances()  # noqa: PLW2901
                account = balances.account_on(analyst, dataset, at)
            if account is None:
                raise decisions.no_account(balances, analyst, dataset, at)
            return Budget.of(account, balances.open_claims(account))

    def check_budget(
        self,
        analyst: str = "",
        dataset: str = "",
        *,
        units: int = 0,
        calls: int = 0,
        blocks: Mapping[str, Curve] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Check:
        """Say whether `allocate` would grant a demand now, and why not; nothing is written.

        Parameters and errors are those of `allocate`.
        """
        self.require_complete()
        asked = Demand(
            run_id="check",
            analyst=analyst,
            dataset=dataset,
            loss=Loss(units, calls),
            blocks=blocks or {},
            details=details or {},
        )
        with self._journal.reading() as balances:
            now = self._journal.now()
            if queueing.is_queued(balances, asked.blocks):
                return Check(queueing.check(balances, now, asked, self._claims_of))
            facts, refusal = decisions.allocate(
                balances, now, None, asked, "check", self._claims_of
            )
        return Check(refusal, None if refusal else facts[0].reason)

    def blocks(self, dataset: str | None = None) -> tuple[Block, ...]:
        """List the blocks, in the order of their names; those of one dataset if given."""
        with self._journal.reading() as balances:
            found = [b for b in balances.blocks.values() if dataset in (None, b.dataset)]
        return tuple(sorted(found, key=lambda block: block.block_id))

    def user_count(self, dataset: str) -> UserCount | None:
        """Say what is known of the number of users; None where this region has not counted."""
        if not self._journal.exists():
            return None
        with self._journal.reading() as balances:
            return balances.counts.get((self.region, dataset))

    def waiting(self) -> tuple[Allocation, ...]:
        """List the claims that wait in queues of this region, first to be served first."""
        with self._journal.reading() as balances:
            return queueing.in_order(balances, self._journal.now())

    def why_not(self, claim: Allocation) -> BudgetExhaustedError | None:
        """Say why a claim is not granted, or what it waits for; None if it is."""
        with self._journal.reading() as balances:
            return queueing.verdict(balances, self._journal.now(), claim)

    def claims(self, analyst: str, dataset: str) -> tuple[Allocation, ...]:
        """List what an analyst was ever granted on a dataset, oldest first."""
        with self._journal.reading():
            return self._claims_of(analyst, dataset)

    def released_labels(
        self, analyst: str | None = None, dataset: str | None = None
    ) -> list[Published]:
        """List what was published, oldest first; to one analyst or from one table if given."""
        with self._journal.reading():
            rows = self._journal.query(
                "SELECT label, analyst, run_id, digest, dataset FROM ledger WHERE kind = 'release' "
                "ORDER BY position"
            ).to_pylist()
        return [
            Published(row["label"], row["analyst"], row["run_id"], row["digest"])
            for row in rows
            if analyst in (None, row["analyst"]) and dataset in (None, row["dataset"])
        ]

    def entries(self) -> pa.Table:
        """Read all entries in order."""
        with self._journal.reading():
            rows = self._journal.query("SELECT * FROM ledger ORDER BY position")
            return widened(rows, COLUMNS)

    def head(self) -> str:
        """Return the hash of this region's last entry, on which all before it depend."""
        with self._journal.reading() as balances:
            head = balances.heads.get(self.region)
            return head.hash if head else GENESIS

    def _claims_of(self, analyst: str, dataset: str) -> tuple[Allocation, ...]:
        """Fold the claims of one analyst, those before the last carry too."""
        whose = " AND ".join(
            f"{name} = '{value.replace(chr(39), 2 * chr(39))}'"
            for name, value in (("analyst", analyst), ("dataset", dataset))
        )
        rows = self._journal.query(
            f"SELECT * FROM ledger WHERE claim_id IS NOT NULL AND run_id IS NOT NULL AND {whose} "  # noqa: S608 (quoted)
            f"ORDER BY position"
        )
        by_claim: dict[str | None, list[Entry]] = {}
        for entry in from_table(rows):
            by_claim.setdefault(entry.claim_id, []).append(entry)
        folded = (fold_claim(entries) for entries in by_claim.values())
        return tuple(claim for claim in folded if claim is not None)
