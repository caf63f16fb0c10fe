"""Snapshot ids are 1, 2, 3, ... whoever publishes, and a date stands for one state."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs.errors import SettingsError
from jobs.lake import settings, snapshots, tables
from jobs.lake.settings import DatasetSettings, LakeSettings

PROJECT = Path(__file__).parents[3]
NOW = datetime(2024, 2, 1, 4, 0, tzinfo=UTC)


@pytest.fixture
def films(lake: LakeSettings) -> DatasetSettings:
    source = PROJECT / "conf" / "datasets" / "movielens.toml"
    shutil.copy(source, Path(lake.source).parent / "datasets" / "movielens.toml")
    dataset = settings.load_dataset("movielens", lake)
    change(dataset)
    write_deltalake(str(dataset.table.opt_outs), pa.table({"user_id": [9]}))
    return dataset


def change(dataset: DatasetSettings) -> None:
    write_deltalake(dataset.table.engagements, pa.table({"user_id": [1]}), mode="append")


def day(number: int) -> date:
    return date(2024, 1, number)


def test_a_snapshot_binds_all_tables(lake: LakeSettings, films: DatasetSettings) -> None:
    snapshot = snapshots.publish(lake, films, day(1), NOW)
    assert snapshot.snapshot_id == 1
    assert snapshot.as_of == day(1)
    assert snapshot.published_at == NOW
    assert snapshot.tables == {
        "engagements": tables.state(films.table.engagements),
        "opt_outs": tables.state(str(films.table.opt_outs)),
    }
    assert snapshots.latest(lake, films) == snapshot
    assert snapshots.get(lake, films, 1) == snapshot
    assert snapshots.find(lake, films, day(1)) == snapshot
    assert snapshots.find(lake, films, day(2)) is None


def test_ids_are_sequential_within_a_dataset(lake: LakeSettings, films: DatasetSettings) -> None:
    other = films.model_copy(update={"name": "other"})
    ids = [snapshots.publish(lake, films, day(number), NOW).snapshot_id for number in (1, 2)]
    ids += [snapshots.publish(lake, other, day(2), NOW).snapshot_id]
    ids += [snapshots.publish(lake, films, day(3), NOW).snapshot_id]
    assert ids == [1, 2, 1, 3]
    assert snapshots.latest(lake, other).snapshot_id == 1


def test_the_schedule_moves_the_id_whether_or_not_data_changed(
    lake: LakeSettings, films: DatasetSettings
) -> None:
    first, second = (snapshots.publish(lake, films, day(n), NOW) for n in (1, 2))
    assert (first.snapshot_id, second.snapshot_id) == (1, 2)
    assert first.tables == second.tables


def test_publishing_a_date_again_is_the_same_snapshot(
    lake: LakeSettings, films: DatasetSettings
) -> None:
    first = snapshots.publish(lake, films, day(1), NOW)
    assert snapshots.publish(lake, films, day(1), datetime.now(UTC)) == first
    snapshots.publish(lake, films, day(2), NOW)
    assert snapshots.publish(lake, films, day(1), NOW) == first
    assert snapshots.latest(lake, films).snapshot_id == 2


def test_late_rows_wait_for_the_next_date(lake: LakeSettings, films: DatasetSettings) -> None:
    first = snapshots.publish(lake, films, day(2), NOW)
    change(films)
    with pytest.raises(SettingsError, match="snapshot 1 of movielens already stands for"):
        snapshots.publish(lake, films, day(2), NOW)
    with pytest.raises(SettingsError, match="wait for a later date"):
        snapshots.publish(lake, films, day(1), NOW)
    assert snapshots.latest(lake, films) == first
    assert snapshots.publish(lake, films, day(3), NOW).tables != first.tables


def test_an_opt_out_changes_the_snapshot(lake: LakeSettings, films: DatasetSettings) -> None:
    first = snapshots.publish(lake, films, day(1), NOW)
    write_deltalake(str(films.table.opt_outs), pa.table({"user_id": [1]}), mode="append")
    second = snapshots.publish(lake, films, day(2), NOW)
    assert second.tables["engagements"] == first.tables["engagements"]
    assert second.tables["opt_outs"] != first.tables["opt_outs"]


def test_without_a_snapshot_the_message_has_the_command(
    lake: LakeSettings, films: DatasetSettings
) -> None:
    command = r"ingest_engagements\.py --dataset movielens --as-of DATE --publish"
    with pytest.raises(SettingsError, match=command):
        snapshots.latest(lake, films)
    with pytest.raises(SettingsError, match=command):
        snapshots.get(lake, films, 1)


@pytest.mark.parametrize("wrong", [0, -1, 2])
def test_an_unknown_id_is_an_error(lake: LakeSettings, films: DatasetSettings, wrong: int) -> None:
    snapshots.publish(lake, films, day(1), NOW)
    with pytest.raises(SettingsError, match=f"snapshot {wrong} of movielens: not published"):
        snapshots.get(lake, films, wrong)


def test_a_missing_table_cannot_be_published(lake: LakeSettings, films: DatasetSettings) -> None:
    shutil.rmtree(str(films.table.opt_outs))
    with pytest.raises(SettingsError, match="opt_outs: there is none"):
        snapshots.publish(lake, films, day(1), NOW)


def test_a_moved_lake_stays_whole(lake: LakeSettings, films: DatasetSettings) -> None:
    first = snapshots.publish(lake, films, day(1), NOW)
    root, elsewhere = Path(lake.root), Path(lake.root) / "elsewhere"
    elsewhere.mkdir()
    for name in ("conf", "lake"):
        shutil.move(root / name, elsewhere / name)
    moved = settings.load_lake(elsewhere / "conf" / "local.toml")
    snapshot = snapshots.latest(moved, settings.load_dataset("movielens", moved))
    tables.verify(snapshot)
    assert snapshot.tables["engagements"].location == str(elsewhere / "lake/movielens/engagements")
    assert snapshot.tables["engagements"].digest == first.tables["engagements"].digest


def test_snapshots_are_append_only(lake: LakeSettings, films: DatasetSettings) -> None:
    snapshots.publish(lake, films, day(1), NOW)
    table = DeltaTable(lake.tables.snapshots)
    assert table.metadata().configuration["delta.appendOnly"] == "true"
    with pytest.raises(Exception, match="append"):
        table.delete("snapshot_id = 1")


PUBLISH = """
import sys
from datetime import UTC, date, datetime
from jobs.lake import settings, snapshots
lake = settings.load_lake(sys.argv[1])
films = settings.load_dataset("movielens", lake)
for number in range(1, 6):
    films = films.model_copy(update={"name": sys.argv[2]})
    print(snapshots.publish(lake, films, date(2024, 1, number), datetime.now(UTC)).snapshot_id)
"""


def test_processes_that_publish_at_once_never_share_an_id(
    lake: LakeSettings, films: DatasetSettings
) -> None:
    def publish(name: str) -> list[int]:
        command = [sys.executable, "-c", PUBLISH, lake.source, name]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [int(line) for line in done.stdout.split()]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(publish, ["one", "two", "three", "four"]))
    assert found == [[1, 2, 3, 4, 5]] * 4
    rows = DeltaTable(lake.tables.snapshots).to_pyarrow_table().to_pylist()
    keys = {(row["dataset"], row["snapshot_id"]) for row in rows}
    assert len(keys) == len(rows) == 20
    assert json.dumps(rows, default=str).count(str(films.table.engagements)) == 0
