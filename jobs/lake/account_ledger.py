"""Who may still learn how much: accounts and shares of them, opened and changed."""

from datetime import date, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dp_udfs import checks
from dp_udfs.budget import Loss
from dp_udfs.errors import InvalidParameterError
from jobs.lake import decisions
from jobs.lake.balances import Balances
from jobs.lake.budgets import Mode, Terms, check_mode
from jobs.lake.decisions import Opening
from jobs.lake.entries import Fact, from_table
from jobs.lake.ledger_reader import LedgerReader


class AccountLedger(LedgerReader):
    """The accounts of a ledger; parameters are those of `Ledger`."""

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
        check_mode(mode)
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
        check_mode(mode or "enforce")

        def decide(balances: Balances, now: datetime) -> list[Fact]:
            account = balances.account_on(analyst, dataset, now)
            if account is None:
                raise decisions.no_account(balances, analyst, dataset, None)
            return decisions.override(account, units, calls, mode, reason)

        self._journal.append(decide)

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


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidParameterError(f"zone = {zone!r} is not a time zone, as UTC is") from None
