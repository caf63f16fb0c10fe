"""The ledger's table: read to its head, append only if nobody else did, keep it small.

Only delta-rs writes it: its commit creates the next log file exclusively, so that of several
writers who read the same head exactly one succeeds (compare-and-append). On a local disk a file
lock keeps waiting writers in line and off each other's feet; safety never rests on it. A table on
an object store needs neither lock nor fsync.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from dp_udfs.errors import LedgerConflictError, SettingsError, StorageError
from jobs.lake import ledger_table, torn
from jobs.lake.commits import bring_up_to_date, lacking_columns
from jobs.lake.durability import fsync, make_durable
from jobs.lake.entries import COLUMNS, Entry, from_table
from jobs.lake.file_lock import in_line

logger = logging.getLogger(__name__)
T = TypeVar("T")

SEGMENT = 1024  # entries from one carry to the next: what a new process has to fold at most
COMPACT_EVERY = 64  # entries from one compaction to the next
CHECKPOINT_EVERY = 16  # a commit gets slower by a few percent with each log file since the last
LOCK_PATIENCE = 5.0  # seconds to queue; then compare-and-append alone decides
LONGEST_COMMIT = 3600.0  # seconds from reading to having written; well within log retention

# A table keeps the comments it was made with; to append others with the rows would be refused.
_UNCOMMENTED = pa.schema([field.remove_metadata() for field in COLUMNS])


class EntryLog:
    """Entries in the order in which this table received them.

    Parameters
    ----------
    location : str or Path
        Directory, or a URL that delta-rs can write.

    Attributes
    ----------
    position : int
        How far the table was read: the place of the next entry.
    first_segment : int
        Reading began here; entries of earlier segments are found by `query`.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.position = 0
        self.first_segment = 0
        self._segment = 0
        self._segment_begin = 0
        self._directory = torn.directory(location)
        self._table: DeltaTable | None = None
        self._loaded_version = -1
        self._refreshed_at = 0.0
        self._read_version = -1
        self._synced_version = -1

    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None or _attempt(self, DeltaTable.is_deltatable, self.location)

    def prepare(self, *, create: bool, restored: bool = False) -> None:
        """See that there is a table, and make it if there is none and that is allowed.

        One that is made to be `restored` is marked from its first commit on.
        """
        if self.exists():
            if not create or not ledger_table.is_being_made(self._current()):
                return
        elif not create:
            raise _missing(self.location)
        if self._directory is not None:
            _attempt(self, self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
            names = _attempt(self, os.listdir, self._directory)
            if any(not name.startswith("_") for name in names) and not self.exists():
                raise SettingsError(f"{self.location} holds other files and no ledger")
        with self.queue():
            table = _attempt(self, ledger_table.create, self.location, restored=restored)
            make_durable(self.location, 0, table.version())

    @property
    def is_restored(self) -> bool:
        """Whether the table was restored and may lack what was acknowledged."""
        table = self._current()
        pending = torn.is_pending(self.location, table.version())
        return ledger_table.is_marked(table) or pending

    def mark(self, *, restored: bool) -> None:
        """Mark the table as restored, or as complete again."""
        with self.queue():
            table = self._refreshed()
            _attempt(self, ledger_table.mark, table, restored=restored)
            self._sync(table)

    @property
    def segment_is_full(self) -> bool:
        """Whether the next commit must begin a segment, with a carry."""
        return self.position - self._segment_begin >= SEGMENT

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Wait in line on a local disk. A holder that stands still holds others up only so long."""
        if self._directory is None:
            yield
            return
        with ExitStack() as stack:
            try:
                queue = in_line(self._directory / "_queue.lock", LOCK_PATIENCE)
                held = stack.enter_context(queue)
            except FileNotFoundError:
                raise _missing(self.location) from None
            except OSError as error:
                raise _unusable(self.location, error) from None
            if not held:
                logger.warning("the queue for the ledger stands still; going on without it")
            yield

    def read_new(self) -> list[Entry]:
        """Read what was appended since the last call; a first call begins at the last carry.

        Raises
        ------
        SettingsError
            If the table is missing or cannot be read.
        LedgerConflictError
            If it lacks entries or is no longer protected against changes.
        """
        first = self._read_version < 0
        table = self._refreshed()
        if table.version() == self._read_version:
            return []
        if ledger_table.is_being_made(table):
            return []  # by another process perhaps
        lacking_columns(table, COLUMNS)  # refuses what a newer version has written
        for gap in self.protection_gaps():
            raise LedgerConflictError(
                f"{gap}; find out who changed it, verify the entries, then set it back"
            )
        if first:
            segments = (int(values["segment"]) for values in table.partitions())
            self.first_segment = self._segment = max(segments, default=0)
        rows = self.query(
            f"SELECT * FROM ledger WHERE segment >= {self._segment} "  # noqa: S608 (two numbers)
            f"AND position >= {self.position} ORDER BY position"
        )
        places = list(zip(rows["position"].to_pylist(), rows["segment"].to_pylist(), strict=True))
        if first and self.first_segment and places:
            self.position = self._segment_begin = places[0][0]
        for position, segment in places:
            if position != self.position:
                raise LedgerConflictError(f"the ledger at {self.location} lacks entries")
            self._step(segment)
        self._read_version = table.version()
        return from_table(rows)

    def append(
        self, entries: Sequence[Entry], *, begin_segment: bool = False
    ) -> tuple[bool, list[Entry]]:
        """Append entries if nobody appended since `read_new`.

        Parameters
        ----------
        entries : sequence of Entry
            At least one.
        begin_segment : bool
            Whether they begin a segment: then the first is a carry of what came before.

        Returns
        -------
        (bool, list of Entry)
            Whether the entries are in, and durably so; and what has to be folded now: they
            themselves or, where another writer was first, what that one wrote.

        Raises
        ------
        SettingsError
            If the table could not be written.
        """
        table = self._current()
        if _attempt(self, bring_up_to_date, table, COLUMNS):
            logger.info("the ledger's layout was brought up to date")
        if table.version() != self._read_version:
            return False, self.read_new()
        rows = self._rows(entries, self._segment + begin_segment)
        try:
            write_deltalake(
                table,
                rows,
                mode="append",
                commit_properties=ledger_table.ONE_TRY,
                post_commithook_properties=ledger_table.NO_HOOKS,
            )
        except (DeltaError, OSError) as error:
            return self._after_failure(entries, error)
        if time.time() - self._refreshed_at > LONGEST_COMMIT:
            # asleep for so long that its place in the log may have been cleaned up and free again
            return self._after_failure(entries, CommitFailedError())
        self._sync(table)
        self._read_version = table.version()
        for segment in rows["segment"].to_pylist():
            self._step(segment)
        return True, list(entries)

    def tidy(self, done: int) -> None:
        """Write a checkpoint and put small files together, when enough came since position `done`.

        With each segment the log and the data files that nobody reads any more are removed: of a
        reader that began within the last hours, everything stays.

        Nothing depends on it but speed, so a failure is logged and the next one tries again.
        """
        if self.position // CHECKPOINT_EVERY == done // CHECKPOINT_EVERY:
            return
        table = self._refreshed()
        try:
            if self.position // COMPACT_EVERY > done // COMPACT_EVERY:
                # the first compaction of a segment is the last one of the segment before it
                just_begun = self._segment_begin // COMPACT_EVERY >= done // COMPACT_EVERY
                segments = [self._segment - 1, self._segment] if just_begun else [self._segment]
                ledger_table.compact(table, segments)
                self._sync(table)
                if just_begun:
                    ledger_table.remove_old_files(table)
            table.create_checkpoint()
            if self._directory is not None:
                log = self._directory / "_delta_log"
                written = log.glob(f"{table.version():020d}.checkpoint*")
                fsync(*written, log / "_last_checkpoint", log)
        except (DeltaError, OSError) as error:
            logger.info("the ledger was not tidied, which can wait: %s", _first_line(error))
        self._table = None

    def query(self, sql: str) -> pa.Table:
        """Answer SQL over the table `ledger` as it was last read."""
        builder = QueryBuilder().register("ledger", self._current())
        return _attempt(
            self, lambda: pa.RecordBatchReader.from_stream(builder.execute(sql)).read_all()
        )

    def _current(self) -> DeltaTable:
        return self._refreshed() if self._table is None else self._table

    def _refreshed(self) -> DeltaTable:
        """Load the table, or what is new of it; anew where that is less than many log files."""
        self._refreshed_at = time.time()
        if self._table is not None:
            _attempt(self, self._table.update_incremental)
            self._require_whole(self._table.version())
            if self._table.version() - self._loaded_version < CHECKPOINT_EVERY:
                return self._table
        try:
            self._table = DeltaTable(self.location)
        except TableNotFoundError:
            raise _missing(self.location) from None
        except (DeltaError, OSError) as error:
            raise _unusable(self.location, error) from None
        self._loaded_version = self._table.version()
        self._require_whole(self._table.version())
        return self._table

    def _require_whole(self, version: int) -> None:
        """Refuse a table whose last commit was emptied, which delta-rs would pass over."""
        if torn.is_emptied(self.location, version):
            raise _unusable(self.location, OSError(f"version {version} is empty"))

    def loose_entries(self) -> list[Entry]:
        """Read the entries in data files that the log does not name: of commits that failed."""
        root = self._current().table_uri
        named = {unquote(uri.removeprefix(root)).lstrip("/") for uri in self._current().file_uris()}
        rows = list(torn.loose_rows(self.location, named))
        return [entry for table in rows for entry in from_table(table)]

    def protection_gaps(self) -> list[str]:
        """Say by which weakened settings the table's entries could be changed."""
        return [
            f"the ledger at {self.location} is no longer protected: {gap}"
            for gap in ledger_table.protection_gaps(self._current())
        ]

    def _step(self, segment: int) -> None:
        """Go past one entry."""
        if segment > self._segment:
            self._segment, self._segment_begin = segment, self.position
        self.position += 1

    def _rows(self, entries: Sequence[Entry], segment: int) -> pa.Table:
        rows = [
            vars(entry) | {"position": position, "segment": segment}
            for position, entry in enumerate(entries, start=self.position)
        ]
        return pa.Table.from_pylist(rows, schema=_UNCOMMENTED)

    def _after_failure(
        self, entries: Sequence[Entry], error: Exception
    ) -> tuple[bool, list[Entry]]:
        """Look whether the commit landed although it was reported as failed."""
        self._table = None
        found = self.read_new()
        landed = any(entry.entry_id == entries[0].entry_id for entry in found)
        if landed:
            self._sync(self._refreshed())
        elif not isinstance(error, CommitFailedError):
            raise _unusable(self.location, error)
        return landed, found

    def _sync(self, table: DeltaTable) -> None:
        """Make this version durable, and those of others not yet seen to: they may have died."""
        version = table.version()
        first = self._synced_version + 1 if self._synced_version >= 0 else max(version - 1, 0)
        make_durable(self.location, first, version)
        self._synced_version = version


def _attempt(log: EntryLog, action: Callable[..., T], *args: Any, **options: Any) -> T:
    """Do something with the table, and say plainly where it fails."""
    try:
        return action(*args, **options)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise _unusable(log.location, error) from None


def _missing(location: str) -> SettingsError:
    return SettingsError(
        f"there is no ledger at {location}; check the path (the first claim makes one, and so does "
        f"jobs.replicate_ledger in its own region)"
    )


def _unusable(location: str, error: Exception) -> StorageError:
    return torn.unusable(location, error, "ledger")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
