"""What has to go is nowhere any more: every file of the lake is searched, packed or not."""

import hashlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs.errors import ClaimError, SettingsError
from jobs import ingest_engagements
from jobs.lake import batches, engagements, tables
from jobs.purge_expired import purge_expired
from tests import lakes, programs
from tests.lakes import AS_OF, NOON, SmallLake, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAVES, STAYS, EXPIRES = "u-7b1e-who-leaves", "u-3c44-who-stays", "u-9d02-of-long-ago"
DAY = timedelta(days=1)
DEVICES: dict[str, Any] = {"element": "device"}


@pytest.fixture
def small(tmp_path: Path, secret: bytes, spark: "SparkSession") -> SmallLake:
    """A lake whose tables were made as an ingest makes them."""
    return make(spark, tmp_path / "lake", secret)


def make(spark: "SparkSession", root: Path, secret: bytes, **changes: str) -> SmallLake:
    made = lakes.make(root, secret, **changes)
    for folder in (root / "lake" / "clips").iterdir():
        folder.rename(root / f"unused-{folder.name}")
    batches.create_tables(spark, made.dataset)
    return made


def quarantine(small: SmallLake, *rows: str) -> None:
    content = [{"batch_id": "b0", "as_of": AS_OF, "reason": "odd", "row": row} for row in rows]
    names = {"batch_id": pa.string(), "as_of": pa.date32(), "reason": pa.string()}
    schema = pa.schema({**names, "row": pa.string()})
    table = pa.Table.from_pylist(content, schema=schema)
    write_deltalake(small.dataset.table.quarantine, table, mode="append")


def ingest(small: SmallLake, rows: list[lakes.Row]) -> None:
    """Take in a later batch, by the program."""
    file = small.root / "batch.parquet"
    pq.write_table(lakes.engagement_table(small.dataset, rows), file)
    command = ["--conf", small.lake.source, "--dataset", "clips", "--as-of", "2024-03-03"]
    command += ["--input", str(file), "--batch-id", "late"]
    ingest_engagements.main(ingest_engagements.arguments().parse_args(command))
    file.unlink()


def files_with(small: SmallLake, text: str) -> list[Path]:
    """Find a text in the bytes, values and statistics of every file of the lake."""
    files = [path for path in (small.root / "lake").rglob("*") if path.is_file()]
    return [path for path in files if any(text in part for part in parts(path))]


def parts(path: Path) -> Iterator[str]:
    yield path.read_bytes().decode("latin-1")
    if path.suffix == ".parquet" and path.read_bytes().endswith(b"PAR1"):  # else a killed writer's
        file = pq.ParquetFile(path)
        yield str(file.read().to_pylist())
        for number in range(file.metadata.num_row_groups):
            yield str(file.metadata.row_group(number).to_dict())


def content(location: str) -> dict[Path, str]:
    """Digest of each file of a table."""
    files = [path for path in Path(location).rglob("*") if path.is_file()]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def users(spark: "SparkSession", small: SmallLake, snapshot_id: int | None = None) -> set[str]:
    """Whom a question on a snapshot is about."""
    question = small.question(snapshot_id, **DEVICES)
    tables.verify(question.snapshot)
    return {row["user"] for row in engagements.select(spark, question).collect()}


def test_tables_that_would_keep_something_are_refused(
    tmp_path: Path, secret: bytes, spark: "SparkSession"
) -> None:
    made = lakes.make(tmp_path / "lake", secret)  # with the properties that delta-rs chooses
    with pytest.raises(SettingsError, match="keeps statistics of 'user_id', so a person could not"):
        batches.create_tables(spark, made.dataset)


