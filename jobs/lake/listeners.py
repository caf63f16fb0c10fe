"""On which addresses this process and its children can be reached."""

import ipaddress
import os
import re
import sys
from pathlib import Path

LISTENING = "0A"  # the state's name in the kernel's tables


def of_this_process() -> set[str] | None:
    """Return addresses such as "127.0.0.1:4040", None where the system has no Linux-like /proc."""
    if not Path("/proc/net/tcp").is_file():
        return None
    started_by_spark = "PYSPARK_GATEWAY_PORT" in os.environ  # then Spark is our parent
    root = os.getppid() if started_by_spark else os.getpid()
    sockets = {inode for process in _family(root) for inode in _sockets(process)}
    return {address for inode, address in _kernel_listeners().items() if inode in sockets}


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from this machine only."""
    host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    mapped = getattr(host, "ipv4_mapped", None)
    return bool((mapped or host).is_loopback)


def _family(root: int) -> set[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        except OSError:  # it has ended
            continue
        children.setdefault(int(after_name.split()[1]), []).append(int(stat.parent.name))
    family, todo = set(), [root]
    while todo:
        process = todo.pop()
        family.add(process)
        todo += children.get(process, [])
    return family


def _sockets(process: int) -> set[str]:
    """Return the kernel's numbers of the sockets that a process has open."""
    found = set()
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):
        try:
            target = str(descriptor.readlink())
        except OSError:  # closed meanwhile
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", target):
            found.add(match[1])
    return found


def _kernel_listeners() -> dict[str, str]:
    """Return the address of every listening socket by its number."""
    found = {}
    for table in ("tcp", "tcp6"):
        file = Path("/proc/net") / table
        lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
        for fields in map(str.split, lines):
            if fields[3] == LISTENING:
                found[fields[9]] = _address(fields[1])
    return found


def _address(text: str) -> str:
    """Decode the kernel's form of an address: 32-bit words in the machine's byte order."""
    host, _, port = text.partition(":")
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return f"{address}:{int(port, 16)}" if address.version == 4 else f"[{address}]:{int(port, 16)}"
