"""What Spark on one machine needs: a Java, the Delta and Comet jars. Standard library only."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

JAVA_VERSIONS = ("17", "21")  # Hadoop's getSubject fails on Java 24 and later

# Both inside the virtual environment; see `jobs.install_runtime`.
JAVA_HOME = Path(sys.prefix) / "java"
SCRATCH = Path(sys.prefix) / "spark-local"


class Jar(NamedTuple):
    """One pinned jar: where it comes from and what it must be."""

    group: str
    name: str
    version: str
    sha256: str
    required: bool = True

    @property
    def file_name(self) -> str:
        """The jar's name among Spark's own jars."""
        return f"{self.name}-{self.version}.jar"


DELTA = Jar(
    "io.delta",
    "delta-spark_4.1_2.13",
    "4.4.0",
    "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
)
DELTA_STORAGE = Jar(
    "io.delta",
    "delta-storage",
    "4.4.0",
    "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
)
COMET = Jar(  # three times faster where it loads, never needed
    "org.apache.datafusion",
    "comet-spark-spark4.1_2.13",
    "1.2.0",
    "5055c43dca9e8cce83c33b1ff25646d1436c94698ca48beb3475bf60843b8d37",
    required=False,
)


def pinned_jars() -> tuple[Jar, ...]:
    """Return the jars that belong among Spark's own on this platform."""
    return (DELTA, DELTA_STORAGE, *((COMET,) if sys.platform == "linux" else ()))


def is_in_place(jar: Jar, folder: Path) -> bool:
    """Whether a folder holds exactly this jar."""
    return sha256(folder / jar.file_name) == jar.sha256


def sha256(file: Path) -> str | None:
    """Return the SHA-256 of a file, None if it is not there."""
    if not file.is_file():
        return None
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent


def spark_home() -> Path | None:
    """Return the folder of the Spark that will be started: SPARK_HOME, else the PySpark package."""
    chosen = os.environ.get("SPARK_HOME")
    return Path(chosen) if chosen else package_folder("pyspark")


def find_java() -> Path | None:
    """Return the first Java 17 or 21 of this machine: JAVA_HOME, PATH, usual folders."""
    for java in _candidates():
        properties = java_properties(java)
        if properties.get("java.specification.version") in JAVA_VERSIONS:
            return Path(properties["java.home"]) / "bin" / "java"
    return None


def java_properties(java: Path) -> dict[str, str]:
    """Return what a `java` says about itself, nothing if it does not start."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(r"^\s*(java\.\S+) = (.*)$", answer.stderr, re.MULTILINE))


def _candidates() -> Iterator[Path]:
    """Yield the `java` programs of this machine in order of preference."""
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    yield from sorted(Path("/Library/Java/JavaVirtualMachines").glob("*/Contents/Home/bin/java"))
    yield from sorted((Path.home() / ".sdkman/candidates/java").glob("*/bin/java"))
