"""The same release over Spark Connect, and nothing in the project that Connect refuses."""

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from jobs.release_counts import compute
from tests import lakes
from tests.conftest import DELTA_OWN, TEST_SECRET
from tests.lakes import SmallLake
from tests.programs import PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTIONS: list[dict[str, Any]] = [
    {"k": 5, "max_candidates": 12, "cohorts": ["club"]},
    {"element": "city", "mechanism": "fixed_gaussian", "measure": "rows", "tau": 2},
    {"element": "topic", "k": 3, "filters": {"all": [{"column": "score", "at_most": 4}]}},
]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    small = lakes.make(tmp_path_factory.mktemp("clips"), TEST_SECRET, epsilon="2", delta="0.01")
    small.append(lakes.many_rows(users=200, size=2000))
    small.opt_out("u1")
    small.publish()
    return small


@pytest.fixture(scope="module")
def classic(clips: SmallLake, spark: "SparkSession") -> list[Any]:
    """The answers by a classic session, made before anything switches to Connect."""
    return [compute(clips.question(**keys), TEST_SECRET, spark) for keys in QUESTIONS]


def settings_of(session: "SparkSession") -> dict[str, str]:
    """The session's settings without those that Delta changes by itself."""
    return {k: v for k, v in session.conf.getAll.items() if not k.startswith(DELTA_OWN)}


def test_connect_gives_the_same_rows(
    clips: SmallLake, classic: list[Any], connect_spark: "SparkSession"
) -> None:
    assert "connect" in type(connect_spark).__module__
    for keys, wanted in zip(QUESTIONS, classic, strict=True):
        before = settings_of(connect_spark)
        outcome = clips.release(connect_spark, **keys)
        assert outcome.rows == wanted.rows
        assert outcome.charged == wanted.loss
        assert len(outcome.rows) > len(outcome.question.cohorts)
        assert settings_of(connect_spark) == before


# --- what Connect and serverless compute refuse ---------------------------------------------------

REFUSED = {
    "rdd",
    "toDF",
    "sparkContext",
    "_sc",
    "_jvm",
    "_jsc",
    "_jdf",
    "_jsparkSession",
    "_jc",
    "cache",
    "persist",
    "unpersist",
    "checkpoint",
    "localCheckpoint",
    "mapPartitions",
    "applyInPandasWithState",
}
CLASSIC_ONLY = ("delta.", "pyspark.rdd.", "pyspark.context.", "pyspark.sql.classic.")
SOURCES = sorted((PROJECT / "jobs").rglob("*.py")) + sorted((PROJECT / "dp_udfs").rglob("*.py"))


def refused_names(source: str) -> Iterator[tuple[int, str]]:
    """Names in a program that only a classic session has."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in REFUSED:
            yield node.lineno, node.attr
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(CLASSIC_ONLY):
            yield node.lineno, str(node.module)


def test_no_program_touches_what_connect_refuses() -> None:
    found = {
        str(file.relative_to(PROJECT)): list(refused_names(file.read_text(encoding="utf-8")))
        for file in SOURCES
    }
    assert len(found) > 30
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "frame.rdd.map(len)",
        "frame.cache()",
        "spark.sparkContext.parallelize([])",
        "spark._jvm.java",
        "from delta.tables import DeltaTable",
    ],
)
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    assert list(refused_names(line))
