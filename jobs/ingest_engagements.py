r"""Check a batch of engagements, append it to its table once, and publish a snapshot.

    python -m jobs.ingest_engagements --dataset movielens --input ratings.csv --batch-id monday \
        --as-of 2026-11-30 --publish

The first line of a CSV names its columns; dates are written 2026-11-30, and the values of a column
with `many` stand in one field: Drama|Comedy. Rows that break a rule of the dataset file go to its
quarantine table with the reason. The same batch id again appends nothing, so a run that died is
simply started again. How many rows went to quarantine is written to stderr: this is the operator's
program, and analysts see neither its output nor the quarantine.

A snapshot is what questions read. Publish on a fixed schedule (each night, say), with the date of
the schedule as --as-of: what comes later waits for the next one.
"""

import argparse
import logging
from datetime import UTC, date, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dp_udfs.errors import SettingsError
from jobs.lake import batches, checking, consent, program, reports, snapshots
from jobs.lake.session import EngineError, get_session, is_engine_error, shows_values
from jobs.lake.settings import DatasetSettings, LakeSettings, load_dataset, load_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)


def main(options: argparse.Namespace) -> None:
    """Take in what the command line names."""
    _check_options(options)
    lake = load_lake(options.conf)
    dataset = load_dataset(options.dataset, lake)
    opt_outs = None if options.opt_outs is None else read_user_ids(options.opt_outs, dataset)
    spark = get_session("discreet ingest")
    facts: dict[str, Any] = {"dataset": dataset.name, "batch": options.batch_id}
    with batches.writer_lock(dataset.table.engagements):
        batches.create_tables(spark, dataset)
        if options.publish and _is_new(spark, dataset, options):
            snapshots.check_open(lake, dataset, options.as_of)
        appended = False
        if opt_outs is not None:
            appended |= _add_opt_outs(spark, dataset, opt_outs, options.batch_id)
        if options.input is not None:
            appended |= _add_engagements(spark, lake, dataset, options)
        if options.batch_id is not None:
            facts["appended"] = appended
        if options.publish:
            facts |= _publish(spark, lake, dataset, options.as_of, appended=appended)
    reports.show(options, [], facts)


def _check_options(options: argparse.Namespace) -> None:
    if options.input is None and options.opt_outs is None and not options.publish:
        raise SettingsError("nothing to do: give --input, --opt-outs or --publish")
    if options.batch_id is None and (options.input is not None or options.opt_outs is not None):
        raise SettingsError("--batch-id: missing; it names this batch, so that it is added once")
    if options.as_of is None and (options.input is not None or options.publish):
        raise SettingsError("--as-of: missing; give the date of the schedule, as 2024-01-31")
    if options.as_of is not None and options.as_of > datetime.now(UTC).date() + timedelta(days=1):
        # dates only move on: a slip of the keyboard would close all dates before it
        raise SettingsError(f"--as-of {options.as_of}: lies in the future")


def _is_new(spark: "SparkSession", dataset: DatasetSettings, options: argparse.Namespace) -> bool:
    """Whether this run will change a table that questions read."""
    table = dataset.table
    changed = [(options.input, table.engagements), (options.opt_outs, table.opt_outs)]
    return any(
        source is not None and location and not batches.holds(spark, location, options.batch_id)
        for source, location in changed
    )


def _add_engagements(
    spark: "SparkSession",
    lake: LakeSettings,
    dataset: DatasetSettings,
    options: argparse.Namespace,
) -> bool:
    with program.progress(f"check and append batch {options.batch_id}"):
        rows = read_input(spark, options.input, options.format_in or format_of(options.input))
        checking.check_columns(rows, dataset, ignore_undeclared=options.ignore_undeclared)
        staying = consent.leave_out(spark, lake, dataset, rows)
        appended = batches.add_engagements(
            spark, dataset, staying, batch_id=options.batch_id, as_of=options.as_of
        )
    for reason, count in batches.quarantined(spark, dataset, options.batch_id).items():
        logger.warning("quarantine: %d rows of batch %s: %s", count, options.batch_id, reason)
    return appended


