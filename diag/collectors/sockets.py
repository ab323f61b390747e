"""Listening ports with their accept backlog, and who the service is connected to.

A port that listens while connections wait to be accepted (`recv_q`) is a server that does not get back to its
event loop. Read before and after the window from /proc and, where the kernel has it, its socket monitor (backlog
limits, peers of unix sockets). llmdiag's own sockets are left out. One artefact a read, `sockets-0.jsonl`:

    {"artefact":"sockets","read":0,"ts":1796007298.3}
    {"proto":"tcp","state":"LISTEN","pid":30,"fd":6,"laddr":"0.0.0.0","lport":8000,"recv_q":3,"send_q":128,
     "own_q":1}
    {"proto":"tcp","state":"ESTABLISHED","pid":30,"fd":9,"laddr":"127.0.0.1","lport":51234,"raddr":"127.0.0.1",
     "rport":6379,"recv_q":0,"send_q":0,"peer_pid":7,"peer_comm":"redis-server"}

Saved output of `ss -tanp`, `ss -xanp` and `netstat -tanp` is read too.
"""

import datetime
import os
import socket
import stat
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from diag.bundle import Door
from diag.errors import Absent, Denied, Garbled, Vanished
from diag.instruments import netns
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import sock_diag, sockets_proc, sockets_ss
from diag.parsers.sockets_rows import REDIS_LIKE, Header, Socket, row
from diag.tables import Table

NAME = "sockets"
FEEDS = ("sockets",)
NEEDS: tuple[str, ...] = ()
TABLES: tuple[Table, ...] = ()
BUDGET_S = 2.0
BUDGET_BYTES = 16 << 20
HINT = "llmdiag snapshot {pid}"

SEARCH_S = 0.3
"""Patience per read for finding the processes at the other ends."""
MONITOR_S = 0.3
"""Patience per read for the kernel's socket monitor."""
MAX_SOCKETS = 20_000

Holders = Mapping[int, Sequence[tuple[int, int]]]
"""Inode of a socket -> (pid, fd) of everybody in the tree who holds it."""


@dataclass
class _Run:
    """What is remembered from the first read to the second."""

    own: set[tuple[str, int]] = field(default_factory=set)
    """Local addresses of llmdiag's own connections, also of closed ones."""
    owners: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    """Inode of a peer -> (pid, comm, program)."""


@dataclass(frozen=True)
class _Network:
    """The socket tables of one network namespace."""

    tcp: Mapping[str, Sequence[sockets_proc.Tcp]]
    unix: Sequence[sockets_proc.Unix]
    monitor: Mapping[int, sock_diag.Facts]


def collect(patient: Patient, door: Door) -> Collecting:
    """One read before the window, one after it; in between only llmdiag's own connections are remembered."""
    run = _Run()
    _read(patient, door, 0, run)
    while True:
        tick = yield
        run.own |= _own_addresses()
        if tick.last:
            break
    _read(patient, door, 1, run)


