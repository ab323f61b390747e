"""The second read of what is to go: value and absolute expiry now, compared with what was judged."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import redis

from diag.cache.purging import pairing
from diag.cache.purging.backup import Entry
from diag.cache.purging.deleting import Fingerprint, batches
from diag.cache.servers.connection import Client, at_database
from diag.cache.values.keys import CacheKey

Found = tuple[CacheKey, Entry | Literal["changed", "missing"]]


@dataclass(frozen=True, slots=True)
class Now:
    """A key as it is now."""

    value: bytes | None
    """None: it is gone. Of anything but a string the DUMP."""
    expires_at_ms: int | None
    type: str = "string"


@dataclass(frozen=True)
class _Row:
    row: CacheKey
    follows: bool

    @property
    def bytes(self) -> int:
        return self.row.bytes


def second_read(
    client: Client, keys: Sequence[CacheKey], *, server: str | None = None, wait: Callable[[int, int], bool] | None = None, most: int = 100
) -> Iterator[Found]:
    """Each key with its backup entry if it still is what was judged; a pair only if both halves are.

    `wait` is asked before each batch (keys, bytes) and may raise KeyboardInterrupt by answering True.
    """
    for db in sorted({row.db for row in keys}):
        there = at_database(client, db)
        for batch in batches(_grouped([row for row in keys if row.db == db]), most):
            if wait is not None and wait(len(batch), sum(item.bytes for item in batch)):
                raise KeyboardInterrupt
            found = _batch(there, [item.row for item in batch], server)
            yield from zip((item.row for item in batch), _both_or_none(found, batch), strict=True)


def fingerprints(row: CacheKey, entry: Entry, *, follows: bool) -> Iterator[Fingerprint]:
    """What a delete compares; behind a lone half also the name of the other, which must not exist."""
    digest = hashlib.sha1(entry.value, usedforsecurity=False).hexdigest()
    yield Fingerprint(row.db, row.name, digest, entry.expires_at_ms is not None, len(entry.value), entry.type != "string", follows)


def lonely(keys: Sequence[CacheKey]) -> dict[tuple[int, bytes], bytes]:
    """Halves that go alone -> the name of the half that must not exist."""
    places = {(row.db, row.name) for row in keys}
    others = ((row.db, row.name, pairing.partner(row.name)) for row in keys)
    return {(db, name): other for db, name, other in others if other is not None and (db, other) not in places}


def _grouped(keys: Sequence[CacheKey]) -> list[_Row]:
    before = [None, *keys[:-1]] if keys else []
    return [
        _Row(row, prior is not None and prior.db == row.db and pairing.partner(prior.name) == row.name)
        for prior, row in zip(before, keys, strict=True)
    ]


def _batch(client: Client, rows: Sequence[CacheKey], server: str | None) -> list[Entry | Literal["changed", "missing"]]:
    result = [_judged(row, now, server) for row, now in zip(rows, values(client, [row.name for row in rows]), strict=True)]
    alone = lonely(rows)
    for at, row in enumerate(rows):
        other = alone.get((row.db, row.name))
        if other is not None and not isinstance(result[at], str) and client.exists(other):
            result[at] = "changed"
    return result


def _judged(row: CacheKey, now: Now, server: str | None) -> Entry | Literal["changed", "missing"]:
    if now.value is None:
        return "missing"
    entry = Entry(row.db, row.name, now.value, now.expires_at_ms, now.type, None if now.type == "string" else server)
    if entry.sha256 != row.sha256 or (row.ttl_s is None) != (now.expires_at_ms is None):
        return "changed"
    return entry


def _both_or_none(
    found: list[Entry | Literal["changed", "missing"]], batch: Sequence[_Row]
) -> list[Entry | Literal["changed", "missing"]]:
    out = list(found)
    for at in range(1, len(batch)):
        if batch[at].follows:
            for one, other in ((at - 1, at), (at, at - 1)):
                if isinstance(found[one], str) and not isinstance(found[other], str):
                    out[other] = "changed"
    return out


def values(client: Client, keys: Sequence[bytes]) -> list[Now]:
    """Value and absolute expiry in Unix milliseconds of each key. Raises the client library's errors."""
    absolute = True
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.get(key)
        pipe.pexpiretime(key)  # type: ignore[arg-type]
    answers = pipe.execute(raise_on_error=False)
    offset_ms = 0
    if any(_is_unsupported(answer) for answer in answers[1::2]):  # before Redis 7.0
        absolute = False
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.get(key)
            pipe.pttl(key)
        seconds, micros = client.time()
        offset_ms = seconds * 1000 + micros // 1000
        answers = pipe.execute(raise_on_error=False)
    result: list[Now] = []
    for key, value, expiry in zip(keys, answers[::2], answers[1::2], strict=True):
        kind = "string"
        if isinstance(value, Exception) and "WRONGTYPE" in str(value):
            value, kind = client.dump(key), client.type(key).decode()  # type: ignore[union-attr]
        for answer in (value, expiry):
            if isinstance(answer, Exception):
                raise answer
        result.append(Now(value, None if expiry < 0 else expiry if absolute else offset_ms + expiry, kind))
    return result


def _is_unsupported(answer: object) -> bool:
    return isinstance(answer, redis.ResponseError) and ("unknown command" in str(answer) or "no permissions" in str(answer))