def _add_opt_outs(
    spark: "SparkSession", dataset: DatasetSettings, ids: list[int] | list[str], batch_id: str
) -> bool:
    with program.progress("append opt-outs"):
        schema = f"user_id {dataset.table.user_id_type}"
        users = spark.createDataFrame([(user,) for user in ids], schema)
        return batches.add_opt_outs(spark, dataset, users, batch_id=batch_id)


def _publish(
    spark: "SparkSession",
    lake: LakeSettings,
    dataset: DatasetSettings,
    as_of: date,
    *,
    appended: bool,
) -> dict[str, Any]:
    """Publish the date, unless it is published and this run is only a repeat."""
    with program.progress("publish"):
        snapshot = None if appended else snapshots.find(lake, dataset, as_of)
        if snapshot is None:
            snapshot = snapshots.publish(lake, dataset, as_of, datetime.now(UTC), spark)
    return {"snapshot": snapshot.snapshot_id, "as_of": snapshot.as_of}


def format_of(path: str) -> str:
    """Tell the format of a batch by its name: CSV, packed or not, or else Parquet."""
    return "csv" if ".csv" in PurePosixPath(path.lower()).suffixes[-2:] else "parquet"


def read_input(spark: "SparkSession", path: str, format_in: str) -> "DataFrame":
    """Read a batch as it is: a text file as text, so that no type is guessed.

    Raises
    ------
    EngineError
        If it is not there, or not in that format.
    """
    try:
        return _read(spark, path, format_in)
    except Exception as error:
        if shows_values() or not is_engine_error(error):
            raise
        raise EngineError(
            f"--input {path}: cannot be read as {format_in} ({type(error).__name__}); see that it "
            f"is there, and name its format with --format-in"
        ) from None


def _read(spark: "SparkSession", path: str, format_in: str) -> "DataFrame":
    if format_in != "csv":
        return spark.read.format(format_in).load(path)
    dialect = {
        "header": "true",
        "escape": '"',
        "enforceSchema": "false",
        "nullValue": "\u0001",  # only a field without any text is NULL; "" is the empty text
    }
    header = spark.read.options(**dialect).csv(path).columns
    if not header:
        raise SettingsError(f"--input {path}: an empty file; the first line must name the columns")
    fields = [f"`{name.replace('`', '``')}` string" for name in [*header, checking.MALFORMED]]
    return spark.read.options(
        **dialect, mode="PERMISSIVE", columnNameOfCorruptRecord=checking.MALFORMED
    ).csv(path, schema=", ".join(fields))


def read_user_ids(path: Path, dataset: DatasetSettings) -> list[int] | list[str]:
    """Read a text file with one user id a line.

    Raises
    ------
    SettingsError
        If a line is no id: somebody who opts out must not be missed. It names the line only. Also
        if the dataset has no table of opt-outs.
    """
    if dataset.table.opt_outs is None:
        raise SettingsError(
            f"dataset {dataset.name}: table.opt_outs: missing, so nobody can opt out"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"--opt-outs {path}: cannot be read as a text file") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if dataset.table.user_id_type == "string":
        return [text for _, text in numbered]
    for number, text in numbered:
        if not text.removeprefix("-").isdecimal() or not -(2**63) <= int(text) < 2**63:
            raise SettingsError(
                f"--opt-outs {path}: line {number} is not a whole number of 64 bits"
            )
    return [int(text) for _, text in numbered]


def arguments() -> argparse.ArgumentParser:
    """Return the options of this program."""
    parser = program.parser(__doc__)
    parser.add_argument("--dataset", required=True, help="dataset file's name, without .toml")
    parser.add_argument("--input", help="file, folder or URI with the rows of the batch")
    parser.add_argument(
        "--format-in",
        choices=["csv", "parquet", "delta"],
        help="its format (default: csv for a name in .csv or .csv.gz, else parquet)",
    )
    parser.add_argument("--batch-id", help="name of the batch: the same name is added once")
    parser.add_argument("--as-of", type=date.fromisoformat, help="date of the schedule")
    parser.add_argument("--opt-outs", type=Path, help="text file, one user id a line")
    parser.add_argument("--publish", action="store_true", help="publish a snapshot for --as-of")
    parser.add_argument(
        "--ignore-undeclared",
        action="store_true",
        help="leave out columns that the dataset file does not declare",
    )
    return parser


if __name__ == "__main__":
    program.run(main, arguments())
