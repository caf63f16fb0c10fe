"""Tables that would keep something of a deleted row are refused; files go in time."""

import os
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs.errors import SettingsError
from jobs.lake import erasure

ROWS = pa.table({"day": ["mon", "tue"], "user_id": ["u1", "u2"]})
LONG_AGO = (0, 0)


def make(place: Path, partition_by: str | None = None, **properties: str) -> str:
    """Make a table of two rows; properties go by the last part of their name."""
    changed = {f"delta.{name}": value for name, value in properties.items()}
    DeltaTable.create(
        str(place),
        ROWS.schema,
        partition_by=partition_by,
        configuration=erasure.PROPERTIES | changed,
    )
    write_deltalake(place, ROWS, mode="append")
    return str(place)


def test_a_table_made_for_deletion_is_accepted(tmp_path: Path) -> None:
    erasure.require(make(tmp_path / "one", "day"), "user_id")
    named = make(tmp_path / "two", dataSkippingStatsColumns="day", dataSkippingNumIndexedCols="32")
    erasure.require(named, "user_id")


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"enableDeletionVectors": "true"}, "enableDeletionVectors is or was on"),
        ({"enableChangeDataFeed": "true"}, "enableChangeDataFeed is on"),
        ({"appendOnly": "true"}, "appendOnly is on"),
        ({"dataSkippingNumIndexedCols": "32"}, "keeps statistics of 'user_id'"),
        ({"dataSkippingStatsColumns": "day,user_id"}, "keeps statistics of 'user_id'"),
        ({"partition_by": "user_id"}, "it is partitioned by 'user_id'"),
    ],
)
def test_a_table_that_keeps_something_of_a_row_is_refused(
    tmp_path: Path, properties: dict[str, str], words: str
) -> None:
    place = make(tmp_path / "table", **properties)
    with pytest.raises(SettingsError, match=f"{words}.*, so a person could not be deleted"):
        erasure.require(place, "user_id")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_statistics_from_before_the_property_was_set_are_found(
    tmp_path: Path, checkpoint: bool
) -> None:
    write_deltalake(tmp_path, ROWS)
    DeltaTable(tmp_path).alter.set_table_properties(erasure.PROPERTIES)
    erasure.require(str(tmp_path), "user_id")
    if checkpoint:
        DeltaTable(tmp_path).create_checkpoint()
        (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(SettingsError, match="its log holds statistics of 'user_id'"):
        erasure.require_silent_log(str(tmp_path), "user_id")


def test_a_log_without_statistics_is_silent(tmp_path: Path) -> None:
    place = make(tmp_path / "table", "day")
    DeltaTable(place).create_checkpoint()
    erasure.require_silent_log(place, "user_id")


def test_files_stay_while_a_kept_version_reads_them(tmp_path: Path) -> None:
    place = make(tmp_path / "table", "day")
    DeltaTable(place).delete("user_id = 'u1'")
    assert erasure.remove_files(place, {1})
    assert DeltaTable(place, version=1).to_pyarrow_table().num_rows == 2
    assert not erasure.remove_files(place, set())
    assert not erasure.remove_files(place, {1}), "nothing can wait that is gone"
    assert [path.parent.name for path in Path(place).rglob("part-*")] == ["day=tue"]
    assert DeltaTable(place).to_pyarrow_table().num_rows == 1


def test_files_of_no_commit_go_when_they_are_old(tmp_path: Path) -> None:
    place = make(tmp_path / "table", "day")
    young, old = Path(place) / "day=mon" / "young.parquet", Path(place) / "day=mon" / "old.parquet"
    for file in (young, old):
        file.write_text("left by a killed writer")
    os.utime(old, LONG_AGO)
    erasure.remove_files(place, set())
    assert young.exists(), "its writer may be about to commit it"
    assert not old.exists()


def test_scratch_of_a_spark_that_was_killed_goes_and_that_of_others_stays(tmp_path: Path) -> None:
    for name in ("blockmgr-dead", "spark-dead", "blockmgr-alive", "notes"):
        (tmp_path / name / "00").mkdir(parents=True)
        (tmp_path / name / "00" / "shuffle_0_0_0.data").write_text("u1")
        for path in (*(tmp_path / name).rglob("*"), tmp_path / name):
            os.utime(path, LONG_AGO)
    (tmp_path / "blockmgr-alive" / "00" / "shuffle_1_0_0.data").write_text("u2")
    crash = tmp_path / "spark-crash-7.log"
    crash.write_text("u3")
    os.utime(crash, LONG_AGO)
    erasure.remove_scratch(tmp_path, timedelta(days=1))
    assert {path.name for path in tmp_path.iterdir()} == {"blockmgr-alive", "notes"}
    erasure.remove_scratch(tmp_path / "missing", timedelta(days=1))
