"""One GET that ends in time whatever the server does: hang, trickle, lie about its length, talk something else.

It connects to an address (never a name), reads no proxy settings, follows no redirect to another place, and keeps no
more than `MAX_BODY_BYTES`. TLS certificates are not verified: the question is whether the service answers.
"""

import functools
import http.client
import io
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_BODY_BYTES = 8 << 20
REDIRECTS = frozenset({301, 302, 307, 308})
WILDCARDS = {"0.0.0.0": ("127.0.0.1",), "::": ("::1", "127.0.0.1")}
"""Where a server that listens everywhere is asked; the second address is for machines without IPv6."""
TLS_ALERT = b"\x15\x03"
"""How a TLS server begins its answer to plain text."""

Opener = Callable[[int], socket.socket]
"""Address family -> a new, unconnected stream socket (in the network of the service)."""


@dataclass(frozen=True)
class Answer:
    """How it ended. `outcome`: answer, timeout, refused, reset or garbled (not HTTP)."""

    outcome: str
    seconds: float
    url: str
    status: int | None = None
    body: bytes = b""
    cut: bool = False
    """The body was longer than MAX_BODY_BYTES."""
    tls: bool = False
    first: bytes = b""
    """Beginning of an answer that is not HTTP."""


def get(
    opener: Opener, host: str, port: int, path: str, *, seconds: float, headers: Mapping[str, str], tls: bool | None = None
) -> Answer:
    """GET `path` from `host:port` within `seconds` in all.

    `tls` None means: plain text first, then TLS when the answer looks as if the port wants it. Raises what `opener`
    raises, nothing else.
    """
    started = time.monotonic()
    until = started + seconds
    answer = replace(_follow(opener, host, port, path, until, headers, bool(tls)), seconds=time.monotonic() - started)
    if tls is None and _wants_tls(answer):
        secure = _follow(opener, host, port, path, until, headers, True)
        if secure.outcome == "answer":
            return replace(secure, seconds=time.monotonic() - started)
    return answer


def authority(host: str, port: int) -> str:
    """`127.0.0.1:8000`, `[::1]:8000`"""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _follow(opener: Opener, host: str, port: int, path: str, until: float, headers: Mapping[str, str], tls: bool) -> Answer:
    """The exchange, and one more when it is redirected to another path of the same place."""
    answer, location = _exchange(opener, host, port, path, until, headers, tls)
    if location is None:
        return answer
    aim = urlsplit(urljoin(answer.url, location))
    here = urlsplit(answer.url)
    if (aim.scheme, aim.netloc) != (here.scheme, here.netloc) or not _is_path(aim.path):
        return answer
    return _exchange(opener, host, port, aim.path, until, headers, tls)[0]


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isascii() and text.isprintable() and " " not in text


def _wants_tls(answer: Answer) -> bool:
    refused_plain = answer.status == 400 and b"HTTPS" in answer.body[:4096].upper()
    return answer.outcome == "reset" or answer.first.startswith(TLS_ALERT) or refused_plain


def _exchange(
    opener: Opener, host: str, port: int, path: str, until: float, headers: Mapping[str, str], tls: bool
) -> tuple[Answer, str | None]:
    """(answer, where a redirect points)"""
    for address in WILDCARDS.get(host, (host,)):
        blank = Answer("answer", 0.0, f"{'https' if tls else 'http'}://{authority(address, port)}{path}", tls=tls)
        try:
            wire = _connect(opener, address, port, until)
            break
        except TimeoutError:
            return replace(blank, outcome="timeout"), None
        except OSError:
            continue
    else:
        return replace(blank, outcome="refused"), None
    with wire:
        try:
            return _talk(wire, address, path, until, headers, blank)
        except TimeoutError:
            return replace(blank, outcome="timeout"), None
        except (ConnectionError, http.client.IncompleteRead):
            return replace(blank, outcome="reset"), None
        except http.client.BadStatusLine as error:
            return replace(blank, outcome="garbled", first=str(error.args[0]).encode("latin-1", "replace")[:64]), None
        except (http.client.HTTPException, ssl.SSLError, zlib.error):
            return replace(blank, outcome="garbled"), None
        except OSError:
            return replace(blank, outcome="reset"), None


def _connect(opener: Opener, address: str, port: int, until: float) -> socket.socket:
    """Connected socket. Raises OSError."""
    wire = opener(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        wire.settimeout(time_left(until))
        wire.connect((address, port))
    except OSError:
        wire.close()
        raise
    return wire


def _talk(
    wire: socket.socket, host: str, path: str, until: float, headers: Mapping[str, str], blank: Answer
) -> tuple[Answer, str | None]:
    if blank.tls:
        wire.settimeout(time_left(until))
        with _context().wrap_socket(wire, server_hostname=host, suppress_ragged_eofs=True) as secured:
            return _ask(secured, path, until, headers, blank)
    return _ask(wire, path, until, headers, blank)


def _ask(
    wire: socket.socket, path: str, until: float, headers: Mapping[str, str], blank: Answer
) -> tuple[Answer, str | None]:
    fields = {
        "Host": urlsplit(blank.url).netloc, "Accept": "text/plain, */*;q=0.1", "Accept-Encoding": "identity",
        "Connection": "close", "User-Agent": "llmdiag", **headers,
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    wire.settimeout(time_left(until))
    wire.sendall("\r\n".join(lines).encode("latin-1"))
    with http.client.HTTPResponse(cast(socket.socket, Deadline(wire, until)), method="GET") as response:
        response.begin()
        body = _body(response)
        if response.length not in (None, 0) and len(body) <= MAX_BODY_BYTES:
            raise http.client.IncompleteRead(b"")
        location = response.getheader("location") if response.status in REDIRECTS else None
        if response.getheader("content-encoding", "").lower() in ("gzip", "deflate"):
            body = zlib.decompressobj(wbits=47).decompress(body, MAX_BODY_BYTES + 1)
        answer = replace(blank, status=response.status, body=body[:MAX_BODY_BYTES], cut=len(body) > MAX_BODY_BYTES)
        return answer, location


def _body(response: http.client.HTTPResponse) -> bytes:
    """At most one byte more than MAX_BODY_BYTES."""
    parts: list[bytes] = []
    left = MAX_BODY_BYTES + 1
    while left > 0 and (part := response.read(min(left, 64 << 10))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def time_left(until: float) -> float:
    """Seconds until this monotonic time. Raises TimeoutError when there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("out of time")
    return left


@functools.cache
def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Deadline(io.RawIOBase):
    """A socket as http.client reads it, with one deadline for all reads together: a trickle does not renew it.

    A first read that does not begin like HTTP ends it at once: binary protocols send no line end to wait for.
    """

    def __init__(self, wire: socket.socket, until: float) -> None:
        self._wire = wire
        self._until = until
        self._is_first = True

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._wire.settimeout(time_left(self._until))
        got = self._wire.recv_into(buffer)
        if self._is_first:
            self._is_first = False
            first = bytes(memoryview(buffer)[:min(got, 64)])
            if first[:5] != b"HTTP/"[:len(first)]:
                raise http.client.BadStatusLine(first.decode("latin-1"))
        return got
