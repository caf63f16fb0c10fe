"""Fixtures for all tests: one Spark session for the whole run, a lake in a temporary folder.

Tests below tests/unit need neither Spark nor Java: PySpark is imported by the fixtures that use it.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from jobs.lake import runtime
from jobs.lake.settings import LakeSettings, load_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEST_SECRET = bytes(range(32))  # for tests only: everybody can read it here

# Small data: the fewer tasks, the faster (three to four times, measured); and half the work without
# the optimising compiler, which does not pay for itself in minutes.
FAST_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FAST = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": FAST_JAVA,
}

DELTA_OWN = ("spark.sql.parquet.fieldId.", "spark.databricks.delta.lastCommitVersionInSession")

# Spark shares the machine with other things: no deadline. The same examples in every run.
settings.register_profile("discreet", deadline=None, derandomize=True)
settings.load_profile("discreet")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """One local session for all tests, with the settings that users get and fewer tasks."""
    from jobs.lake.session import get_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = get_session("tests", {**FAST, "spark.sql.warehouse.dir": str(warehouse)})
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def settings_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves the session's settings changed."""
    if "spark" not in request.fixturenames:
        yield
        return
    session = request.getfixturevalue("spark")
    before = _our_settings(session)
    yield
    assert _our_settings(session) == before, "the session's settings were changed for good"


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server of its own; its address."""
    spark_home = runtime.spark_home()
    assert spark_home is not None
    port = _free_port()
    log = tmp_path_factory.mktemp("connect") / "server.log"
    warehouse = tmp_path_factory.mktemp("connect-warehouse")
    options = {
        **FAST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(warehouse),
    }
    command = [str(spark_home / "bin" / "spark-submit")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for key, value in options.items():
        command += ["--conf", f"{key}={value}"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "spark-internal"], stdout=output, stderr=output, env=environment
        )
    try:
        _wait_for(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture
def connect_spark(connect_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator["SparkSession"]:
    """A Spark Connect session; `pyspark.sql.functions` follow it while the test runs."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session = ConnectSession.builder.remote(connect_server).create()
    ConnectSession._set_default_and_active_session(session)
    yield session  # type: ignore[misc]  # the Connect class has the same methods
    session.stop()


@pytest.fixture
def secret() -> bytes:
    """A key of the noise that is the same in every run."""
    return TEST_SECRET


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    """An empty lake below a temporary folder, with a secret; dataset files go to conf/datasets."""
    conf = tmp_path / "conf"
    (conf / "datasets").mkdir(parents=True)
    (conf / "secret").write_text(TEST_SECRET.hex(), encoding="utf-8")
    (conf / "secret").chmod(0o600)
    (conf / "local.toml").write_text(
        """
region = "local"
root = ".."
[tables]
ledger = "lake/ledger"
releases = "lake/releases"
snapshots = "lake/snapshots"
[secret]
file = "conf/secret"
""",
        encoding="utf-8",
    )
    return load_lake(conf / "local.toml")


def _our_settings(session: "SparkSession") -> dict[str, str]:
    """The session's settings without those that Delta changes by itself."""
    return {k: v for k, v in session.conf.getAll.items() if not k.startswith(DELTA_OWN)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path, seconds: float = 120) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"no Connect server: {log.read_text(encoding='utf-8', errors='replace')}")
