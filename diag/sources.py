"""Paths as a person gave them -> sources of evidence: each bundle one, all loose files together one."""

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from diag import bundle_reader
from diag.collectors import Collector
from diag.errors import BadInput, BundleError
from diag.loose import Unreadable, files, head, shown
from diag.loose_years import years_beside
from diag.manifest import CollectorRun, Manifest
from diag.model import Artefact

MAX_BUNDLES = 200
"""In one folder."""
MAX_DATED, MAX_DATED_BYTES = 1_000, 16 << 10
"""Of loose texts that are looked at for the year of others."""
MANIFEST_MARK = b'"llmdiag.bundle/'
ARCHIVE_MARK = b"PK\x03\x04"


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
    others: tuple[Artefact, ...] = ()
    """Loose files that no collector recognised, for one that may want them all the same."""

    @property
    def files(self) -> int:
        """How many there are, read or not."""
        return len({artefact.path for found in self.artefacts.values() for artefact in found}) + len(self.unknown)


@dataclass(frozen=True)
class Dates:
    """What a person says about loose files: the year of their first line, the zone they are printed in, what their lines mean."""

    year: int | None = None
    zone: str | None = None
    events_map: str | None = None
    """Path of a map of what lines of one's own tools mean: one more piece of evidence of every source."""


def sources_of(paths: Sequence[Path], collectors: Sequence[Collector], dates: Dates | None = None) -> list[Source]:
    """Paths as a person gave them -> sources: each bundle one, also those in folders, all loose files together one."""
    missing = [shown(path) for path in paths if not os.path.lexists(path)]
    if missing:
        raise BadInput(f"no such file or folder: {', '.join(missing)}", hint="give bundles (.zip), bundle folders, or loose evidence files")
    bundles = [path for path in paths if _is_bundle(path)]
    loose = [path for path in paths if path not in bundles]
    dates = dates or Dates()
    found = [_from_bundle(bundle_reader.read(path), collectors) for path in bundles]
    insides = [_inside(root, {os.path.realpath(path) for path in bundles}) for root in loose]
    found += [_from_bundle(opened, collectors) for inside in insides for opened in inside.bundles]
    if any(inside.files or inside.damaged or not inside.holds_bundles for inside in insides):
        found.append(_from_loose(insides, collectors, dates))
    return [_shared(_mapped(source, collectors, dates), collectors) for source in found]


def _mapped(source: Source, collectors: Sequence[Collector], dates: Dates) -> Source:
    """With the map a person gave. Raises BadInput when it is none."""
    if dates.events_map is None:
        return source
    path = Path(dates.events_map)
    try:
        begin = head(path, follow=True)
    except Unreadable as error:
        raise BadInput(f"cannot read {shown(path)}: {error}", hint="check --events-map") from error
    owner = next((c.NAME for c in collectors if hasattr(c, "wanted") and c.recognise(path.name, begin)), None)
    if owner is None:
        raise BadInput(f"{shown(path)} is no events map: it has no [[event]] with a regex", hint="check --events-map")
    mine = [artefact for artefact in source.artefacts.get(owner, ()) if artefact.name != path.name]  # it may lie in the folder as well
    return replace(source, artefacts={**source.artefacts, owner: [*mine, Artefact(shown(path), owner, lambda: path.open("rb"))]})


def _shared(source: Source, collectors: Sequence[Collector]) -> Source:
    """Files that a collector wants for what its own files say (a map names logs), besides their owner or without one."""
    artefacts = {name: list(found) for name, found in source.artefacts.items()}
    every = {id(artefact): artefact for found in source.artefacts.values() for artefact in found} | {id(artefact): artefact for artefact in source.others}
    taken: set[str] = set()
    for collector in collectors:
        mine = artefacts.get(collector.NAME, [])
        wants = collector.wanted(mine) if mine and hasattr(collector, "wanted") else None
        if wants is None:
            continue
        have = {artefact.path for artefact in mine}
        further = [artefact for artefact in every.values() if artefact.path not in have and wants(artefact.path)]
        artefacts[collector.NAME] = [*mine, *further]
        taken |= {artefact.path for artefact in further}
    unknown = tuple(name for name in source.unknown if name not in taken)
    return replace(source, artefacts=artefacts, unknown=unknown, others=())


def _is_bundle(path: Path) -> bool:
    try:
        return bundle_reader.is_bundle(path)
    except OSError as error:
        raise BadInput(f"cannot read {shown(path)}: {error.strerror}", hint="check its permissions") from error


@dataclass(frozen=True)
class _Inside:
    """What a folder holds (or the file that was given): bundles, damaged ones with the reason, and all other files."""

    root: Path
    files: Sequence[Path]
    bundles: Sequence[bundle_reader.Bundle] = ()
    damaged: Sequence[str] = ()
    holds_bundles: bool = False

    def shown(self, path: Path) -> str:
        return shown(Path(path.name) if path == self.root else path.relative_to(self.root))


