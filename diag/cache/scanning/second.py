"""Another process that reads and judges pages of keys of the same server, while this one goes on.

It is started anew (no fork), gets its orders through a socket, and ends when that closes. Orders and answers are
MessagePack with a length in front; the first order says where to connect, credentials included, so they are in no
command line and no environment::

    order   {"names": […], "profiles": [["clip:image:<hex>", {…}], …]}
    answer  {"keys": 128, "sound": [["clip:image:<hex>", null, 120, 614400]], "seen": [[{place}, {facts}], …], …}
"""

import os
import re
import select
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from diag.cache.scanning.pace import Pace
from diag.cache.scanning.walk import Walk
from diag.cache.scanning.wire import Wire
from diag.cache.servers import connection
from diag.cache.servers.connection import Client
from diag.cache.values.facts import Facts
from diag.cache.values.keys import CacheKey, Place
from diag.cache.values.profile import Profile
from diag.errors import LlmdiagError

AHEAD = 2
"""Pages that wait for it, so that it never waits for us."""
WORTH_KEYS = 50_000
"""Fewer are read before it has started."""
LOCAL = ("localhost", "127.0.0.1", "::1")
LENGTH = struct.Struct("<I")


class Begin(msgspec.Struct):
    """The first order."""

    kind: str
    options: dict[str, Any]
    target: str
    db: int
    batch_keys: int
    batch_bytes: int
    markers: list[bytes]
    values: bool
    idle: bool
    all_expire: bool
    every_row: bool


class Order(msgspec.Struct):
    """A page of keys, and the families that have become known since the last one."""

    names: list[bytes]
    profiles: list[tuple[str, Profile]]


class Answer(msgspec.Struct):
    """What there is to say of a page."""

    keys: int = 0
    sound: list[tuple[str, tuple[str, str] | None, int, int]] = []
    seen: list[tuple[Place, Facts]] = []
    rows: list[CacheKey] = []
    back: list[bytes] = []
    """Keys of families that are not known yet."""
    error: str | None = None


class Gone(Exception):
    """The other process does not answer any more."""


def _encoded(value: object) -> object:
    if isinstance(value, re.Pattern):
        return value.pattern
    raise NotImplementedError(type(value))


def _decoded(kind: type, value: object) -> object:
    if getattr(kind, "__origin__", kind) is re.Pattern and isinstance(value, bytes):
        return re.compile(value, re.DOTALL)
    raise NotImplementedError(kind)


ENCODE = msgspec.msgpack.Encoder(enc_hook=_encoded).encode


