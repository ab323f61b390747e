"""The other halves of what a purge would take: looked up, so that a plan has both halves of a pair or none."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from diag.cache.purging import pairing
from diag.cache.purging.planning import Partners, Where
from diag.cache.purging.rereading import values
from diag.cache.scanning.server import inspect_keys
from diag.cache.servers.connection import Client, at_database, speaking
from diag.cache.values.families import family
from diag.cache.values.keys import CacheKey

BITE_BYTES = 1 << 20
LONGEST_BYTES = 256 << 20
"""Of a half that is read whole to be backed up; a longer one keeps its pair out of every plan."""


def complete(client: Client, target: str, rows: Sequence[CacheKey]) -> list[CacheKey]:
    """Ghosts that are long halves, of which the scan read only the head, with the digest of the whole; others as they are.

    Read, judged again, read again: only what stayed the same around its judgement and is a ghost still gets a digest.
    """
    long = [row for row in rows if _is_long_half(row)]
    if not long:
        return list(rows)
    found: dict[Where, CacheKey] = {}
    with speaking(target):
        for db in sorted({row.db for row in long}):
            there = at_database(client, db)
            names = [row.name for row in long if row.db == db]
            before = {name: _digest(there, name) for name in names}
            again = {row.name: row for row in inspect_keys(client, target, names, databases=[db]) if row.verdict == "ghost"}
            for name in names:
                digest = before[name] if name in again else None
                if digest is not None and digest == _digest(there, name):
                    found[db, name] = replace(again[name], sha256=digest)
    return [found.get((row.db, row.name), row) for row in rows]


def _is_long_half(row: CacheKey) -> bool:
    return row.verdict == "ghost" and row.sha256 is None and row.bytes <= LONGEST_BYTES and pairing.partner(row.name) is not None


def _digest(client: Client, key: bytes) -> str | None:
    """SHA-256 of a string, read in bites; None: it is gone."""
    whole = hashlib.sha256()
    length = client.strlen(key)
    for start in range(0, length, BITE_BYTES):
        part = client.getrange(key, start, start + BITE_BYTES - 1)
        whole.update(part if isinstance(part, bytes) else b"")
    return whole.hexdigest() if length else None


def look_up(client: Client, target: str, rows: Iterable[CacheKey]) -> Partners:
    """For each odd half whose other half is no finding itself: that one as a row, None if there is none.

    Such a row has the verdict "ok" and goes only because its other half goes.
    """
    odd = [row for row in rows if row.verdict in ("ghost", "soft")]
    places = {(row.db, row.name) for row in odd}
    found: dict[Where, CacheKey | None] = {}
    with speaking(target):
        for row in odd:
            other = pairing.partner(row.name)
            if other is not None and (row.db, other) not in places:
                found[row.db, other] = _looked_at(at_database(client, row.db), row, other)
    return found


def _looked_at(client: Client, row: CacheKey, other: bytes) -> CacheKey | None:
    kind = client.type(other)
    if kind == b"none":
        return None
    length = client.strlen(other) if kind == b"string" else None
    if length is None or length > LONGEST_BYTES:
        return _as_row(row, other, 0 if length is None else length, None, None)
    (now,) = values(client, [other])
    if now.value is None:
        return None
    ttl_s = None if now.expires_at_ms is None else max(0.0, client.pttl(other) / 1000)
    return _as_row(row, other, len(now.value), ttl_s, hashlib.sha256(now.value).hexdigest())


def _as_row(row: CacheKey, other: bytes, size: int, ttl_s: float | None, sha256: str | None) -> CacheKey:
    try:
        name = other.decode()
    except UnicodeDecodeError:
        name = None
    return replace(
        row, key=name, key_hex=other.hex(), family=family(other), bytes=size, ttl_s=ttl_s, codec="half", dtype=None, shape=None,
        min=None, max=None, mean=None, norm=None, nan=None, inf=None, crc_ok=None, verdict="ok", sha256=sha256,
        detail="goes with its other half",
    )  # fmt: skip
