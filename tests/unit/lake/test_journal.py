"""The ledger's table: made where it belongs, refused when weakened, appended to one at a time."""

import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from dp_udfs.errors import (
    BudgetExhaustedError,
    ClaimError,
    LedgerConflictError,
    SettingsError,
)
from jobs.lake import entry_log, evidence, ledger_table
from jobs.lake.entries import COLUMNS
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Allocation, Ledger
from tests.ledgers import DECEMBER, FILMS, NOON, NOVEMBER, Clock


def ask(ledger: Ledger, run_id: str = "r1", units: int = 21, **changes: Any) -> Allocation:
    asked: dict[str, Any] = {"analyst": "research", "dataset": FILMS, "units": units, "calls": 1}
    return ledger.allocate(run_id, **(asked | {"fingerprint": "f1"} | changes))


def left(ledger: Ledger) -> tuple[int, int]:
    budget = ledger.get_budget("research", FILMS)
    return budget.units_left, budget.calls_left


def kinds(ledger: Ledger) -> list[str]:
    kinds: list[str] = ledger.entries()["kind"].to_pylist()
    return kinds


def test_a_ledger_that_is_not_there_is_not_made_by_asking(tmp_path: Path) -> None:
    asks: list[Callable[[Ledger], object]] = [
        lambda ledger: ledger.get_budget("research", FILMS),
        lambda ledger: ledger.settle("r1", units=0, calls=0),
        ask,
    ]
    for path in (tmp_path / "missing", tmp_path):
        for action in asks:
            with pytest.raises(SettingsError, match="there is no ledger at"):
                action(Ledger(path))
        assert Ledger(path).find("r1") is None
        with pytest.raises(SettingsError, match="there is no ledger at"):
            Ledger(path, create=False).find("r1")
    with pytest.raises(SettingsError, match="there is no ledger at"):
        Ledger(tmp_path / "typo", create=False).open_account("research", FILMS, NOVEMBER, 1, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_is_not_made_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="holds other files"):
        Ledger(tmp_path).open_account("research", FILMS, NOVEMBER, 1, 1)
    with pytest.raises(SettingsError, match="cannot be used"):
        Ledger(tmp_path / "notes.txt").open_account("research", FILMS, NOVEMBER, 1, 1)


def test_only_its_owner_can_look_into_a_local_ledger(ledger: Ledger) -> None:
    assert Path(ledger.path).stat().st_mode & 0o077 == 0


def test_a_store_that_cannot_be_written_is_named_and_nothing_changes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(entry_log, "write_deltalake", read_only)
        with pytest.raises(SettingsError, match=r"cannot be used: .*Read-only file system"):
            ask(ledger)
    assert left(ledger) == (100, 10)
    assert ask(ledger).state == "allocated"


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.constraints.amounts_are_not_negative"])
def test_a_weakened_ledger_is_refused(ledger: Ledger, name: str) -> None:
    table = DeltaTable(ledger.path)
    if name == "delta.appendOnly":
        table.alter.set_table_properties({name: "false"})
    else:
        table.alter.drop_constraint("amounts_are_not_negative")
    for weakened in (ledger, Ledger(ledger.path)):
        for _ in range(2):
            with pytest.raises(LedgerConflictError, match=f"no longer protected: {name}"):
                ask(weakened)


def test_the_table_itself_refuses_deletion_and_negative_amounts(ledger: Ledger) -> None:
    table = DeltaTable(ledger.path)
    with pytest.raises(CommitFailedError, match="append-only"):
        table.delete("entry_no = 1")
    rows = ledger.entries()
    at = rows.schema.get_field_index("units")
    negative = rows.set_column(at, rows.schema.field(at), [[-100]])
    with pytest.raises(Exception, match="Invalid data found"):
        write_deltalake(table, negative, mode="append")


def test_a_ledger_whose_columns_were_described_otherwise_goes_on(
    clock: Clock, tmp_path: Path
) -> None:
    """Comments are words: a release of this software that changes one must not lock ledgers out."""
    columns = [field.with_metadata({"comment": f"formerly: {field.name}"}) for field in COLUMNS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_log, "COLUMNS", pa.schema(columns))
        Ledger(tmp_path / "ledger", clock=clock).open_account("research", FILMS, NOVEMBER, 100, 10)
    ledger = Ledger(tmp_path / "ledger", clock=clock)
    ask(ledger)
    assert left(ledger) == (79, 9)


