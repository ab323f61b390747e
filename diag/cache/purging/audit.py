"""The audit log of a purge: JSON lines beside its backup, each holding the digest of the line before it.

    {"schema": "llmdiag.audit/1", "at": "…", "who": "root", "host": "…", "version": "0.1.0", "arguments": ["scan-cache", …],
     "target": "redis://127.0.0.1:6379", "server": "redis 7.0.15", "plan_sha256": "…", "backup": "….jsonl", "prev": "000…"}
    {"at": "…", "db": 0, "key_hex": "636c69…", "verdict": "ghost", "reasons": ["empty"], "sha256": "…", "ttl_s": null,
     "result": "deleted", "prev": "…"}
    {"at": "…", "end": {"deleted": 1, "changed": 0, "missing": 0, "failed": 0}, "error": null, "prev": "…"}

No value of a key is in it. A log that was cut or edited does not fit its own digests: `verify`.
"""

import errno
import hashlib
import json
import os
import pwd
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import TracebackType

from diag import __version__
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, LlmdiagError
from diag.redact import Redactor

SCHEMA = "llmdiag.audit/1"
START = "0" * 64
LINE_BYTES = 600
"""About what a key takes in it."""


def path_of(backup: Path) -> Path:
    """`x.jsonl` -> `x.audit.jsonl`."""
    return backup.with_name(f"{backup.stem}.audit.jsonl")


class Audit:
    """An audit log that is being written. Every batch is on disk before the next one goes."""

    def __init__(self, path: Path, stream: FileIO) -> None:
        self.path = path
        self._stream = stream
        self._prev = START
        self._broken = False
        """The disk took a part of a line: what came after it would not fit."""

    def __enter__(self) -> "Audit":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()

    def keys(self, results: Iterable[tuple[CacheKey, str]]) -> None:
        """What became of these keys: deleted, changed, missing, or unknown where no answer came. LlmdiagError: the disk."""
        at = _now()
        self._write(
            {
                "at": at, "db": row.db, "key_hex": row.key_hex, "verdict": row.verdict, "reasons": list(row.reasons),
                "sha256": row.sha256, "ttl_s": row.ttl_s, "result": result,
            }
            for row, result in results
        )  # fmt: skip

    def end(self, counts: Mapping[str, int], error: str | None) -> None:
        """The last line."""
        self._write([{"at": _now(), "end": dict(counts), "error": error}])

    def _write(self, records: Iterable[Mapping[str, object]]) -> None:
        lines = []
        for record in records:
            line = json.dumps({**record, "prev": self._prev}).encode() + b"\n"
            self._prev = hashlib.sha256(line).hexdigest()
            lines.append(line)
        try:
            if self._broken:
                raise OSError(errno.EIO, "it broke off before")
            left = memoryview(b"".join(lines))
            while left:
                left = left[self._stream.write(left) :]
            os.fsync(self._stream.fileno())
        except OSError as error:
            self._broken = True
            raise LlmdiagError(f"the audit log {self.path} cannot be written: {error.strerror}") from error


def begin(path: Path, *, target: str, server: str | None, plan_sha256: str, backup: Path, arguments: Sequence[str]) -> Audit:
    """A new log with its first line. BadInput: it exists. LlmdiagError: the disk refuses; no file is left."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except FileExistsError as error:
        raise taken(path) from error
    except OSError as error:
        raise LlmdiagError(f"the audit log {path} cannot be written: {error.strerror}", hint="nothing was deleted") from error
    audit = Audit(path, os.fdopen(handle, "wb", buffering=0))  # nothing is kept back that could fail later
    head = {
        "schema": SCHEMA, "at": _now(), "who": _who(), "host": socket.gethostname(), "version": __version__,
        "arguments": Redactor().argv(arguments), "target": target, "server": server, "plan_sha256": plan_sha256, "backup": backup.name,
    }  # fmt: skip
    try:
        audit._write([head])
    except LlmdiagError as error:
        audit.__exit__(None, None, None)
        path.unlink(missing_ok=True)
        raise LlmdiagError(error.message, hint="nothing was deleted; choose a place with room for it") from error
    return audit


def taken(path: Path) -> BadInput:
    """There is one already."""
    return BadInput(f"the audit log {path} exists", hint="nothing was deleted; name another backup, no log is ever overwritten")


def verify(path: Path) -> int:
    """The number of lines of a log whose chain is whole. BadInput: where it breaks (file:line)."""
    prev = START
    number = 0
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise BadInput(f"{path}:{number}: no JSON: the log was cut here") from error
                if not isinstance(record, dict) or record.get("prev") != prev:
                    raise BadInput(f"{path}:{number}: does not follow the line before it: the log was changed")
                prev = hashlib.sha256(line).hexdigest()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    return number


def _who() -> str:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    behind = os.environ.get("SUDO_USER")
    return name if not behind else f"{name} (sudo by {behind})"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
