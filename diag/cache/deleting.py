"""Compare and delete in one step on the server, so that a value written a moment ago is never lost."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, cast

import redis

from diag.cache.connection import Client, at_database, speaking
from diag.errors import LlmdiagError

BATCH_KEYS = 100
BATCH_BYTES = 4 << 20
"""The server does nothing else while it compares a batch."""

# KEYS: the keys. ARGV: for each its SHA-1 as backed up, then "1" if it had an expiry, else "0".
# A key that has changed since, or lost or won an expiry, is somebody's: it stays.
COMPARE_AND_UNLINK = """
local out = {}
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value == false then
    out[i] = 'missing'
  elseif type(value) ~= 'string' or redis.sha1hex(value) ~= ARGV[2 * i - 1] then
    out[i] = 'changed'
  elseif (redis.call('PTTL', key) >= 0) ~= (ARGV[2 * i] == '1') then
    out[i] = 'changed'
  else
    redis.call('UNLINK', key)
    out[i] = 'deleted'
  end
end
return out
"""

Outcome = Literal["deleted", "changed", "missing", "failed"]


@dataclass(frozen=True)
class Fingerprint:
    """A key as its backup has it."""

    db: int
    key: bytes
    sha1: str
    expires: bool
    bytes: int


class Sized(Protocol):
    """Anything that knows its bytes."""

    @property
    def bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


def batches(items: Sequence[T]) -> Iterator[list[T]]:
    """In slices bounded by number and by bytes."""
    batch: list[T] = []
    size = 0
    for item in items:
        if batch and (len(batch) >= BATCH_KEYS or size + item.bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.bytes
    if batch:
        yield batch


def delete(client: Client, target: str, prints: Sequence[Fingerprint], counts: Counter[Outcome]) -> str | None:
    """Delete what still is as in the backup; counts outcomes as they come. Returns why it stopped early, or None.

    Of a batch that was not answered it is not known what is gone; the backup has all of it.
    """
    try:
        with speaking(target):
            script = True
            for db in sorted({item.db for item in prints}):
                there = at_database(client, db)
                for batch in batches([item for item in prints if item.db == db]):
                    outcomes = _by_script(there, batch) if script else None
                    if outcomes is None:
                        script = False
                        outcomes = [_by_watch(there, item) for item in batch]
                    counts.update(outcomes)
    except LlmdiagError as error:
        return error.message
    except KeyboardInterrupt:
        return "interrupted"
    return None


def _by_script(client: Client, batch: Sequence[Fingerprint]) -> list[Outcome] | None:
    """None: this user or server runs no scripts, or none that delete."""
    keys = [item.key for item in batch]
    argv = [part for item in batch for part in (item.sha1, "1" if item.expires else "0")]
    try:
        answers = client.eval(COMPARE_AND_UNLINK, len(keys), *keys, *argv)
    except redis.ReadOnlyError:
        raise
    except redis.ResponseError as error:
        if _refused(error):
            return None
        raise
    return [cast(Outcome, answer.decode()) for answer in cast(list[bytes], answers)]


def _refused(error: redis.ResponseError) -> bool:
    text = str(error)
    return isinstance(error, redis.exceptions.NoPermissionError) or any(
        sign in text for sign in ("NOPERM", "no permissions", "ACL failure", "can't run this command", "unknown command", "CROSSSLOT")
    )


def _by_watch(client: Client, item: Fingerprint) -> Outcome:
    """The same without a script: the transaction fails if anybody writes the key in between."""
    with client.pipeline(transaction=True) as pipe:
        try:
            pipe.watch(item.key)  # type: ignore[no-untyped-call]
            value = cast(object, pipe.get(item.key))
            if value is None:
                return "missing"
            if not isinstance(value, bytes) or hashlib.sha1(value, usedforsecurity=False).hexdigest() != item.sha1:
                return "changed"
            if (pipe.pttl(item.key) >= 0) != item.expires:
                return "changed"
            pipe.multi()
            pipe.unlink(item.key)
            (gone,) = pipe.execute()
        except redis.WatchError:
            return "changed"
        except redis.ResponseError as error:
            if "WRONGTYPE" in str(error):
                return "changed"
            raise
    return "deleted" if gone else "missing"
