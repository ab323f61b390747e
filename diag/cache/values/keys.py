"""One cached value as a row of evidence, and what a whole scan found."""

import builtins
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from diag.cache.values.executing import runs_code
from diag.cache.values.facts import Facts
from diag.cache.values.families import family, version_of
from diag.cache.values.family_files import Known
from diag.cache.values.profile import Profile
from diag.cache.values.reasons import PROTECTED
from diag.cache.values.verdicts import Verdict, judge


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The columns of `cache_keys`, and a sentence. The value's contents are in none of them."""

    target: str
    db: int
    key: str | None
    """None: the key is not UTF-8."""
    key_hex: str
    family: str
    bytes: int
    ttl_s: float | None
    """None: never expires."""
    idle_s: float | None
    codec: str
    dtype: str | None
    shape: str | None
    min: float | None
    max: float | None
    mean: float | None
    norm: float | None
    nan: int | None
    inf: int | None
    crc_ok: bool | None
    version: str | None
    reasons: tuple[str, ...]
    verdict: Verdict
    sha256: str | None
    """None: only the head of a long value was read."""
    detail: str = ""
    """What exactly is wrong, in words; not a column."""

    @property
    def name(self) -> builtins.bytes:
        """The key as the server knows it."""
        return builtins.bytes.fromhex(self.key_hex)

    @property
    def purgeable(self) -> bool:
        """Does a plain purge delete it?"""
        return self.verdict == "ghost" and self.sha256 is not None

    @property
    def include(self) -> str | None:
        """Else, which reason a person would have to include."""
        return self.reasons[0] if self.verdict == "soft" else None

    def row(self) -> Mapping[str, object]:
        """As the table `cache_keys` has it."""
        row: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        del row["detail"]
        row["reasons"] = ", ".join(self.reasons)
        return row


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key was seen, and what the server said of it before its value was read."""

    target: str
    db: int
    key: bytes
    ttl_s: float | None
    idle_s: float | None


def judged(place: Place, facts: Facts, profile: Profile) -> CacheKey:
    """The row of one value."""
    version = version_of(place.key)
    if version is None and profile.stated is not None:
        version = profile.stated.said(place.key, "version")
    verdict, reasons = judge(facts, profile, ttl_s=place.ttl_s, key_version=version, key=place.key)
    stats = facts.stats
    return CacheKey(
        target=place.target,
        db=place.db,
        key=_text(place.key),
        key_hex=place.key.hex(),
        family=profile.family,
        bytes=facts.bytes,
        ttl_s=place.ttl_s,
        idle_s=place.idle_s,
        codec=facts.codec,
        dtype=facts.dtype,
        shape=None if facts.shape is None else "x".join(map(str, facts.shape)) or "scalar",
        min=None if stats is None else stats.min,
        max=None if stats is None else stats.max,
        mean=None if stats is None else stats.mean,
        norm=None if stats is None else stats.norm,
        nan=None if stats is None else stats.nan,
        inf=None if stats is None else stats.inf,
        crc_ok=facts.crc_ok,
        version=version or facts.version,
        reasons=reasons,
        verdict=verdict,
        sha256=facts.sha256,
        detail=_detail(facts, reasons, profile.stated),
    )


def hardened(row: CacheKey) -> CacheKey:
    """The row of a key that a stuck thread asks for again and again: what is odd about it is what holds the thread."""
    if row.verdict != "soft" or PROTECTED in row.reasons:
        return row
    return replace(row, verdict="ghost", detail="; ".join(filter(None, (row.detail, "a stuck thread asks for it again and again"))))


def other_type(place: Place, kind: str) -> CacheKey:
    """The row of a hash, list, stream …: seen, not judged."""
    return CacheKey(
        place.target, place.db, _text(place.key), place.key.hex(), family(place.key), 0, place.ttl_s, place.idle_s,
        f"redis-{kind}", None, None, None, None, None, None, None, None, None, version_of(place.key), (), "unknown",
        None, f"a {kind}: not judged",
    )  # fmt: skip


def unread(place: Place, name: str, size: int) -> CacheKey:
    """The row of a string whose value was not read."""
    return CacheKey(
        place.target, place.db, _text(place.key), place.key.hex(), name, size, place.ttl_s, place.idle_s, "unread",
        None, None, None, None, None, None, None, None, None, version_of(place.key), (), "unknown", None, "its value was not read",
    )  # fmt: skip


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _detail(facts: Facts, reasons: tuple[str, ...], stated: Known | None) -> str:
    said = [facts.detail] if facts.detail else []
    if "foreign-object" in reasons:
        running = [name for name in facts.foreign if runs_code(name)]
        said += [f"would run {name} if your service unpickled it" for name in running]
        said += [] if running else [f"needs {', '.join(facts.foreign[:3])}"]
    if "error-cached" in reasons and facts.error is not None:
        said.append(f"holds an error: {facts.error}")
    if PROTECTED in reasons and stated is not None:
        said.append(f"{stated.name}: {stated.file.protected}")
    return "; ".join(said)


@dataclass(frozen=True)
class FamilyReport:
    """One family in a scan."""

    family: str
    keys: int
    bytes: int
    ghosts: int
    soft: int
    reasons: Mapping[str, int]
    codec: str | None
    dtype: str | None
    shape: str | None
    """Of the majority; "?" for an axis that varies."""
    known: str | None = None
    """The family file that describes it."""
    protected: bool = False
    ttl_s: float | None = None
    """Nine of ten keys of its sample expire within it; None: most never expire, or too few are known."""


@dataclass(frozen=True)
class Server:
    """Who answered."""

    product: str | None
    version: str | None
    role: str | None
    no_touch: bool
    """Reading does not change idle times."""
    databases: Mapping[int, int | None]
    """Keys by database, as the server counts them; None: it would not say."""
    notes: tuple[str, ...] = ()
    expiring: Mapping[int, int] = field(default_factory=dict)
    """Keys with a TTL by database."""


@dataclass(frozen=True)
class ScanResult:
    """What a scan found. Rows of sound keys are not kept."""

    target: str
    server: Server
    keys: int
    bytes: int
    seconds: float
    families: tuple[FamilyReport, ...]
    """Most ghosts first, then most bytes."""
    ghosts: tuple[CacheKey, ...]
    soft: tuple[CacheKey, ...]
    """At most MAX_SOFT of them; `families` counts all."""
    unknown: int
    warnings: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    """What of a file was not read; among the warnings, too."""


@dataclass
class Tally:
    """Running counts of one family."""

    keys: int = 0
    bytes: int = 0
    ghosts: int = 0
    soft: int = 0
    unknown: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, row: CacheKey) -> None:
        self.keys += 1
        self.bytes += row.bytes
        self.ghosts += row.verdict == "ghost"
        self.soft += row.verdict == "soft"
        self.unknown += row.verdict == "unknown"
        self.reasons.update(row.reasons if row.verdict in ("ghost", "soft") else ())

    def report(self, profile: Profile) -> FamilyReport:
        shape = None
        if profile.axes is not None:
            shape = "x".join("?" if axis is None else str(axis) for axis in profile.axes)
        return FamilyReport(
            profile.family, self.keys, self.bytes, self.ghosts, self.soft, dict(self.reasons), profile.codec,
            profile.dtype, shape, None if profile.stated is None else profile.stated.name,
            profile.stated is not None and profile.stated.file.protected is not None, profile.ttl_long_s,
        )  # fmt: skip