class Second:
    """The other process, seen from here. Making one raises Gone, OSError: this machine does not start it."""

    def __init__(self, begin: Begin) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "diag.cache.scanning.second", str(theirs.fileno())], pass_fds=[theirs.fileno()], process_group=0,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(),
            )  # fmt: skip
        ours.setblocking(False)
        self.socket = ours
        self.lost: type[Exception] = Gone
        self.waiting: deque[list[bytes]] = deque()
        self.known = 0
        self._received = bytearray()
        try:
            self._send(ENCODE(begin))
        except Gone:
            self.close()
            raise

    @property
    def free(self) -> bool:
        return len(self.waiting) < AHEAD

    def take(self, names: list[bytes], profiles: Mapping[tuple[int, str], Profile], db: int) -> None:
        """Raises Gone; the page is then among those that `waiting` holds."""
        self.waiting.append(names)
        new = [(name, profile) for (where, name), profile in islice(profiles.items(), self.known, None) if where == db]
        self.known = len(profiles)
        self._send(ENCODE(Order(names, new)))

    def answers(self, *, wait: bool) -> Iterator[Answer]:
        """Those that are there; at least one if `wait`. Raises Gone, LlmdiagError."""
        while self.waiting:
            answer = self._next()
            if answer is not None:
                wait = False
                self.waiting.popleft()
                if answer.error is not None:
                    raise LlmdiagError(answer.error)
                yield answer
            elif wait:
                select.select([self.socket], [], [])
                self._receive()
            elif not self._receive():
                return

    def close(self) -> None:
        self.socket.close()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:  # in the middle of a page
            self.process.kill()
            self.process.wait()

    def _next(self) -> Answer | None:
        if len(self._received) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        answer = msgspec.msgpack.decode(bytes(self._received[LENGTH.size : end]), type=Answer)
        del self._received[:end]
        return answer

    def _receive(self) -> bool:
        """Were there any bytes?"""
        try:
            more = self.socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Gone from error
        if not more:
            raise Gone
        self._received += more
        return True

    def _send(self, message: bytes) -> None:
        """It may be telling us something at the same time."""
        left = memoryview(LENGTH.pack(len(message)) + message)
        while left:
            readable, writable, _ = select.select([self.socket], [self.socket], [])
            if readable:
                self._receive()
            if writable:
                try:
                    left = left[self.socket.send(left) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise Gone from error


def _environment() -> dict[str, str]:
    """Ours, without what names a server; the package is found where this one was."""
    from diag.cache.servers.connection import URL_VARIABLE

    kept = {name: value for name, value in os.environ.items() if name not in (URL_VARIABLE, "REDIS_URL")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def how_many(client: Client, keys: int | None, pace: Pace, wanted: int | None) -> int:
    """Further processes that are worth it; None lets the number of keys and of processors decide."""
    found = connection.portable(client)
    if pace.keys_s is not None or found is None:
        return 0
    if wanted is not None:
        return wanted
    kind, options = found
    beside = kind == "unix" or options.get("host") in LOCAL  # the server wants a processor, too
    return int((keys or 0) >= WORTH_KEYS and len(os.sched_getaffinity(0)) >= 2 + beside)


def begin(client: Client, walk: Walk) -> Begin:
    """The first order, for a pass like this one."""
    kind, options = connection.portable(client) or ("", {})
    return Begin(
        kind, options, walk.target, walk.db, walk.pace.batch_keys, walk.pace.batch_bytes, list(walk.markers), walk.values, walk.idle,
        walk.all_expire, walk.scan.each is not None,
    )  # fmt: skip


class Notes:
    """The other process's `Sink`: everything is told to the first one."""

    def __init__(self, every_row: bool) -> None:
        self.each: Callable[[CacheKey], None] | None = self.emit if every_row else None
        self.profiles: dict[tuple[int, str], Profile] = {}
        self.answer = Answer()

    def add(self, place: Place, facts: Facts) -> None:
        self.answer.seen.append((place, facts))

    def emit(self, row: CacheKey) -> None:
        self.answer.rows.append(row)

    def sound(self, db: int, name: str, versions: tuple[str, str] | None, keys: int, size: int) -> None:
        self.answer.sound.append((name, versions, keys, size))


def _work(wire: socket.socket) -> None:
    """Orders until there are no more."""
    begin = msgspec.msgpack.decode(_message(wire), type=Begin)
    notes = Notes(begin.every_row)
    try:
        there = connection.reopened(begin.kind, begin.options)
        with connection.speaking(begin.target):
            walk = Walk(
                Wire(there), notes, begin.target, begin.db, Pace(begin.batch_keys, begin.batch_bytes), markers=begin.markers,
                values=begin.values, idle=begin.idle, all_expire=begin.all_expire,
            )  # fmt: skip
            orders = msgspec.msgpack.Decoder(Order, dec_hook=_decoded)
            with np.errstate(all="ignore"):
                while message := _message(wire):
                    order = orders.decode(message)
                    notes.profiles.update(((begin.db, name), profile) for name, profile in order.profiles)
                    notes.answer = Answer(keys=len(order.names))
                    notes.answer.back = walk.judge(order.names)
                    _tell(wire, notes.answer)
    except LlmdiagError as error:
        _tell(wire, Answer(error=str(error.message)))


def _tell(wire: socket.socket, answer: Answer) -> None:
    message = ENCODE(answer)
    wire.sendall(LENGTH.pack(len(message)) + message)


def _message(wire: socket.socket) -> bytes:
    """The next one; empty when the first process has no more to say."""
    length = _exactly(wire, LENGTH.size)
    return _exactly(wire, LENGTH.unpack(length)[0]) if length else b""


def _exactly(wire: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = wire.recv(size - len(found))
        if not more:
            return b""
        found += more
    return bytes(found)


def main(arguments: Sequence[str]) -> int:
    with socket.socket(fileno=int(arguments[0])) as wire:
        try:
            _work(wire)
        except OSError:  # the first process is gone
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
