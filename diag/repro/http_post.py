"""One HTTP exchange that ends in time whatever the server does, and that another thread can end at once.

http.client, not httpx: its timeouts count each read on its own, so a trickling server would still need this file, and
redirects, proxies and cookies are what is not wanted here. As in diag/instruments/http_get.py: no proxy settings, no
redirect followed, a bounded body; but names are resolved and certificates verified, for a token is sent.
"""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import urlsplit

from diag.errors import BadInput
from diag.instruments.http_get import Deadline, authority, time_left

MAX_BODY_BYTES = 32 << 20
REDIRECTS = range(300, 400)


@dataclass(frozen=True)
class Place:
    """Scheme, host and port of an endpoint, and the path before /v1. `unix` is the path of a socket that is used instead of the network."""

    tls: bool
    host: str
    port: int
    prefix: str = ""
    unix: str = ""

    @property
    def authority(self) -> str:
        """`127.0.0.1:8000`, `[::1]:8000`"""
        return authority(self.host, self.port)

    @property
    def shown(self) -> str:
        return f"unix:{self.unix}" if self.unix else f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    def is_same_server(self, other: "Place") -> bool:
        """A token for one may be sent to the other."""
        return (self.tls, self.host, self.port, self.unix) == (other.tls, other.host, other.port, other.unix)


def place_of(url: str) -> Place:
    """`http://host:8000`, `https://host/prefix/v1`, `host:8000` -> Place. Raises BadInput."""
    hint = "for example http://127.0.0.1:8000"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise BadInput(f"no URL: {error}", hint=hint) from error
    if parts.username is not None or parts.password is not None:
        raise BadInput("the URL holds credentials", hint="a bearer token goes into LLMDIAG_API_KEY or a file: --api-key-file")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadInput(f"{url}: not the base URL of an HTTP endpoint", hint=hint)
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise BadInput("the URL holds characters that no URL has", hint=hint)
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Place(tls, parts.hostname, port if port is not None else 443 if tls else 80, prefix)


NO_NAME = "the name of the host is not known"
"""How the detail of `refused` begins where no connection was even tried."""


@dataclass(frozen=True)
class Reply:
    """How it ended: `answer`, or no answer: `timeout`, `refused` (nobody listens, no such host), `reset`, `garbled`, `tls`, `stopped`."""

    outcome: Literal["answer", "timeout", "refused", "reset", "garbled", "tls", "stopped"]
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""
    detail: str = ""
    """What the system said, where there was no answer."""
    seconds: float = 0.0


class Wire:
    """Exchanges with one server, from several threads; `stop()` ends those under way and refuses further ones."""

    def __init__(self, *, verify: bool = True, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_body_bytes = max_body_bytes
        self._context = ssl.create_default_context()
        if not verify:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._stopped = False

    def stop(self) -> None:
        """Not to be called from a signal handler: it takes a lock."""
        with self._lock:
            self._stopped = True
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def exchange(self, method: str, place: Place, path: str, headers: Mapping[str, str], body: bytes | None, seconds: float) -> Reply:
        """One request, one reply, `seconds` in all. Raises nothing."""
        started = time.monotonic()
        reply = self._tried(method, place, path, headers, body, started + seconds)
        outcome = "stopped" if self._stopped and reply.outcome != "answer" else reply.outcome
        return Reply(outcome, reply.status, reply.headers, reply.body, reply.detail, time.monotonic() - started)

    def _tried(self, method: str, place: Place, path: str, headers: Mapping[str, str], body: bytes | None, until: float) -> Reply:
        try:
            sock = _connect(place, until)
        except TimeoutError:
            return Reply("timeout", detail="no connection in time")
        except socket.gaierror as error:
            return Reply("refused", detail=f"{NO_NAME} ({_words(error)})")
        except (OSError, UnicodeError) as error:
            return Reply("refused", detail=_words(error))
        try:
            with self._held(sock):
                return self._talk(sock, method, place, path, headers, body, until)
        except TimeoutError:
            return Reply("timeout", detail="no whole answer in time")
        except ssl.SSLError as error:
            return Reply("tls", detail=_words(error))
        except (http.client.BadStatusLine, http.client.LineTooLong, http.client.UnknownProtocol) as error:
            is_closed = isinstance(error, http.client.RemoteDisconnected)
            return Reply("reset", detail="closed without an answer") if is_closed else Reply("garbled", detail="the answer is no HTTP")
        except http.client.IncompleteRead:
            return Reply("reset", detail="closed in the middle of the answer")
        except http.client.HTTPException as error:
            return Reply("garbled", detail=_words(error))
        except OSError as error:
            return Reply("reset", detail=_words(error))
        except ValueError as error:  # a chunk size or length that is no number
            return Reply("garbled", detail=_words(error))

    @contextlib.contextmanager
    def _held(self, sock: socket.socket) -> Iterator[None]:
        with self._lock:
            if self._stopped:
                sock.close()
                raise ConnectionAbortedError("stopped")
            self._open.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _talk(
        self, plain: socket.socket, method: str, place: Place, path: str, headers: Mapping[str, str], body: bytes | None, until: float
    ) -> Reply:
        plain.settimeout(time_left(until))
        if not place.tls:
            return _ask(plain, method, place, path, headers, body, until, self._max_body_bytes)
        with self._context.wrap_socket(plain.dup(), server_hostname=place.host, suppress_ragged_eofs=True) as secured:
            return _ask(secured, method, place, path, headers, body, until, self._max_body_bytes)


def _connect(place: Place, until: float) -> socket.socket:
    if not place.unix:
        return socket.create_connection((place.host, place.port), timeout=time_left(until))
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(time_left(until))
        sock.connect(place.unix)
    except OSError:
        sock.close()
        raise
    return sock


def _ask(
    sock: socket.socket, method: str, place: Place, path: str, headers: Mapping[str, str], body: bytes | None, until: float, max_body_bytes: int
) -> Reply:
    fields = {
        "Host": place.authority, "User-Agent": "llmdiag", "Accept": "application/json, text/plain;q=0.5", "Accept-Encoding": "identity",
        "Connection": "close", **({} if body is None else {"Content-Type": "application/json", "Content-Length": str(len(body))}), **headers,
    }
    lines = [f"{method} {place.prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    sock.settimeout(time_left(until))
    sock.sendall("\r\n".join(lines).encode("latin-1") + (body or b""))
    with http.client.HTTPResponse(cast(socket.socket, Deadline(sock, until)), method=method) as response:
        response.begin()
        read = response.read(max_body_bytes + 1)
        if len(read) > max_body_bytes:
            return Reply("garbled", response.status, detail=f"the answer is longer than {max_body_bytes >> 20} MiB")
        if response.length not in (None, 0):
            raise http.client.IncompleteRead(b"")
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply("answer", response.status, found, read)


def _words(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