def recognise(name: str, head: bytes) -> bool:
    """Output of ss or netstat, or an artefact of this collector."""
    text = head.decode("utf-8", "replace")
    return text.startswith('{"artefact":"sockets"') or sockets_ss.looks_like(text)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Artefacts -> rows of `sockets`. Saved tool output is numbered as reads in the order of the file names."""
    ours = [item for item in artefacts if item.name.endswith(".jsonl")]
    for artefact in ours:
        yield from _parse_ours(artefact)
    saved = sorted((item for item in artefacts if item not in ours), key=lambda item: item.path)
    for read, artefact in enumerate(saved):
        found = sockets_ss.sockets(artefact.lines())
        for item in found:
            yield "sockets", {**row(item.socket), "read": read, "source": artefact.at(item.number)}
        if not found:
            yield "collected", {"table_name": "sockets", "status": "ok"}


def _parse_ours(artefact: Artefact) -> Iterator[Row]:
    header: Header | None = None
    for number, line in artefact.lines():
        try:
            if header is None:
                header = msgspec.json.decode(line, type=Header)
                ts = datetime.datetime.fromtimestamp(header.ts, datetime.UTC).replace(tzinfo=None)
                continue
            item = msgspec.json.decode(line, type=Socket)
        except (msgspec.DecodeError, ValueError, OverflowError, OSError) as error:
            raise Garbled(
                f"{artefact.at(number)}: not a line of the sockets collector: {error}", hint="collect again",
            ) from error
        yield "sockets", {**row(item), "read": header.read, "ts": ts, "source": artefact.at(number)}
    if header is None:
        raise Garbled(f"{artefact.path} is empty", hint="collect again")


def _read(patient: Patient, door: Door, read: int, run: _Run) -> None:
    header = Header("sockets", read, time.time())
    run.own |= _own_addresses()
    pids = [pid for pid in patient.pids if pid != os.getpid()]
    holders, denied, gone = _descriptors(pids)
    own_inodes = set(_inodes(os.getpid()))
    found: list[Socket] = []
    for members in _by_network(pid for pid in pids if pid not in gone):
        network = _network(members[0], door)
        mine = {inode: held for inode, held in holders.items() if any(pid in members for pid, _ in held)}
        for item in (*_tcp_sockets(network, mine, run), *_unix_sockets(network, mine)):
            if item.peer_inode not in own_inodes:
                found += [replace(item, pid=pid, fd=fd) for pid, fd in mine[item.inode or 0]]
    if len(found) > MAX_SOCKETS:
        door.note("sockets", "partial", f"{len(found)} sockets: only the first {MAX_SOCKETS} were kept")
    lines = [header, *_with_peers(found[:MAX_SOCKETS], holders, run)]
    door.jsonl(f"sockets-{read}.jsonl", map(msgspec.to_builtins, lines))
    _complain(door, pids, denied, gone)


def _complain(door: Door, pids: Sequence[int], denied: Sequence[int], gone: Sequence[int]) -> None:
    """Note what could not be read; raise when that was everything."""
    if len(gone) == len(pids):
        raise Vanished("all processes of the service ended before their sockets were read", hint="ps -ef shows whether it was restarted")
    if not denied:
        return
    error = Denied(
        f"the descriptors of pid {', '.join(map(str, denied))} may not be read",
        hint="run llmdiag as root or as the owner of the service",
    )
    if len(denied) + len(gone) == len(pids):
        raise error
    door.note("sockets", "partial", f"{error.message}; {error.hint}")


def _descriptors(pids: Iterable[int]) -> tuple[dict[int, list[tuple[int, int]]], list[int], list[int]]:
    """(holders, pids whose descriptors may not be read, pids that ended)"""
    holders: dict[int, list[tuple[int, int]]] = {}
    denied, gone = [], []
    for pid in pids:
        try:
            for inode, fd in _socket_fds(pid):
                holders.setdefault(inode, []).append((pid, fd))
        except PermissionError:
            denied.append(pid)
        except OSError:
            gone.append(pid)
    return holders, denied, gone


def _socket_fds(pid: int) -> Iterator[tuple[int, int]]:
    """(inode, fd) of every socket a process holds. Raises OSError when its descriptors cannot be listed."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except (FileNotFoundError, ProcessLookupError):
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1]), int(link.name)


def _inodes(pid: int) -> Iterator[int]:
    """Inodes of the sockets of a process; none when it cannot be read."""
    try:
        yield from (inode for inode, _ in _socket_fds(pid))
    except OSError:
        return


def _by_network(pids: Iterable[int]) -> list[list[int]]:
    """Processes grouped by network namespace."""
    groups: dict[int | None, list[int]] = {}
    for pid in pids:
        groups.setdefault(netns.of(pid), []).append(pid)
    return list(groups.values())


def _network(pid: int, door: Door) -> _Network:
    tcp = {name: list(sockets_proc.tcp(_table(pid, name, door))) for name in ("tcp", "tcp6")}
    return _Network(tcp, list(sockets_proc.unix(_table(pid, "unix", door))), _monitor(pid, door))


def _table(pid: int, name: str, door: Door) -> list[str]:
    path = Path(f"/proc/{pid}/net/{name}")
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []  # no IPv6 here, or the process has just ended
    except OSError as error:
        door.note("sockets", "partial", f"{path} cannot be read: {error.strerror}; run llmdiag as root")
        return []


def _monitor(pid: int, door: Door) -> dict[int, sock_diag.Facts]:
    """Inode -> what the kernel's socket monitor says; empty, with a note, where there is none."""
    families = (sock_diag.INET, sock_diag.INET6)
    requests = [*(sock_diag.listening_tcp(family) for family in families), sock_diag.all_unix()]
    found: dict[int, sock_diag.Facts] = {}
    until = time.monotonic() + MONITOR_S
    for request in requests:
        try:
            with netns.open_socket(pid, socket.AF_NETLINK, socket.SOCK_DGRAM, sock_diag.PROTOCOL) as link:
                found |= {facts.inode: facts for facts in _ask(link, request, until)}
        except (Denied, Absent, Vanished, OSError) as error:
            door.note("sockets.send_q", "partial", f"backlog limits and unix peers are not all known: {error}")
            break
    return found


