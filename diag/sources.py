"""Paths as a person gave them -> sources of evidence: each bundle one, all loose files together one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag import bundle_reader
from diag.collectors import Collector
from diag.errors import BadInput
from diag.manifest import CollectorRun, Manifest
from diag.model import Artefact

HEAD_BYTES = 64 << 10


@dataclass(frozen=True)
class Source:
    """One place evidence comes from: a bundle, or loose files that belong together."""

    name: str
    host: str
    capture: str
    artefacts: Mapping[str, Sequence[Artefact]]
    runs: Mapping[str, CollectorRun] | None
    """How the live collectors ended; None for loose evidence."""
    manifest: Manifest | None = None
    unknown: tuple[str, ...] = ()
    """Loose files that no collector recognised."""


def sources_of(paths: Sequence[Path], collectors: Sequence[Collector]) -> list[Source]:
    """Paths as a person gave them -> sources: each bundle one, all loose files together one."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise BadInput(f"no such file or folder: {', '.join(missing)}", hint="give bundles (.zip), bundle folders, or loose evidence files")
    loose = [path for path in paths if not bundle_reader.is_bundle(path)]
    found = [_from_bundle(bundle_reader.read(path)) for path in paths if bundle_reader.is_bundle(path)]
    if loose:
        found.append(_from_loose(loose, collectors))
    return found


def _from_bundle(opened: bundle_reader.Bundle) -> Source:
    artefacts: dict[str, list[Artefact]] = {}
    for artefact in opened.artefacts:
        artefacts.setdefault(artefact.collector, []).append(artefact)
    manifest = opened.manifest
    return Source(opened.name, str(manifest.host.get("hostname") or "unknown"), manifest.started_at, artefacts, manifest.collectors, manifest)


def _from_loose(paths: Sequence[Path], collectors: Sequence[Collector]) -> Source:
    artefacts: dict[str, list[Artefact]] = {}
    unknown = []
    for root in paths:
        for path in _files(root):
            shown = path.relative_to(root).as_posix() if root.is_dir() else path.name
            head = _head(path)
            owner = next((c.NAME for c in collectors if c.recognise(path.name, head)), None) if head else None
            if owner is None:
                unknown.append(shown)
            else:
                artefacts.setdefault(owner, []).append(Artefact(shown, owner, lambda path=path: path.open("rb")))  # type: ignore[misc]
    name = paths[0].name or paths[0].resolve().name
    return Source(name, "unknown", "1", artefacts, None, unknown=tuple(unknown))


def _files(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        yield root
        return
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint="check its permissions") from error
