"""States of tables that Spark writes."""

from pathlib import Path
from typing import TYPE_CHECKING

from jobs.lake import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_marked_as_deleted_change_the_state(tmp_path: Path, spark: "SparkSession") -> None:
    place = str(tmp_path / "marked rows")
    frame = spark.range(100).coalesce(1)
    frame.write.format("delta").option("delta.enableDeletionVectors", "true").save(place)
    states = [tables.state(place)]
    for number in (3, 4):
        spark.sql(f"DELETE FROM {tables.quote(place)} WHERE id = {number}")
        states.append(tables.state(place))
    assert len({state.digest for state in states}) == 3
    assert tables.state(place, 1) == states[1]
    assert [tables.read(spark, state).count() for state in states] == [100, 99, 98]
    assert tables.read(spark, place).count() == 98
