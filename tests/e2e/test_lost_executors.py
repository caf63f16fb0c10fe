"""Executors and Python workers killed in the middle of a release: the same answer, written once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests import drills, executor_drill, lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(executor_drill.__file__)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the executor's process in /proc")
def test_lost_executors_and_the_accelerator_do_not_change_an_answer(
    tmp_path: Path, secret: bytes, spark: "SparkSession"
) -> None:
    small = lakes.make(tmp_path / "lake", secret)
    small.append(lakes.many_rows(users=300, size=3000), files=2)
    small.publish()
    copies = [drills.copy(small, tmp_path / f"lake-{number}") for number in range(3)]
    here = small.release(spark, **executor_drill.QUESTION).rows.to_pylist()
    assert {"element", "stop"} == {row["row_kind"] for row in here}

    told = drill(tmp_path, [copy.lake.source for copy in copies])
    assert [said["killed"] for said in told] == [None, "executor", "worker"]
    assert told[0]["started"] == 2
    assert min(said["started"] for said in told[1:]) >= 3
    for said, copy in zip(told, copies, strict=True):
        assert said["rows"] == here
        drills.check_books(copy)
        (answer,) = drills.stored(copy)
        assert answer["found"] == len(here)

    assert all("Comet" not in said["plugins"] for said in told)
    assert "Comet" in (spark.conf.get("spark.plugins", "") or "")  # so both engines were compared


def drill(folder: Path, confs: list[str]) -> list[dict[str, Any]]:
    home = folder / "spark"  # executors work below their Spark's home
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    plain = os.environ | {"DISCREET_COMET": "0", "SPARK_HOME": str(home)}
    command = [sys.executable, str(SCRIPT), str(folder), *confs]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, env=plain
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
