"""Tables are made once and appended to by compare-and-append, whoever else is at it."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dp_udfs.errors import LedgerConflictError, SettingsError, StorageError
from jobs.lake import commits

SCHEMA = pa.schema([("a", pa.int64())])


def test_a_table_that_another_process_makes_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = commits.open_or_create(tmp_path / "t", SCHEMA)
    looks = iter([None, made])
    monkeypatch.setattr(commits, "open_if_exists", lambda _: next(looks))
    assert commits.open_or_create(tmp_path / "t", SCHEMA) is made


def test_a_place_where_no_table_can_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(SettingsError, match="cannot be used"):
        commits.open_or_create(tmp_path / "file" / "t", SCHEMA)


def test_a_store_that_can_only_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = commits.open_or_create(tmp_path / "t", SCHEMA)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system\nand more")

    monkeypatch.setattr(commits, "write_deltalake", read_only)
    with pytest.raises(SettingsError, match=r"/t/? cannot be used: .*Read-only file system$"):
        commits.try_append(table, pa.table({"a": [1]}))
    monkeypatch.setattr("pathlib.Path.mkdir", read_only)
    with pytest.raises(SettingsError, match=r"/u cannot be used: .*Read-only file system$"):
        commits.open_or_create(tmp_path / "u", SCHEMA)


def test_a_full_disk_is_named_as_delta_says_it_in_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = commits.open_or_create(tmp_path / "t", SCHEMA)
    said = (
        "File system error\n    \x1b[31m↳\x1b[0m Cannot copy\n     \x1b[31m↳\x1b[0m No space left\n"
    )

    def full(*_: object, **__: object) -> None:
        raise OSError(said)

    monkeypatch.setattr(commits, "write_deltalake", full)
    with pytest.raises(StorageError, match=r"File system error: Cannot copy: No space left$"):
        commits.try_append(table, pa.table({"a": [1]}))


def test_a_table_that_was_weakened_is_not_written(tmp_path: Path) -> None:
    table = commits.open_or_create(tmp_path / "t", SCHEMA)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    with pytest.raises(LedgerConflictError, match=r"no longer protected: delta\.appendOnly"):
        commits.open_or_create(tmp_path / "t", SCHEMA)


def test_only_its_owner_can_look_into_a_local_table(tmp_path: Path) -> None:
    commits.open_or_create(tmp_path / "t", SCHEMA)
    assert (tmp_path / "t").stat().st_mode & 0o077 == 0


def test_of_two_who_read_the_same_version_one_appends(tmp_path: Path) -> None:
    commits.open_or_create(tmp_path / "t", SCHEMA)
    first, second = DeltaTable(str(tmp_path / "t")), DeltaTable(str(tmp_path / "t"))
    rows = pa.table({"a": [1]})
    assert commits.try_append(first, rows)
    assert not commits.try_append(second, rows)
    assert DeltaTable(str(tmp_path / "t")).version() == 1
