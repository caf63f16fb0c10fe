"""Tables are made once and appended to by compare-and-append, whoever else is at it."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

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
    with pytest.raises((DeltaError, OSError)):
        commits.open_or_create(tmp_path / "file" / "t", SCHEMA)


def test_of_two_who_read_the_same_version_one_appends(tmp_path: Path) -> None:
    commits.open_or_create(tmp_path / "t", SCHEMA)
    first, second = DeltaTable(str(tmp_path / "t")), DeltaTable(str(tmp_path / "t"))
    rows = pa.table({"a": [1]})
    assert commits.try_append(first, rows)
    assert not commits.try_append(second, rows)
    assert DeltaTable(str(tmp_path / "t")).version() == 1
