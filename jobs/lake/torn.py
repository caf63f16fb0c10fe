"""The last commit of a local table, torn by a power cut: how it is found and taken off.

Nothing that was acknowledged can be torn where the disk keeps what it has synced: an operation
returns when its commit is durable. Where it does not, the entries of a torn commit may still lie in
its data file, so these are looked at before anything is given up.
"""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from dp_udfs.errors import StorageError
from jobs.lake.durability import fsync

_LOG_FILE = 20 * "[0-9]" + ".json"
_CAUSE = re.compile(r"\n\s*\S*↳\S*\s*")  # how delta-rs begins the cause of an error, in colour
ASIDE = "_torn"  # folder inside the table that keeps what was taken off; Delta looks past it


class Torn(NamedTuple):
    """A commit that is not whole, and why."""

    log: Path
    why: str


def directory(location: str) -> Path | None:
    """Return the folder of a local table; None of one on an object store."""
    local = "://" not in location or location.startswith("file://")
    return Path(location.removeprefix("file://")) if local else None


def find(location: str) -> Torn | None:
    """Look whether the last commit of a table is torn: only then it can be taken off safely.

    A commit with a checkpoint was durable before that was written; if it is broken now, something
    else has broken it.
    """
    root = directory(location)
    logs = sorted((root / "_delta_log").glob(_LOG_FILE)) if root else []
    if not root or not logs:
        return None
    last = logs[-1]
    if any(last.parent.glob(f"{last.stem}.checkpoint*")):
        return None
    try:
        actions = [json.loads(line) for line in last.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        return Torn(last, f"{last.name} is cut off")
    if not actions:
        return Torn(last, f"{last.name} is empty")
    for action in actions:
        if "add" in action and _read(root / unquote(action["add"]["path"])) is None:
            return Torn(last, f"the data file of {last.name} is missing or cut off")
    return None


def unusable(location: str | Path, error: Exception, what: str = "table") -> StorageError:
    """Say why a table cannot be read or written, and what to do where its last commit is torn."""
    broken = find(str(location))
    if broken is None:
        why = _CAUSE.sub(": ", str(error)).partition("\n")[0]
        return StorageError(f"the {what} at {location} cannot be used: {why}")
    return StorageError(
        f"the last commit of the {what} at {location} is torn, as a power cut leaves it: "
        f"{broken.why}; python -m jobs.restore_ledger --torn takes it off"
    )


def is_emptied(location: str | Path, version: int) -> bool:
    """Whether the log file of a version was emptied: delta-rs would pass over it."""
    root = directory(str(location))
    log = root / "_delta_log" / f"{version:020d}.json" if root else None
    return log is not None and log.exists() and not log.stat().st_size


def take_off(torn: Torn) -> Path:
    """Put the log file of a torn commit aside, and return where it is kept."""
    aside = torn.log.parents[1] / ASIDE
    aside.mkdir(mode=0o700, exist_ok=True)
    kept = torn.log.rename(aside / torn.log.name)
    fsync(torn.log.parent, aside, aside.parent)
    return kept


def is_pending(location: str, version: int) -> bool:
    """Whether a commit was taken off and nothing has been written since."""
    root = directory(location)
    return root is not None and any(
        kept.stem > f"{version:020d}" for kept in (root / ASIDE).glob(_LOG_FILE)
    )


def loose_rows(location: str, named: Collection[str]) -> Iterator[pa.Table]:
    """Read the data files of a table that its log does not name, as far as they are whole."""
    root = directory(location)
    for path in sorted(root.glob("segment=*/*.parquet")) if root else ():
        if str(path.relative_to(root or path)) not in named:
            rows = _read(path)
            if rows is not None:
                yield rows


def _read(path: Path) -> pa.Table | None:
    """Read a data file with all its bytes; None if that cannot be done."""
    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except (OSError, pa.ArrowException):
        return None
