"""A batch enters once, whatever happens on the way, and a date is published once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dp_udfs.errors import LedgerConflictError, SettingsError
from jobs import ingest_engagements
from jobs.lake import batches, settings, snapshots, tables
from jobs.lake.settings import DatasetSettings, LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]
DATASET = """
name = "films"
description = "Films seen"

[table]
engagements = "lake/films/engagements"
quarantine = "lake/films/quarantine"
opt_outs = "lake/films/opt_outs"
privacy_unit = "user"
user_id = "user_id"
user_id_type = "bigint"
event_date = "event_date"
time_zone = "UTC"
retention_days = 30
purge_lag_days = 5
bounding_salt = "films-1"

[columns.film]
type = "string"
use = ["element"]
domain = "unknown"

[columns.genre]
type = "string"
use = ["element"]
many = true
domain = ["Drama", "War"]

[columns.stars]
type = "bigint"
use = ["filter"]
domain = [1, 2, 3]

[budget]
mode = "enforce"
epsilon = 0.5
delta = 1e-6
delta_prime = 1e-6
units = 600
calls = 30
period = "month"
gaussian = false

[analysts.marketing]
"""

Row = dict[str, Any]


class Films:
    """A lake with one dataset, and the program under test."""

    def __init__(self, lake: LakeSettings, folder: Path, text: str) -> None:
        self.lake, self.folder = lake, folder
        file = Path(lake.source).parent / "datasets" / "films.toml"
        file.write_text(text, encoding="utf-8")
        self.dataset: DatasetSettings = settings.load_dataset("films", lake)

    def command(self, *options: str, batch: str = "b1", as_of: str = "2024-01-31") -> list[str]:
        names = {"--as-of": as_of, "--batch-id": batch}
        given = [text for name, value in names.items() if value for text in (name, value)]
        return ["--conf", self.lake.source, "--dataset", "films", *given, *options]

    def ingest(self, *options: str, **names: str) -> None:
        parser = ingest_engagements.arguments()
        ingest_engagements.main(parser.parse_args(self.command(*options, **names)))

    def parquet(self, rows: pa.Table | Sequence[Row], name: str = "in.parquet") -> list[str]:
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        pq.write_table(table, self.folder / name)
        return ["--input", str(self.folder / name)]

    def rows(self) -> list[Row]:
        return _rows(self.dataset.table.engagements)

    def quarantine(self) -> list[Row]:
        return _rows(self.dataset.table.quarantine)

    def opt_outs(self) -> list[Any]:
        return sorted(row["user_id"] for row in _rows(str(self.dataset.table.opt_outs)))


def _rows(location: str) -> list[Row]:
    rows: list[Row] = DeltaTable(location).to_pyarrow_table().to_pylist()
    return rows


@pytest.fixture
def films(lake: LakeSettings, tmp_path: Path) -> Films:
    return Films(lake, tmp_path, DATASET)


def row(**changes: Any) -> Row:
    usual = {
        "user_id": 1,
        "event_date": date(2024, 1, 15),
        "film": "Alien",
        "genre": ["Drama"],
        "stars": 3,
    }
    return usual | changes


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_a_thousand_rows_without_a_user_go_to_quarantine(
    films: Films, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    people = [row(user_id=123456789 + number) for number in range(50)]
    nobody = [row(user_id=None, film=f"film {number % 10}") for number in range(1000)]
    films.ingest(*films.parquet(people + nobody))
    assert len(films.rows()) == 50
    assert len(films.quarantine()) == 1000
    assert "quarantine: 1000 rows of batch b1: user_id: missing" in caplog.text
    assert "1000" not in capsys.readouterr().out
    for location in (films.dataset.table.engagements, films.dataset.table.quarantine):
        assert_made_for_deletion(location)
    assert DeltaTable(films.dataset.table.engagements).metadata().partition_columns == [
        "event_date"
    ]


def assert_made_for_deletion(location: str) -> None:
    """No marks instead of deletions, no copies of old rows, no values in the log."""
    table = DeltaTable(location)
    properties = table.metadata().configuration
    assert properties["delta.enableDeletionVectors"] == "false"
    assert properties["delta.enableChangeDataFeed"] == "false"
    assert table.protocol().reader_features is None
    log = "".join(file.read_text() for file in Path(location).glob("_delta_log/*.json"))
    assert "numRecords" in log
    assert "1234567" not in log
    assert "Alien" not in log


def test_one_date_of_a_batch_is_one_file(films: Films, spark: "SparkSession") -> None:
    rows = [row(user_id=number, event_date=date(2024, 1, 1 + number % 3)) for number in range(60)]
    parts = str(films.folder / "parts")
    spark.createDataFrame(pa.Table.from_pylist(rows)).repartition(8).write.parquet(parts)
    films.ingest("--input", parts)
    assert len(DeltaTable(films.dataset.table.engagements).file_uris()) == 3


def test_days_are_those_of_the_datasets_zone(
    lake: LakeSettings, tmp_path: Path, spark: "SparkSession"
) -> None:
    films = Films(lake, tmp_path, DATASET.replace('"UTC"', '"America/Los_Angeles"'))
    instants = [datetime(2024, 1, 15, 7, 59, 59, tzinfo=UTC), datetime(2024, 1, 15, 8, tzinfo=UTC)]
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        films.ingest(*films.parquet([row(event_date=instant) for instant in instants]))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert sorted(found["event_date"].day for found in films.rows()) == [14, 15]


@pytest.mark.usefixtures("spark")
def test_what_a_killed_creation_left_behind_is_no_table(films: Films) -> None:
    for location in (films.dataset.table.engagements, films.dataset.table.quarantine):
        (Path(location) / "_delta_log" / "_staged_commits").mkdir(parents=True)
    films.ingest(*films.parquet([row(), row(user_id=None)]))
    assert films.rows() == [row()]
    assert len(films.quarantine()) == 1


@pytest.mark.usefixtures("spark")
def test_a_table_with_other_columns_is_refused(films: Films) -> None:
    films.ingest("--publish", batch="")
    changed = DATASET.replace("[columns.stars]", "[columns.points]")
    other = Films(films.lake, films.folder, changed)
    with pytest.raises(SettingsError, match="column 'points' is missing there and bigint in"):
        other.ingest(*films.parquet([row()]))


def test_catalog_names_work_too(lake: LakeSettings, tmp_path: Path, spark: "SparkSession") -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS cinema")
    films = Films(lake, tmp_path, DATASET.replace("lake/films/", "cinema."))
    try:
        for _ in range(2):
            films.ingest(*films.parquet([row()]), "--publish")
        snapshot = snapshots.latest(lake, films.dataset)
        tables.verify(snapshot)
        assert tables.read(spark, snapshot.tables["engagements"]).count() == 1
        assert tables.read(spark, "spark_catalog.cinema.engagements").count() == 1
        assert tables.locate("cinema.engagements") == snapshot.tables["engagements"].location
        with pytest.raises(SettingsError, match=r"cinema\.nothing: there is none"):
            tables.locate("cinema.nothing")
    finally:
        spark.sql("DROP DATABASE cinema CASCADE")


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "names", "words"),
    [
        ([], {}, "nothing to do"),
        (["--input", "x"], {"batch": ""}, "--batch-id: missing"),
        (["--opt-outs", "x"], {"batch": ""}, "--batch-id: missing"),
        (["--input", "x"], {"as_of": ""}, "--as-of: missing"),
        (["--publish"], {"as_of": ""}, "--as-of: missing"),
        (["--publish"], {"as_of": "9999-12-31"}, "--as-of 9999-12-31: lies in the future"),
        (["--opt-outs", "x"], {}, "--opt-outs x: cannot be read"),
    ],
)
def test_options_that_do_not_fit(
    films: Films, options: list[str], names: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        films.ingest(*options, **names)


@pytest.mark.parametrize("line", ["x", "1.5", "9223372036854775808", "--1", "²", "NULL"])
def test_an_opt_out_that_is_no_id_is_not_passed_over(films: Films, line: str) -> None:
    with pytest.raises(SettingsError, match="line 2 is not a whole number of 64 bits"):
        films.ingest(*opt_out_file(films, f"7\n{line}\n"), batch="o1")


def test_opt_outs_need_a_table(lake: LakeSettings, tmp_path: Path) -> None:
    films = Films(lake, tmp_path, DATASET.replace('opt_outs = "lake/films/opt_outs"\n', ""))
    with pytest.raises(SettingsError, match=r"table\.opt_outs: missing"):
        films.ingest(*opt_out_file(films, "7\n"))


# --- once ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_a_batch_is_appended_once(films: Films, capsys: pytest.CaptureFixture[str]) -> None:
    batch = films.parquet([row(), row(user_id=None)])
    for _ in range(2):
        films.ingest(*batch, "--publish", "--format", "json")
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["appended"] for result in results] == [True, False]
    assert {result["snapshot"] for result in results} == {1}
    assert films.rows() == [row()]
    assert len(films.quarantine()) == 1


@pytest.mark.usefixtures("spark")
def test_late_rows_of_a_published_date_wait(
    films: Films, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = films.parquet([row()])
    films.ingest(*batch, "--publish")
    with pytest.raises(SettingsError, match="late rows wait for a later date"):
        films.ingest(*batch, "--publish", batch="late")
    assert films.rows() == [row()], "a run that is refused appends nothing"
    films.ingest(*batch, batch="late")
    capsys.readouterr()
    films.ingest(*batch, "--publish", "--format", "json")  # the first run once more
    assert json.loads(capsys.readouterr().out)["snapshot"] == 1
    films.ingest("--publish", batch="", as_of="2024-02-01")
    assert films.rows() == [row()] * 2, "another batch may hold the same rows"
    assert snapshots.latest(films.lake, films.dataset).snapshot_id == 2


@pytest.mark.usefixtures("spark")
def test_an_empty_batch_is_a_batch(films: Films) -> None:
    empty = pa.Table.from_pylist([row()]).slice(0, 0)
    films.ingest(*films.parquet(empty), "--publish")
    films.ingest(*films.parquet([row()]), "--publish")
    assert films.rows() == []
    assert snapshots.latest(films.lake, films.dataset).snapshot_id == 1


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("stage", ["quarantine", "engagements", "publish"])
def test_a_run_that_died_between_tables_is_completed(
    films: Films, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = films.parquet([row(), row(user_id=None)])
    append_once = batches.append_once

    def dies_in_front(spark: Any, rows: Any, location: str, batch_id: str) -> bool:
        if location.endswith(stage):
            raise KeyboardInterrupt
        return append_once(spark, rows, location, batch_id)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batches, "append_once", dies_in_front)
        patch.setattr(snapshots, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            films.ingest(*batch, "--publish")
    films.ingest(*batch, "--publish")
    assert films.rows() == [row()]
    assert len(films.quarantine()) == 1
    assert snapshots.latest(films.lake, films.dataset).snapshot_id == 1


@pytest.mark.usefixtures("spark")
def test_a_commit_that_another_program_overwrote_is_noticed(
    films: Films, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "holds", lambda *_: False)
    with pytest.raises(LedgerConflictError, match="its commit of batch b1 was lost"):
        films.ingest(*films.parquet([row()]))


@pytest.mark.usefixtures("spark")
def test_opt_outs_are_added_once(films: Films) -> None:
    films.ingest(*opt_out_file(films, "9007199254740993\n-7\n\n-7\n"), batch="o1")
    films.ingest(*opt_out_file(films, "9007199254740993\n-7\n"), batch="o1")
    films.ingest(*opt_out_file(films, "-7\n 8 \n"), batch="o2")
    assert films.opt_outs() == [-7, 8, 9007199254740993]


@pytest.mark.usefixtures("spark")
def test_opt_outs_as_text(lake: LakeSettings, tmp_path: Path) -> None:
    films = Films(lake, tmp_path, DATASET.replace('"bigint"', '"string"', 1))
    films.ingest(*opt_out_file(films, "u1\n  ü 2 \n"), batch="o1")
    assert films.opt_outs() == ["u1", "ü 2"]


def opt_out_file(films: Films, text: str) -> list[str]:
    (films.folder / "opt_outs.txt").write_text(text, encoding="utf-8")
    return ["--opt-outs", str(films.folder / "opt_outs.txt")]


# --- other processes -----------------------------------------------------------------------------


def start(films: Films, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jobs.ingest_engagements", *films.command(*options)]
    environment = {**os.environ, "DISCREET_COMET": "0"}
    return subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_until(happened: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


@pytest.mark.usefixtures("spark")
def test_a_killed_run_is_completed_by_the_next(films: Films) -> None:
    batch = films.parquet([row(user_id=n % 900 or None, film=f"f{n}") for n in range(20_000)])
    place = Path(films.dataset.table.engagements)
    with start(films, *batch, "--publish") as process:
        wait_until(lambda: any(place.rglob("*.parquet")))  # the append has begun
        process.send_signal(signal.SIGKILL)
    films.ingest(*batch, "--publish")
    time.sleep(3)  # a JVM can outlive the killed program by some seconds
    accepted = sorted(found["film"] for found in films.rows())
    assert accepted == sorted(f"f{n}" for n in range(20_000) if n % 900)
    assert len(films.quarantine()) == 23
    assert snapshots.latest(films.lake, films.dataset).snapshot_id == 1
    tables.verify(snapshots.latest(films.lake, films.dataset))


def test_two_runs_at_once_append_once(films: Films) -> None:
    batch = films.parquet([row(user_id=number) for number in range(500)])
    processes = [start(films, *batch, "--publish", "--format", "json") for _ in range(2)]
    appended = []
    for process in processes:
        output, messages = process.communicate(timeout=600)
        assert process.returncode == 0, messages.decode()
        appended.append(json.loads(output)["appended"])
    assert sorted(appended) == [False, True]
    assert len(films.rows()) == 500
    assert snapshots.latest(films.lake, films.dataset).snapshot_id == 1
