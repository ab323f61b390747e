"""One socket of one process, as the live collector writes it and `ss` prints it -> a row of `sockets`."""

import re

import msgspec

REDIS_PORTS = frozenset({6379, 6380, 26379, *range(7000, 7006)})
REDIS_SERVER = re.compile(r"(redis|valkey|keydb)[-_]?(server|sentinel)|^dragonfly")
REDIS_LIKE = re.compile(r"redis|valkey|keydb|dragonfly")


class Header(msgspec.Struct, frozen=True):
    """First line of an artefact: which read, and when (epoch seconds)."""

    artefact: str
    read: int
    ts: float


class Socket(msgspec.Struct, frozen=True, omit_defaults=True):
    """Raw values; None is unknown or not there."""

    proto: str
    state: str
    pid: int | None = None
    fd: int | None = None
    inode: int | None = None
    laddr: str | None = None
    lport: int | None = None
    raddr: str | None = None
    rport: int | None = None
    recv_q: int | None = None
    send_q: int | None = None
    own_q: int | None = None
    """How many of the connections in recv_q are llmdiag's own probes."""
    comm: str | None = None
    peer_inode: int | None = None
    peer_pid: int | None = None
    peer_comm: str | None = None
    peer_program: str | None = None


def row(socket: Socket) -> dict[str, object]:
    """Columns of `sockets`; llmdiag's own probes are taken off the accept queue."""
    waiting = socket.recv_q
    if waiting is not None and socket.own_q is not None:
        waiting = max(0, waiting - socket.own_q)
    return {
        "pid": socket.pid, "fd": socket.fd, "proto": socket.proto, "state": socket.state,
        "laddr": socket.laddr, "lport": socket.lport, "raddr": socket.raddr, "rport": socket.rport,
        "recv_q": waiting, "send_q": socket.send_q, "peer_pid": socket.peer_pid,
        "peer_kind": "redis" if is_redis(socket) else None,
    }


def is_redis(socket: Socket) -> bool:
    """Is the other end a Redis or Valkey server, by its port, its process or its unix path?"""
    programs = (socket.peer_comm or "", socket.peer_program or "")
    path = socket.raddr or "" if socket.proto == "unix" else ""
    return (
        socket.rport in REDIS_PORTS
        or any(REDIS_SERVER.search(program) is not None for program in programs)
        or REDIS_LIKE.search(path) is not None
    )
