"""The backup file of a purge: JSON lines, one header and one line per key, on disk before the first key goes.

    {"schema": "llmdiag.backup/1", "target": "redis://127.0.0.1:6379", "created_at": "2025-11-30T06:31:02Z", "server": "redis 7.0.15"}
    {"db": 0, "key_hex": "636c69…", "type": "string", "value": "gASV…", "expires_at_ms": 1764500000000, "sha256": "…"}
    {"db": 0, "key_hex": "636c69…", "type": "hash", "dump": "BAEB…", "server": "redis 7.0.15", "expires_at_ms": null, "sha256": "…"}

A string is kept raw, so that it comes back on any server; anything else as its DUMP, which only this version and newer
ones of the same product are sure to read.
"""

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diag.errors import BadInput, LlmdiagError

SCHEMA = "llmdiag.backup/1"
MAX_LINE_BYTES = 1 << 30


@dataclass(frozen=True)
class Entry:
    """One key as it was."""

    db: int
    key: bytes
    value: bytes
    expires_at_ms: int | None
    """Unix milliseconds; None: never."""
    type: str = "string"
    """As TYPE says. Of anything but a string `value` is its DUMP."""
    server: str | None = None
    """Product and version that wrote the DUMP."""
    line: int | None = field(default=None, compare=False)
    """Of the file it was read from."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.value).hexdigest()


@dataclass(frozen=True)
class Damaged:
    """A line of the file that cannot be put back."""

    line: int
    key_hex: str | None
    why: str


def default_path(now: datetime | None = None) -> Path:
    """`llmdiag-purge-20251130T063102Z.jsonl` in the working directory."""
    moment = datetime.now(UTC) if now is None else now
    return Path(f"llmdiag-purge-{moment:%Y%m%dT%H%M%SZ}.jsonl")


def refuse_place(path: Path) -> None:
    """Can a new backup be written here, as far as can be seen without writing? BadInput: it exists. LlmdiagError: no."""
    if os.path.lexists(path):
        raise _taken(path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        why = "no such folder" if not path.parent.is_dir() else "the folder is not writable"
        raise LlmdiagError(f"the backup {path} cannot be written: {why}", hint=_ELSEWHERE)


def write(path: Path, target: str, entries: Iterable[Entry], *, server: str | None = None) -> int:
    """Write a new file that only its owner can read, and return once it is on disk. How many entries it has.

    BadInput: the file exists. LlmdiagError: the disk refuses; the unfinished file is removed.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError as error:
        raise LlmdiagError(f"the backup {path} cannot be written: {error.strerror}", hint=_ELSEWHERE) from error
    count = 0
    try:
        with os.fdopen(handle, "w", encoding="ascii") as out:
            head = {"schema": SCHEMA, "target": target, "created_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "server": server}
            out.write(json.dumps(head) + "\n")
            for entry in entries:
                out.write(_line(entry) + "\n")
                count += 1
            out.flush()
            os.fsync(out.fileno())
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise LlmdiagError(f"the backup {path} cannot be written: {error.strerror}", hint=_ELSEWHERE) from error
    except BaseException:
        with suppress(OSError):
            path.unlink()  # nothing was deleted yet: half a backup would only confuse
        raise
    return count


_ELSEWHERE = "nothing was deleted; choose a place with room for it"


def _taken(path: Path) -> BadInput:
    return BadInput(f"the backup {path} exists", hint="nothing was deleted; name another file, a backup is never overwritten")


def read(path: Path) -> Iterator[Entry | Damaged]:
    """The entries of a backup, one at a time. BadInput: no backup at all."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise BadInput(f"the backup {path} cannot be read: {error.strerror}") from error
    with stream:
        head = _json(stream.readline(1 << 16))
        if head is None or "schema" not in head:
            raise BadInput(f"{path}:1 is not the head of a backup", hint="give a file that `scan-cache --purge` wrote")
        if head["schema"] != SCHEMA:
            raise BadInput(f"{path}:1 has schema {head['schema']}, this version reads {SCHEMA}")
        for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), 2):
            if line.strip():
                yield _entry(number, line)


def _line(entry: Entry) -> str:
    return json.dumps(
        {
            "db": entry.db,
            "key_hex": entry.key.hex(),
            "type": entry.type,
            **_content(entry),
            "expires_at_ms": entry.expires_at_ms,
            "sha256": entry.sha256,
        }
    )


def _content(entry: Entry) -> dict[str, str | None]:
    content = base64.b64encode(entry.value).decode("ascii")
    return {"value": content} if entry.type == "string" else {"dump": content, "server": entry.server}


def _entry(number: int, line: bytes) -> Entry | Damaged:
    fields = _json(line)
    if fields is None:
        return Damaged(number, None, "the line is cut short or damaged")
    name = fields.get("key_hex") if isinstance(fields.get("key_hex"), str) else None
    kind, server = fields.get("type"), fields.get("server")
    expires = fields.get("expires_at_ms")
    try:
        entry = Entry(
            int(fields["db"]), bytes.fromhex(fields["key_hex"]),
            base64.b64decode(fields["value" if kind == "string" else "dump"], validate=True), None if expires is None else int(expires),
            str(kind), server if isinstance(server, str) else None, number,
        )  # fmt: skip
    except (KeyError, ValueError, TypeError, binascii.Error):
        return Damaged(number, name, "the line is damaged")
    if entry.sha256 != fields.get("sha256"):
        return Damaged(number, name, "the value does not fit its digest")
    return entry


def _json(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _sync_folder(folder: Path) -> None:
    """A file is safe only once its name is, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
