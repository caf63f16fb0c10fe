"""Who can be reached from outside."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.lake import listeners

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").is_file(), reason="needs a Linux-like /proc"
)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("[::ffff:127.0.0.1]:80", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("192.168.1.5:80", False),
    ],
)
def test_loopback_is_told_from_the_world(address: str, loopback: bool) -> None:
    assert listeners.is_loopback(address) is loopback


def test_own_sockets_are_found_and_only_while_they_listen() -> None:
    with socket.socket() as one, socket.socket(socket.AF_INET6) as two:
        one.bind(("127.0.0.1", 0))
        one.listen()
        two.bind(("::1", 0))
        two.listen()
        found = listeners.of_this_process() or set()
        expected = {f"127.0.0.1:{one.getsockname()[1]}", f"[::1]:{two.getsockname()[1]}"}
        assert expected <= found
    assert not expected & (listeners.of_this_process() or set())


def test_sockets_of_children_are_found() -> None:
    script = (
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert f"127.0.0.1:{port}" in (listeners.of_this_process() or set())
        child.communicate()
