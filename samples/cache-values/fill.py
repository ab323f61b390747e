"""Fills a cache server with values of a known kind and saves its RDB file, or what a scan of it says: the samples of the cache rules.

    python samples/cache-values/fill.py [NAME…]      # all, or some of those in sample.toml
"""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import redis

from diag import labs

HERE = Path(__file__).parent
DAY_S = 86_400
SOUND = 60


class CacheItem:
    """The wrapper of the published incident, as if it belonged to the service."""

    def __init__(self, data: bytes, *, broken: bool) -> None:
        self.version, self.data, self.created_at = "v2", data, 1_796_000_000.0
        self.checksum = zlib.crc32(data) ^ broken


CacheItem.__module__ = "vision.cache"


class Image:
    """A class of the service that hardly any of its values names."""


Image.__module__ = "vision.images"


class Runs:
    """Unpickling it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def digest(text: object) -> str:
    return hashlib.md5(str(text).encode(), usedforsecurity=False).hexdigest()


def vector(seed: int, *shape: int) -> bytes:
    return pickle.dumps(np.random.default_rng(seed).normal(size=shape or (1, 64)).astype("f4"))


def sound(client: Any, family: str = "clip-vit-b-32:image", count: int = SOUND, ttl_s: int | None = 7 * DAY_S) -> None:
    for seed in range(count):
        client.set(f"{family}:{digest(seed)}", vector(seed), ex=ttl_s)


def ghosts(client: Any) -> None:
    sound(client)
    zero, nan = np.zeros((1, 64), "f4"), np.full((1, 64), np.nan, "f4")
    skipped = {"data": np.zeros((1, 1), "f4"), "status": "SKIP_IMAGE"}
    for name, value in (("zero", zero), ("nan", nan), ("skip", skipped), ("small", np.ones((1, 8), "f4"))):
        client.set(f"clip-vit-b-32:image:{digest(name)}", pickle.dumps(value), ex=7 * DAY_S)


def corrupt(client: Any) -> None:
    sound(client)
    client.set(f"clip-vit-b-32:image:{digest('cut')}", vector(1)[:-40], ex=7 * DAY_S)
    client.set(f"clip-vit-b-32:image:{digest('rubbish')}", b"\x80\x04" + bytes(range(160, 250)), ex=7 * DAY_S)
    for seed in range(SOUND):
        client.set(f"vision:v2:image:{digest(seed)}", pickle.dumps(CacheItem(vector(seed), broken=seed == 7)), ex=7 * DAY_S)


def null_markers(client: Any) -> None:
    sound(client)
    for number in range(3):
        client.set(f"clip-vit-b-32:image:{digest(f'none {number}')}", pickle.dumps(None))
    client.set(f"clip-vit-b-32:image:{digest('short')}", b"null", ex=120)


def halves(client: Any) -> None:
    pairs(client)
    for number in range(100, 103):
        client.delete(f"{chunk_name(number - 100)}kv_bytes")
        client.set(f"{chunk_name(number)}kv_bytes", chunk(number, 16))


def chunk_name(number: int) -> str:
    return f"meta-llama/Llama-3.1-8B-Instruct@2@0@{digest(number)[:16]}@bfloat16"


def chunk(seed: int, tokens: int) -> bytes:
    numbers = np.random.default_rng(seed).normal(size=2 * 2 * tokens * 16).astype("<f4")
    return (numbers.view("<u4") >> 16).astype("<u2").tobytes()


def pairs(client: Any) -> None:
    """LMCache's two keys per chunk; every tenth chunk is the tail of its prompt."""
    for number in range(40):
        tokens = 3 + number // 10 if number % 10 == 9 else 16
        data = chunk(number, tokens)
        client.set(f"{chunk_name(number)}kv_bytes", data)
        client.set(f"{chunk_name(number)}metadata", struct.pack("=7i", len(data), 1, 3, 2, 2, tokens, 16))


def old_versions(client: Any) -> None:
    sound(client, "mm:v2:image", 25)
    sound(client, "mm:v3:image", 120)


def errors(client: Any) -> None:
    captions(client)
    stored_errors(client, 2)


def stored_errors(client: Any, count: int, ttl_s: int = DAY_S) -> None:
    body = {"error": {"message": "The server is overloaded", "type": "server_error", "code": 503}}
    for number in range(count):
        client.set(f"captions:{digest(f'error {number}')}", json.dumps(body), ex=ttl_s)


def captions(client: Any, count: int = SOUND) -> None:
    """Answers, some of them about errors."""
    for number in range(count):
        words = "an error page on a screen" if number % 20 == 0 else f"a picture of {digest(number)}"
        body = {"caption": words, "model": "blip-2", "score": number / SOUND, "error": None}
        client.set(f"captions:{digest(number)}", json.dumps(body), ex=DAY_S)


def foreign(client: Any) -> None:
    sound(client)
    running(client, 1)


def running(client: Any, count: int, family: str = "clip-vit-b-32:image") -> None:
    for number in range(count):
        client.set(f"{family}:{digest(f'runs {number}')}", pickle.dumps(Runs()), ex=7 * DAY_S)


