"""The session is the caller's: used, never stopped, never changed for good."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.lake import runtime
from jobs.lake.session import EngineError, errors_without_values, get_session, temporary_settings

PARTITIONS = "spark.sql.shuffle.partitions"
UNSET = "spark.sql.optimizer.windowGroupLimitThreshold"


def test_the_active_session_is_used_as_it_is(spark: SparkSession) -> None:
    assert get_session("another name", {PARTITIONS: "77"}) is spark
    assert spark.conf.get(PARTITIONS) == "2"


def test_the_session_of_another_thread_is_used_as_it_is(spark: SparkSession) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(get_session, "another name", {PARTITIONS: "77"}).result() is spark
    assert spark.conf.get(PARTITIONS) == "2"


def test_settings_are_temporary(spark: SparkSession) -> None:
    assert UNSET not in spark.conf.getAll
    with temporary_settings(spark, {PARTITIONS: 5, UNSET: 2000}):
        assert spark.conf.get(PARTITIONS) == "5"
        assert spark.conf.get(UNSET) == "2000"
    assert spark.conf.get(PARTITIONS) == "2"
    assert UNSET not in spark.conf.getAll


def test_settings_come_back_after_an_error(spark: SparkSession) -> None:
    with pytest.raises(KeyError), temporary_settings(spark, {PARTITIONS: 5}):
        raise KeyError
    assert spark.conf.get(PARTITIONS) == "2"


def test_a_setting_that_the_platform_refuses_is_logged(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with temporary_settings(spark, {"spark.sql.warehouse.dir": "elsewhere", PARTITIONS: 5}):
        assert spark.conf.get(PARTITIONS) == "5"
    assert "does not let us set spark.sql.warehouse.dir" in caplog.text


def test_spark_errors_show_no_value(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    rows = spark.createDataFrame([("a secret title",)], "element string")
    with pytest.raises(EngineError) as caught, errors_without_values("counting"):
        rows.select(F.col("element").cast("int")).collect()
    assert "counting failed in pyspark (NumberFormatException)" in str(caught.value)
    assert caught.value.__cause__ is None
    shown = capfd.readouterr()
    assert "a secret title" not in str(caught.value) + shown.out + shown.err


def test_errors_in_python_workers_show_no_value(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("a secret title")

    rows = spark.createDataFrame([("a secret title",)], "element string")
    with pytest.raises(EngineError) as caught, errors_without_values("counting"):
        rows.mapInArrow(fail, "element string").toArrow()
    shown = capfd.readouterr()
    assert "a secret title" not in str(caught.value) + shown.out + shown.err


def test_delta_tables_go_both_ways(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable, QueryBuilder, write_deltalake

    by_spark, by_delta_rs = str(tmp_path / "by_spark"), str(tmp_path / "by_delta_rs")
    spark.range(5).write.format("delta").save(by_spark)
    query = QueryBuilder().register("t", DeltaTable(by_spark))
    assert pa.table(query.execute("select sum(id) as s from t")).to_pylist() == [{"s": 10}]

    write_deltalake(by_delta_rs, pa.table({"id": [1, 2], "name": ["a", None]}))
    assert spark.read.format("delta").load(by_delta_rs).toPandas()["id"].sum() == 3


def test_shuffle_files_are_private(spark: SparkSession) -> None:
    assert spark.range(100).groupBy(F.col("id") % 7).count().count() == 7
    assert any(runtime.SCRATCH.glob("blockmgr-*"))
    assert runtime.SCRATCH.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["salt", "noise.seed", "secret", "key"])
def test_seeds_and_salts_are_redacted(spark: SparkSession, name: str) -> None:
    with temporary_settings(spark, {f"spark.discreet.{name}": "abc"}):
        shown = {row.key: row.value for row in spark.sql("SET").collect()}
    assert "redacted" in shown[f"spark.discreet.{name}"]


def test_the_accelerator_works_where_its_jar_is(spark: SparkSession) -> None:
    folder = runtime.spark_home()
    assert folder is not None
    if not runtime.is_in_place(runtime.COMET, folder / "jars"):
        pytest.skip("no Comet on this platform")
    counts = spark.range(100).groupBy((F.col("id") % 7).alias("k")).count()
    with temporary_settings(spark, {"spark.comet.enabled": "false"}):
        plain = {tuple(row) for row in counts.collect()}
    assert {tuple(row) for row in counts.collect()} == plain
    assert spark.conf.get("spark.plugins") == "org.apache.spark.CometPlugin"


def test_spark_connect_works(connect_spark: SparkSession, tmp_path: Path) -> None:
    spark = get_session("another name")
    assert spark is connect_spark
    with temporary_settings(spark, {PARTITIONS: 3, UNSET: 2000}):
        assert spark.conf.get(PARTITIONS) == "3"
        spark.range(9).write.format("delta").save(str(tmp_path / "table"))
    assert spark.conf.get(PARTITIONS) == "2"
    assert UNSET not in spark.conf.getAll

    def double(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([pc.multiply(batch["id"], 2)], names=["id"])

    rows = spark.read.format("delta").load(str(tmp_path / "table"))
    doubled = rows.mapInArrow(double, "id bigint").where(F.col("id") > 3)
    assert sorted(doubled.toArrow()["id"].to_pylist()) == [4, 6, 8, 10, 12, 14, 16]


def test_spark_connect_errors_show_no_value(connect_spark: SparkSession) -> None:
    rows = connect_spark.createDataFrame([("a secret title",)], "element string")
    with pytest.raises(EngineError) as caught, errors_without_values("counting"):
        rows.select(F.col("element").cast("int")).collect()
    assert "a secret title" not in str(caught.value)
