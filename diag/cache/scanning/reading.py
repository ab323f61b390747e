"""Reads keys in small bites: what the server knows first, then values, bounded by count and by bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis

from diag.cache.servers.connection import Client

BATCH_KEYS = 250
BATCH_BYTES = 1 << 20
WHOLE_BYTES = 8 << 20
"""Longer values are judged by their head."""
HEAD_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Known:
    """What the server says of a key without its value."""

    key: bytes
    bytes: int | None
    """None: no string."""
    ttl_s: float | None
    idle_s: float | None


def look(client: Client, keys: Sequence[bytes], *, idle: bool = True) -> list[Known]:
    """TTL, idle time (None where the server keeps none) and length of the keys that exist, in that order."""
    found: list[Known] = []
    for start in range(0, len(keys), BATCH_KEYS):
        batch = keys[start : start + BATCH_KEYS]
        pipe = client.pipeline(transaction=False)
        for key in batch:
            pipe.pttl(key)
            if idle:
                pipe.object("IDLETIME", key)  # before STRLEN, which would reset it
            pipe.strlen(key)
        answers = pipe.execute(raise_on_error=False)
        width = 3 if idle else 2
        for index, key in enumerate(batch):
            ttl, *between, length = answers[index * width : (index + 1) * width]
            if isinstance(ttl, Exception):
                raise ttl
            if ttl == -2:
                continue
            if isinstance(length, Exception) and "WRONGTYPE" not in str(length):
                raise length
            since = between[0] if between else None
            found.append(
                Known(
                    key, length if isinstance(length, int) else None, None if ttl < 0 else ttl / 1000,
                    float(since) if isinstance(since, int) else None,
                )
            )  # fmt: skip
    return found


def values(client: Client, known: Sequence[Known]) -> Iterator[tuple[Known, bytes]]:
    """The values of those that are strings; of a long one its head. A key that went away is left out."""
    batch: list[Known] = []
    size = 0
    for item in known:
        if item.bytes is None:
            continue
        if item.bytes > WHOLE_BYTES:
            head = client.getrange(item.key, 0, HEAD_BYTES - 1)
            yield item, head if isinstance(head, bytes) else b""
            continue
        if batch and (len(batch) >= BATCH_KEYS or size + item.bytes > BATCH_BYTES):
            yield from _fetch(client, batch)
            batch, size = [], 0
        batch.append(item)
        size += item.bytes
    if batch:
        yield from _fetch(client, batch)


def _fetch(client: Client, batch: Sequence[Known]) -> Iterator[tuple[Known, bytes]]:
    try:
        answers = client.mget([item.key for item in batch])
    except redis.ResponseError as error:
        if "CROSSSLOT" not in str(error):
            raise
        pipe = client.pipeline(transaction=False)
        for item in batch:
            pipe.get(item.key)
        answers = pipe.execute(raise_on_error=False)
    for item, value in zip(batch, answers, strict=True):
        if isinstance(value, bytes):
            yield item, value


def types(client: Client, keys: Sequence[bytes]) -> list[str]:
    """hash, list, stream … of each key."""
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.type(key)
    answers = pipe.execute(raise_on_error=False)
    return [answer.decode() if isinstance(answer, bytes) else str(answer or "unknown") for answer in answers]
