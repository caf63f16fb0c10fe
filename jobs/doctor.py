"""Say what this machine has, what is wrong, and the command that fixes it.

    python -m jobs.doctor

Changes nothing but a temporary folder. Exits with 0 if all is well and with 1 otherwise.
"""

import argparse
import os
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dp_udfs.errors import SettingsError
from jobs.lake import listeners, program, reports, runtime
from jobs.lake.session import EngineError, get_session

if TYPE_CHECKING:
    from jobs.lake.settings import LakeSettings

INSTALL = "make install"
PACKAGES = ("numpy", "scipy", "pandas", "pyarrow", "pydantic", "deltalake", "dp-accounting")
SPARK_VERSION = "4.1."
SCRATCH_NEEDED = 5 * 10**9  # bytes; shuffles of some tens of millions of rows


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    ok: bool
    found: str
    fix: str = ""


def main(arguments: argparse.Namespace) -> int:
    """Print what every check found."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_python,
        check_packages,
        check_java,
        check_spark,
        lambda: check_lake(arguments.conf),
        lambda: check_retention(arguments.conf),
    ]
    if not arguments.no_spark:
        checks.append(check_start)
    findings = [finding for check in checks for finding in check()]
    wrong = [finding for finding in findings if not finding.ok]
    reports.show(
        arguments,
        [{"check": f.check, "ok": f.ok, "found": f.found} for f in findings],
        {f"fix {f.check}": f.fix for f in wrong} or {"result": "all is well"},
    )
    return program.FAILED if wrong else program.DONE


def check_python() -> Iterator[Finding]:
    """Look at the Python that runs this."""
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    yield Finding("Python", (3, 11) <= sys.version_info < (3, 14), found, "use Python 3.11 to 3.13")


def check_packages() -> Iterator[Finding]:
    """Look for the libraries that every program needs."""
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name, found in versions.items() if found is None]
    if missing:
        yield Finding("packages", False, f"missing: {', '.join(missing)}", INSTALL)
    else:
        found = ", ".join(f"{name} {number}" for name, number in versions.items())
        yield Finding("packages", True, found)


def check_java() -> Iterator[Finding]:
    """Look for the Java that Spark will be started with."""
    java = runtime.JAVA_HOME / "bin" / "java"
    properties = runtime.java_properties(java)
    number = properties.get("java.specification.version", "none that starts")
    home = properties.get("java.home", java)
    yield Finding("Java", number in runtime.JAVA_VERSIONS, f"{number} in {home}", INSTALL)


def check_spark() -> Iterator[Finding]:
    """Look at PySpark, its jars and its settings."""
    found, folder = _version("pyspark"), runtime.spark_home()
    if found is None or folder is None:
        yield Finding("Spark", False, "PySpark is not installed", INSTALL)
        return
    yield Finding("Spark", found.startswith(SPARK_VERSION), found, INSTALL)
    linked = (folder / "conf" / "spark-defaults.conf").is_file()
    yield Finding("Spark settings", linked, "linked" if linked else "not linked", INSTALL)
    for jar in runtime.pinned_jars():
        there = runtime.is_in_place(jar, folder / "jars")
        name = f"jar {jar.name}"
        if there or jar.required:
            yield Finding(name, there, jar.version if there else "missing or altered", INSTALL)
        else:
            yield Finding(name, True, "missing: Spark is slower, answers are the same", INSTALL)
    if os.environ.get("DISCREET_COMET") == "0":
        yield Finding("Comet", True, "turned off by DISCREET_COMET=0")


def check_lake(conf: Path) -> Iterator[Finding]:
    """Look at the lake's settings, its secret and its folders."""
    try:
        from jobs.lake.settings import load_lake
    except ImportError as error:
        yield Finding("settings", False, f"cannot be read without {error.name}", INSTALL)
        return
    try:
        lake = load_lake(conf)
    except SettingsError as error:
        yield Finding("settings", False, str(error), "name a lake file with --conf")
        return
    yield Finding("settings", True, str(conf))

    try:
        lake.read_secret()
        yield Finding("secret", True, lake.secret.environment or lake.secret.file or "")
    except SettingsError as error:
        yield Finding("secret", False, str(error), _make_secret(lake.secret.file, lake.secret_path))
    if lake.secret.file is not None and lake.secret_path.is_file():
        mode = stat.S_IMODE(lake.secret_path.stat().st_mode)
        private = not mode & (stat.S_IRWXG | stat.S_IRWXO)
        yield Finding(
            "secret's mode", private, f"{mode:o}", f"chmod 600 {_quoted(lake.secret_path)}"
        )

    for name, location in lake.tables.model_dump().items():
        yield _check_folder(f"{name} table", location)
        if Path(location).is_dir():
            mode = stat.S_IMODE(Path(location).stat().st_mode)
            fix = f"chmod o-rwx {_quoted(Path(location))}"
            yield Finding(f"{name} table's mode", not mode & stat.S_IRWXO, f"{mode:o}", fix)
    yield from _check_ledger(lake)


