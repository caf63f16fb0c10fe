"""The Spark session: the caller's where there is one, else a local one.

Notebooks, Databricks jobs, Spark Connect and `spark-submit` bring a session or say where to get it;
it is never stopped and never changed for good.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dp_udfs.errors import PrivacyError
from jobs.lake.runtime import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_stages: list[ExitStack] = []  # that are going on, the outermost first

ENGINES = ("pyspark", "py4j", "grpc", "pyarrow", "deltalake", "_internal")  # last: in delta-rs


class EngineError(PrivacyError):
    """Spark, Arrow or Delta failed; what they said may quote rows, so it is not repeated."""


def get_session(app_name: str, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """Return the caller's Spark session, or start one.

    Parameters
    ----------
    app_name : str
        Name of a session that has to be started.
    settings : mapping of str to str, optional
        Further settings of a session that has to be started; an active one is left as it is.

    Returns
    -------
    SparkSession
        Classic or Spark Connect.

    Raises
    ------
    EngineError
        If none can be started.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        raise EngineError("PySpark is not installed; run `make install`") from None
    _disable_query_logs()

    try:
        return SparkSession.active()
    except PySparkRuntimeError:  # there is none, in no thread
        pass
    builder = SparkSession.builder.appName(app_name)
    if "SPARK_REMOTE" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {**(_comet_settings() if _is_local() else {}), **(settings or {})}
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    try:
        with _own_interrupts():
            return builder.getOrCreate()
    except Exception as error:
        if not is_engine_error(error):
            raise
        raise EngineError(
            f"Spark could not be started ({type(error).__name__}); "
            "`python -m jobs.doctor` says what is missing"
        ) from None


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Put back who handles Ctrl-C, if somebody does: PySpark talks to a busy Java there and fails.

    In a notebook nobody does, so there it cancels Spark's jobs.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_kept = before in (None, signal.default_int_handler)
        if not is_kept and signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


@contextmanager
def temporary_settings(spark: "SparkSession", settings: Mapping[str, str | int]) -> Iterator[None]:
    """Change SQL settings of a session for a while.

    Plans are made when an action runs, so the action belongs inside the block. A platform may
    refuse a setting (serverless compute does): what stays as it was is logged.
    """
    before = dict(spark.conf.getAll)
    changed = []
    for key, value in settings.items():
        try:
            spark.conf.set(key, str(value))
            changed.append(key)
        except Exception as error:
            if not is_engine_error(error):
                raise
            logger.warning("this platform does not let us set %s = %s", key, value)
    try:
        yield
    finally:
        try:
            for key in changed:
                if key in before:
                    spark.conf.set(key, before[key])
                else:
                    spark.conf.unset(key)
        except Exception as error:
            if not (is_engine_error(error) or isinstance(error, OSError)):
                raise
            logger.warning("Spark is gone: its settings could not be put back")


@contextmanager
def errors_without_values(stage: str) -> Iterator[None]:
    """Replace what Spark, Arrow and Delta say about a failure: their messages may quote rows.

    Parameters
    ----------
    stage : str
        What is being done, for the message.

    Raises
    ------
    EngineError
        In place of an error of those libraries; it names the stage and the error's class only.
    """
    try:
        with _no_query_logs():
            yield
    except Exception as error:
        if shows_values():
            raise
        if not is_engine_error(error):
            raise
        raise EngineError(
            f"{stage} failed in {type(error).__module__.split('.')[0]} ({type(error).__name__}); "
            "an operator who may see rows finds the cause with DISCREET_OPERATOR_LOG=warn"
        ) from None


def is_engine_error(error: BaseException) -> bool:
    """Whether an error comes from Spark, Arrow or Delta rather than from this project."""
    return any(kind.__module__.split(".")[0] in ENGINES for kind in type(error).__mro__)


def shows_values() -> bool:
    """Whether an operator who may see rows asked for the engines' own messages and logs."""
    return os.environ.get("DISCREET_OPERATOR_LOG", "off") not in ("", "off")


@contextmanager
def _no_query_logs() -> Iterator[None]:
    """Keep PySpark from logging the text of a failed query's error by itself."""
    with ExitStack() as stage:
        _stages.append(stage)
        try:
            _disable_query_logs()
            yield
        finally:
            _stages.remove(stage)


def _disable_query_logs() -> None:
    """Switch them off until the outermost stage ends; PySpark that is not loaded yet logs nothing.

    It is not loaded for this: that takes longer than all that `get_budget` does.
    """
    if not _stages or "pyspark" not in sys.modules or shows_values():
        return
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        log = PySparkLogger.getLogger(name)
        _stages[0].callback(setattr, log, "disabled", log.disabled)
        log.disabled = True


def _is_local() -> bool:
    """Whether a session started now would run on this machine only."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return "--master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    # spark-submit started us and knows the master; PySpark has no public way to ask it
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - see the line above
    conf = SparkConf()
    return conf.get("spark.master", "local").startswith("local") and not conf.contains(
        "spark.plugins"
    )


def _comet_settings() -> dict[str, str]:
    """Return the settings of the Comet accelerator where its jar is there and nobody refused it."""
    home = spark_home()
    wanted = sys.platform == "linux" and os.environ.get("DISCREET_COMET", "1") != "0"
    if home is None or not wanted or not any((home / "jars").glob("comet-spark-*.jar")):
        return {}
    profile = home / "conf" / "spark-comet.conf"
    if not profile.is_file():
        return {}
    return _read_properties(profile)


def _read_properties(file: Path) -> dict[str, str]:
    """Read a Spark settings file: a key, white space and a value on each line."""
    settings = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, value = line.split(None, 1)
            settings[key] = value.strip()
    return settings
