"""What an answer leaves behind in the Python worker that made it."""

import gc
import sys
from collections.abc import Iterable, Iterator
from zipimport import zipimporter

import pyarrow as pa
from pyspark.sql import SparkSession

from dp_udfs.pandas_udfs import Mechanism, answer_cohorts

MECHANISM = Mechanism("unknown_gumbel", k=1, max_candidates=2, epsilon="0.5", delta="1e-6")


def test_the_next_task_neither_reads_zip_files_again_nor_searches_all_objects(
    spark: SparkSession,
) -> None:
    answer = answer_cohorts(MECHANISM, bytes(32))

    def left_behind(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(answer(batches))
        zips = [isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values()]
        yield pa.RecordBatch.from_pydict({"zips": [sum(zips)], "frozen": [gc.get_freeze_count()]})

    rows = spark.createDataFrame([("all", "x", 3)], "cohort string, element string, n bigint")
    found = rows.repartition(2).mapInArrow(left_behind, "zips bigint, frozen bigint").toArrow()
    assert set(found["zips"].to_pylist()) == {0}
    assert min(found["frozen"].to_pylist()) > 10_000
