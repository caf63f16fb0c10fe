"""Waiting in line between processes of one machine, by a lock file. For order, never for safety."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_line(path: Path, patience: float) -> Iterator[bool]:
    """Hold a lock file, or go on without it after a while: whoever holds it may stand still.

    Parameters
    ----------
    path : Path
        The lock file; made if it is missing, in a directory that exists.
    patience : float
        Seconds to wait.

    Yields
    ------
    bool
        Whether the lock is held. Who dies lets go of it.

    Raises
    ------
    OSError
        If the file cannot be opened for writing.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _lock_within(handle, patience)
    finally:
        os.close(handle)


def _lock_within(handle: int, seconds: float) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # blocked in the system, which wakes who waits; polling would favour the busiest
        waiter = threading.Thread(target=fcntl.flock, args=(handle, fcntl.LOCK_EX), daemon=True)
        waiter.start()
        waiter.join(seconds)
        return not waiter.is_alive()
    return True
