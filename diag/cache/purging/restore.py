"""Put purged keys back, except where the service has written something newer."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import redis

from diag.cache.purging import acl, backup
from diag.cache.purging.deleting import BATCH_BYTES, BATCH_KEYS
from diag.cache.servers.connection import Client, at_database, speaking

Outcome = Literal["restored", "kept_newer", "expired"]


@dataclass(frozen=True)
class Failure:
    """One line of the backup that did not come back."""

    line: int | None
    key_hex: str | None
    why: str


@dataclass(frozen=True)
class RestoreResult:
    """What came back."""

    restored: int
    kept_newer: int
    """The key exists again: its value was left alone."""
    expired: int
    """Its time was up while it was away."""
    failed: tuple[Failure, ...] = ()


def restore(client: Client, target: str, path: Path) -> RestoreResult:
    """Write every key of a backup that does not exist, with its absolute expiry, and read it back.

    Strings are written as they are, so any server takes them; other types by RESTORE, which the server refuses when a
    newer one wrote the backup. BadInput: no backup. CannotConnect, Denied, TimedOut: the server; run it again, what is
    back stays back.
    """
    counts: Counter[Outcome] = Counter()
    failed: list[Failure] = []
    checked = False
    with speaking(target):
        for db, batch in _batches(backup.read(path), failed):
            if not checked:
                acl.may_restore(client, target, batch[0].key)
                checked = True
            there = at_database(client, db)
            if (why := _no_such_database(there)) is not None:
                failed += [Failure(entry.line, entry.key.hex(), f"db {db}: {why}") for entry in batch]
                continue
            strings = [entry for entry in batch if entry.type == "string"]
            others = [entry for entry in batch if entry.type != "string"]
            for _, outcome in (*_put_back(there, strings), *_load_back(there, others)):
                if isinstance(outcome, Failure):
                    failed.append(outcome)
                else:
                    counts[outcome] += 1
    failed.sort(key=lambda failure: failure.line or 0)
    return RestoreResult(counts["restored"], counts["kept_newer"], counts["expired"], tuple(failed))


def _no_such_database(there: Client) -> str | None:
    """Why nothing can be put into this database, or None."""
    try:
        there.ping()
    except redis.ResponseError as error:
        if "DB index" in str(error) or "invalid DB" in str(error):
            return f"the server has no such database ({error}); restore to one with as many, or raise its `databases`"
        raise
    return None


def _batches(entries: Iterable[backup.Entry | backup.Damaged], failed: list[Failure]) -> Iterator[tuple[int, list[backup.Entry]]]:
    """Sound entries of one database at a time, bounded by number and bytes; damaged ones go to `failed`."""
    batch: list[backup.Entry] = []
    size = 0
    for entry in entries:
        if isinstance(entry, backup.Damaged):
            failed.append(Failure(entry.line, entry.key_hex, entry.why))
            continue
        if batch and (entry.db != batch[0].db or len(batch) >= BATCH_KEYS or size + len(entry.value) > BATCH_BYTES):
            yield batch[0].db, batch
            batch, size = [], 0
        batch.append(entry)
        size += len(entry.value)
    if batch:
        yield batch[0].db, batch


Result = tuple[backup.Entry, Outcome | Failure]


def _put_back(client: Client, entries: Sequence[backup.Entry]) -> Iterator[Result]:
    """Strings. What is over is not written: SET would take it and delete at once."""
    alive, over = _by_time(client, entries)
    yield from _too_late(client, over)
    pipe = client.pipeline(transaction=False)
    for entry in alive:
        pipe.set(entry.key, entry.value, nx=True, pxat=entry.expires_at_ms)
    answers = pipe.execute(raise_on_error=False) if alive else []
    written: list[backup.Entry] = []
    for entry, answer in zip(alive, answers, strict=True):
        if isinstance(answer, Exception) and "syntax error" in str(answer):  # before Redis 6.2
            answer = _put_back_at_an_old_server(client, entry)
        if isinstance(answer, Exception):
            yield entry, _failure(entry, answer)
        elif not answer:
            yield entry, "kept_newer"
        else:
            written.append(entry)
    yield from _verified(client, written)


def _put_back_at_an_old_server(client: Client, entry: backup.Entry) -> Any:
    """It knows no absolute expiry with SET: a relative one, so that the key is never without, then the exact moment."""
    assert entry.expires_at_ms is not None
    seconds, micros = client.time()
    left_ms = max(1, entry.expires_at_ms - seconds * 1000 - micros // 1000)
    answer = client.set(entry.key, entry.value, nx=True, px=left_ms)
    if answer:
        client.pexpireat(entry.key, entry.expires_at_ms)
    return answer


def _verified(client: Client, written: Sequence[backup.Entry]) -> Iterator[Result]:
    """Read back: the same bytes, or somebody has been there since."""
    pipe = client.pipeline(transaction=False)
    for entry in written:
        pipe.get(entry.key)
    answers = pipe.execute(raise_on_error=False) if written else []
    for entry, found in zip(written, answers, strict=True):
        if isinstance(found, Exception) and "WRONGTYPE" not in str(found):
            yield entry, _failure(entry, found)
        elif found is None:
            yield entry, "expired"
        else:
            same = isinstance(found, bytes) and hashlib.sha256(found).hexdigest() == entry.sha256
            yield entry, "restored" if same else "kept_newer"


def _load_back(client: Client, entries: Sequence[backup.Entry]) -> Iterator[Result]:
    """Other types. The server checks the DUMP's own checksum; it answers OK and creates nothing for what is over."""
    alive, over = _by_time(client, entries)
    yield from _too_late(client, over)
    for entry in alive:
        try:
            client.restore(entry.key, entry.expires_at_ms or 0, entry.value, absttl=True)
            kind = client.type(entry.key)
        except redis.ResponseError as error:
            yield entry, "kept_newer" if "BUSYKEY" in str(error) else _failure(entry, error)
            continue
        yield entry, "restored" if kind == entry.type.encode() else "expired" if kind == b"none" else "kept_newer"


def _by_time(client: Client, entries: Sequence[backup.Entry]) -> tuple[list[backup.Entry], list[backup.Entry]]:
    if not entries:
        return [], []
    seconds, micros = client.time()
    now_ms = seconds * 1000 + micros // 1000
    alive: list[backup.Entry] = []
    over: list[backup.Entry] = []
    for entry in entries:
        (over if entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms else alive).append(entry)
    return alive, over


def _too_late(client: Client, over: Sequence[backup.Entry]) -> Iterator[Result]:
    for entry in over:
        yield entry, "kept_newer" if client.exists(entry.key) else "expired"


def _failure(entry: backup.Entry, error: Exception) -> Failure:
    """READONLY and missing rights concern every key: raised, not counted."""
    if isinstance(error, redis.ReadOnlyError | redis.exceptions.NoPermissionError | redis.ConnectionError):
        raise error
    why = str(error)
    if "version or checksum" in why or "Bad data format" in why:
        why = f"this server does not read a {entry.type} that {entry.server or 'another server'} wrote ({why})"
    return Failure(entry.line, entry.key.hex(), why)
