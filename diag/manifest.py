"""The manifest of a bundle: what it holds and how it came about; replayed from the journal where llmdiag was stopped."""

import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from diag.errors import BundleError
from diag.loose import files, shown

SCHEMA = "llmdiag.bundle/1"
MAX_MEMBER_BYTES = 512 << 20
MAX_MANIFEST_BYTES = 64 << 20
ALTERED = "the journal was altered; analyze the artefacts as loose files"


class Note(msgspec.Struct, frozen=True):
    """Something a collector could not look at, per table."""

    table_name: str
    status: str
    reason: str


class CollectorRun(msgspec.Struct, frozen=True):
    """How one collector ended."""

    status: str
    seconds: float
    reason: str | None = None
    feeds: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


class Entry(msgspec.Struct, frozen=True):
    """One artefact in the manifest."""

    path: str
    sha256: str
    bytes: int
    collector: str
    redactions: int = 0


class Manifest(msgspec.Struct, frozen=True):
    """What is in a bundle and how it came about."""

    schema: str
    tool_version: str
    host: dict[str, str | int | float | None]
    target: dict[str, str | int | float | None]
    started_at: str
    finished_at: str | None = None
    monotonic_s: float | None = None
    collectors: dict[str, CollectorRun] = {}
    artefacts: tuple[Entry, ...] = ()
    side_effects: dict[str, int | float | str | bool] = {}
    redacted: dict[str, int] = {}
    redaction: bool = True
    dropped: tuple[str, ...] = ()
    """Artefacts that were cut short when llmdiag was stopped."""


def utc_now() -> str:
    """Now as `2026-11-30T02:41:10.123456Z`."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"


def decode(data: bytes, where: str) -> Manifest:
    """Raises BundleError when it is none, too large, or of a newer llmdiag."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{where} is larger than {MAX_MANIFEST_BYTES >> 20} MiB", hint="this is not a bundle that llmdiag wrote")
    try:
        schema = json.loads(data).get("schema")
        if isinstance(schema, str) and schema != SCHEMA and schema.startswith("llmdiag.bundle/"):
            raise BundleError(f"{where} has {schema}, this llmdiag reads {SCHEMA}", hint="use a newer llmdiag")
        return msgspec.json.decode(data, type=Manifest)
    except (ValueError, AttributeError, RecursionError) as error:
        raise BundleError(f"{where} is not a manifest: {error}", hint="collect again, or analyze the artefacts as loose files") from error


def from_journal(folder: Path) -> Manifest:
    """Replay the journal. A last line cut short is ignored; collectors that never ended are failed."""
    journal = folder / "manifest.jsonl"
    told = _Told()
    for event in _events(journal):
        try:
            told.hear(event)
        except (KeyError, TypeError, OverflowError) as error:
            raise BundleError(f"{journal}: a line lacks something or holds what it cannot: {error}", hint=ALTERED) from error
    on_disk = [shown(path.relative_to(folder)) for path in files(folder / "artefacts")] if (folder / "artefacts").is_dir() else []
    runs = dict(told.runs)
    for name, feeds in told.running.items():
        if name not in runs:
            reason = "llmdiag was stopped before this collector had finished"
            runs[name] = {"status": "partial", "seconds": 0.0, "reason": reason, "feeds": feeds}
    manifest = {
        **told.facts, "collectors": runs, "artefacts": list(told.artefacts.values()), "side_effects": told.effects,
        "dropped": [name for name in on_disk if name not in told.artefacts],
    }
    return decode(json.dumps(manifest).encode(), str(journal))


@dataclass
class _Told:
    """What the journal has told so far."""

    facts: dict[str, object] = field(default_factory=dict)
    running: dict[str, object] = field(default_factory=dict)
    runs: dict[str, object] = field(default_factory=dict)
    artefacts: dict[str, dict[str, object]] = field(default_factory=dict)
    effects: dict[str, object] = field(default_factory=dict)

    def hear(self, event: dict[str, object]) -> None:
        """One line. Raises KeyError, TypeError, OverflowError when it is none of llmdiag."""
        match event.pop("event", None):
            case "open" | "close":
                self.facts.update(event)
            case "begin":
                self.running[str(event["collector"])] = event.get("feeds", ())
            case "artefact":
                self.artefacts[str(event["path"])] = event  # written again when a secret in it became known later
            case "end":
                self.runs[str(event.pop("collector"))] = event
            case "side_effect":
                name, amount = str(event["name"]), event["amount"]
                before = self.effects.get(name, 0)
                self.effects[name] = before + amount if isinstance(amount, int | float) and isinstance(before, int | float) else amount


def _events(journal: Path) -> Iterator[dict[str, object]]:
    with _regular(journal) as stream:
        number = 0
        while (raw := stream.readline(MAX_MANIFEST_BYTES)).endswith(b"\n"):
            number += 1
            try:
                event = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise BundleError(f"{journal}:{number} is not JSON", hint=ALTERED) from error
            if isinstance(event, dict):
                yield event


def safe_member(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name.split("/")[0] or len(name) > 1024:
        raise BundleError(f"unsafe member name {name!r}", hint="this is not a bundle that llmdiag wrote")
    return path


def content(path: Path, limit_bytes: int) -> bytes:
    with _regular(path) as stream:
        return stream.read(limit_bytes)


def _regular(path: Path) -> BinaryIO:
    try:
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}", hint="check its permissions; links are not followed") from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise BundleError(f"{path} is not a regular file", hint="this is not a bundle that llmdiag wrote")
    return stream
