"""What was written to a local disk stays written: files, log and folders outlive a power cut."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote


def make_durable(location: str, first: int, last: int) -> None:
    """Make versions of a local table outlive a power cut: files, log and their directories.

    delta-rs leaves that to the system; object stores need no help.
    """
    root = Path(unquote(location.removeprefix("file://")))
    log = root / "_delta_log"
    if not log.is_dir():
        return
    files: set[Path] = set()
    for version in range(first, last + 1):
        entry = log / f"{version:020d}.json"
        added = {root / name for name in _added_files(entry)}
        files |= {entry, *added, *(file.parent for file in added)}
    fsync(log, root, *files)


def fsync(*paths: Path) -> None:
    """Wait until files and directories are on the disk; together, so that they share the wait."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(_fsync_one, paths))


def _added_files(entry: Path) -> list[str]:
    """Files that one version of the log adds; none if the version is long checkpointed and gone."""
    try:
        lines = entry.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    actions = [json.loads(line) for line in lines]
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def _fsync_one(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # put together with others since
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
