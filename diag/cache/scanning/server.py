"""Looks at the values of a live server: a whole scan, or a few keys among their siblings."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from diag.cache.scanning import other_halves, resume
from diag.cache.scanning.how import LENGTHS_ONLY, How
from diag.cache.scanning.reading import BATCH_KEYS, WHOLE_BYTES, Known, look, types, values
from diag.cache.scanning.second import Gone, Second, begin, how_many
from diag.cache.scanning.walk import Walk
from diag.cache.scanning.wire import Wire
from diag.cache.servers.connection import Client, at_database, connect, describe, name_of, own_database, speaking
from diag.cache.values import selection
from diag.cache.values.facts import facts_of
from diag.cache.values.families import family, sibling_glob, version_of, versionless
from diag.cache.values.judging import SAMPLE, Scan, Seen
from diag.cache.values.keys import CacheKey, Place, ScanResult, Server, judged, other_type
from diag.cache.values.profile import Sample, learn

__all__ = ["connect", "describe", "inspect_keys", "name_of", "scan"]

SIBLING_BUDGET_S = 1.5


def inspect_keys(
    client: Client,
    target: str,
    keys: Iterable[bytes],
    sample_per_family: int = SAMPLE,
    *,
    databases: Sequence[int] | None = None,
    budget_s: float = SIBLING_BUDGET_S,
    markers: Sequence[bytes] = (),
) -> list[CacheKey]:
    """Judge exactly these keys, in every database or some, each beside a sample of its siblings.

    Returns the rows of the keys that exist, then those of the siblings. `budget_s` bounds the search for siblings;
    a family of which too few were found gives "unknown", not a guess.
    """
    asked = list(dict.fromkeys(keys))
    book = selection.current_book()
    rows: list[CacheKey] = []
    siblings: list[CacheKey] = []
    with speaking(target):
        deadline = time.monotonic() + budget_s
        for db in _databases(client) if databases is None else databases:
            there = at_database(client, db)
            found = look(there, asked)
            if not found:
                continue
            rows += _other_types(there, target, db, found)
            groups = _by_family(_read(there, target, db, found, markers))
            for name, members in groups.items():
                taken = {place.key for place, _ in members}
                names, versions = _siblings(there, members[0][0].key, name, taken, sample_per_family, deadline)
                more = list(_read(there, target, db, look(there, names), markers))
                stated = book.find([(p.key, f) for p, f in (*members, *more)])
                profile = learn(name, [Sample(f, p.ttl_s) for p, f in (*members, *more)], versions, stated, book.marks)
                rows += other_halves.beside(there, [(judged(place, facts, profile), facts) for place, facts in members], profile)
                siblings += [judged(place, facts, profile) for place, facts in more]
    return rows + siblings


def scan(
    client: Client,
    target: str,
    pattern: bytes | str | None = None,
    *,
    databases: Sequence[int] | None = None,
    markers: Sequence[bytes] = (),
    sample: int = SAMPLE,
    each: Callable[[CacheKey], None] | None = None,
    how: How = How(),  # noqa: B008
) -> ScanResult:
    """Judge every string value that matches `pattern`, in all databases or some.

    Memory holds `sample` facts per family until its profile is known (in doubt up to 16 times as many), then only what
    is odd. `each` sees every row once, also those of sound keys, in no order; without it sound keys are only counted,
    which is faster.
    """
    started = time.monotonic()
    with speaking(target):
        server = describe(client)
        result = Scan(each, sample)
        glob = pattern.encode() if isinstance(pattern, str) else pattern
        left = list(sorted(server.databases) if databases is None else databases)
        left_out, cursor = 0, 0
        if how.begin is not None:
            resume.restore(how.begin, result)
            left, left_out, cursor = [how.begin.db, *how.begin.left], how.begin.left_out, how.begin.cursor
        begin_watch(how, server, result, left)
        while left:
            db = left.pop(0)
            there = at_database(client, db)
            with _walking(there, target, db, result, server, glob, markers, how) as walk:
                walk.cursor, cursor = cursor, 0
                whole = walk.run()
            left_out += walk.left_out
            if not whole:
                raise resume.Stopped(
                    resume.Saved(
                        resume.SCHEMA, target, db, walk.cursor, left, glob, list(markers), how.values, how.per_family, how.watch.keys, left_out,
                        **resume.state(result),  # type: ignore[arg-type]
                    )
                )
            result.finish(other_halves.looking(there))
        server = describe(client)
    notes = (*server.notes, *said(how, left_out))
    report = result.report(target, server=replace(server, notes=notes), seconds=time.monotonic() - started)
    return report if how.values else replace(report, unknown=report.keys)


def begin_watch(how: How, server: Server, result: Scan, databases: Sequence[int]) -> None:
    """Tell whoever watches how much there is to do."""
    counts = [server.databases.get(db, 0) for db in databases]
    before = 0 if how.begin is None else how.begin.keys
    how.watch.total = None if None in counts else max(before, sum(filter(None, counts)))
    how.watch.keys = before
    how.watch.ghosts = lambda: len(result.ghosts)


def said(how: How, left_out: int) -> Iterator[str]:
    """What a scan did not look at, in words."""
    if how.per_family is not None and left_out:
        yield f"a sample: the values of {how.per_family} keys of each family were read, {left_out} keys were not looked at and may be ghosts"
    if not how.values:
        yield LENGTHS_ONLY


@contextmanager
def _walking(
    client: Client, target: str, db: int, result: Scan, server: Server, pattern: bytes | None, markers: Sequence[bytes], how: How
) -> Iterator[Walk]:
    """A pass over one database, with its connection and the processes that help."""
    chosen = result.selection.names or result.selection.files
    keys = server.databases.get(db)
    walk = Walk(
        Wire(client), result, target, db, how.pace, pattern, markers, how.values, server.no_touch,
        all_expire=keys is not None and 0 < keys == server.expiring.get(db), wants=result.selection.wants if chosen else None,
        per_family=how.per_family, stop=how.stop, tick=how.watch.tick,
    )  # fmt: skip
    try:
        alone = chosen or how.per_family is not None or pattern is not None
        with suppress(Gone, OSError):  # then this process does it all
            for _ in range(0 if alone else how_many(client, keys, how.pace, how.workers)):
                walk.seconds.append(Second(begin(client, walk)))
        yield walk
    finally:
        for second in walk.seconds:
            second.close()
        walk.wire.close()


def _databases(client: Client) -> list[int]:
    """The address's own database first."""
    own = own_database(client)
    return [own, *(db for db in sorted(describe(client).databases) if db != own)]


