"""Paths as a person gave them -> sources of evidence: each bundle one, all loose files together one."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag import bundle_reader
from diag.collectors import Collector
from diag.errors import BadInput
from diag.loose import Unreadable, files, head, shown
from diag.manifest import CollectorRun, Manifest
from diag.model import Artefact


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
    """Files that no collector recognised or that cannot be read; artefacts of collectors that this llmdiag does not have."""


@dataclass(frozen=True)
class Dates:
    """What a person says about times in loose files: the year of their first line, the zone they are printed in."""

    year: int | None = None
    zone: str | None = None


def sources_of(paths: Sequence[Path], collectors: Sequence[Collector], dates: Dates | None = None) -> list[Source]:
    """Paths as a person gave them -> sources: each bundle one, all loose files together one."""
    missing = [shown(path) for path in paths if not os.path.lexists(path)]
    if missing:
        raise BadInput(f"no such file or folder: {', '.join(missing)}", hint="give bundles (.zip), bundle folders, or loose evidence files")
    bundles = [path for path in paths if _is_bundle(path)]
    loose = [path for path in paths if path not in bundles]
    found = [_from_bundle(bundle_reader.read(path), collectors) for path in bundles]
    if loose:
        found.append(_from_loose(loose, collectors, dates or Dates()))
    return found


def _is_bundle(path: Path) -> bool:
    try:
        return bundle_reader.is_bundle(path)
    except OSError as error:
        raise BadInput(f"cannot read {shown(path)}: {error.strerror}", hint="check its permissions") from error


def _from_bundle(opened: bundle_reader.Bundle, collectors: Sequence[Collector]) -> Source:
    artefacts: dict[str, list[Artefact]] = {}
    for artefact in opened.artefacts:
        artefacts.setdefault(artefact.collector, []).append(artefact)
    manifest = opened.manifest
    known = {collector.NAME for collector in collectors}
    unknown = tuple(artefact.path for artefact in opened.artefacts if artefact.collector not in known)
    host = str(manifest.host.get("hostname") or "unknown")
    return Source(opened.name, host, manifest.started_at, artefacts, manifest.collectors, manifest, unknown)


def _from_loose(paths: Sequence[Path], collectors: Sequence[Collector], dates: Dates) -> Source:
    artefacts: dict[str, list[Artefact]] = {}
    unknown = []
    for root in paths:
        for path in files(root):
            name = shown(Path(path.name) if path == root else path.relative_to(root))
            try:
                begin = head(path, follow=path == root)
            except Unreadable as error:
                if path == root:
                    raise BadInput(f"cannot read {shown(path)}: {error}", hint="check its permissions; what comes through a pipe must be saved first") from error
                unknown.append(f"{name} ({error})")
                continue
            owner = next((c.NAME for c in collectors if c.recognise(path.name, begin)), None) if begin else None
            if owner is None:
                unknown.append(name)
            else:
                artefacts.setdefault(owner, []).append(Artefact(name, owner, lambda path=path: path.open("rb"), dates.year, dates.zone))  # type: ignore[misc]
    return Source(shown(Path(paths[0].name or paths[0].resolve().name)), "unknown", "1", artefacts, None, unknown=tuple(unknown))