def test_a_changed_or_missing_entry_is_noticed_by_the_next_process(ledger: Ledger) -> None:
    ask(ledger)
    ask(ledger, "r2")
    rows = ledger.entries()
    at = rows.schema.get_field_index("units")
    generous = rows.set_column(at, rows.schema.field(at), [[1000, 21, 21]])
    without_r1 = rows.take([0, 2])
    for forged, complaint in ((generous, "the chain is broken"), (without_r1, "lacks entries")):
        table = DeltaTable(ledger.path)
        table.alter.set_table_properties({"delta.appendOnly": "false"})
        write_deltalake(table, forged, mode="overwrite")
        table.alter.set_table_properties({"delta.appendOnly": "true"})
        with pytest.raises(LedgerConflictError, match=complaint):
            ask(Ledger(ledger.path), "r3")


# Compare-and-append


def test_without_a_queue_two_writers_still_decide_one_after_the_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Ledger(ledger.path, clock=lambda: NOON)
    write = write_deltalake

    def after_another(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(entry_log, "write_deltalake", write)
        monkeypatch.setattr(entry_log, "LOCK_PATIENCE", 0.05)
        ask(other, "theirs", units=90)
        write(*args, **options)

    monkeypatch.setattr(entry_log, "write_deltalake", after_another)
    with pytest.raises(BudgetExhaustedError, match="left 10 units"):
        ask(ledger, "mine", units=90)
    assert Counter(kinds(ledger)) == {"open_account": 1, "allocate": 1, "refuse": 1}


@pytest.mark.parametrize("error", [CommitFailedError("a conflict"), OSError("connection lost")])
def test_a_commit_that_landed_though_it_was_reported_lost_is_not_repeated(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def lost_in_the_post(*args: Any, **options: Any) -> None:
        write_deltalake(*args, **options)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(entry_log, "write_deltalake", lost_in_the_post)
        ask(ledger)
    assert kinds(ledger) == ["open_account", "allocate"]
    assert left(ledger) == (79, 9)
    ledger.settle("r1", units=5, calls=1)
    assert left(ledger) == left(Ledger(ledger.path, clock=lambda: NOON)) == (95, 9)


def test_a_commit_that_took_too_long_is_looked_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the log was cleaned meanwhile, a sleeper writes a version that nobody reads."""
    other = Ledger(ledger.path, clock=lambda: NOON)

    def into_the_past(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(entry_log, "LOCK_PATIENCE", 0.05)
        ask(other, "theirs", units=90)
        monkeypatch.setattr(entry_log, "LONGEST_COMMIT", 0.0)

    ledger.get_budget("research", FILMS)
    monkeypatch.setattr(entry_log, "write_deltalake", into_the_past)
    with pytest.raises(BudgetExhaustedError, match="left 10 units"):
        ask(ledger, "mine", units=90)
    assert ledger.find("mine") is None


def test_a_process_that_missed_a_cleanup_of_the_log_reads_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_log, "CHECKPOINT_EVERY", 4)
    idle = Ledger(ledger.path, clock=lambda: NOON)
    assert left(idle) == (100, 10)
    for number in range(9):
        ask(ledger, f"r{number}", units=1)
    log = Path(ledger.path) / "_delta_log"
    last = max(path.name[:20] for path in log.glob("*.checkpoint.parquet"))
    for path in log.glob("0*"):
        if path.name[:20] < last:
            path.unlink()
    assert left(idle) == (91, 1)
    ask(idle, "r9", units=1)
    assert left(ledger) == left(idle) == (90, 0)


def test_a_queue_whose_holder_stands_still_holds_nobody_up_for_long(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_log, "LOCK_PATIENCE", 0.05)
    with open(Path(ledger.path) / "_queue.lock") as stopped:  # noqa: PTH123
        fcntl.flock(stopped, fcntl.LOCK_EX)
        ask(ledger)
    assert left(ledger) == (79, 9)


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    refused = []

    def grab(number: int) -> None:
        for attempt in range(3):
            try:
                ask(ledger, f"{number}-{attempt}", units=10)
            except BudgetExhaustedError:
                refused.append(number)

    threads = [threading.Thread(target=grab, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 2
    assert left(ledger) == (0, 0)


def test_segments_carries_and_checkpoints_change_no_answer(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SEGMENT", 7), ("COMPACT_EVERY", 4), ("CHECKPOINT_EVERY", 2)):
        monkeypatch.setattr(entry_log, name, value)
    old = Ledger(tmp_path / "ledger", clock=clock)
    old.open_account("research", FILMS, NOVEMBER, 1000, 100, period_end=DECEMBER)
    old.open_account("marketing", FILMS, NOVEMBER, 50, 100)
    first = ask(old, "first")
    for number in range(12):
        ask(old, f"r{number}")
        old.settle(f"r{number}", units=number, calls=1, publish=(f"label {number}", "digest"))
        fresh = Ledger(tmp_path / "ledger", clock=clock)
        assert fresh.get_budget("research", FILMS) == old.get_budget("research", FILMS)
        assert fresh.head() == old.head()
        assert fresh.find("r0") == old.find("r0")
        assert ask(fresh, "r0") == old.find("r0")
        assert fresh.find("first") == first
    assert left(old) == (1000 - 21 - sum(range(12)), 100 - 13)
    assert len(fresh.released_labels()) == 12
    with pytest.raises(ClaimError, match="another question"):
        ask(fresh, "r0", fingerprint="f2")
    assert kinds(old).count("carry") >= 4
    assert old.entries()["position"].to_pylist() == list(range(old.entries().num_rows))

    clock.now = datetime(2026, 12, 24, tzinfo=UTC)
    fresh.open_account("research", FILMS, DECEMBER, 10, 10, period_end=date(2027, 1, 1))
    fresh.settle("first", units=1, calls=1)
    for number in range(10):
        ask(fresh, f"d{number}", units=1)
    later = Ledger(tmp_path / "ledger", clock=clock)
    assert left(later) == (0, 0)
    assert later.get_budget("research", FILMS, at=NOVEMBER).units_left == 1000 - 1 - sum(range(12))


def test_the_table_stays_small_however_long_it_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SEGMENT", 16), ("COMPACT_EVERY", 8), ("CHECKPOINT_EVERY", 4)):
        monkeypatch.setattr(entry_log, name, value)
    at_once = dict.fromkeys(
        ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), "interval 0 seconds"
    )
    monkeypatch.setattr(ledger_table, "UPKEEP", ledger_table.UPKEEP | at_once)
    ledger = Ledger(tmp_path / "ledger")
    ledger.open_account("research", FILMS, date(2020, 1, 1), 1000, 1000)
    idle = Ledger(tmp_path / "ledger")
    sizes = []
    for number in range(96):
        ask(ledger, f"r{number}", units=1)
        sizes.append(len([path for path in Path(ledger.path).rglob("*") if path.is_file()]))
        if number % 40 == 0:  # a reader that was away while files were removed
            assert left(idle) == left(ledger)
    assert len(DeltaTable(ledger.path).file_uris()) <= 96 // 16 + 1 + 8
    assert max(sizes[48:]) <= max(sizes[:48]) + 48 // 16 + 2  # a file a segment, and its carry
    assert left(Ledger(ledger.path)) == (1000 - 96, 1000 - 96)
    assert evidence.audit(EntryLog(ledger.path)).findings == []


def test_nothing_is_removed_that_a_reader_may_still_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SEGMENT", 8), ("COMPACT_EVERY", 4), ("CHECKPOINT_EVERY", 4)):
        monkeypatch.setattr(entry_log, name, value)
    reading = DeltaTable(ledger.path)
    old = reading.file_uris()
    half_written = Path(ledger.path) / "segment=0" / "part-of-a-commit.parquet"
    half_written.write_bytes(b"not yet")
    ledger.update_budget("research", FILMS, calls=50, reason="a test")
    for number in range(20):
        ask(ledger, f"r{number}", units=1)
    assert all(Path(uri).exists() for uri in old)
    assert half_written.exists()
    long_ago = time.time() - 7 * 3600
    os.utime(half_written, (long_ago, long_ago))
    for number in range(20, 40):
        ask(ledger, f"r{number}", units=1)
    assert not half_written.exists()
