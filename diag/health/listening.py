"""Who listens on the port of a backend: a process that does not is no proof of why nobody answers there. Reads /proc."""

import contextlib
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from diag import procfs
from diag.errors import Denied, Vanished
from diag.instruments import netns
from diag.parsers import sockets_proc

LISTENS = "LISTEN"


def local_port(host: str, port: int) -> int | None:
    """The port, when the host is this machine; None = it is another one, or its name is not known."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    return port if any(_is_own(family, address[0]) for family, _, _, _, address in found) else None


def listeners(port: int | None, pids: Iterable[int]) -> Mapping[int, bool]:
    """pid -> does it hold a socket that listens there. Left out: who could not be looked at. Without a port nobody is."""
    if port is None:
        return {}
    networks: dict[int | None, frozenset[str]] = {}
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError, Vanished, Denied):
            held = set(_held(pid))
            network = netns.of(pid)
            if network is None or network not in networks:
                networks[network] = sockets_on(pid, port)
            found[pid] = not held.isdisjoint(networks[network])
    return found


def _is_own(family: int, address: object) -> bool:
    """Only an address of this machine can be bound to."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def sockets_on(pid: int, port: int) -> frozenset[str]:
    """The sockets that listen there, in the network of a process. Raises Denied."""
    return frozenset(f"socket:[{row.inode}]" for row in _listening(pid) if _port(row.local) == port)


def ports_of(pid: int) -> frozenset[int]:
    """All ports that somebody listens on in the network of a process. Raises Denied."""
    return frozenset(_port(row.local) for row in _listening(pid))


def held_by(pid: int) -> list[tuple[str, int]]:
    """Address and port of each listening TCP socket that a process holds. Raises Denied, Vanished, OSError."""
    held = set(_held(pid))
    return sorted({sockets_proc.address(row.local) for row in _listening(pid) if f"socket:[{row.inode}]" in held})


def _listening(pid: int) -> Iterator[sockets_proc.Tcp]:
    return (row for name in ("tcp", "tcp6") for row in sockets_proc.tcp(_table(pid, name)) if row.state == LISTENS)


def _held(pid: int) -> Iterator[str]:
    """`socket:[12345]` and the like. Raises OSError when they cannot be listed."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield str(link.readlink())


def _table(pid: int, name: str) -> list[str]:
    try:
        return procfs.read(f"/proc/{pid}/net/{name}", 64 << 20).decode("ascii", "replace").splitlines()
    except Vanished:
        return []  # no IPv6 here


def _port(local: str) -> int:
    return int(local.rpartition(":")[2], 16)