def _inside(root: Path, known: Set[str]) -> _Inside:
    """Look into a folder. A damaged bundle in it costs no other; those of the real paths `known` are read already. Raises BadInput."""
    every = list(files(root))
    places = [] if every == [root] else _bundles_among(every)
    if len(places) > MAX_BUNDLES:
        raise BadInput(f"{shown(root)} holds more than {MAX_BUNDLES} bundles", hint="name a few of them at a time")
    within = {*places}
    rest = [path for path in every if within.isdisjoint((path, *path.parents))] if within else every
    found = _Inside(root, rest, bundles := [], damaged := [], bool(places))
    size = 0
    for place in places:
        if os.path.realpath(place) in known:
            continue
        try:
            bundles.append(bundle_reader.read(place))
        except BundleError as error:
            why = error.message.removeprefix(str(place)).lstrip(" :/")
            damaged.append(f"{found.shown(place)} ({shown(Path(why))})")
            continue
        size += sum(entry.bytes for entry in bundles[-1].manifest.artefacts)
        if size > bundle_reader.MAX_TOTAL_BYTES:
            raise BadInput(f"the bundles in {shown(root)} unpack to more than {bundle_reader.MAX_TOTAL_BYTES >> 30} GiB", hint="name a few of them at a time")
    return found


def _bundles_among(every: Sequence[Path]) -> list[Path]:
    """Archives, and folders whose manifest or journal says that it is one of llmdiag; none is followed through a link."""
    folders = {path.parent for path in every if path.name in ("manifest.json", "manifest.jsonl") and MANIFEST_MARK in _head(path)}
    outer = {folder for folder in folders if folders.isdisjoint(folder.parents)}
    archives = [path for path in every if path.suffix == ".zip" and outer.isdisjoint(path.parents) and _head(path).startswith(ARCHIVE_MARK)]
    return sorted([*outer, *archives])


def _head(path: Path) -> bytes:
    try:
        return head(path, follow=False)
    except Unreadable:  # stays among the loose files, which say why
        return b""


def _certain(name: str, begin: bytes, collectors: Sequence[Collector]) -> str | None:
    """The collector that is certain that it is one of its files."""
    return next((c.NAME for c in collectors if hasattr(c, "certain") and c.certain(name, begin)), None)


def _from_bundle(opened: bundle_reader.Bundle, collectors: Sequence[Collector]) -> Source:
    artefacts: dict[str, list[Artefact]] = {}
    for artefact in opened.artefacts:
        artefacts.setdefault(artefact.collector, []).append(artefact)
    manifest = opened.manifest
    known = {collector.NAME for collector in collectors}
    unknown = tuple(artefact.path for artefact in opened.artefacts if artefact.collector not in known)
    host = str(manifest.host.get("hostname") or "unknown")
    return Source(opened.name, host, manifest.started_at, artefacts, manifest.collectors, manifest, unknown)


def _from_loose(insides: Sequence[_Inside], collectors: Sequence[Collector], dates: Dates) -> Source:
    artefacts: dict[str, list[Artefact]] = {}
    unknown: list[str] = []
    others: list[Artefact] = []
    heads: dict[str, bytes] = {}
    for inside in insides:
        unknown += inside.damaged
        for path in inside.files:
            name = inside.shown(path)
            try:
                begin = head(path, follow=path == inside.root)
            except Unreadable as error:
                if path == inside.root:
                    raise BadInput(f"cannot read {shown(path)}: {error}", hint="check its permissions; what comes through a pipe must be saved first") from error
                unknown.append(f"{name} ({error})")
                continue
            certain = _certain(path.name, begin, collectors)
            owner = certain or (next((c.NAME for c in collectors if c.recognise(path.name, begin)), None) if begin else None)
            if certain is None and len(heads) < MAX_DATED and b"\0" not in begin:
                heads[name] = begin[:MAX_DATED_BYTES]
            found = Artefact(name, owner or "", lambda path=path: path.open("rb"), dates.year, dates.zone)  # type: ignore[misc]
            if owner is None:
                unknown.append(name)
                others.append(found)
                continue
            for taker in (owner, *(c.NAME for c in collectors if owner != c.NAME and hasattr(c, "also") and c.also(owner, begin))):
                artefacts.setdefault(taker, []).append(found)
    years = years_beside(heads) if dates.year is None else {}
    artefacts = {taker: [replace(found, year=years.get(found.path)) if found.year is None else found for found in taken] for taker, taken in artefacts.items()}
    first = insides[0].root
    return Source(shown(Path(first.name or first.resolve().name)), "unknown", "1", artefacts, None, unknown=tuple(unknown), others=tuple(others))
