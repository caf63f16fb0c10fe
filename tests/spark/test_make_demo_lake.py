"""The synthetic lake holds what its generator says, and making it again changes nothing.

The lake of real data is made, and looked at, in `tests/e2e/test_demo.py`.
"""

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from deltalake import DeltaTable

from dp_udfs.errors import InvalidParameterError, SettingsError
from jobs import make_demo_lake
from jobs.lake import settings, snapshots, synthetic
from jobs.lake.settings import LakeSettings
from jobs.lake.synthetic import Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def demo(lake: LakeSettings) -> LakeSettings:
    """A lake whose dataset files are the project's."""
    for file in (PROJECT / "conf" / "datasets").glob("*.toml"):
        (Path(lake.source).parent / "datasets" / file.name).write_bytes(file.read_bytes())
    return lake


def make(lake: LakeSettings, *options: str) -> None:
    parser = make_demo_lake.arguments()
    make_demo_lake.main(parser.parse_args(["--conf", lake.source, *options]))


@pytest.mark.usefixtures("spark")
def test_synthetic(demo: LakeSettings) -> None:
    options = ["--synthetic", "20000", "--users", "500", "--elements", "300", "--cohorts", "9"]
    for _ in range(2):
        make(demo, *options, "--days", "5", "--seed", "3")
    dataset = settings.load_dataset("synthetic", demo)
    assert snapshots.latest(demo, dataset).snapshot_id == 1
    shape = Shape(rows=20_000, users=500, elements=300, cohorts=9, days=5, seed=3)
    wanted = synthetic.rows(np.arange(20_000), shape)
    found = DeltaTable(dataset.table.engagements).to_pyarrow_table()
    names = wanted.column_names
    order = [(name, "ascending") for name in names]
    found = found.select(names).cast(wanted.schema)
    assert found.sort_by(order).equals(wanted.sort_by(order))
    assert len(DeltaTable(dataset.table.quarantine).file_uris()) == 0
    with pytest.raises(SettingsError, match="snapshot 1 of synthetic already stands for"):
        make(demo, *options, "--days", "5", "--seed", "4")
    assert DeltaTable(dataset.table.engagements).to_pyarrow_table().num_rows == 20_000


def test_partitions_do_not_change_the_rows(spark: "SparkSession") -> None:
    shape = Shape(rows=1_000, users=50, elements=30, cohorts=3, days=5, seed=3)
    frames = [synthetic.engagements(spark, shape).repartition(n).toArrow() for n in (1, 7)]
    order = [(name, "ascending") for name in frames[0].column_names]
    assert frames[0].sort_by(order).equals(frames[1].sort_by(order))


@pytest.mark.parametrize("option", ["--synthetic", "--users", "--elements", "--days"])
def test_sizes_must_be_positive(demo: LakeSettings, option: str) -> None:
    with pytest.raises(InvalidParameterError, match="whole number of at least 1"):
        make(demo, "--synthetic", "10", option, "-1")


def test_cohorts_are_those_of_the_dataset_file(demo: LakeSettings) -> None:
    with pytest.raises(SettingsError, match="lists 200 audiences"):
        make(demo, "--synthetic", "10", "--cohorts", "201")


def test_a_secret_is_made_once_and_for_its_owner_only(lake: LakeSettings) -> None:
    lake.secret_path.unlink()
    path = make_demo_lake.make_secret(lake)
    assert path == lake.secret_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = lake.read_secret()
    assert len(first) == 32
    assert make_demo_lake.make_secret(lake) is None
    assert lake.read_secret() == first
    path.unlink()
    make_demo_lake.make_secret(lake)
    assert lake.read_secret() != first
