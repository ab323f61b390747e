"""A small cache of the kind that has ghosts, and whether two states of one are the same."""

import hashlib
import pickle
from collections.abc import Mapping
from functools import cache

import numpy as np
import redis

SOUND = 200
GHOST = pickle.dumps(None)
FRESH = pickle.dumps(np.ones((1, 8), "f4") * np.arange(8, dtype="f4"))

Keyspace = Mapping[tuple[int, bytes], tuple[bytes, int | None]]
"""(database, key) -> (value, absolute expiry in Unix milliseconds or None)"""


@cache
def sound(seed: int) -> bytes:
    """A healthy value: a pickled 1x64 array."""
    return pickle.dumps(np.random.default_rng(seed).normal(size=(1, 64)))


def fill(client: redis.Redis, ghosts: int, *, value: bytes = GHOST, healthy: int = SOUND) -> list[bytes]:
    """`healthy` arrays and `ghosts` markers (None, unless told otherwise) of one family; returns the names of the ghosts."""
    pipe = client.pipeline(transaction=False)
    for number in range(healthy):
        pipe.set(b"emb:img%05d" % number, sound(number))
    names = [b"emb:img9%05d" % number for number in range(ghosts)]
    for name in names:
        pipe.set(name, value)
    pipe.execute()
    return names


def keyspace(client: redis.Redis) -> Keyspace:
    """Everything in every database. Also for servers that know no PEXPIRETIME: good to a few milliseconds."""
    found: dict[tuple[int, bytes], tuple[bytes, int | None]] = {}
    databases = [int(name[2:]) for name in client.info("keyspace")]
    for db in databases:
        with redis.Redis(port=client.connection_pool.connection_kwargs["port"], db=db, protocol=2) as there:
            names = list(there.scan_iter(count=1000))
            pipe = there.pipeline(transaction=False)
            for name in names:
                pipe.get(name)
                pipe.pttl(name)
            seconds, micros = there.time()
            answers = pipe.execute()
            for name, value, ttl_ms in zip(names, answers[::2], answers[1::2], strict=True):
                found[db, name] = (value, None if ttl_ms < 0 else seconds * 1000 + micros // 1000 + ttl_ms)
    return found


def differences(before: Keyspace, after: Keyspace) -> list[str]:
    """What is not as it was: byte for byte, expiry within a second."""
    said = [f"{place} is {'gone' if place in before else 'new'}" for place in before.keys() ^ after.keys()]
    for place in before.keys() & after.keys():
        (value, expiry), (value_now, expiry_now) = before[place], after[place]
        if hashlib.sha256(value).digest() != hashlib.sha256(value_now).digest():
            said.append(f"{place} has another value")
        if (expiry is None) != (expiry_now is None) or abs((expiry or 0) - (expiry_now or 0)) > 1000:
            said.append(f"{place} expires at {expiry_now}, not {expiry}")
    return said