def test_nothing_of_a_person_who_left_is_in_any_file(
    small: SmallLake, spark: "SparkSession"
) -> None:
    small.append([watched(user, 1, device="tv") for user in (LEAVES, STAYS)])
    small.append([watched(user, 9, device="tv") for user in (LEAVES, STAYS)])
    small.append([watched(EXPIRES, 40, device="tv")])
    quarantine(small, f'{{"user_id":" {LEAVES}"}}')
    small.publish()
    small.release(spark, **DEVICES)
    small.opt_out(LEAVES)
    small.publish(AS_OF + DAY, NOON + DAY)
    ledger = content(small.lake.tables.ledger)

    def purge(days: int) -> bool:
        now = NOON + days * DAY
        return purge_expired(small.lake, small.dataset, spark=spark, clock=lambda: now)[1]

    assert purge(1), "the newest snapshot is being read"
    assert users(spark, small) == {STAYS}
    assert files_with(small, LEAVES)
    assert files_with(small, EXPIRES)
    small.publish(AS_OF + 2 * DAY, NOON + 2 * DAY)
    assert not purge(2)
    assert users(spark, small) == {STAYS}
    assert files_with(small, LEAVES) == []
    assert files_with(small, EXPIRES) == []
    assert files_with(small, STAYS)
    assert content(small.lake.tables.ledger) == ledger, "the ledger is never purged"
    with pytest.raises(ClaimError, match="ask about the newest snapshot, or publish one"):
        small.release(spark, snapshot_id=2, at=NOON + 2 * DAY, **DEVICES)

    with pytest.raises(SettingsError, match="may not be read any more"):
        small.release(
            spark, at=NOON + 9 * DAY, **DEVICES, window={"from": AS_OF - 28 * DAY, "to": AS_OF}
        )

    late = [watched(user, device="radio") for user in (LEAVES, STAYS)]
    rotate_secret(small)
    with pytest.raises(SettingsError, match="known under another secret; name that one under"):
        ingest(small, late)
    name_opt_out_secret(small)
    ingest(small, [*late, watched(LEAVES, device="no such device")])
    assert files_with(small, LEAVES) == [], "neither a row nor a row in quarantine"
    rows = DeltaTable(small.dataset.table.engagements).to_pyarrow_table()
    assert rows["device"].to_pylist().count("radio") == 1


def rotate_secret(small: SmallLake) -> None:
    secret = small.lake.secret_path
    secret.rename(secret.with_name("first-secret"))
    secret.write_text(bytes(range(100, 132)).hex())


def name_opt_out_secret(small: SmallLake) -> None:
    file = Path(small.lake.source)
    file.write_text(f'{file.read_text()}\n[opt_out_secret]\nfile = "conf/first-secret"\n')


def test_killed_and_run_again_it_completes(
    tmp_path: Path, secret: bytes, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    small = make(spark, tmp_path / "lake", secret, retention_days="36000")
    people = [LEAVES, STAYS, *(f"u{number}" for number in range(8))]
    small.append([watched(user, days, device="tv") for days in range(1, 9) for user in people])
    small.opt_out(LEAVES)
    small.publish()
    options = ["--conf", small.lake.source, "--dataset", "clips"]
    before = content(str(small.root / "lake"))
    dry = programs.run_here(capsys, "purge_expired", *options, "--dry-run")
    assert "engagements  rows from before" in dry.out
    assert content(str(small.root / "lake")) == before

    process = programs.start("python", "-m", "jobs.purge_expired", *options)
    hashes = Path(f"{small.dataset.table.opt_outs}_purged")
    wait_until(lambda: any(hashes.glob("*.parquet")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(3)  # a JVM can outlive the killed program by some seconds
    assert files_with(small, LEAVES)
    again = programs.run_here(capsys, "purge_expired", *options, "--format", "json")
    assert json.loads(again.out)["files"] == "removed"
    assert again.code == 0
    assert "snapshot 1 cannot be read any more: publish the next one" in again.err
    assert files_with(small, LEAVES) == []
    rows = DeltaTable(small.dataset.table.engagements).to_pyarrow_table()
    assert sorted(rows["user_id"].to_pylist()) == sorted(8 * people[1:])
    assert DeltaTable(str(hashes)).to_pyarrow_table().num_rows == 1


def wait_until(
    happened: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 300
) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)
