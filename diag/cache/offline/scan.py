"""Judges a cache on disk as a live one is judged: same families, same verdicts, nothing of a value kept."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diag.cache.offline.contents import Contents, Held, opened, time_of
from diag.cache.offline.globs import matcher
from diag.cache.offline.lzf import Unpackable
from diag.cache.offline.quickly import Quickly
from diag.cache.scanning.reading import HEAD_BYTES, WHOLE_BYTES
from diag.cache.values.facts import facts_of
from diag.cache.values.hashes import facts_of_hash
from diag.cache.values.judging import SAMPLE, Scan
from diag.cache.values.keys import CacheKey, Place, ScanResult, Server, Tally, other_type
from diag.cache.values.profile import Profile
from diag.loose import shown

TICK_KEYS = 1000
LEAST_BYTES = 1 << 10
"""What a key counts for where only so many bytes are to be judged."""


def scan(
    path: Path,
    *,
    pattern: bytes | None = None,
    keys: Collection[bytes] | None = None,
    databases: Collection[int] | None = None,
    markers: Sequence[bytes] = (),
    sample: int = SAMPLE,
    each: Callable[[CacheKey], None] | None = None,
    tick: Callable[[int, float], None] | None = None,
    bytes_at_most: int | None = None,
    now_s: float | None = None,
) -> ScanResult:
    """Judge the keys of an RDB file, an append-only file or the folder of one; keys expired since are among them.

    `keys`: only these are in the result, judged beside their siblings. `tick` is told now and then how many keys were
    seen, and what part of the file that was. `bytes_at_most`: stop behind so much of the files, and say so. `ttl_s` is
    what was left when the file was written; `now_s` (Unix seconds) tells which keys are over since. Raises BadInput
    where nothing can be read.
    """
    started = time.monotonic()
    named = _Named(frozenset(keys or ()), each)
    judging = Scan(each if keys is None else named.see, sample)
    fits = None if pattern is None else matcher(pattern)
    counts = _Counts(time.time() if now_s is None else now_s)
    quickly = Quickly(judging, markers)
    with opened(path) as contents:
        for held in contents.items():
            counts.seen += 1
            if tick is not None and counts.seen % TICK_KEYS == 0:
                tick(counts.seen, contents.part)
            if (fits is None or fits(held.key)) and (databases is None or held.db in databases):
                _judge(contents, held, shown(path), quickly, counts)
            if bytes_at_most is not None and counts.bytes > bytes_at_most:
                contents.notes.append(f"{shown(path)}: only its first {counts.seen} keys were judged; llmdiag scan-cache judges all")
                break
        quickly.count()
        judging.finish()
        server = _server(contents, counts)
    result = judging.report(shown(path), server, time.monotonic() - started)
    return replace(result if keys is None else named.only(result), losses=tuple(contents.notes))


@dataclass
class _Counts:
    """Beside the verdicts."""

    now_s: float
    seen: int = 0
    databases: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    expired: int = 0
    unpackable: int = 0


@dataclass
class _Named:
    """The rows of the keys that a person named."""

    keys: frozenset[bytes]
    each: Callable[[CacheKey], None] | None
    rows: list[CacheKey] = field(default_factory=list)

    def see(self, row: CacheKey) -> None:
        if row.name in self.keys:
            self.rows.append(row)
            if self.each is not None:
                self.each(row)

    def only(self, result: ScanResult) -> ScanResult:
        tallies: dict[str, Tally] = defaultdict(Tally)
        for row in self.rows:
            tallies[row.family].add(row)
        missing = len(self.keys - {row.name for row in self.rows})
        return replace(
            result,
            keys=len(self.rows),
            bytes=sum(row.bytes for row in self.rows),
            families=tuple(tally.report(Profile(name, 0)) for name, tally in tallies.items()),
            ghosts=tuple(row for row in self.rows if row.verdict == "ghost"),
            soft=tuple(row for row in self.rows if row.verdict == "soft"),
            unknown=sum(row.verdict == "unknown" for row in self.rows),
            warnings=(*result.warnings, *([f"{missing} of the {len(self.keys)} named keys do not exist"] if missing else [])),
        )


def _judge(contents: Contents, held: Held, target: str, quickly: Quickly, counts: _Counts) -> None:
    judging = quickly.scan
    if not judging.selection.wants(held.key):
        return
    counts.databases[held.db] += 1
    counts.bytes += max(held.bytes, LEAST_BYTES)
    counts.expired += held.expires_ms is not None and held.expires_ms < counts.now_s * 1000
    ttl_s = None if held.expires_ms is None else held.expires_ms / 1000 - contents.clock_s
    place = Place(target, held.db, held.key, ttl_s, None if held.idle_s is None else float(held.idle_s))
    if held.kind == "string":
        long = held.bytes > WHOLE_BYTES
        try:
            value = contents.value(held, HEAD_BYTES if long else WHOLE_BYTES)
        except Unpackable as error:
            counts.unpackable += 1
            judging.emit(replace(other_type(place, "string"), detail=f"damaged in the file: {error}"))
            return
        if long:
            judging.add(place, facts_of(bytes(value), length=held.bytes, markers=quickly.markers))
        elif (facts := quickly.facts(held.db, held.key, value, expires=ttl_s is not None)) is not None:
            judging.add(place, facts)
    elif held.kind == "unknown":
        judging.emit(replace(other_type(place, "string"), detail=f"unknown after the append-only file: changed by {held.why}"))
    elif (found := contents.hash_of(held)) is not None:
        fields, digest = found
        judging.add(place, replace(facts_of_hash(held.key, fields, markers=quickly.markers), sha256=digest))
    else:
        many = "" if held.elements is None else f" of {held.elements} elements"
        judging.emit(replace(other_type(place, held.kind), bytes=held.bytes, detail=f"a {held.kind}{many}: not judged"))


def _server(contents: Contents, counts: _Counts) -> Server:
    """Who wrote it, and what a reader must know."""
    notes = list(contents.notes)
    if counts.expired:
        notes.append(
            f"the TTL of {counts.expired} keys has passed since {contents.clock} ({time_of(contents.clock_s)}); "
            "they are shown with the TTL that they had then"
        )  # fmt: skip
    if counts.unpackable:
        notes.append(f"{counts.unpackable} values are damaged in the file and were not judged")
    return Server(contents.product, contents.version, None, True, dict(sorted(counts.databases.items())), tuple(notes))
