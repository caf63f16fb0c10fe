"""A line between processes: waited in while it moves, left where its head stands still."""

import fcntl
import os
import threading
import time
from pathlib import Path

from jobs.lake.file_lock import in_line


def test_a_line_that_moves_is_waited_in_however_long_it_is(tmp_path: Path) -> None:
    """With 150 analysts at once all gave up after 5 s, and most met conflicts for a minute."""
    lock, held = tmp_path / "lock", []

    def wait() -> None:
        with in_line(lock, patience=0.3) as is_held:
            held.append(is_held)

    with in_line(lock, patience=0):
        waiter = threading.Thread(target=wait)
        waiter.start()
        for _ in range(40):  # others come and go before it
            os.utime(lock)
            time.sleep(0.02)
    waiter.join()
    assert held == [True]


def test_who_gets_to_the_head_moves_the_line(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    os.utime(lock, (1, 1))
    with in_line(lock, patience=0):
        assert lock.stat().st_mtime > 1
        os.utime(lock, (1, 1))
        with in_line(lock, patience=0.01) as is_held:
            assert not is_held
        assert lock.stat().st_mtime == 1


def test_who_dies_lets_go(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.close(handle)
    with in_line(lock, patience=0) as is_held:
        assert is_held
