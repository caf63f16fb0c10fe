"""What comes into a ledger from elsewhere: entries of other regions, or of a backup."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dp_udfs import checks
from jobs.lake.entries import Entry, Fact, canonical
from jobs.lake.ledger_reader import LedgerReader


class CopiedLedger(LedgerReader):
    """A ledger that takes in entries; parameters are those of `Ledger`."""

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
        fact = Fact(kind="restore", reason=reason, details=canonical(details))
        with self.completing():
            self._journal.append(lambda _, __: [fact])
        self._journal.mark(restored=False)
