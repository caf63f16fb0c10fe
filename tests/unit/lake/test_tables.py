"""A state names exactly what a table holds, and says when that cannot be read any more."""

import os
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs.errors import ClaimError, SettingsError
from jobs.lake import tables
from jobs.lake.tables import Snapshot, TableState


@pytest.fixture
def place(tmp_path: Path) -> str:
    path = str(tmp_path / "lake" / "films of übermorgen")
    append(path, 1, 2)
    return path


def append(path: str, *users: int) -> None:
    write_deltalake(path, pa.table({"user_id": users}), mode="append")


def rewrite(path: str) -> None:
    """Put all rows into one new file, as compaction does, so that older files become removable."""
    rows = pa.table(DeltaTable(path).to_pyarrow_table())
    write_deltalake(path, rows, mode="overwrite")


def published(**states: TableState) -> Snapshot:
    return Snapshot(1, date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), states)


def test_the_same_version_has_the_same_state(place: str) -> None:
    before = tables.state(place)
    append(place, 3)
    assert tables.state(place, before.version) == before
    assert tables.state(place).digest != before.digest


def test_a_table_made_again_has_another_id_and_digest(place: str) -> None:
    before = tables.state(place)
    shutil.rmtree(place)
    append(place, 1, 2)
    after = tables.state(place)
    assert after.version == before.version
    assert after.table_id != before.table_id
    assert after.digest != before.digest


def test_empty_tables_differ_too(tmp_path: Path) -> None:
    schema = pa.schema([("user_id", pa.int64())])
    for name in "ab":
        DeltaTable.create(str(tmp_path / name), schema)
    states = [tables.state(str(tmp_path / name)) for name in "ab"]
    assert states[0].digest != states[1].digest


def test_a_copied_table_is_the_same_until_one_of_them_changes(place: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(place, copy)
    assert replace(tables.state(copy), location=place) == tables.state(place)
    append(copy, 3)
    append(place, 4)
    assert tables.state(copy).version == tables.state(place).version
    assert tables.state(copy).digest != tables.state(place).digest


def test_a_published_table_verifies_after_later_changes(place: str) -> None:
    snapshot = published(engagements=tables.state(place))
    append(place, 3)
    rewrite(place)
    tables.verify(snapshot)


def test_a_vacuumed_snapshot_is_noticed(place: str) -> None:
    snapshot = published(engagements=tables.state(place))
    rewrite(place)
    DeltaTable(place).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ClaimError, match=r"snapshot 1: engagements at .*VACUUM.*--publish"):
        tables.verify(snapshot)


def test_files_with_odd_names_are_found(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"a": [1], "b": ["x y/z%é:"]}), partition_by=["b"])
    tables.verify(published(engagements=tables.state(path)))


def test_a_file_that_is_gone_or_cut_is_noticed(place: str) -> None:
    snapshot = published(engagements=tables.state(place))
    (file,) = Path(place).rglob("*.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(ClaimError, match="files of it"):
        tables.verify(snapshot)
    file.write_bytes(content)
    tables.verify(snapshot)
    file.unlink()
    with pytest.raises(ClaimError, match="files of it"):
        tables.verify(snapshot)


def test_a_version_that_is_gone_is_noticed(place: str) -> None:
    append(place, 3)
    snapshot = published(engagements=tables.state(place))
    log = sorted((Path(place) / "_delta_log").glob("*.json"))
    log[-1].unlink()
    with pytest.raises(ClaimError, match="version 1 is gone"):
        tables.verify(snapshot)


def test_another_table_at_the_same_place_is_noticed(place: str) -> None:
    snapshot = published(engagements=tables.state(place))
    shutil.rmtree(place)
    append(place, 1, 2)
    with pytest.raises(ClaimError, match="another table"):
        tables.verify(snapshot)


def test_other_files_under_the_same_id_and_version_are_noticed(place: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(place, copy)
    append(copy, 3)
    append(place, 4)
    snapshot = published(opt_outs=tables.state(place))
    shutil.rmtree(place)
    shutil.copytree(copy, place)
    with pytest.raises(ClaimError, match=r"opt_outs at .*other files"):
        tables.verify(snapshot)


def test_a_table_that_is_gone_is_noticed(place: str) -> None:
    snapshot = published(engagements=tables.state(place))
    shutil.rmtree(place)
    with pytest.raises(ClaimError, match="is gone"):
        tables.verify(snapshot)


def test_no_table_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is none; make it with"):
        tables.state(str(tmp_path / "nothing"))


def test_a_name_needs_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(SettingsError, match="only Spark can find a name"):
        tables.locate("films.engagements")


def test_a_path_is_where_it_says() -> None:
    assert tables.locate("/lake/films") == "/lake/films"
    assert tables.quote("/lake/f`s") == "delta.`/lake/f``s`"
    assert tables.quote("main.films.engagements") == "`main`.`films`.`engagements`"


def test_a_state_is_taken_without_reading_rows(place: str) -> None:
    for file in Path(place).rglob("*.parquet"):
        file.write_bytes(b"not a Parquet file")
    assert tables.state(place).version == 0


def test_ages_of_files_do_not_matter(place: str) -> None:
    before = tables.state(place)
    for file in Path(place).rglob("*.parquet"):
        later = file.stat().st_mtime + timedelta(days=1).total_seconds()
        os.utime(file, (later, later))
    assert tables.state(place) == before
    tables.verify(published(engagements=before))
