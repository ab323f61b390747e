"""The raw lines that rows of evidence came from, read once more from where the evidence lies."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from diag.model import Artefact, Diagnosis
from diag.sources import Source

MAX_CHARS = 4_000
MAX_PLACES = 20_000
MAX_DOCUMENT_BYTES = 32 << 20
INDEX = re.compile(r"\[(\d+)\]")


class Place(NamedTuple):
    """`source` of a row, and the bundle it is of; None = the row does not say."""

    bundle: str | None
    source: str


def place_of(row: Mapping[str, object]) -> Place | None:
    """Where the raw line of a row is; None = it has none."""
    bundle = row.get("bundle")
    return None if row.get("source") is None else Place(None if bundle is None else str(bundle), str(row["source"]))


def places_of(diagnoses: Iterable[Diagnosis]) -> Iterator[Place]:
    """The places of every row that findings and open questions rest on."""
    for diagnosis in diagnoses:
        for result in (*diagnosis.findings, *diagnosis.inconclusive):
            for signal in result.held():
                yield from (place for row in signal.rows if (place := place_of(row)) is not None)


def read(sources: Sequence[Source], places: Iterable[Place]) -> dict[Place, str]:
    """Place -> its raw line, of `artefact#key` the value there as JSON; long ones are cut, with their length said.

    What is in no such place, or in one of several bundles while the row does not say in which, is left out.
    """
    artefacts = {(source.name, item.path): item for source in sources for found in source.artefacts.values() for item in found}
    holders: dict[str, set[str]] = {}
    for bundle, path in artefacts:
        holders.setdefault(path, set()).add(bundle)
    lines: dict[tuple[str, str], dict[int, list[Place]]] = {}
    keys: dict[tuple[str, str], dict[str, list[Place]]] = {}
    for place in list(dict.fromkeys(places))[:MAX_PLACES]:
        path, mark, where = _parts(place.source)
        held = holders.get(path, set()) if place.bundle is None else {place.bundle}
        artefact = (min(held, default=""), path)
        if len(held) == 1 and artefact in artefacts:
            if mark == "#":
                keys.setdefault(artefact, {}).setdefault(where, []).append(place)
            elif where.isdecimal():
                lines.setdefault(artefact, {}).setdefault(int(where), []).append(place)
    quoted = {place: text for name, wanted in lines.items() for place, text in _lines(artefacts[name], wanted)}
    return quoted | {place: text for name, wanted in keys.items() for place, text in _values(artefacts[name], wanted)}


def _parts(source: str) -> tuple[str, str, str]:
    """`artefact:line` or `artefact#key`; a key may hold colons."""
    return source.partition("#") if "#" in source else source.rpartition(":")


def _lines(artefact: Artefact, wanted: Mapping[int, Sequence[Place]]) -> Iterator[tuple[Place, str]]:
    last = max(wanted)
    for number, text in artefact.lines():
        if number in wanted:
            yield from ((place, _cut(text)) for place in wanted[number])
        if number >= last:
            return


def _values(artefact: Artefact, wanted: Mapping[str, Sequence[Place]]) -> Iterator[tuple[Place, str]]:
    """Of JSON documents that are not too long; what is none has no such values."""
    with artefact.opener() as stream:
        data = stream.read(MAX_DOCUMENT_BYTES + 1)
    try:
        document = msgspec.json.decode(data) if len(data) <= MAX_DOCUMENT_BYTES else None
    except (msgspec.DecodeError, RecursionError):
        return
    for key, places in wanted.items():
        value = _value(document, INDEX.sub(r"/\1", key).split("/"))
        if value is not None:
            yield from ((place, _cut(json.dumps(value, ensure_ascii=False))) for place in places)


def _value(document: object, keys: Sequence[str]) -> object:
    """What is at `threads/4/frames/0/locals/key`; a list may be called threads, and its items by their names. None = nothing."""
    value = document
    for key in keys[1:] if isinstance(document, list) and keys[:1] == ["threads"] else keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        elif isinstance(value, list):
            value = next((item for item in value if isinstance(item, dict) and item.get("name") == key), None)
        else:
            return None
    return value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}… ({len(text)} characters)"
