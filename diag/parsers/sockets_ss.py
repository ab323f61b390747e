"""Saved output of `ss -tanp`, `ss -xanp` and `netstat -tanp` -> sockets.

    State  Recv-Q Send-Q Local Address:Port  Peer Address:Port Process
    LISTEN 3      128          0.0.0.0:8000       0.0.0.0:*     users:(("python",pid=30,fd=12))

    Netid State  Recv-Q Send-Q Local Address:Port   Peer Address:Port Process
    u_str ESTAB  0      0                  * 1158              * 1157 users:(("python",pid=30,fd=7))

    Proto Recv-Q Send-Q Local Address    Foreign Address    State        PID/Program name
    tcp6       0      0 :::8000          :::*               LISTEN       30/python
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from diag.parsers.sockets_proc import plain
from diag.parsers.sockets_rows import Socket

HEADER = re.compile(
    r"(Netid\s+)?State\s+Recv-Q\s+Send-Q\s+Local Address:Port|Proto\s+Recv-Q\s+Send-Q\s+Local Address"
)
SS_TCP = re.compile(r"(?:tcp\s+)?([A-Z][A-Z0-9-]+)\s+(\d+)\s+(\d+)\s+(\S+:\S+)\s+(\S+:[\d*]\S*)(.*)")
SS_UNIX = re.compile(
    r"u_\w+\s+([A-Z][A-Z0-9-]+)\s+(\d+)\s+(\d+)\s+(\S.*?)\s+(\d+)\s+(\S.*?)\s+(\d+)(?:\s+(.*))?$"
)
SS_USER = re.compile(r'\("([^"]*)",(?:pid=)?(\d+),(?:fd=)?(\d+)\)')
NETSTAT_TCP = re.compile(r"tcp6?\s+(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+([A-Z][A-Z0-9_]+)(?:\s+(.*))?$")
NETSTAT_UNIX = re.compile(
    r"unix\s+\d+\s+\[[^\]]*\]\s+[A-Z]+\s+([A-Z]*)\s+(\d+)(?:\s+(\d+)/(\S+)|\s+-)?(?:\s+([/@].*))?$"
)
STATES = {
    "ESTAB": "ESTABLISHED", "CONNECTED": "ESTABLISHED", "LISTENING": "LISTEN", "UNCONN": "UNCONNECTED",
    "": "UNCONNECTED", "FIN_WAIT_1": "FIN_WAIT1", "FIN_WAIT_2": "FIN_WAIT2", "SYN_RECEIVED": "SYN_RECV",
}


@dataclass(frozen=True)
class Line:
    """A socket and the line that lists it."""

    number: int
    socket: Socket


def looks_like(text: str) -> bool:
    """Does it hold the header of ss or netstat?"""
    return any(HEADER.match(line) for line in text.splitlines()[:400])


def sockets(lines: Iterable[tuple[int, str]]) -> list[Line]:
    """(number, line) -> sockets, one per owner; the other end is named where the same file lists it."""
    found = [Line(number, socket) for number, line in lines for socket in _line(line.strip())]
    inodes = {item.socket.inode: item.socket for item in found}
    ends = {_end(item.socket): item.socket for item in found if item.socket.lport is not None}
    return [Line(item.number, _with_peer(item.socket, inodes, ends)) for item in found]


def _with_peer(
    socket: Socket, inodes: dict[int | None, Socket], ends: dict[tuple[object, ...], Socket]
) -> Socket:
    if socket.proto != "unix":
        peer = ends.get((socket.raddr, socket.rport, socket.laddr, socket.lport))
        return socket if peer is None else replace(socket, peer_pid=peer.pid, peer_comm=peer.comm)
    peer = inodes.get(socket.peer_inode) if socket.peer_inode is not None else None
    if peer is None:
        return socket
    path = peer.laddr if socket.raddr is None else socket.raddr
    return replace(socket, peer_pid=peer.pid, peer_comm=peer.comm, raddr=path)


def _end(socket: Socket) -> tuple[object, ...]:
    return (socket.laddr, socket.lport, socket.raddr, socket.rport)


def _line(line: str) -> Iterator[Socket]:
    if match := NETSTAT_TCP.match(line):
        received, sent, local, remote, state, owner = match.groups()
        pid, slash, comm = (owner or "").strip().partition("/")
        socket = _tcp(state, received, None if state == "LISTEN" else sent, local, remote)
        known = slash and pid.isdecimal()
        yield replace(socket, pid=int(pid), comm=comm.split(":")[0].strip()) if known else socket
    elif match := NETSTAT_UNIX.match(line):
        state, inode, pid, comm, path = match.groups()
        socket = Socket("unix", STATES.get(state, state), inode=int(inode), laddr=path)
        yield socket if pid is None else replace(socket, pid=int(pid), comm=comm)
    elif match := SS_UNIX.match(line):
        yield from _owned(_unix(*match.groups()[:7]), match[8] or "")
    elif match := SS_TCP.match(line):
        state, received, sent, local, remote, owners = match.groups()
        yield from _owned(_tcp(state, received, sent, local, remote), owners)


def _owned(socket: Socket, owners: str) -> Iterator[Socket]:
    """One per process that holds the socket; one without a pid when ss could not see any."""
    users = SS_USER.findall(owners)
    if not users:
        yield socket
    for comm, pid, descriptor in users:
        yield replace(socket, comm=comm, pid=int(pid), fd=int(descriptor))


def _tcp(state: str, received: str, sent: str | None, local: str, remote: str) -> Socket:
    laddr, lport = _address(local)
    raddr, rport = _address(remote)
    state = STATES.get(state.replace("-", "_"), state.replace("-", "_"))
    listens = state == "LISTEN"
    return Socket(
        "tcp6" if local.count(":") > 1 or local.startswith("*") else "tcp", state,
        laddr=laddr, lport=lport, raddr=None if listens else raddr, rport=None if listens else rport,
        recv_q=int(received), send_q=None if sent is None else int(sent),
    )


def _unix(state: str, received: str, sent: str, path: str, inode: str, peer_path: str, peer: str) -> Socket:
    return Socket(
        "unix", STATES.get(state, state), inode=int(inode), peer_inode=int(peer) or None,
        laddr=None if path == "*" else path, raddr=None if peer_path == "*" else peer_path,
        recv_q=int(received), send_q=int(sent),
    )


def _address(text: str) -> tuple[str, int | None]:
    """`[::ffff:10.0.0.5]:80`, `127.0.0.1%lo:53`, `*:8000` (both families), `:::*` -> (address, port)."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]").partition("%")[0]
    return "::" if host == "*" else plain(host), int(port) if port.isdecimal() else None
