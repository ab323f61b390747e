"""What `scan-cache` was asked for: which server, which keys. Reads addresses and key lists, decides nothing about values."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from diag.cache.connection import URL_VARIABLE, Client, connect, name_of
from diag.errors import BadInput, LlmdiagError

FALLBACKS = (URL_VARIABLE, "REDIS_URL")
LOCAL = "redis://127.0.0.1:6379"
THREE_WAYS = f"name one: llmdiag scan-cache redis://HOST:PORT, or set {URL_VARIABLE}, or start it on 127.0.0.1:6379"


def choose(target: str | None, environment: Mapping[str, str] = os.environ) -> tuple[Client, str]:
    """The server to look at and its name without credentials.

    A TARGET without credentials that names the server of LLMDIAG_REDIS_URL takes them from there. Without a TARGET:
    LLMDIAG_REDIS_URL, REDIS_URL, then a server that answers on 127.0.0.1:6379. Raises BadInput, CannotConnect, Denied.
    """
    known = [url for name in FALLBACKS if (url := environment.get(name))]
    if target is not None:
        same = [url for url in known if name_of(url) == name_of(target)]
        return _open(same[0] if same and "@" not in target else target)
    if known:
        return _open(known[0])
    try:
        return _open(LOCAL)
    except LlmdiagError as error:
        raise BadInput(f"no cache server was named and none answers on 127.0.0.1:6379 ({error.message})", hint=THREE_WAYS) from error


def _open(url: str) -> tuple[Client, str]:
    return connect(url), name_of(url)


def keys_from(path: Path, from_evidence: Callable[[Path], list[bytes]]) -> list[bytes]:
    """Keys named by a bundle (those that stuck threads hold) or by a text file, one a line, `hex:` for binary ones."""
    if path.is_dir() or path.suffix == ".zip":
        return from_evidence(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint="a bundle, or a text file with one key a line") from error
    return [_key(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _key(path: Path, number: int, line: bytes) -> bytes:
    if not line.startswith(b"hex:"):
        return line
    try:
        return bytes.fromhex(line[4:].decode())
    except ValueError as error:
        raise BadInput(f"{path}:{number}: not hexadecimal after hex:", hint="write the key itself, or hex: and its bytes") from error
