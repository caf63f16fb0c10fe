"""`make demo` from nothing: the lake is made, the notebook runs, and a second time all is free."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from deltalake import DeltaTable

from jobs.lake import movielens, settings, snapshots, tables
from jobs.lake.settings import DatasetSettings, LakeSettings

PROJECT = Path(__file__).parents[2]


def run(folder: Path, *command: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_the_demo_runs_from_nothing_and_again_for_free(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "conf", tmp_path / "conf")
    run(tmp_path, "-m", "jobs.make_demo_lake")
    lake = settings.load_lake(tmp_path / "conf" / "local.toml")
    for name in ("movielens", "movielens-strict"):
        check_rows(lake, settings.load_dataset(name, lake))
    shown = run(tmp_path, str(PROJECT / "notebooks" / "demo.py"))
    assert "Star Wars (1977)" in shown
    assert "refused: research on movielens" in shown
    assert shown.count("free: a repeat") == 2
    assert "50 and over | F" in shown
    again = run(tmp_path, str(PROJECT / "notebooks" / "demo.py"))
    assert "\ncharged " not in again


def check_rows(lake: LakeSettings, dataset: DatasetSettings) -> None:
    """The table holds what the documentation and the dataset file say."""
    snapshot = snapshots.latest(lake, dataset)
    assert (snapshot.snapshot_id, snapshot.as_of) == (1, movielens.AS_OF)
    tables.verify(snapshot)
    assert DeltaTable(dataset.table.quarantine).file_uris() == []
    rows = DeltaTable(dataset.table.engagements).to_pandas()
    assert len(rows) == len(rows.drop_duplicates(["user_id", "film"])) == 100_000
    assert rows["user_id"].nunique() == 943
    assert rows["film"].nunique() == 1_682
    assert str(rows["event_date"].max()) == "1998-04-22"
    people = rows.drop_duplicates("user_id")
    cohorts = Counter(zip(people["age_band"], people["gender"], strict=True))
    assert [size for _, size in cohorts.most_common()] == [231, 182, 166, 92, 91, 79, 68, 34]
    for name in ("area", "occupation", "age_band", "gender"):
        assert rows.groupby("user_id")[name].nunique().max() == 1, name
        if dataset.columns[name].domain != "unknown":
            assert set(people[name]) == set(dataset.columns[name].domain), name
    assert set(rows["genre"].explode()) == set(dataset.columns["genre"].domain)
    assert set(rows["rating"]) == set(dataset.columns["rating"].domain)