def few_siblings(client: Any) -> None:
    """Ghosts in families of which too few values are sound to tell what they should be; there are enough of them in another database."""
    sound(client)
    place = client.connection_pool.connection_kwargs
    other = redis.Redis(host=place["host"], port=place["port"], db=1)
    for family in ("vit-l-14:image", "siglip:image"):
        sound(other, family, 25)
        sound(client, family, 18)
    for number in range(3):
        client.set(f"vit-l-14:image:{digest(f'cut {number}')}", vector(number)[:-40], ex=7 * DAY_S)
    running(client, 3, "siglip:image")
    captions(other, 25)
    captions(client, 18)
    stored_errors(client, 5)
    pairs(other)
    for number in range(100, 103):
        client.set(f"{chunk_name(number)}kv_bytes", chunk(number, 16))
    other.close()


def markers_and_versions(client: Any) -> None:
    """Null markers and old versions, beside other ghosts, small families and a second database in which all is well."""
    null_markers(client)
    ghosts(client)
    sound(client, "siglip:image", 25)
    client.set(f"siglip:image:{digest('nan')}", pickle.dumps(np.full((1, 64), np.nan, "f4")), ex=7 * DAY_S)
    sound(client, "vit-l-14:image", 12)
    for number in range(3):
        client.set(f"vit-l-14:image:{digest(f'none {number}')}", pickle.dumps(None))
    sound(client, "mm:v1:image", 22)
    old_versions(client)
    sound(client, "audio:v2:clip", 30)
    place = client.connection_pool.connection_kwargs
    other = redis.Redis(host=place["host"], port=place["port"], db=1)
    for family in ("clip-vit-b-32:image", "mm:v3:image"):
        sound(other, family, 25)
    other.close()


def sick_vectors(client: Any) -> None:
    """What is wrong in the other samples with vectors and chunks, on one server."""
    ghosts(client)
    corrupt(client)
    foreign(client)
    halves(client)


def look_alikes(client: Any) -> None:
    """Nothing wrong here: short-lived null markers and errors, sparse, padded, short and few values, one model version, whole pairs, an own class."""
    sound(client)
    for number in range(4):
        client.set(f"clip-vit-b-32:image:{digest(f'negative {number}')}", b"null", ex=300)
    rng = np.random.default_rng(0)
    for seed in range(SOUND):
        sparse = np.where(rng.random((1, 512)) < 0.004, 1.0, 0.0).astype("f4")
        client.set(f"splade:{digest(seed)}", pickle.dumps(sparse), ex=DAY_S)
        padded = np.zeros((16, 32), "f4")
        padded[: int(rng.integers(1, 16))] = rng.normal(size=32)
        client.set(f"mel:{digest(seed)}", pickle.dumps(padded), ex=DAY_S)
        rows = 32 if seed % 6 else int(rng.integers(1, 32))
        client.set(f"kv:{digest(seed)}", vector(seed, rows, 16), ex=DAY_S)
        client.set(f"vision:v2:image:{digest(seed)}", pickle.dumps(CacheItem(vector(seed), broken=False)), ex=7 * DAY_S)
    for seed in range(5):
        client.set(f"trial:{digest(seed)}", vector(seed, 1, 2 + seed))
        # an encoding of its own that begins as pickles do: most of this family would be broken
        client.set(f"packed:image:{digest(seed)}", vector(seed)[:-40] if seed < 3 else vector(seed))
    named = {"data": np.random.default_rng(0).normal(size=(1, 64)).astype("f4"), "of": Image()}
    client.set(f"clip-vit-b-32:image:{digest('named')}", pickle.dumps(named), ex=7 * DAY_S)
    captions(client)
    stored_errors(client, 2, ttl_s=30)
    pairs(client)


MAKERS: dict[str, Callable[[Any], None]] = {
    "ghosts": ghosts, "corrupt": corrupt, "null-markers": null_markers, "half-entries": halves, "old-versions": old_versions,
    "errors": errors, "foreign": foreign, "look-alikes": look_alikes, "few-siblings": few_siblings,
}  # fmt: skip


SERVERS: dict[str, dict[str, Callable[[Any], None]]] = {
    "three-servers": {"vectors": sick_vectors, "answers": errors, "sound": look_alikes},
    "two-servers": {"markers": markers_and_versions, "vectors": ghosts, "sound": look_alikes},
}
"""Samples of what `scan-cache --out` wrote of each server."""


@contextlib.contextmanager
def filled(make: Callable[[Any], None]) -> Iterator[tuple[labs.Server, Path]]:
    """A server with these values, and its saved file."""
    with tempfile.TemporaryDirectory() as folder, labs.start_server(Path(folder)) as server:
        with redis.Redis.from_url(server.tcp_url) as client:
            make(client)
            client.save()
        yield server, Path(folder) / "dump.rdb"


def record(name: str) -> None:
    """samples/cache-values/NAME anew, from servers of its own."""
    for owned in (CacheItem, Image):
        module = types.ModuleType(owned.__module__)
        setattr(module, owned.__name__, owned)
        sys.modules.setdefault("vision", types.ModuleType("vision"))
        sys.modules[owned.__module__] = module
    target = HERE / name
    target.mkdir(exist_ok=True)
    if name in SERVERS:
        for which, make in SERVERS[name].items():
            with filled(make) as (server, _):
                scan = [sys.executable, "-m", "diag.cli", "scan-cache", server.tcp_url, "--out", str(target / f"{which}.parquet")]
                subprocess.run(scan, check=False, stdout=subprocess.DEVNULL)  # exits 1 where it finds ghosts
    else:
        with filled(MAKERS[name]) as (_, dump):
            shutil.copyfile(dump, target / "dump.rdb")


def main() -> None:
    for name in sys.argv[1:] or (*MAKERS, *SERVERS):
        record(name)
        print(f"cache-values/{name}")


if __name__ == "__main__":
    main()
