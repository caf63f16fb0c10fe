"""Every row becomes exactly what the dataset file declares, or goes to quarantine with reasons."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_udfs.errors import SettingsError
from jobs.ingest_engagements import format_of, read_input
from jobs.lake import checking
from jobs.lake.session import EngineError, temporary_settings
from jobs.lake.settings import DatasetSettings
from jobs.lake.toml_files import build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]

AS_OF = date(2024, 1, 31)
FILMS = {
    "name": "films",
    "description": "Films seen",
    "table": {
        "engagements": "engagements",
        "quarantine": "quarantine",
        "privacy_unit": "user",
        "user_id": "user_id",
        "user_id_type": "bigint",
        "event_date": "event_date",
        "retention_days": 30,
        "purge_lag_days": 5,
        "bounding_salt": "films-1",
    },
    "columns": {
        "film": {"type": "string", "use": ["element"], "domain": "unknown"},
        "genre": {"type": "string", "use": ["element"], "domain": ["Drama", "War"], "many": True},
        "stars": {"type": "bigint", "use": ["filter"], "domain": [1, 2, 3]},
    },
    "budget": {
        "mode": "enforce",
        "epsilon": 0.5,
        "delta": "1e-6",
        "delta_prime": "1e-6",
        "units": 600,
        "calls": 30,
        "period": "month",
        "gaussian": False,
    },
    "analysts": {},
}


@pytest.fixture
def films() -> DatasetSettings:
    return build("films.toml", DatasetSettings, FILMS)


@pytest.fixture
def text_films() -> DatasetSettings:
    """The same with user ids that are text."""
    table = FILMS["table"] | {"user_id_type": "string"}  # type: ignore[operator]
    return build("films.toml", DatasetSettings, FILMS | {"table": table})


def row(**changes: Any) -> Row:
    usual = {
        "user_id": 1,
        "event_date": date(2024, 1, 15),
        "film": "Alien",
        "genre": ["Drama"],
        "stars": 3,
    }
    return usual | changes


def check(rows: "DataFrame", dataset: DatasetSettings) -> tuple[list[Row], list[Row]]:
    """Accepted and rejected rows."""
    checking.check_columns(rows, dataset, ignore_undeclared=False)
    accepted = checking.accepted(rows, dataset, AS_OF).toArrow().to_pylist()
    rejected = checking.rejected(rows, dataset, AS_OF, "b1").toArrow().to_pylist()
    assert len(accepted) + len(rejected) == rows.count()
    return accepted, rejected


def frame(spark: "SparkSession", tmp_path: Path, rows: pa.Table | Sequence[Row]) -> "DataFrame":
    """Rows as they are read from a Parquet file, as a batch is."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
    pq.write_table(table, tmp_path / "in.parquet")
    return read_input(spark, str(tmp_path / "in.parquet"), "parquet")


def text_frame(spark: "SparkSession", tmp_path: Path, text: str) -> "DataFrame":
    (tmp_path / "in.csv").write_text(text, encoding="utf-8")
    return read_input(spark, str(tmp_path / "in.csv"), "csv")


HEADER = "user_id,event_date,film,genre,stars\n"
REASONS: dict[str, Row] = {
    "user_id: missing": {"user_id": None},
    "event_date: missing": {"event_date": None},
    "event_date: after the as-of date": {"event_date": date(2024, 2, 1)},
    "event_date: older than the retention": {"event_date": date(2023, 12, 31)},
    "genre: outside the declared domain": {"genre": ["Drama", "Rock"]},
    "stars: outside the declared domain": {"stars": 4},
    "film: longer than 4096 bytes": {"film": 2049 * "é"},
    "user_id: missing; stars: outside the declared domain": {"stars": 5, "user_id": None},
}


