"""The kernel's socket monitor (netlink `sock_diag`) as bytes: what `/proc` does not tell.

Listening sockets: accept queue and its limit. Unix sockets: the inode of the other end. Layouts are those of
linux/sock_diag.h, linux/inet_diag.h and linux/unix_diag.h.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

PROTOCOL = 4
"""NETLINK_SOCK_DIAG"""
INET, INET6, UNIX, TCP = 2, 10, 1, 6
BY_FAMILY, ERROR, DONE = 20, 2, 3
DUMP = 0x301
LISTEN = 10
SHOW_PEER_AND_QUEUE = 0x4 | 0x10
PEER, QUEUE = 2, 4
_HEADER = struct.Struct("=IHHII")
_INET = struct.Struct("=BBBB48xIIIII")
_UNIX = struct.Struct("=BBBBIII")


class Facts(NamedTuple):
    """What one answer says of one socket. Queue and limit are of listening sockets only."""

    inode: int
    queue: int | None = None
    limit: int | None = None
    peer: int | None = None


def listening_tcp(family: int) -> bytes:
    """Request: all listening TCP sockets of INET or INET6."""
    return _request(struct.pack("=BBBBI48x", family, TCP, 0, 0, 1 << LISTEN))


def all_unix() -> bytes:
    """Request: all unix sockets with their peers and queues."""
    return _request(struct.pack("=BBHIIIII", UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_PEER_AND_QUEUE, 0, 0))


def answers(datagram: bytes) -> Iterator[Facts | None]:
    """One datagram -> its sockets; None marks the end of the dump. Raises OSError when the kernel says no."""
    place = 0
    while place + _HEADER.size <= len(datagram):
        length, kind, _, _, _ = _HEADER.unpack_from(datagram, place)
        body = datagram[place + _HEADER.size:place + length]
        if kind == DONE:
            yield None
            return
        if kind == ERROR:
            raise OSError(-struct.unpack_from("=i", body)[0], "the kernel refused")
        if kind == BY_FAMILY:
            yield _unix(body) if body[:1] == bytes([UNIX]) else _inet(body)
        place += max(_HEADER.size, length + 3 & ~3)


def _request(body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), BY_FAMILY, DUMP, 1, 0) + body


def _inet(body: bytes) -> Facts:
    _, state, _, _, _, queue, limit, _, inode = _INET.unpack_from(body)
    return Facts(inode, queue, limit) if state == LISTEN else Facts(inode)


def _unix(body: bytes) -> Facts:
    _, _, state, _, inode, _, _ = _UNIX.unpack_from(body)
    peer = queue = limit = None
    place = _UNIX.size
    while place + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, place)
        if kind == PEER:
            (peer,) = struct.unpack_from("=I", body, place + 4)
        elif kind == QUEUE and state == LISTEN:
            queue, limit = struct.unpack_from("=II", body, place + 4)
        place += max(4, length + 3 & ~3)
    return Facts(inode, queue, limit, peer or None)
