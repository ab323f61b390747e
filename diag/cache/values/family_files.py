"""Family files: what is known of a family of keys beforehand, in TOML. Shipped ones in `known/`, a user's by `--family-file`.

    schema = 1
    name   = "clip-images"
    about  = "Image encodings of the vision service."
    keys   = ["clip-vit-b-32:image:<hex>"]

    [expect]                       # a value that breaks one of these is a ghost, whatever its siblings look like
    codec   = ["pickle"]
    dtype   = ["float16"]
    shape   = [1, 512]             # "*" for an axis that varies
    norm    = [0.9, 1.1]
    version = "2"                  # of the key or of the wrapper
    ttl     = "required"
    markers = ["SKIP_IMAGE"]
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from diag.cache.values.facts import Facts
from diag.errors import BadInput

SCHEMA = 1
MATCHING = 0.6
"""So many members of a family must fit before the file describes it."""
LOOKED_AT = 50
MAX_VERSIONS = 3
HINT = "keys of a family file are described in diag/cache/values/known/README.md"

TYPE = rb"(?:half|bfloat16|float16|float32|float64|float|double|u?int(?:8|16|32|64)|bool|fp8_e4m3fn(?:uz)?|fp8_e5m2(?:uz)?)"
PLACES = {
    "*": rb".*", "word": rb"[^:/|@]+", "name": rb"[A-Za-z0-9_.-]+", "n": rb"[0-9]+", "hex": rb"[0-9a-fA-F]+", "uuid": rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ulid": rb"[0-7][0-9A-HJKMNP-TV-Z]{25}", "dtype": rb"(?P<dtype>" + TYPE + rb")", "version": rb"(?P<version>[0-9]{1,4}(?:\.[0-9]+)*)",
}  # fmt: skip
PLACE = re.compile(r"<([^<>]*)>")
CHECKS = ("lmcache-metadata", "lmcache-chunk", "one-length", "litellm", "whole-rows", "no-reader")


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every value of the family must be. None or empty: anything."""

    codec: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    shape: tuple[int | Literal["*"], ...] | None = None
    norm: tuple[float, float] | None = None
    bytes: tuple[int, int] | None = None
    version: str | None = None
    ttl: Literal["required", "any"] = "any"
    ttl_max_s: float | None = None
    markers: tuple[str, ...] = ()


class Halves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two keys that make one entry: the same name with another end or another beginning, the one to delete first first."""

    ends: tuple[str, str] | None = None
    begins: tuple[str, str] | None = None
    assumed: bool = False
    """Only a guess from the names: where many lack their other half, they are no halves."""


class FamilyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A family file as it is written."""

    schema: int
    name: str
    about: str
    keys: tuple[str, ...]
    fields: tuple[str, ...] = ()
    """At least one of them is in most values: tells families apart whose keys look alike."""
    codecs: tuple[str, ...] = ()
    """Most values are of one of them, or hold one: the same for keys that look alike."""
    protected: str | None = None
    """Why it must not be purged: no cache, or nothing can make it anew."""
    null_marker_ttl_s: float | None = None
    """Null markers that live no longer are the service's defence."""
    checks: tuple[str, ...] = ()
    few_versions: bool = False
    """The keys are of this family only if `<version>` is one of a few numbers in them; most keys' is the current one."""
    expect: Expect = Expect()
    halves: Halves | None = None


@dataclass(frozen=True)
class Known:
    """A family file, ready to use."""

    path: str
    file: FamilyFile
    patterns: tuple[re.Pattern[bytes], ...]
    shipped: bool

    @property
    def name(self) -> str:
        return self.file.name

    def fits(self, key: bytes) -> bool:
        return any(pattern.fullmatch(key) is not None for pattern in self.patterns)

    def said(self, key: bytes, group: str) -> str | None:
        """What a key says at `<dtype>` or `<version>`."""
        for pattern in self.patterns:
            if group in pattern.groupindex and (found := pattern.fullmatch(key)) is not None and found[group] is not None:
                return str(found[group], "ascii", "replace")
        return None


@dataclass(frozen=True)
class Book:
    """Family files in the order they are asked: a user's before the shipped ones."""

    families: tuple[Known, ...] = ()

    def find(self, members: Sequence[tuple[bytes, Facts]]) -> Known | None:
        """The file that describes these siblings, or None."""
        looked = members[:LOOKED_AT]
        for known in self.families:
            fitting = [key for key, _ in looked if known.fits(key)]
            if looked and len(fitting) >= MATCHING * len(looked) and _has_codec(known, looked) and _has_fields(known, looked) and _has_versions(known, fitting):
                return known
        return None

    @property
    def markers(self) -> tuple[bytes, ...]:
        """Marker texts of all files, to be looked for in every value; each counts in its own family only."""
        return tuple(dict.fromkeys(text.encode() for known in self.families for text in known.file.expect.markers))

    @property
    def marks(self) -> frozenset[str]:
        """The same as texts."""
        return frozenset(text for known in self.families for text in known.file.expect.markers)


