"""Waiting in line between processes of one machine, by a lock file. For order, never for safety."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_line(path: Path, patience: float) -> Iterator[bool]:
    """Hold a lock file, or go on without it where the line does not move: its head may stand still.

    Parameters
    ----------
    path : Path
        The lock file; made if it is missing, in a directory that exists.
    patience : float
        Seconds to wait for the line to move; however long it is, one that moves is waited in.

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
        held = _lock_within(handle, patience)
        if held:
            os.utime(handle)  # tells those behind that the line moves
        yield held
    finally:
        os.close(handle)


def _lock_within(handle: int, seconds: float) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # blocked in the system, which wakes who waits; polling would favour the busiest
        waiter = threading.Thread(target=fcntl.flock, args=(handle, fcntl.LOCK_EX), daemon=True)
        waiter.start()
        last = None
        while waiter.is_alive():
            moved = os.fstat(handle).st_mtime_ns
            if moved == last:
                return False
            last = moved
            waiter.join(seconds)
    return True
