"""What `scan-cache` was asked for: which server, which keys. Reads addresses and key lists, decides nothing about values."""

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from diag.cache.scanning import topology
from diag.cache.servers import credentials
from diag.cache.servers.address import several
from diag.cache.servers.connection import URL_VARIABLE, Client, name_of
from diag.errors import BadInput, LlmdiagError

FALLBACKS = (URL_VARIABLE, "REDIS_URL")
LOCAL = "redis://127.0.0.1:6379"
ZIP = b"PK\x03\x04"
THREE_WAYS = f"name one: llmdiag scan-cache redis://HOST:PORT, or set {URL_VARIABLE}, or start it on 127.0.0.1:6379"


def choose(
    target: str | None, environment: Mapping[str, str] = os.environ, credentials_file: Path | None = None
) -> tuple[Client, str]:
    """The server, cluster or service to look at, and its name without credentials.

    A TARGET without credentials takes them from the file, else from LLMDIAG_REDIS_URL (or REDIS_URL) if that is the
    same server. Without a TARGET: the address in the file, LLMDIAG_REDIS_URL, REDIS_URL, then a server that answers on
    127.0.0.1:6379. Raises BadInput, CannotConnect, Denied, TimedOut.
    """
    line = None if credentials_file is None else credentials.read(credentials_file)
    if line is not None and credentials.is_address(line):
        target = _lent_by_file(target, line, credentials_file)
    elif line is not None:
        base = target or next(filter(None, map(environment.get, FALLBACKS)), LOCAL)
        name_of(base)
        target = credentials.put_into(base, line, instead=target is None)
    known = [(name, url) for name in FALLBACKS if (url := environment.get(name))]
    if target is not None:
        return _open(with_credentials(target, (url for _, url in known)))
    if known:
        name, url = known[0]
        try:
            return _open(url)
        except LlmdiagError as error:
            raise type(error)(f"{error.message} (the address is from {name})", hint=error.hint) from error
    try:
        return _open(LOCAL)
    except LlmdiagError as error:
        raise BadInput(f"no cache server was named and none answers on 127.0.0.1:6379 ({error.message})", hint=THREE_WAYS) from error


def _lent_by_file(target: str | None, url: str, path: Path | None) -> str:
    """BadInput: TARGET is another server than the address in the file."""
    try:
        named = name_of(url)
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}", hint=error.hint) from error
    if target is None:
        return url
    lent = with_credentials(target, [url])
    if lent == target and not _has_credentials(target):
        raise BadInput(f"{path} holds no credentials for {name_of(target)} but for {named}", hint="write USER:PASSWORD into the file, or the right address")
    return lent


def with_credentials(target: str, known: Iterable[str]) -> str:
    """The address with user, password and TLS of the first known URL of the same server, unless it has its own.

    Raises BadInput: TARGET is no address. A known URL that is none is passed over: nobody asked for it.
    """
    name_of(target)
    if _has_credentials(target):
        return target
    for url in known:
        if _has_credentials(url) and _places(url) & _places(target):
            theirs, ours = urlsplit(url), urlsplit(target)
            userinfo, at, _ = theirs.netloc.rpartition("@")
            safe = _scheme(theirs.scheme, ours.scheme)
            query = "&".join(filter(None, (theirs.query, ours.query)))
            path = ours.path if ours.path.strip("/") else theirs.path
            return f"{safe}://{userinfo}{at}{ours.netloc}{path}" + (f"?{query}" if query else "")
    return target


def _scheme(theirs: str, ours: str) -> str:
    """Of both, what is safer and what says more: rediss, and that there are several hosts."""
    tls = "rediss" in (theirs[:6], ours[:6])
    manner = next((scheme[scheme.index(mark) :] for scheme in (ours, theirs) for mark in "+-" if mark in scheme), "")
    return "unix" if theirs == "unix" else f"redis{'s' if tls else ''}{manner}"


def _has_credentials(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return "@" in parts.netloc or "password" in parse_qs(parts.query)


def _places(url: str) -> frozenset[tuple[str, int]]:
    """Every network address, or the socket path, that a URL stands for; nothing if it stands for none."""
    try:
        name_of(url)
        many = several(url)
        if many is not None:  # a Sentinel is another place than a server behind the same port
            return frozenset(place for host in many.hosts for place in _resolved(*host, "" if many.kind == "cluster" else many.kind))
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return frozenset({(parts.path, 0)})
        return frozenset(_resolved(parts.hostname or "127.0.0.1", parts.port or 6379))
    except (BadInput, ValueError, OSError):
        return frozenset()


def _resolved(host: str, port: int, kind: str = "") -> list[tuple[str, int]]:
    return [(kind + str(place[0]), int(place[1])) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _open(url: str) -> tuple[Client, str]:
    return topology.connect(url), name_of(url)


def keys_from(path: Path, from_evidence: Callable[[Path], list[bytes]]) -> list[bytes]:
    """Keys named by a bundle (those that stuck threads hold) or by a text file, one a line, `hex:` for binary ones.

    BadInput: it cannot be read, a line is wrong (file:line), or it names no key at all.
    """
    if path.is_dir() or path.suffix == ".zip":
        return from_evidence(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint="a bundle, or a text file with one key a line") from error
    if text.startswith(ZIP):
        return from_evidence(path)
    keys = [_key(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not keys:
        raise BadInput(f"{path} names no key", hint="write one key a line, hex: and its bytes for binary ones")
    return keys


def _key(path: Path, number: int, line: bytes) -> bytes:
    if not line.startswith(b"hex:"):
        return line
    try:
        return bytes.fromhex(line[4:].decode())
    except ValueError as error:
        raise BadInput(f"{path}:{number}: not hexadecimal after hex:", hint="write the key itself, or hex: and its bytes") from error