def _pages(client: Client, pattern: bytes | str | None) -> Iterator[list[bytes]]:
    """One pass over the key names, a page at a time; never started anew while keys go away."""
    cursor = 0
    while True:
        cursor, names = client.scan(cursor, match=pattern, count=BATCH_KEYS)
        if names:
            yield [name for name in names if isinstance(name, bytes)]
        if cursor == 0:
            return


def _read(
    client: Client, target: str, db: int, known: Sequence[Known], markers: Sequence[bytes]
) -> Iterator[Seen]:
    for item, value in values(client, known):
        long = item.bytes is not None and item.bytes > WHOLE_BYTES
        facts = facts_of(value, length=item.bytes if long else None, markers=markers)
        yield Place(target, db, item.key, item.ttl_s, item.idle_s), facts


def _other_types(client: Client, target: str, db: int, known: Sequence[Known]) -> list[CacheKey]:
    others = [item for item in known if item.bytes is None]
    if not others:
        return []
    kinds = types(client, [item.key for item in others])
    return [
        other_type(Place(target, db, item.key, item.ttl_s, item.idle_s), kind)
        for item, kind in zip(others, kinds, strict=True)
    ]


def _by_family(seen: Iterable[Seen]) -> dict[str, list[Seen]]:
    groups: dict[str, list[Seen]] = defaultdict(list)
    for place, facts in seen:
        groups[family(place.key)].append((place, facts))
    return groups


def _siblings(
    client: Client, key: bytes, name: str, taken: set[bytes], wanted: int, deadline: float
) -> tuple[list[bytes], Counter[str]]:
    """Names of siblings, and how many keys of that name each version has, as far as time allows."""
    names: dict[bytes, None] = {}
    versions: Counter[str] = Counter()
    glob, any_version, own = sibling_glob(key), versionless(key), version_of(key)
    if b"*" not in glob:
        return [], versions
    for page in _pages(client, glob):
        for other in page:
            version = version_of(other)
            if version is not None and own is not None and versionless(other) == any_version:
                versions[version] += 1
            if len(names) < wanted and other not in taken and family(other) == name:
                names[other] = None
        enough = len(names) >= wanted or versions.total() >= 4 * wanted
        if enough or time.monotonic() > deadline:
            break
    return list(names), versions
