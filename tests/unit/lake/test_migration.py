"""Tables of older versions are brought up to date, those of newer ones are left alone."""

import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError

from dp_udfs.errors import LedgerConflictError, SettingsError
from jobs.lake import backups, commits, evidence, ledger_table, releases
from jobs.lake.entries import COLUMNS, SCHEMA_VERSION, from_table
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Ledger
from jobs.lake.settings import LakeSettings

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
CAME_LATER = ["blocks", "digest"]


def ask(ledger: Ledger, run_id: str) -> None:
    ledger.allocate(run_id, analyst="research", dataset="films", units=5, calls=1)


def opened(path: Path) -> Ledger:
    ledger = Ledger(path, clock=lambda: NOON)
    ledger.open_account("research", "films", date(2026, 11, 1), 100, 10)
    ask(ledger, "r1")
    return ledger


def written_by_hand(path: Path, rows: pa.Table) -> None:
    """Make the table of a first version, which had fewer columns."""
    rows = rows.drop_columns(CAME_LATER)
    settings = ledger_table.PROTECTION | ledger_table.UPKEEP
    table = DeltaTable.create(
        path, Schema.from_arrow(rows.schema), partition_by=["segment"], configuration=settings
    )
    table.alter.add_constraint(ledger_table.CONSTRAINTS)
    write_deltalake(table, rows, mode="append")


@pytest.fixture
def old(tmp_path: Path) -> Ledger:
    written_by_hand(tmp_path / "old", opened(tmp_path / "new").entries())
    return Ledger(tmp_path / "old", clock=lambda: NOON)


def columns(path: str | Path) -> set[str]:
    return {field.name for field in DeltaTable(str(path)).schema().fields}


def test_a_ledger_of_an_older_version_is_read_as_it_is_and_changed_by_the_next_entry(
    old: Ledger,
) -> None:
    head = old.head()
    assert old.get_budget("research", "films").units_left == 95
    assert evidence.audit(EntryLog(old.path), heads=[head]).findings == []
    assert columns(old.path) == set(COLUMNS.names) - set(CAME_LATER)
    ask(old, "r2")
    old.settle("r2", units=1, calls=1, publish=("label", "digest"))
    assert columns(old.path) == set(COLUMNS.names)
    fresh = Ledger(old.path, clock=lambda: NOON)
    assert fresh.get_budget("research", "films").units_left == 94
    assert evidence.audit(EntryLog(old.path), heads=[head]).findings == []
    assert [entry.digest for entry in from_table(old.entries())][-2:] == ["digest", None]


def test_several_processes_bring_a_ledger_up_to_date_at_once(old: Ledger) -> None:
    others = [Ledger(old.path, clock=lambda: NOON) for _ in range(3)]
    for ledger in others:
        ledger.head()
    for number, ledger in enumerate(others):
        ask(ledger, f"r{2 + number}")
    assert {ledger.get_budget("research", "films").units_left for ledger in others} == {80}


def test_somebody_else_may_add_the_columns_first(
    old: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = DeltaTable(old.path), DeltaTable(old.path)
    assert commits.bring_up_to_date(other, COLUMNS)
    assert commits.bring_up_to_date(table, COLUMNS)
    assert not commits.bring_up_to_date(table, COLUMNS)

    def fails(*_: object) -> None:
        raise CommitFailedError("no")

    monkeypatch.setattr("deltalake.table.TableAlterer.add_columns", fails)
    with pytest.raises(CommitFailedError):
        commits.bring_up_to_date(table, pa.schema([*COLUMNS, ("more", pa.string())]))


def test_a_ledger_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger")
    table = DeltaTable(ledger.path)
    table.alter.add_columns(Schema.from_arrow(pa.schema([("mood", pa.string())])).fields)
    for each in (ledger, Ledger(ledger.path)):
        with pytest.raises(SettingsError, match=r"newer version .*\(column mood\); update"):
            ask(each, "r2")


def test_an_entry_of_a_newer_version_is_not_guessed_at(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger")
    rows = ledger.entries()
    newer = pa.array([SCHEMA_VERSION, SCHEMA_VERSION + 1], pa.int32())
    at = rows.schema.get_field_index("schema_version")
    shutil.rmtree(ledger.path)
    EntryLog(ledger.path).prepare(create=True)
    write_deltalake(ledger.path, rows.set_column(at, rows.schema.field(at), newer), mode="append")
    with pytest.raises(LedgerConflictError, match="newer version of this program; update it"):
        Ledger(ledger.path).get_budget("research", "films")


def test_answers_of_an_older_version_are_found_and_their_table_is_brought_up_to_date(
    lake: LakeSettings,
) -> None:
    path = lake.tables.releases
    older = pa.schema([field for field in releases.SCHEMA if field.name not in ("family", "k")])
    commits.open_or_create(path, older)
    row = {"label": "a" * 64, "row_kind": "manifest", "row_count": 0, "units": 1, "calls": 1}
    empty = releases._digest(releases.SCHEMA.empty_table().select(releases.ANSWER_COLUMNS))
    write_deltalake(
        path, pa.Table.from_pylist([row | {"digest": empty}], schema=older), mode="append"
    )
    found = releases.find(path, "a" * 64)
    assert found is not None
    assert found.digest == empty
    assert columns(path) == set(releases.SCHEMA.names)
    assert releases.manifests(path)[0]["family"] is None


def test_a_backup_of_an_older_version_can_be_restored(lake: LakeSettings, old: Ledger) -> None:
    head = old.head()
    shutil.move(old.path, lake.tables.ledger)
    folder = Path(lake.root) / "backup"
    backups.take(lake, folder, NOON)
    shutil.rmtree(lake.tables.ledger)
    ledger = Ledger(lake.tables.ledger, clock=lambda: NOON)
    backups.restore(lake, ledger, [backups.read(folder).entries])
    assert ledger.head() == head
