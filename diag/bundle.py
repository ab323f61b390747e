"""Bundles, written while collecting: redacted at the door, hashed, one flushed journal line an artefact.

Layout: `manifest.json` + `artefacts/<collector>/<name>` in a zip of mode 0600. While collecting it is a folder with a
`manifest.jsonl`; if llmdiag is killed, that folder is a valid bundle.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shlex
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from diag import __version__
from diag import manifest as manifests
from diag.errors import BundleError
from diag.manifest import Note
from diag.model import Artefact
from diag.redact import Redactor, UndecodableArtefact


class Occupied(BundleError):
    """There is something already where the bundle should go."""


class Writer:
    """An open bundle folder. Everything that enters is redacted before it touches the disk."""

    def __init__(self, folder: Path, redactor: Redactor, host: Mapping[str, object], target: Mapping[str, object]) -> None:
        self.folder = folder
        self.redactor = redactor
        self._side_effects: dict[str, int | float | str | bool] = {}
        self._written: list[_Written] = []
        self._learnt = dict(redactor.counts)
        self._started = time.monotonic()
        self.failed = False
        """The place cannot be written any more (its disk is full): what comes now is dropped in silence, it was said once."""
        self._journal = _new_journal(folder)
        try:
            self.log(
                "open", schema=manifests.SCHEMA, tool_version=__version__, host=redactor.json(dict(host)),
                target=redactor.json(dict(target)), started_at=manifests.utc_now(), redaction=redactor.enabled,
            )
        except BundleError as error:
            _remove_tree(folder)
            raise BundleError(error.message, hint="name another place with -o FILE; nothing was collected yet") from error

    def log(self, event: str, **facts: object) -> None:
        """Append one flushed line to the journal of the bundle. Raises BundleError the first time that it cannot."""
        if self.failed:
            return
        line = json.dumps({"event": event, **facts}, sort_keys=True).encode("utf-8") + b"\n"
        try:
            while line:  # a disk that fills up takes a part of it first
                line = line[self._journal.write(line) or 0 :]
            os.fsync(self._journal.fileno())
        except OSError as error:
            raise self._failure(self.folder / "manifest.jsonl", error) from error

    def add(self, collector: str, name: str, data: bytes, redactions: int) -> None:
        """Write one finished, already redacted artefact and its journal line. Raises BundleError the first time that it cannot."""
        if self.failed:
            return
        path = manifests.safe_member(f"artefacts/{collector}/{self.redactor.name(name)}")
        place = self.folder / path
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_new(place, data)
        except OSError as error:
            raise self._failure(place, error) from error
        self._written.append(_Written(place, str(path), collector, redactions, self.redactor.known))
        self._log_artefact(self._written[-1], data)

    def _log_artefact(self, item: "_Written", data: bytes) -> None:
        self.log(
            "artefact", path=item.path, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data),
            collector=item.collector, redactions=item.redactions,
        )

    def side_effect(self, name: str, amount: float | str) -> None:
        """Record what llmdiag did to the patient: numbers add up, texts replace."""
        before = self._side_effects.get(name, 0)
        both_numbers = isinstance(amount, int | float) and isinstance(before, int | float)
        self._side_effects[name] = before + amount if both_numbers else amount  # type: ignore[operator]
        self.log("side_effect", name=name, amount=amount)

    def abandon(self) -> None:
        """Leave the folder as it is: an interrupted bundle that can still be analysed."""
        self._journal.close()

    def _failure(self, place: Path, error: OSError) -> BundleError:
        self.failed = True
        return BundleError(
            f"cannot write {place}: {error.strerror}",
            hint=f"make room, or name another place with -o FILE; what was collected so far: llmdiag analyze {shlex.quote(str(self.folder))}",
        )

    def close(self, archive: Path) -> Path:
        """Zip the folder to `archive` (0600, atomic) and remove it. Returns the archive."""
        self._sweep_again()
        redacted = {kind: more for kind, count in self.redactor.counts.items() if (more := count - self._learnt.get(kind, 0))}
        self.log("close", finished_at=manifests.utc_now(), monotonic_s=time.monotonic() - self._started, redacted=redacted)
        self._journal.close()
        manifest = manifests.from_journal(self.folder)
        partial = archive.with_name(archive.name + ".part")
        try:
            with (
                os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as raw,
                zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as packed,
            ):
                packed.writestr("manifest.json", msgspec.json.format(msgspec.json.encode(manifest), indent=1))
                for entry in manifest.artefacts:
                    packed.write(self.folder / entry.path, entry.path)
            partial.replace(archive)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise BundleError(
                f"cannot write {archive}: {error.strerror}", hint=f"the evidence is safe: llmdiag analyze {shlex.quote(str(self.folder))}",
            ) from error
        _remove_tree(self.folder)
        return archive

    def _sweep_again(self) -> None:
        """What only a late artefact called a secret is taken out of the earlier ones too."""
        for item in self._written:
            if item.known == self.redactor.known:
                continue
            data = item.place.read_bytes()
            before = sum(self.redactor.counts.values())
            clean = _swept(item.path, data, self.redactor)
            if clean == data:
                continue
            partial = item.place.with_name(item.place.name + ".part")
            try:
                _write_new(partial, clean)
                partial.replace(item.place)
            except OSError as error:
                with contextlib.suppress(OSError):
                    partial.unlink()
                raise self._failure(item.place, error) from error
            more = sum(self.redactor.counts.values()) - before
            self._log_artefact(dataclasses.replace(item, redactions=item.redactions + more), clean)


@dataclass(frozen=True)
class _Written:
    """An artefact on disk, and how many spellings of secrets were known when it was redacted."""

    place: Path
    path: str
    collector: str
    redactions: int
    known: int


def _new_journal(folder: Path) -> io.FileIO:
    """The folder of a bundle, made, and its empty journal: unbuffered, so that nothing is left to write later. Raises Occupied, BundleError."""
    try:
        folder.mkdir(mode=0o700, parents=False)
    except FileExistsError as error:
        raise Occupied(f"{folder} exists already", hint="name another file with -o; nothing was collected yet") from error
    except OSError as error:
        raise _not_writable(folder, error) from error
    try:
        (folder / "artefacts").mkdir(mode=0o700)
        return io.FileIO(os.open(folder / "manifest.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600), "a")
    except OSError as error:
        _remove_tree(folder)
        raise _not_writable(folder, error) from error


def _not_writable(folder: Path, error: OSError) -> BundleError:
    return BundleError(
        f"cannot write the bundle to {folder}: {error.strerror}", hint="name a writable place with -o FILE; nothing was collected yet",
    )


def _write_new(place: Path, data: bytes) -> None:
    """A file that was not there, for its owner only."""
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(data)


def _swept(name: str, data: bytes, redactor: Redactor) -> bytes:
    """Remembered secrets taken out of a redacted artefact; JSON value by value, so that it stays JSON."""
    text = data.decode("utf-8")
    if not redactor.mentions(text):
        return data
    if name.endswith(".jsonl"):
        return b"".join(msgspec.json.encode(redactor.json(msgspec.json.decode(line))) + b"\n" for line in data.splitlines())
    if name.endswith(".json"):
        return msgspec.json.encode(redactor.json(msgspec.json.decode(data)))
    return redactor.sweep(text).encode("utf-8")


class Door:
    """One collector's way into the bundle: budget, redaction, notes. The only way in."""

    def __init__(self, writer: Writer, collector: str, budget_bytes: int) -> None:
        self._writer = writer
        self._collector = collector
        self._left = budget_bytes
        self.notes: list[Note] = []
        self.artefacts: list[Artefact] = []

    @property
    def redact(self) -> Redactor:
        """For what is known by structure (argv, env, URLs) before it becomes text."""
        return self._writer.redactor

    def text(self, name: str, text: str | bytes) -> None:
        """Write a text artefact; not UTF-8 means it is dropped and noted (fail closed)."""
        redactor = self._writer.redactor
        before = sum(redactor.counts.values())
        try:
            data = redactor.bytes_(text) if isinstance(text, bytes) else redactor.text(text).encode("utf-8", "replace")
        except UndecodableArtefact as error:
            self.note("*", "partial", f"{name} was dropped: {error}")
            return
        self._write(name, data, sum(redactor.counts.values()) - before)

    def json(self, name: str, value: object) -> None:
        """Write a JSON artefact: strings are redacted one by one, so that structure survives."""
        redactor = self._writer.redactor
        before = sum(redactor.counts.values())
        data = msgspec.json.encode(redactor.json(value))
        self._write(name, data, sum(redactor.counts.values()) - before)

    def jsonl(self, name: str, rows: Iterable[object]) -> None:
        """Write JSON Lines, redacted like `json`."""
        redactor = self._writer.redactor
        before = sum(redactor.counts.values())
        data = b"".join(msgspec.json.encode(redactor.json(row)) + b"\n" for row in rows)
        self._write(name, data, sum(redactor.counts.values()) - before)

    def note(self, table_name: str, status: str, reason: str) -> None:
        """Say that a table (or `table.column`, or `*` for all this collector feeds) was not fully read."""
        note = Note(table_name, status, self._writer.redactor.text(reason))
        if note not in self.notes:
            self.notes.append(note)

    def side_effect(self, name: str, amount: float | str) -> None:
        """Record what was done to the patient, e.g. `pause_ms`."""
        self._writer.side_effect(name, amount)

    def _write(self, name: str, data: bytes, redactions: int) -> None:
        if len(data) > self._left:
            self.note("*", "partial", f"{name} ({len(data)} bytes) is over the collector's size budget and was left out")
            return
        self._left -= len(data)
        self._writer.add(self._collector, name, data, redactions)
        self.artefacts.append(Artefact.of_bytes(f"{self._collector}/{self._writer.redactor.name(name)}", self._collector, data))


def _remove_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()
