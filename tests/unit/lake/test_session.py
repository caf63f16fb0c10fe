"""What the session decides without a Spark to ask."""

import logging
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from jobs.lake import session
from jobs.lake.session import EngineError, errors_without_values


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed PySpark with Comet, on Linux."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-comet.conf").write_text(
        "# a comment\n\nspark.plugins   org.example.Plugin\nspark.memory.offHeap.size 2g\n",
        encoding="utf-8",
    )
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "comet-spark-spark4.1_2.13-1.2.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISCREET_COMET", raising=False)
    return tmp_path


def test_the_accelerator_is_used_where_its_jar_is(spark_home: Path) -> None:
    assert session._comet_settings() == {
        "spark.plugins": "org.example.Plugin",
        "spark.memory.offHeap.size": "2g",
    }
    next((spark_home / "jars").iterdir()).unlink()
    assert session._comet_settings() == {}


@pytest.mark.usefixtures("spark_home")
def test_the_accelerator_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCREET_COMET", "0")
    assert session._comet_settings() == {}


@pytest.mark.usefixtures("spark_home")
def test_the_accelerator_is_for_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert session._comet_settings() == {}


def test_without_pyspark_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(EngineError, match="make install"):
        session.get_session("tests")


def test_engine_errors_lose_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISCREET_OPERATOR_LOG", raising=False)
    with pytest.raises(EngineError) as caught, errors_without_values("counting"):
        raise pa.ArrowInvalid("a secret title")
    assert "a secret title" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_logs_of_failed_queries_are_off_while_a_stage_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DISCREET_OPERATOR_LOG", raising=False)
    log = logging.getLogger("SQLQueryContextLogger")
    for loaded in ("pyspark", "pyspark.logger"):  # by other tests of this process
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    with errors_without_values("the program"):
        monkeypatch.setitem(sys.modules, "pyspark", ModuleType("pyspark"))  # loaded meanwhile
        logger = ModuleType("pyspark.logger")
        logger.PySparkLogger = logging  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pyspark.logger", logger)
        assert not log.disabled
        with errors_without_values("counting"):
            assert log.disabled
        assert log.disabled
    assert not log.disabled
    with errors_without_values("counting"):
        assert log.disabled
    assert not log.disabled
    monkeypatch.setenv("DISCREET_OPERATOR_LOG", "warn")
    with errors_without_values("counting"):
        assert not log.disabled


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), errors_without_values("counting"):
        raise ZeroDivisionError


def test_who_handles_interrupts_stays_where_spark_starts() -> None:
    def ours(*_: object) -> None: ...

    def theirs(*_: object) -> None: ...

    before = signal.getsignal(signal.SIGINT)
    try:
        for first, then in ((ours, ours), (signal.default_int_handler, theirs)):
            signal.signal(signal.SIGINT, first)
            with session._own_interrupts():
                signal.signal(signal.SIGINT, theirs)
            assert signal.getsignal(signal.SIGINT) is then
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_spark_that_died_does_not_hide_why(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError

    conf = SimpleNamespace(getAll={}, set=lambda *_: None, unset=refuse)
    gone: Any = SimpleNamespace(conf=conf)
    with (
        pytest.raises(EngineError, match="counting failed in pyarrow"),
        errors_without_values("counting"),
        session.temporary_settings(gone, {"spark.x": "1"}),
    ):
        raise pa.ArrowInvalid("a secret title")
    assert "Spark is gone" in caplog.text
