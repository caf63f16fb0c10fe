"""One region's journal: the table, what its entries add up to, and the rule for adding to it.

The rule is compare-and-append: read to the head, decide from the balances, append only if nobody
appended in between; else read again and decide again. So what is decided is always true of the very
state that it is appended to, in any number of processes, and a process that dies has either written
its entries or has not.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import pyarrow as pa

from dp_udfs.errors import InvalidParameterError, LedgerConflictError
from jobs.lake import carries
from jobs.lake.allocations import Allocation, fold_claim
from jobs.lake.balances import Balances
from jobs.lake.entries import GENESIS, SCHEMA_VERSION, Entry, Fact, credit_id, from_table
from jobs.lake.entry_log import EntryLog
from jobs.lake.merging import lacking

COPIES = 2048  # entries that are copied in one commit
PATIENCE = 60.0  # seconds of conflicts until an operation gives up
T = TypeVar("T")


class Journal:
    """A table of entries and its balances, folded up to the head.

    Parameters
    ----------
    location : str
        Directory or URL of the table.
    region : str
        Whose chain is continued.
    clock : callable
        Returns the time, with its zone.
    """

    def __init__(self, location: str, region: str, clock: Callable[[], datetime]) -> None:
        self.location = location
        self.region = region
        self.completing = False  # a restored table is being completed
        self._clock = clock
        self._mutex = threading.RLock()
        self._balances: Balances
        self._earlier_runs: frozenset[str] | None
        self._begin_afresh()

    def exists(self) -> bool:
        """Whether there is a table."""
        with self._mutex:
            return self._log.exists()

    def prepare(self, *, create: bool, restored: bool = False) -> None:
        """See that there is a table, and make it if there is none and that is allowed."""
        with self._mutex:
            self._log.prepare(create=create, restored=restored)

    def is_restored(self) -> bool:
        """Whether the table was restored and nothing has completed it yet."""
        with self._mutex:
            return self._log.exists() and self._log.is_restored

    def require_complete(self) -> None:
        """Refuse where a restored table may lack charges, as every append to it does."""
        if self.is_restored():
            raise LedgerConflictError(
                f"the ledger at {self.location} was restored and may have forgotten charges, "
                f"so nothing is granted: run jobs.replicate_ledger or, where no other region "
                f"has a copy, jobs.restore_ledger --alone REASON"
            )

    def mark(self, *, restored: bool) -> None:
        """Mark the table as restored, so that nothing is appended to it, or as complete again."""
        with self._mutex, self._afresh_on_failure():
            self._log.mark(restored=restored)

    def append(self, decide: Callable[[Balances, datetime], Sequence[Fact]]) -> None:
        """Append what `decide` says of the balances as they are, in one commit.

        Parameters
        ----------
        decide : callable
            Of the balances and the time. It is called again whenever somebody else was first; no
            facts means that nothing has to be written. What it raises ends the operation.

        Raises
        ------
        LedgerConflictError
            If others were first for longer than `PATIENCE`.
        """

        def chained(balances: Balances) -> list[Entry]:
            now = self.now()
            facts = decide(balances, now)
            if facts and not self.completing:
                self.require_complete()
            return self._chained(facts, now) if facts else []

        self._append(chained, begin_segments=True)

    def append_copies(self, theirs: Sequence[Entry]) -> int:
        """Append entries of another table that this one lacks: as they are, in their order.

        Nothing is said by this region, so no segment begins: that waits for its own next entry.

        Returns
        -------
        int
            How many were lacking.

        Raises
        ------
        LedgerConflictError
            If an entry is here with other content, or does not continue its region's chain.
        """
        copied = 0

        def first_lacking(balances: Balances) -> list[Entry]:
            here = from_table(self.query("SELECT * FROM ledger ORDER BY position"))
            copies = lacking(here, theirs)[:COPIES]
            trial = balances.copy()  # what cannot be folded is not let in
            for entry in copies:
                trial.apply(entry)
            return copies

        while copies := self._append(first_lacking, begin_segments=False):
            copied += copies
        return copied

    def loose_entries(self) -> list[Entry]:
        """Find entries of failed commits that continue the chains as they are now, in order."""
        with self.reading() as balances:
            trial, found = balances.copy(), self._log.loose_entries()
        chained: list[Entry] = []
        while True:
            heads = {(region, head.entry_no + 1, head.hash) for region, head in trial.heads.items()}
            following = {
                entry.hash: entry
                for entry in found
                if (entry.region, entry.entry_no, entry.previous_hash) in heads
            }
            numbers = {(entry.region, entry.entry_no) for entry in following.values()}
            if len(following) > len(numbers):
                raise LedgerConflictError(
                    f"the ledger at {self.location}: {len(following)} entries of failed commits "
                    f"could be its last; restore it from a backup"
                )
            if not following:
                return chained
            for entry in following.values():
                trial.apply(entry)
                chained.append(entry)

    def _append(
        self, decide: Callable[[Balances], Sequence[Entry]], *, begin_segments: bool
    ) -> int:
        """Append what `decide` says of the balances as they are; return how many entries."""
        pause = 0.01
        self.prepare(create=False)
        with self._mutex, self._log.queue():
            deadline = time.monotonic() + PATIENCE
            while True:
                entries = decide(self._refresh())
                begins = begin_segments and self._log.segment_is_full
                if not entries or self._try_append(entries, begin_segment=begins):
                    return len(entries)
                if time.monotonic() > deadline:
                    raise LedgerConflictError(
                        f"the ledger at {self.location} kept moving for {PATIENCE:.0f} s and "
                        f"nothing was written; try again later"
                    )
                time.sleep(random.uniform(0, pause))  # noqa: S311 (no secret, only jitter)
                pause = min(2 * pause, 1.0)

    @contextmanager
    def reading(self) -> Iterator[Balances]:
        """Give the balances up to the head, and keep other threads off them."""
        with self._mutex:
            yield self._refresh()

    def query(self, sql: str) -> pa.Table:
        """Answer SQL over the table `ledger` as it was last read."""
        return self._log.query(sql)

    def claim(self, run_id: str) -> Allocation | None:
        """Look a run up as of the last reading, also among those closed before the last carry."""
        regions = sorted(self._balances.heads, key=lambda region: region != self.region)
        for region in regions:  # this one first
            claim = self._balances.claims.get((region, run_id))
            if claim:
                return claim
        if not self._log.first_segment:
            return None
        before = f"FROM ledger WHERE segment < {self._log.first_segment} AND run_id IS NOT NULL"
        if self._earlier_runs is None:
            rows = self.query(f"SELECT DISTINCT run_id {before}")
            self._earlier_runs = frozenset(rows["run_id"].to_pylist())
        if run_id not in self._earlier_runs:
            return None
        quoted = run_id.replace("'", "''")
        sql = f"SELECT * {before} AND run_id = '{quoted}' ORDER BY position"
        entries = from_table(self.query(sql))
        claims = (fold_claim(e for e in entries if e.region == region) for region in regions)
        return next((claim for claim in claims if claim), None)

    def all_balances(self) -> Balances:
        """Fold from the first entry on: for periods long past, that carries leave out."""
        with self.reading() as balances:
            if not self._log.first_segment:
                return balances
            everything = Balances(here=self.region)
            for entry in from_table(self.query("SELECT * FROM ledger ORDER BY position")):
                everything.apply(entry)
            return everything

    def now(self) -> datetime:
        """Tell the time, no earlier than the last entry."""
        now = self._clock()
        if now.tzinfo is None:
            raise InvalidParameterError(f"the clock says {now}, without a time zone")
        head = self._balances.heads.get(self.region)
        return max(now.astimezone(UTC), head.recorded_at) if head else now.astimezone(UTC)

    def new_id(self) -> str:
        """Name something, differently from everything in every region."""
        return f"{self.region}:{uuid.uuid4().hex}"

    def _refresh(self) -> Balances:
        """Fold what was appended since the last look."""
        with self._afresh_on_failure():
            new = self._log.read_new()
            if new and new[0].kind == "carry" and not self._balances.heads:
                self._balances = replace(carries.read(new[0].details or ""), here=self.region)
            for entry in new:
                self._balances.apply(entry)
        return self._balances

    def _try_append(self, entries: Sequence[Entry], *, begin_segment: bool) -> bool:
        with self._afresh_on_failure():
            before = self._log.position
            landed, new = self._log.append(entries, begin_segment=begin_segment)
            for entry in new:
                self._balances.apply(entry)
            self._log.tidy(before)
        return landed

    def _chained(self, facts: Sequence[Fact], now: datetime) -> list[Entry]:
        """Continue the chain of this region, with a carry first where a segment begins."""
        head = self._balances.heads.get(self.region)
        number, previous = (head.entry_no, head.hash) if head else (0, GENESIS)
        entries: list[Entry] = []
        if self._log.segment_is_full:
            facts = [Fact(kind="carry", details=carries.write(self._balances, now)), *facts]
        for fact in facts:
            entry = Entry(
                **vars(fact),
                region=self.region,
                entry_no=number + len(entries) + 1,
                entry_id=self._entry_id(fact),
                recorded_at=now,
                schema_version=SCHEMA_VERSION,
                previous_hash=entries[-1].hash if entries else previous,
            )
            entries.append(entry)
        return entries

    def _entry_id(self, fact: Fact) -> str:
        if fact.kind == "credit" and fact.claim_id:
            return credit_id(fact.claim_id, self.region)
        return self.new_id()

    @contextmanager
    def _afresh_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._begin_afresh()
            raise

    def _begin_afresh(self) -> None:
        self._log = EntryLog(self.location)
        self._balances = Balances(here=self.region)
        self._earlier_runs = None