def _ask(link: socket.socket, request: bytes, until: float) -> Iterator[sock_diag.Facts]:
    """One dump. Raises OSError, TimeoutError too."""
    link.settimeout(max(0.01, until - time.monotonic()))
    link.sendall(request)
    while True:
        link.settimeout(max(0.01, until - time.monotonic()))
        for facts in sock_diag.answers(link.recv(256 << 10)):
            if facts is None:
                return
            yield facts


def _tcp_sockets(network: _Network, mine: Container[int], run: _Run) -> Iterator[Socket]:
    """TCP sockets of the tree, without those that llmdiag's own connections made."""
    rows = [(proto, item) for proto, items in network.tcp.items() for item in items]
    ends = {(item.local, item.remote): item.inode for _, item in rows}
    open_states = ("ESTABLISHED", "CLOSE_WAIT")
    not_accepted = [item for _, item in rows if item.inode == 0 and item.state in open_states]
    for proto, item in rows:
        if item.inode not in mine:
            continue
        laddr, lport = sockets_proc.address(item.local)
        base = Socket(proto, item.state, inode=item.inode, laddr=laddr, lport=lport, recv_q=item.recv_q)
        if item.state == "LISTEN":
            facts = network.monitor.get(item.inode)
            yield replace(base, send_q=facts and facts.limit, own_q=_own_waiting(item, not_accepted, run))
            continue
        raddr, rport = sockets_proc.address(item.remote)
        if (raddr, rport) not in run.own:
            peer = ends.get((item.remote, item.local)) or None
            yield replace(base, send_q=item.send_q, raddr=raddr, rport=rport, peer_inode=peer)


def _own_waiting(listener: sockets_proc.Tcp, not_accepted: Sequence[sockets_proc.Tcp], run: _Run) -> int:
    """How many connections in this accept queue are probes of llmdiag."""
    port = listener.local.rpartition(":")[2]
    mine = (item for item in not_accepted if item.local.endswith(f":{port}"))
    return sum(1 for item in mine if sockets_proc.address(item.remote) in run.own)


def _unix_sockets(network: _Network, mine: Container[int]) -> Iterator[Socket]:
    paths = {item.inode: item.path for item in network.unix}
    for item in network.unix:
        if item.inode in mine:
            facts = network.monitor.get(item.inode, sock_diag.Facts(item.inode))
            yield Socket(
                "unix", item.state, inode=item.inode, laddr=item.path, recv_q=facts.queue, send_q=facts.limit,
                raddr=None if facts.peer is None else paths.get(facts.peer), peer_inode=facts.peer,
            )


def _with_peers(found: Sequence[Socket], holders: Holders, run: _Run) -> Iterator[Socket]:
    """Name the process at the other end: of the tree itself, else found by looking through this host."""
    wanted = {item.peer_inode for item in found if item.peer_inode is not None}
    for inode in wanted & holders.keys() - run.owners.keys():
        run.owners[inode] = _who(holders[inode][0][0])
    _search(wanted - run.owners.keys(), run)
    for item in found:
        owner = None if item.peer_inode is None else run.owners.get(item.peer_inode)
        if owner is None:
            yield item
        else:
            yield replace(item, peer_pid=owner[0], peer_comm=owner[1], peer_program=owner[2])


def _search(wanted: set[int], run: _Run) -> None:
    """Who on this host holds these inodes? Servers called Redis come first, then everybody, for SEARCH_S."""
    until = time.monotonic() + SEARCH_S
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()] if wanted else []
    names = {pid: _comm(pid) for pid in pids}
    for pid in sorted(pids, key=lambda pid: (REDIS_LIKE.search(names[pid]) is None, pid)):
        if not wanted or time.monotonic() > until:
            return
        for inode in wanted.intersection(_inodes(pid)):
            run.owners[inode] = _who(pid)
            wanted = wanted - {inode}


def _who(pid: int) -> tuple[int, str, str]:
    """(pid, comm, file name of the program); nothing of its arguments."""
    try:
        program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        program = ""
    return pid, _comm(pid), program.partition(" ")[0].rpartition("/")[2]


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""


def _own_addresses() -> set[tuple[str, int]]:
    """Local addresses of llmdiag's own TCP sockets, through copies of its descriptors: threads own them."""
    found: set[tuple[str, int]] = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            if not stat.S_ISSOCK(os.fstat(int(link.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    host, port = copy.getsockname()[:2]
                    found.add((sockets_proc.plain(host), port))
        except OSError:
            continue  # closed meanwhile
    return found