def test_a_row_that_breaks_a_rule_goes_to_quarantine(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    odd = [row(**change) for change in REASONS.values()]
    accepted, rejected = check(frame(spark, tmp_path, [row(), *odd]), films)
    assert accepted == [row()]
    assert [found["reason"] for found in rejected] == list(REASONS)
    assert {(found["batch_id"], found["as_of"]) for found in rejected} == {("b1", AS_OF)}
    originals = [json.loads(found["row"]) for found in rejected]
    assert originals == json.loads(json.dumps(odd, default=str))


def test_what_breaks_no_rule_is_kept_as_it_is(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    rows = [
        *[row()] * 3,  # whole duplicates are events of their own
        row(film=None, genre=None, stars=None),
        row(genre=[None, "War"]),
        row(genre=[]),
        row(event_date=date(2024, 1, 1)),  # the first day of the retention
        row(event_date=AS_OF),
        row(film=2048 * "é"),
    ]
    accepted, rejected = check(frame(spark, tmp_path, rows), films)
    assert sorted(accepted, key=str) == sorted(rows, key=str)
    assert rejected == []


def test_a_repeated_value_of_one_engagement_counts_once(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    accepted, _ = check(frame(spark, tmp_path, [row(genre=["War", "Drama", "War"])]), films)
    assert accepted[0]["genre"] == ["War", "Drama"]


# --- text ----------------------------------------------------------------------------------------


def test_a_missing_key_is_not_the_text_null(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    names = ["null", "None", "NULL", "", "nan", "\\N"]
    text = "".join(f'7,2024-01-15,"{name}",Drama,1\n' for name in names)
    text += "7,2024-01-15,,Drama,1\n"
    accepted, _ = check(text_frame(spark, tmp_path, HEADER + text), films)
    assert Counter(found["film"] for found in accepted) == Counter([*names, None])


@pytest.mark.parametrize(
    ("column", "value"),
    [("film", "CAST(X'41FF' AS STRING)"), ("genre", "array('War', CAST(X'C3' AS STRING))")],
)
def test_text_that_is_not_unicode_goes_to_quarantine(
    films: DatasetSettings, spark: "SparkSession", column: str, value: str
) -> None:
    usual = {
        "user_id": "1L",
        "event_date": "DATE '2024-01-15'",
        "film": "'Alien'",
        "genre": "array('War')",
        "stars": "3L",
    }
    columns = ", ".join(f"{value} AS {name}" for name, value in (usual | {column: value}).items())
    accepted, rejected = check(spark.sql(f"SELECT {columns}"), films)
    assert accepted == []
    assert rejected[0]["reason"].startswith(f"{column}: not ")


def test_text_is_kept_byte_by_byte(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    names = [
        "é",
        "e\u0301",
        "Ⅷ",
        "🎬",
        'a, "b"',
        " a",
        "a ",
        "A",
        "a",
        "ﬀ",
        "a\tb",
        "a\nb",
        "%20",
        "a\0b",
    ]
    accepted, _ = check(frame(spark, tmp_path, [row(film=name) for name in names]), films)
    assert sorted(found["film"] for found in accepted) == sorted(names)


def test_the_format_of_a_batch_is_told_by_its_name() -> None:
    names = ("a.csv", "s3://in/A.CSV.gz", "day.parquet", "a.csv/2024/01", "s3://in/2024")
    assert [format_of(name) for name in names] == ["csv", "csv", *["parquet"] * 3]


def test_a_batch_in_another_format_is_said_to_be_one(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(HEADER, encoding="utf-8")
    with pytest.raises(EngineError, match=r"in\.txt: cannot be read as parquet .*--format-in"):
        read_input(spark, str(tmp_path / "in.txt"), "parquet")


def test_commas_quotes_and_backslashes_survive_a_text_file(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    names = ['a, "b"', "a\\", '"', "a;b", "#a", "é"]
    with (tmp_path / "in.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "event_date", "film", "genre", "stars"])
        writer.writerows([[7, "2024-01-15", name, "Drama|War", 1] for name in names])
    accepted, _ = check(read_input(spark, str(tmp_path / "in.csv"), "csv"), films)
    assert sorted(found["film"] for found in accepted) == sorted(names)
    assert accepted[0]["genre"] == ["Drama", "War"]


def test_a_line_with_too_few_or_many_fields_goes_to_quarantine(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    lines = "1,2024-01-15,Alien,Drama,3\n2,2024-01-15\n3,2024-01-15,Alien,Drama,3,4\n"
    accepted, rejected = check(text_frame(spark, tmp_path, HEADER + lines), films)
    assert accepted == [row()]
    assert [found["reason"] for found in rejected] == ["not the fields of the header"] * 2


# --- numbers -------------------------------------------------------------------------------------

NEAR = [9007199254740992, 9007199254740993]


def with_ids(ids: Sequence[Any], type_: pa.DataType) -> pa.Table:
    others = pa.Table.from_pylist([row() for _ in ids]).drop_columns(["user_id"])
    return others.append_column("user_id", pa.array(ids, type_))


@pytest.mark.parametrize(
    ("convert", "type_"),
    [(int, pa.int64()), (str, pa.string()), (Decimal, pa.decimal128(20, 0))],
    ids=["bigint", "text", "decimal"],
)
def test_ids_that_differ_in_the_last_digit_stay_apart(
    films: DatasetSettings,
    text_films: DatasetSettings,
    spark: "SparkSession",
    tmp_path: Path,
    convert: Any,
    type_: pa.DataType,
) -> None:
    """Two ids that floating point takes for one, three rows each, and a row without an id."""
    ids = [None if value is None else convert(value) for value in [*NEAR * 3, None]]
    rows = frame(spark, tmp_path, with_ids(ids, type_))
    for dataset, kind in ((films, int), (text_films, str)):
        accepted, rejected = check(rows, dataset)
        assert Counter(found["user_id"] for found in accepted) == dict.fromkeys(map(kind, NEAR), 3)
        assert [odd["reason"] for odd in rejected] == ["user_id: missing"]


def test_numbers_that_are_not_exact_are_never_rounded(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    ids = [1.0, 2.5, float("nan"), float("inf"), 2.0**53, -(2.0**53), 2.0**53 - 1, None]
    accepted, _ = check(frame(spark, tmp_path, with_ids(ids, pa.float64())), films)
    assert sorted(found["user_id"] for found in accepted) == [1, 2**53 - 1]


def test_decimals_that_do_not_fit_are_never_rounded(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    ids = [Decimal("7.00"), Decimal("7.50"), Decimal(2**63), Decimal(2**63 - 1)]
    accepted, _ = check(frame(spark, tmp_path, with_ids(ids, pa.decimal128(24, 2))), films)
    assert sorted(found["user_id"] for found in accepted) == [7, 2**63 - 1]


def test_text_that_is_no_number_is_never_bent_into_one(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    ids = ["1", " 2 ", "1.0", "1e3", "x", "٣", "0x1", "9223372036854775808", '""', "NaN"]
    text = "".join(f"{value},2024-01-15,Alien,Drama,3\n" for value in ids)
    accepted, rejected = check(text_frame(spark, tmp_path, HEADER + text), films)
    assert sorted(found["user_id"] for found in accepted) == [1, 2]
    assert {found["reason"] for found in rejected} == {
        "user_id: not bigint",
        "user_id: missing; user_id: not bigint",  # empty text is both
    }


# --- dates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("zone", "days"), [("UTC", [15, 15]), ("America/Los_Angeles", [14, 15])])
def test_the_day_of_an_instant_is_one_of_the_sessions_zone(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path, zone: str, days: list[int]
) -> None:
    instants = [datetime(2024, 1, 15, 7, 59, 59, tzinfo=UTC), datetime(2024, 1, 15, 8, tzinfo=UTC)]
    stored = frame(spark, tmp_path, [row(event_date=instant) for instant in instants])
    text = "".join(f"1,{instant.isoformat()},Alien,Drama,3\n" for instant in instants)
    written = text_frame(spark, tmp_path, HEADER + text)
    with temporary_settings(spark, {"spark.sql.session.timeZone": zone}):
        for rows in (stored, written):
            accepted, _ = check(rows, films)
            assert sorted(found["event_date"].day for found in accepted) == days


def test_text_that_is_no_date_goes_to_quarantine(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    odd = ["2024", "12:30", "2024-01-32", "15.01.2024", "yesterday", "now", "2024-01-15x", "epoch"]
    text = "".join(f"1,{day},Alien,Drama,3\n" for day in odd)
    accepted, rejected = check(text_frame(spark, tmp_path, HEADER + text), films)
    assert accepted == []
    assert [found["reason"] for found in rejected] == ["event_date: not date"] * len(odd)


# --- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"film": None, "flim": "Alien"}, "no column 'film'"),
        ({"age": 30}, "column 'age' is not declared by dataset films"),
        ({"user_id": True}, "column 'user_id' is boolean"),
        ({"film": 1.5}, "column 'film' is double"),
        ({"genre": [1.5]}, "column 'genre' is array<double>"),
        ({"event_date": 20240115}, "column 'event_date' is bigint"),
        ({"stars": date(2024, 1, 1)}, "column 'stars' is date"),
    ],
)
def test_wrong_columns_are_one_clear_line(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path, change: Row, words: str
) -> None:
    content = {key: value for key, value in row(**change).items() if value is not None}
    rows = frame(spark, tmp_path, [content])
    with pytest.raises(SettingsError, match=words) as caught:
        checking.check_columns(rows, films, ignore_undeclared=False)
    assert "\n" not in str(caught.value)
    assert "Alien" not in str(caught.value)


def test_undeclared_columns_can_be_left_out(
    films: DatasetSettings, spark: "SparkSession", tmp_path: Path
) -> None:
    rows = frame(spark, tmp_path, [row(age=30)])
    checking.check_columns(rows, films, ignore_undeclared=True)
    assert checking.accepted(rows, films, AS_OF).toArrow().to_pylist() == [row()]


def test_a_column_without_values_has_no_type_and_passes(
    films: DatasetSettings, spark: "SparkSession"
) -> None:
    schema = "user_id bigint, event_date date, film void, genre void, stars void"
    rows = spark.createDataFrame([(1, date(2024, 1, 15), None, None, None)], schema)
    accepted, _ = check(rows, films)
    assert accepted == [row(film=None, genre=None, stars=None)]


def test_an_empty_text_file_has_no_columns(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the first line must name the columns"):
        text_frame(spark, tmp_path, "")
