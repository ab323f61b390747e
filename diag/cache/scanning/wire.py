"""The raw connection of a scan: commands packed by hand, replies read where they lie, long values never held whole.

A client library spends 16 µs on each pipelined command; this spends half of one. RESP2 as the server writes it::

    *2\\r\\n$1\\r\\n0\\r\\n*3\\r\\n$5\\r\\nimg:1\\r\\n…     :86399\\r\\n     $-1\\r\\n     -NOPERM this user has no …\\r\\n
"""

import socket
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from diag.cache.scanning.reading import HEAD_BYTES, WHOLE_BYTES
from diag.cache.servers.connection import Client

Reply = int | bytes | None | list[Any] | redis.ResponseError
"""A simple string is bytes. An error is returned, not raised: in a pipeline it concerns one command."""

CAPACITY = 512 << 10
LINE_BYTES = 24
"""Room for the longest integer; it is only a guess."""
MAX_REPLY_BYTES = 64 << 20
MAX_DEPTH = 8


def pack(*parts: bytes) -> bytes:
    """One command."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Wire:
    """One connection, opened and greeted by the client library, then spoken to directly. Raises what that library raises."""

    def __init__(self, client: Client) -> None:
        self._owner = client  # its end would be the end of its connections
        self._client = redis.Redis(connection_pool=client.connection_pool, single_connection_client=True)
        connection: Any = self._client.connection
        connection.connect()
        self._connection = connection
        self._socket: socket.socket = connection._sock
        self._buffer = bytearray(CAPACITY)
        self._view = memoryview(self._buffer)
        self._at = 0
        self._end = 0

    def close(self) -> None:
        self._connection.disconnect()  # there may be half a reply on its way
        self._client.close()

    def send(self, packed: Sequence[bytes]) -> None:
        """Commands, in one go."""
        try:
            self._socket.sendall(b"".join(packed))
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while writing to socket: {error}") from error

    def reply(self, depth: int = 0) -> Reply:
        """The next reply. Errors are returned."""
        line = self._line()
        kind = line[:1]
        if kind == b"$":
            size = _number(line)
            return None if size < 0 else self._copy(size)
        if kind == b":":
            return _number(line)
        if kind == b"+":
            return line[1:]
        if kind == b"-":
            return _error(line)
        if kind == b"*" and depth < MAX_DEPTH:
            count = _number(line)
            return None if count < 0 else [self.reply(depth + 1) for _ in range(count)]
        raise _garbled(line)

    def numbers(self, count: int) -> list[int | redis.ResponseError]:
        """That many integer replies."""
        found: list[int | redis.ResponseError] = []
        while len(found) < count:
            if self._at == self._end:
                self._receive()
            wanted = count - len(found)
            here = bytes(self._view[self._at : min(self._end, self._at + LINE_BYTES * wanted)])
            whole = here.split(b"\r\n", wanted)[:-1]  # the last one may still be on its way
            found += [_integer(line) for line in whole]
            self._at += sum(map(len, whole)) + 2 * len(whole)
            if not whole:
                found.append(_integer(self._line()))
        return found

    def values(self, count: int) -> Iterator[tuple[memoryview | None, int]]:
        """The elements of one array reply, as they come: (value, its length); None: no string, or gone.

        A value longer than WHOLE_BYTES is only its head. Each is valid until the next is asked for. Raises the error
        that stands in place of the array.
        """
        line = self._line()
        if line[:1] == b"-":
            raise _error(line)
        if line[:1] != b"*" or _number(line) != count:
            raise _garbled(line)
        for _ in range(count):
            found = self._here()
            yield self._value(self._line()) if found is None else (found, len(found))

    def page(self) -> tuple[int, list[bytes]]:
        """The answer to SCAN: where to go on, and names. Raises the error that stands in its place."""
        line = self._line()
        if line[:1] == b"-":
            raise _error(line)
        cursor = self.reply() if line == b"*2" else None
        line = self._line()
        if not isinstance(cursor, bytes) or not cursor.isdigit() or line[:1] != b"*":
            raise _garbled(line)
        names: list[bytes] = []
        for _ in range(_number(line)):
            found = self._here()
            name = bytes(found) if found is not None else self.reply()
            if isinstance(name, bytes):
                names.append(name)
        return int(cursor), names

    def _here(self) -> memoryview | None:
        """The usual case of a value in one step: all of it is in the buffer. None: take the long way."""
        at = self._at
        buffer = self._buffer
        stop = buffer.find(b"\r\n", at, self._end)
        if stop < 0 or buffer[at] != 0x24 or buffer[at + 1] == 0x2D:
            return None
        try:
            end = stop + 2 + int(buffer[at + 1 : stop])
        except ValueError:
            return None
        if end + 2 > self._end:
            return None
        self._at = end + 2
        return self._view[stop + 2 : end]

    def value(self) -> tuple[memoryview | redis.ResponseError | None, int]:
        """The same of one reply of its own; an error is returned."""
        line = self._line()
        return (_error(line), 0) if line[:1] == b"-" else self._value(line)

    def _value(self, line: bytes) -> tuple[memoryview | None, int]:
        if line[:1] != b"$":
            raise _garbled(line)
        size = _number(line)
        if size < 0:
            return None, 0
        if size > WHOLE_BYTES:
            return memoryview(self._head(size)), size
        stop = self._at + size
        if stop + 2 > self._end:
            self._fill(size + 2)
            stop = self._at + size
        found = self._view[self._at : stop]
        self._at = stop + 2
        return found, size

    def _head(self, size: int) -> bytes:
        """The beginning of a long value; the rest is read and dropped."""
        self._fill(HEAD_BYTES)
        head = bytes(self._view[self._at : self._at + HEAD_BYTES])
        left = size + 2
        while left:
            here = min(left, self._end - self._at)
            self._at += here
            left -= here
            if left:
                self._receive()
        return head

    def _copy(self, size: int) -> bytes:
        if size > MAX_REPLY_BYTES:
            raise redis.InvalidResponse(f"a reply of {size} bytes")
        self._fill(size + 2)
        found = bytes(self._view[self._at : self._at + size])
        self._at += size + 2
        return found

    def _line(self) -> bytes:
        """Up to the next line end, without it."""
        at = self._at
        stop = self._buffer.find(b"\r\n", at, self._end)
        while stop < 0:
            if self._end - at > 1 << 16:
                raise _garbled(bytes(self._buffer[at : at + 32]))
            self._receive()
            at = self._at
            stop = self._buffer.find(b"\r\n", at, self._end)
        self._at = stop + 2
        return bytes(self._view[at:stop])

    def _fill(self, wanted: int) -> None:
        """At least that many unread bytes are in the buffer then."""
        if wanted > len(self._buffer) - self._at:
            self._move(wanted)
        while self._end - self._at < wanted:
            self._receive()

    def _move(self, wanted: int) -> None:
        """Unread bytes to the front, of a larger buffer if need be. Views handed out before are void."""
        unread = self._end - self._at
        if wanted > len(self._buffer):
            larger = bytearray(wanted + CAPACITY)
            larger[:unread] = self._view[self._at : self._end]
            self._buffer, self._view = larger, memoryview(larger)
        else:
            self._buffer[:unread] = self._buffer[self._at : self._end]
        self._at, self._end = 0, unread

    def _receive(self) -> None:
        """More bytes, at least one."""
        if self._at == self._end:
            self._at = self._end = 0
        elif self._end == len(self._buffer):
            self._move(self._end - self._at + 1)
        try:
            count = self._socket.recv_into(self._view[self._end :])
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while reading from socket: {error}") from error
        if count == 0:
            raise redis.ConnectionError("Connection closed by server.")
        self._end += count


def _integer(line: bytes) -> int | redis.ResponseError:
    return _number(line) if line[:1] == b":" else _error(line)


def _number(line: bytes) -> int:
    try:
        return int(line[1:])
    except ValueError:
        raise _garbled(line) from None


def _error(line: bytes) -> redis.ResponseError:
    if line[:1] != b"-":
        raise _garbled(line)
    text = line[1:].decode("utf-8", "replace")
    if text.startswith("NOPERM"):
        return redis.exceptions.NoPermissionError(text.removeprefix("NOPERM "))
    return redis.ResponseError(text.removeprefix("ERR "))


def _garbled(line: bytes) -> redis.InvalidResponse:
    return redis.InvalidResponse(f"Protocol Error: {line[:32]!r}")
