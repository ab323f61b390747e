"""Compare and delete in one step on the server, so that a value written a moment ago is never lost.

Four ways, the best that user and server allow: a script for a whole batch; DELIFEQ (Valkey from 9.0); DELEX … IFEQ
(Redis from 8.4, never tried on a real one: none was to be had); a transaction for each key. The middle two cannot
compare the expiry in the same step, it is looked at a moment before.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, TypeVar, cast

import redis

from diag.cache.servers.connection import Client

BATCH_KEYS = 100
BATCH_BYTES = 4 << 20
"""The server does nothing else while it compares a batch."""

# ARGV: the command that deletes; then for each key: its SHA-1 as backed up; "1" if it had an expiry, "0" if not, "-" if
# the key must not exist; GET or DUMP; "1" if it goes only together with the key before.
# A key that has changed since, or lost or won an expiry, is somebody's: it stays.
COMPARE_AND_DELETE = """
local state, out = {}, {}
for i, key in ipairs(KEYS) do
  local sha, expires, read = ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  if expires == '-' then
    state[i] = redis.call('EXISTS', key) == 0 and 'absent' or 'changed'
  else
    local value = redis.pcall(read, key)
    if value == false then
      state[i] = 'missing'
    elseif type(value) ~= 'string' or redis.sha1hex(value) ~= sha then
      state[i] = 'changed'
    elseif (redis.call('PTTL', key) >= 0) ~= (expires == '1') then
      state[i] = 'changed'
    else
      state[i] = 'same'
    end
  end
end
for i = 2, #KEYS do
  if ARGV[4 * i + 1] == '1' then
    local one, other = state[i - 1], state[i]
    if one ~= 'same' or (other ~= 'same' and other ~= 'absent') then
      if one == 'same' then state[i - 1] = 'changed' end
      if other == 'same' then state[i] = 'changed' end
    end
  end
end
for i, key in ipairs(KEYS) do
  if state[i] == 'same' then
    redis.call(ARGV[1], key)
    out[i] = 'deleted'
  else
    out[i] = state[i]
  end