def _has_fields(known: Known, members: Sequence[tuple[bytes, Facts]]) -> bool:
    wanted = frozenset(known.file.fields)
    if not wanted:
        return True
    readable = [facts for _, facts in members if facts.keys]
    return sum(not wanted.isdisjoint(facts.keys) for facts in readable) > 0.5 * len(readable)


def _has_codec(known: Known, members: Sequence[tuple[bytes, Facts]]) -> bool:
    wanted = frozenset(known.file.codecs)
    parts = [facts.codec.split("+") for _, facts in members]
    fitting = sum(not wanted.isdisjoint(part[:1] if part[0] == "hash" else part) for part in parts)
    return not wanted or fitting > 0.5 * len(members)


def _has_versions(known: Known, keys: Sequence[bytes]) -> bool:
    """A part of which hundred keys have three values is a version, one of which they have fifty is an id."""
    return not known.file.few_versions or len({known.said(key, "version") for key in keys}) <= min(MAX_VERSIONS, max(1, len(keys) // 5))


@cache
def shipped() -> Book:
    """The files of `known/`."""
    return Book(tuple(read(path, shipped=True) for path in sorted((Path(__file__).parent / "known").glob("*.toml"))))


def book(paths: Iterable[Path] = ()) -> Book:
    """A user's files, then the shipped ones. A user's file takes the place of a shipped one of the same name."""
    own = tuple(read(path) for path in paths)
    names = {known.name for known in own}
    twice = next((known for at, known in enumerate(own) if known.name in {other.name for other in own[:at]}), None)
    if twice is not None:
        raise BadInput(f"{twice.path}: name: {twice.name!r} is in another family file already", hint="give each its own name")
    return Book((*own, *(known for known in shipped().families if known.name not in names)))


def read(path: Path, *, shipped: bool = False) -> Known:
    """One family file. BadInput names file and key."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read the family file {path}: {error.strerror}", hint=HINT) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {error}", hint="a family file is UTF-8 TOML; " + HINT) from error
    version = raw.get("schema")
    if version != SCHEMA or isinstance(version, bool):
        raise BadInput(f"{path}: schema: must be {SCHEMA}, not {version!r}", hint=HINT)
    try:
        file = msgspec.convert(raw, FamilyFile, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {_place(str(error))}", hint=HINT) from error
    for problem in _problems(file):
        raise BadInput(f"{path}: {problem}", hint=HINT)
    return Known(str(path), file, tuple(_pattern(path, text) for text in file.keys), shipped)


def _place(said: str) -> str:
    """msgspec's "Object contains unknown field `x` - at `$.expect`" -> "expect.x: unknown key"."""
    where = match[1] if (match := re.search(r"at `\$\.?([^`]*)`", said)) is not None else ""
    if (unknown := re.search(r"unknown field `([^`]*)`", said)) is not None:
        return f"{'.'.join(filter(None, (where, unknown[1])))}: unknown key"
    if (missing := re.search(r"missing required field `([^`]*)`", said)) is not None:
        return f"{'.'.join(filter(None, (where, missing[1])))}: missing"
    return f"{where or 'file'}: {said.partition(' - at ')[0]}"


def _problems(file: FamilyFile) -> Iterable[str]:
    if not file.name or not file.keys:
        yield "name and keys: must not be empty"
    for check in file.checks:
        if check not in CHECKS:
            yield f"checks: {check!r} is none of {', '.join(CHECKS)}"
    for name, limits in (("norm", file.expect.norm), ("bytes", file.expect.bytes)):
        if limits is not None and not 0 <= limits[0] <= limits[1]:
            yield f"expect.{name}: must be [smallest, largest]"
    if any(axis != "*" and axis < 0 for axis in file.expect.shape or ()):
        yield "expect.shape: sizes are 0 or more, or \"*\""
    if "" in file.expect.markers:
        yield "expect.markers: an empty text is in every value"
    if file.halves is not None and (file.halves.ends is None) == (file.halves.begins is None):
        yield "halves: either ends or begins"
    for seconds in (file.null_marker_ttl_s, file.expect.ttl_max_s):
        if seconds is not None and not seconds >= 0:
            yield "null_marker_ttl_s and expect.ttl_max_s: seconds, 0 or more"


def _pattern(path: Path, text: str) -> re.Pattern[bytes]:
    """`clip:image:<hex>` -> a regular expression over key bytes."""
    out = b""
    for index, part in enumerate(PLACE.split(text)):
        out += _placeholder(path, part) if index % 2 else re.escape(part.encode())
    try:
        return re.compile(out, re.DOTALL)
    except re.error as error:
        raise BadInput(f"{path}: keys: {text!r}: {error}", hint=HINT) from error


def _placeholder(path: Path, name: str) -> bytes:
    if (sized := re.fullmatch(r"hex([0-9]{1,3})", name)) is not None:
        return rb"[0-9a-fA-F]{%d}" % int(sized[1])
    if name not in PLACES:
        raise BadInput(f"{path}: keys: <{name}> is no placeholder", hint=f"placeholders: {', '.join(f'<{one}>' for one in PLACES)}, <hex64>")
    return PLACES[name]
