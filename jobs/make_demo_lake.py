"""Make a lake to try things on: real film ratings, or made-up engagements of any size.

Without options: MovieLens-100k (943 people, 1,682 films, 100,000 ratings), downloaded once. With
--synthetic ROWS: a seeded table for tests and scale; the same options give the same table.
Both pass the checks of `ingest_engagements` and end with a published snapshot.
"""

import argparse
import os
import secrets
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from dp_udfs.errors import SettingsError
from jobs.lake import batches, checking, movielens, program, reports, snapshots, synthetic
from jobs.lake.session import get_session
from jobs.lake.settings import SECRET_BYTES, DatasetSettings, LakeSettings, load_dataset, load_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOVIELENS = ("movielens", "movielens-strict")  # the same rows under two sets of parameters


def main(options: argparse.Namespace) -> None:
    """Make the lake that the command line describes."""
    lake = load_lake(options.conf)
    made_secret = make_secret(lake)
    if options.synthetic is None:
        with program.progress("fetch MovieLens-100k"):
            file = _fetch_movielens(options.downloads or Path(lake.root) / "lake" / "downloads")
        spark = get_session("discreet demo lake")
        rows, batch, as_of = spark.read.parquet(str(file)), "ml-100k", movielens.AS_OF
        datasets = [load_dataset(name, lake) for name in MOVIELENS]
    else:
        datasets = [load_dataset("synthetic", lake)]
        shape = _shape(options)
        _check_cohorts(datasets[0], shape)
        spark = get_session("discreet demo lake")
        rows, batch, as_of = synthetic.engagements(spark, shape), str(shape), synthetic.AS_OF
    made = [
        {
            "dataset": dataset.name,
            "snapshot": _ingest(spark, lake, dataset, rows, batch, as_of),
            "as_of": as_of,
            "engagements": dataset.table.engagements,
        }
        for dataset in datasets
    ]
    reports.show(options, made, {} if made_secret is None else {"new_secret": made_secret})


def make_secret(lake: LakeSettings) -> Path | None:
    """Make the key of the noise where the settings name a file and there is none; return its path.

    Whoever can read it can take the noise off again, so only its owner may.
    """
    if lake.secret.file is None or lake.secret_path.exists():
        return None
    path = lake.secret_path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")
    return path


def _ingest(
    spark: "SparkSession",
    lake: LakeSettings,
    dataset: DatasetSettings,
    rows: "DataFrame",
    batch: str,
    as_of: date,
) -> int:
    """Append the rows once and publish; return the snapshot's id."""
    with batches.writer_lock(dataset.table.engagements):
        batches.create_tables(spark, dataset)
        if not batches.holds(spark, dataset.table.engagements, batch):
            snapshots.check_open(lake, dataset, as_of)
        checking.check_columns(rows, dataset, ignore_undeclared=False)
        with program.progress("check and append the rows"):
            batches.add_engagements(spark, dataset, rows, batch_id=batch, as_of=as_of)
        return snapshots.publish(lake, dataset, as_of, datetime.now(UTC), spark).snapshot_id


def _fetch_movielens(folder: Path) -> Path:
    """Return the ratings as a Parquet file: rows inside a plan would cost Spark more time."""
    file, unfinished = folder / "ml-100k.parquet", folder / f"ml-100k.parquet.{os.getpid()}"
    pq.write_table(movielens.read(movielens.fetch(folder)), unfinished)
    return unfinished.replace(file)


def _shape(options: argparse.Namespace) -> synthetic.Shape:
    return synthetic.Shape(
        rows=options.synthetic,
        users=options.users or max(1, options.synthetic // 20),
        elements=options.elements,
        cohorts=options.cohorts,
        days=options.days,
        seed=options.seed,
    )


def _check_cohorts(dataset: DatasetSettings, shape: synthetic.Shape) -> None:
    """Refuse more cohorts than the dataset file lists: that list is public and fixed."""
    listed = len(dataset.columns["audience"].domain)
    if shape.cohorts > listed:
        raise SettingsError(
            f"--cohorts {shape.cohorts}: dataset {dataset.name} lists {listed} audiences"
        )


def arguments() -> argparse.ArgumentParser:
    """Return the options of this program."""
    parser = program.parser(__doc__)
    parser.add_argument("--downloads", type=Path, help="where downloads are kept")
    parser.add_argument("--synthetic", type=int, metavar="ROWS", help="made-up rows instead")
    shape = parser.add_argument_group("shape of the made-up rows")
    shape.add_argument("--users", type=int, help="people (default: one for each 20 rows)")
    shape.add_argument("--elements", type=int, default=50_000)
    shape.add_argument("--cohorts", type=int, default=200)
    shape.add_argument("--days", type=int, default=30)
    shape.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    program.run(main, arguments())