end
return out
"""

Outcome = Literal["deleted", "changed", "missing", "failed", "absent"]
"""absent: a key that must not exist, and does not."""
Way = Literal["script", "delifeq", "delex", "watch"]
Verb = Literal["UNLINK", "DEL"]


@dataclass(frozen=True)
class Means:
    """How this user deletes on this server."""

    way: Way = "script"
    verb: Verb = "UNLINK"


@dataclass(frozen=True)
class Fingerprint:
    """A key as its backup has it."""

    db: int
    key: bytes
    sha1: str
    """Of the value; of the DUMP, if it is no string."""
    expires: bool
    bytes: int
    dumped: bool = False
    """No string: compared by its DUMP. Two DUMPs of one hash may differ; then it stays."""
    follows: bool = False
    """Goes only together with the key before it."""
    absent: bool = False
    """Must not exist, else the key before it stays."""


class Sized(Protocol):
    """Anything that knows its bytes. What `follows` stays with what is before it."""

    @property
    def bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


def batches(items: Sequence[T], most: int = BATCH_KEYS) -> Iterator[list[T]]:
    """In slices bounded by number and by bytes; what belongs together stays together."""
    batch: list[T] = []
    size = 0
    for item in items:
        if batch and not getattr(item, "follows", False) and (len(batch) >= most or size + item.bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.bytes
    if batch:
        yield batch


def delete_batch(client: Client, batch: Sequence[Fingerprint], means: Means) -> list[Outcome]:
    """Delete those of one database that still are as in the backup; what became of each.

    Raises the client library's errors: then it is not known what of the batch is gone; the backup has all of it.
    """
    if means.way == "watch" and not hasattr(client, "primaries"):  # in a cluster no transaction spans a pair
        return [outcome for group in _groups(batch) for outcome in _by_watch(client, group, means.verb)]
    if means.way != "script":
        return _in_two_waves(client, batch, means)
    try:
        return _by_script(client, batch, means.verb)
    except redis.ResponseError as error:
        if "CROSSSLOT" not in str(error):
            raise
    return _in_two_waves(client, batch, means)


def _by_script(client: Client, batch: Sequence[Fingerprint], verb: Verb) -> list[Outcome]:
    answers = client.eval(COMPARE_AND_DELETE, len(batch), *[item.key for item in batch], verb, *_arguments(batch))
    return [cast(Outcome, answer.decode()) for answer in cast(list[bytes], answers)]


def _arguments(batch: Sequence[Fingerprint]) -> list[str]:
    return [part for item in batch for part in (item.sha1, _expiry(item), "DUMP" if item.dumped else "GET", "1" if item.follows else "0")]


def _expiry(item: Fingerprint) -> str:
    return "-" if item.absent else "1" if item.expires else "0"


def _groups(batch: Sequence[Fingerprint]) -> Iterator[list[Fingerprint]]:
    group: list[Fingerprint] = []
    for item in batch:
        if group and not item.follows:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _in_two_waves(client: Client, batch: Sequence[Fingerprint], means: Means) -> list[Outcome]:
    """Each key by itself, where no command takes several: first halves first, then what goes with them.

    All that can be seen to have changed beforehand stays, both halves of it.
    """
    found = dict(zip(batch, _look(client, batch), strict=True))
    for group in _groups(batch):
        if any(found[item] not in ("same", "absent") for item in group):
            found.update({item: "changed" for item in group if found[item] == "same"})
    for wave in (False, True):
        ready = [item for item in batch if item.follows == wave and found[item] == "same"]
        if wave:
            kept = {item for first, item in pairwise(batch) if item.follows and found[first] != "deleted"}
            found.update({item: "changed" for item in ready if item in kept})
            ready = [item for item in ready if item not in kept]
        found.update(zip(ready, _one_by_one(client, ready, means), strict=True))
    return [cast(Outcome, found[item]) for item in batch]


def _look(client: Client, batch: Sequence[Fingerprint]) -> list[str]:
    """same, changed, missing or absent: a moment before."""
    pipe = client.pipeline(transaction=False)
    for item in batch:
        (pipe.dump if item.dumped else pipe.get)(item.key)
        pipe.pttl(item.key)
    answers = pipe.execute(raise_on_error=False)
    return [_state(item, value, ttl) for item, value, ttl in zip(batch, answers[::2], answers[1::2], strict=True)]


def _state(item: Fingerprint, value: object, ttl_ms: object) -> str:
    for answer in (value, ttl_ms):
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    if item.absent:
        return "absent" if value is None else "changed"
    if value is None:
        return "missing"
    if not isinstance(value, bytes) or not isinstance(ttl_ms, int) or _sha1(value) != item.sha1 or (ttl_ms >= 0) != item.expires:
        return "changed"
    return "same"


def _one_by_one(client: Client, items: Sequence[Fingerprint], means: Means) -> list[Outcome]:
    if not items:
        return []
    if means.way == "script":
        pipe = client.pipeline(transaction=False)
        for item in items:
            pipe.eval(COMPARE_AND_DELETE, 1, item.key, means.verb, item.sha1, _expiry(item), "DUMP" if item.dumped else "GET", "0")
        return [cast(Outcome, answer[0].decode()) for answer in pipe.execute()]
    if means.way == "watch":
        return [_by_watch(client, [item], means.verb)[0] for item in items]
    found = {item: _by_watch(client, [item], means.verb)[0] for item in items if item.dumped}
    strings = [item for item in items if not item.dumped]
    found.update(zip(strings, _if_equal(client, strings, means.way), strict=True))
    return [found[item] for item in items]


def _if_equal(client: Client, items: Sequence[Fingerprint], way: Way) -> list[Outcome]:
    """The server compares the whole value; it is read once more to be handed in, and must still be the one backed up."""
    if not items:
        return []
    pipe = client.pipeline(transaction=False)
    for item in items:
        pipe.get(item.key)
    values = pipe.execute(raise_on_error=False)
    ready = [(item, value) for item, value in zip(items, values, strict=True) if isinstance(value, bytes) and _sha1(value) == item.sha1]
    pipe = client.pipeline(transaction=False)
    for item, value in ready:
        pipe.execute_command(*(("DELIFEQ", item.key, value) if way == "delifeq" else ("DELEX", item.key, "IFEQ", value)))  # type: ignore[no-untyped-call]
    gone = dict(zip((item for item, _ in ready), pipe.execute(raise_on_error=False), strict=True)) if ready else {}
    for answer in gone.values():
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    seen = dict(zip(items, values, strict=True))
    return ["deleted" if gone.get(item) == 1 else "missing" if seen[item] is None else "changed" for item in items]


def _by_watch(client: Client, group: Sequence[Fingerprint], verb: Verb) -> list[Outcome]:
    """The same without a script: the transaction fails if anybody writes one of the keys in between."""
    with client.pipeline(transaction=True) as pipe:
        try:
            pipe.watch(*[item.key for item in group])  # type: ignore[no-untyped-call]
            states = [_watched(pipe, item) for item in group]
            if any(state not in ("same", "absent") for state in states):
                return [cast(Outcome, "changed" if state == "same" else state) for state in states]
            pipe.multi()
            for item in group:
                if not item.absent:
                    pipe.execute_command(verb, item.key)  # type: ignore[no-untyped-call]
            pipe.execute()
        except redis.WatchError:
            return ["changed" for _ in group]
    return ["absent" if item.absent else "deleted" for item in group]


def _watched(pipe: "redis.client.Pipeline", item: Fingerprint) -> str:
    try:
        value = cast(object, pipe.dump(item.key) if item.dumped else pipe.get(item.key))
    except redis.ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        return "changed"
    return _state(item, value, pipe.pttl(item.key))


def _sha1(value: bytes) -> str:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()
