"""Bundles, read as if hostile: no traversal, no links, bounds on count, size and ratio, every digest verified."""

import hashlib
import io
import stat
import struct
import zipfile
import zlib
from pathlib import Path

import msgspec

from diag import manifest as manifests
from diag.errors import BundleError
from diag.manifest import Entry, Manifest
from diag.model import Artefact

MAX_MEMBERS = 20_000
MAX_TOTAL_BYTES = 2 << 30
MAX_RATIO, FREE_BYTES = 400, 64 << 20
"""What is small may be packed as tightly as it likes: a log that repeats one line is what incidents look like."""


class Bundle:
    """A bundle opened for reading: manifest and verified artefacts."""

    def __init__(self, name: str, manifest: Manifest, artefacts: tuple[Artefact, ...]) -> None:
        self.name = name
        self.manifest = manifest
        self.artefacts = artefacts


def is_bundle(path: Path) -> bool:
    """A bundle archive or folder (finished or interrupted)?"""
    if path.is_dir():
        return (path / "manifest.json").is_file() or (path / "manifest.jsonl").is_file()
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04" and path.suffix == ".zip"


def read(path: Path) -> Bundle:
    """Open a bundle archive or folder. Raises BundleError for anything damaged, too new or hostile."""
    return _read_folder(path) if path.is_dir() else _read_zip(path)


def _read_zip(path: Path) -> Bundle:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, NotImplementedError, UnicodeDecodeError, ValueError, struct.error) as error:
        raise BundleError(f"{path} is not a readable zip: {error}", hint="copy it again; a bundle is a .zip written by snapshot") from error
    with archive:
        return _from_zip(path, archive)


def _from_zip(path: Path, archive: zipfile.ZipFile) -> Bundle:
    infos = {info.filename: info for info in archive.infolist()}
    _check_members(path, archive.infolist())
    if "manifest.json" not in infos:
        raise BundleError(f"{path} has no manifest.json", hint="unpack it and analyze the folder as loose files")
    manifest = manifests.decode(_member(archive, infos["manifest.json"], path), f"{path}:manifest.json")
    listed = {entry.path: entry for entry in manifest.artefacts}
    artefacts = []
    for name, entry in listed.items():
        if name not in infos:
            raise BundleError(f"{path}: {name} is in the manifest but not in the archive", hint="the bundle was altered; collect again")
        data = _member(archive, infos[name], path)
        _verify(path, entry, data)
        artefacts.append(_artefact(name, entry.collector, data))
    return Bundle(path.stem, manifest, tuple(artefacts))


def _check_members(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    if len(infos) > MAX_MEMBERS:
        raise BundleError(f"{path} has {len(infos)} members, more than {MAX_MEMBERS}", hint="this is not a bundle that llmdiag wrote")
    if len({info.filename for info in infos}) != len(infos):
        raise BundleError(f"{path} has two members of one name", hint="this is not a bundle that llmdiag wrote")
    total = sum(info.file_size for info in infos)
    if total > MAX_TOTAL_BYTES:
        raise BundleError(f"{path} unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB", hint="this is not a bundle that llmdiag wrote")
    if total > FREE_BYTES and total > MAX_RATIO * sum(info.compress_size for info in infos):
        raise BundleError(f"{path} unpacks to {total} bytes, more than {MAX_RATIO} times its size", hint="this is not a bundle that llmdiag wrote")
    for info in infos:
        manifests.safe_member(info.filename)
        if stat.S_ISLNK(info.external_attr >> 16) or info.flag_bits & 1:
            raise BundleError(f"{path}: {info.filename} is a link or encrypted", hint="this is not a bundle that llmdiag wrote")
        if info.file_size > manifests.MAX_MEMBER_BYTES:
            raise BundleError(f"{path}: {info.filename} unpacks to {info.file_size} bytes", hint="this is not a bundle that llmdiag wrote")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    try:
        with archive.open(info) as stream:
            data = stream.read(info.file_size + 1)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError, RuntimeError, zlib.error, struct.error) as error:
        raise BundleError(f"{path}: {info.filename} cannot be unpacked: {error}", hint="copy the bundle again") from error
    if len(data) != info.file_size:
        raise BundleError(f"{path}: {info.filename} is not as long as it says", hint="copy the bundle again")
    return data


def _verify(path: Path, entry: Entry, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise BundleError(f"{path}: {entry.path} does not have the digest of the manifest", hint="the bundle was altered or damaged; collect again")


def _artefact(name: str, collector: str, data: bytes) -> Artefact:
    return Artefact(name.removeprefix("artefacts/"), collector, lambda: io.BytesIO(data))


def _read_folder(folder: Path) -> Bundle:
    finished = folder / "manifest.json"
    manifest = manifests.decode(manifests.content(finished, manifests.MAX_MEMBER_BYTES), str(finished)) if finished.is_file() else manifests.from_journal(folder)
    if len(manifest.artefacts) > MAX_MEMBERS or sum(max(entry.bytes, 0) for entry in manifest.artefacts) > MAX_TOTAL_BYTES:
        raise BundleError(f"{folder} says that it holds more than {MAX_MEMBERS} artefacts or {MAX_TOTAL_BYTES >> 30} GiB", hint="this is not a bundle that llmdiag wrote")
    artefacts = []
    dropped = list(manifest.dropped)
    for entry in manifest.artefacts:
        data = _in_folder(folder, entry)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            if finished.is_file():
                _verify(folder, entry, data)
            dropped.append(entry.path)
            continue
        artefacts.append(_artefact(entry.path, entry.collector, data))
    return Bundle(folder.name, _without(manifest, dropped), tuple(artefacts))


def _in_folder(folder: Path, entry: Entry) -> bytes:
    """Bytes of one artefact, no more than one above its size; empty when it is not there."""
    place = folder / manifests.safe_member(entry.path)
    try:
        if any(parent.is_symlink() for parent in (place, *place.parents) if parent != folder and folder in parent.parents):
            raise BundleError(f"{place} is a link", hint="this is not a bundle that llmdiag wrote")
        return manifests.content(place, max(entry.bytes, 0) + 1) if place.is_file() else b""
    except OSError as error:
        raise BundleError(f"cannot read {place}: {error.strerror}", hint="check its permissions") from error


def _without(manifest: Manifest, dropped: list[str]) -> Manifest:
    """The manifest with what was dropped: a collector that lost an artefact has not read everything, whatever it said itself."""
    owners = {entry.path: entry.collector for entry in manifest.artefacts}
    runs = dict(manifest.collectors)
    for path in dropped:
        name = owners.get(path)
        run = runs.get(name) if name is not None else None
        if name is not None and run is not None:
            reason = f"{path} is damaged and was left out; collect again"
            runs[name] = msgspec.structs.replace(run, status="partial", reason=run.reason or reason)
    return msgspec.structs.replace(manifest, dropped=tuple(dropped), collectors=runs)