NOTHING_PUBLISHED = "no snapshot yet: jobs.ingest_engagements with --publish makes one"


def check_retention(conf: Path) -> Iterator[Finding]:
    """Look for rows and opt-outs that should be gone, from the logs of the tables alone."""
    try:
        from jobs.lake import retention, snapshots
        from jobs.lake.ledger import utc_now
        from jobs.lake.settings import load_dataset, load_lake

        lake = load_lake(conf)
        published = snapshots.by_dataset(lake)
    except (ImportError, SettingsError):
        return  # `check_lake` says so
    for file in sorted((Path(lake.source).parent / "datasets").glob("*.toml")):
        try:
            dataset = load_dataset(file.stem, lake)
        except SettingsError as error:
            yield Finding(f"dataset {file.stem}", False, str(error), f"edit {_quoted(file)}")
            continue
        late = retention.overdue(dataset, utc_now())
        kept = "kept" if dataset.name in published else NOTHING_PUBLISHED
        fix = f"python -m jobs.purge_expired --dataset {dataset.name}"
        yield Finding(f"retention of {dataset.name}", not late, "; ".join(late) or kept, fix)


def check_start() -> Iterator[Finding]:
    """Start Spark, let it write and read a Delta table, and see on which addresses it listens."""

    def same(batches: Iterable[Any]) -> Iterable[Any]:
        return batches

    try:
        with tempfile.TemporaryDirectory() as folder, program.progress("start Spark"):
            spark = get_session("discreet doctor")
            table = f"{folder}/table"
            spark.range(3).write.format("delta").save(table)
            rows = spark.read.format("delta").load(table).mapInArrow(same, "id bigint").toArrow()
    except EngineError as error:
        yield Finding("Spark starts", False, str(error), INSTALL)
        return
    yield Finding("Spark starts", len(rows) == 3, "wrote and read a Delta table")
    addresses = listeners.of_this_process()
    if addresses is None:
        yield Finding("listening", True, "cannot be seen on this system")
    else:
        outside = sorted(address for address in addresses if not listeners.is_loopback(address))
        yield Finding(
            "listening",
            not outside,
            f"reachable from outside: {', '.join(outside)}" if outside else "on loopback only",
            "set spark.driver.host and spark.driver.bindAddress to 127.0.0.1",
        )
    yield from _check_scratch()


def _check_scratch() -> Iterator[Finding]:
    """Look at the folder of shuffle files, which hold rows."""
    folder = runtime.SCRATCH
    if not folder.is_dir():
        yield Finding("scratch folder", False, f"{folder} is missing", INSTALL)
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    yield Finding(
        "scratch folder", not mode & 0o077, f"mode {mode:o}", f"chmod 700 {_quoted(folder)}"
    )
    free = shutil.disk_usage(folder).free
    yield Finding(
        "scratch space",
        free >= SCRATCH_NEEDED,
        f"{free / 1e9:.0f} GB free",
        "set SPARK_LOCAL_DIRS to a private folder on a larger disk",
    )


def _check_ledger(lake: "LakeSettings") -> Iterator[Finding]:
    """See that there is a ledger where there are answers, and that it grants."""
    try:
        from jobs.lake import claims
    except ImportError:
        return  # `check_packages` says so
    try:
        ledger = claims.open_ledger(lake)
        restored = ledger.exists() and ledger.is_restored()
    except SettingsError as error:
        yield Finding("ledger", False, str(error), "python -m jobs.restore_ledger --from BACKUP")
        return
    found = "restored: grants nothing yet" if restored else "grants" if ledger.exists() else "new"
    yield Finding("ledger", not restored, found, "python -m jobs.replicate_ledger")


def _check_folder(name: str, location: str) -> Finding:
    """Look whether a table can be written where it lies or will lie."""
    path = Path(location)
    if not path.is_absolute():
        return Finding(name, True, f"{location} (not on this machine)")
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    found = location if writable else f"{existing} cannot be written"
    return Finding(name, writable, found, f"chown {os.getuid()} {_quoted(existing)}")


def _make_secret(file: str | None, path: Path) -> str:
    """Return the command that makes a secret."""
    if file is None:
        return "export it from a secret store; `openssl rand -hex 32` makes one"
    folder, secret = _quoted(path.parent), _quoted(path)
    return f"(umask 077 && mkdir -p {folder} && openssl rand -hex 32 > {secret})"


def _quoted(path: Path) -> str:
    """Return a path as a shell reads it."""
    return shlex.quote(str(path))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    options = program.parser(__doc__)
    options.add_argument("--no-spark", action="store_true", help="do not start Spark: quick")
    program.run(main, options)
