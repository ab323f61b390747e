"""A cache with everything that an RDB file can hold, put into a real server, and what that server then says of it."""

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import redis

from diag.cache.offline.contents import Contents, Held, opened
from tests.cache.conftest import LiveServer

DATABASES = (0, 3, 15)
DEADLINE_S = 20.0


@dataclass(frozen=True)
class Seen:
    """One key, as a server or a file has it."""

    kind: str
    digest: str | None
    """SHA-256 of a string."""
    elements: int | None
    expires_ms: int | None


Cache = Mapping[tuple[int, bytes], Seen]


def strings() -> dict[bytes, bytes]:
    """Every encoding of a string, at its edges, for names and for values."""
    noise = random.Random(1)
    values = {
        b"empty": b"", b"one": b"x", b"raw:63": noise.randbytes(63), b"raw:64": noise.randbytes(64), b"raw:16383": noise.randbytes(16383),
        b"raw:16384": noise.randbytes(16384), b"raw:80k": noise.randbytes(80 << 10), b"lzf:zeros": bytes(80 << 10),
        b"lzf:text": b"a photo of a cat, " * 300, b"lzf:mixed": noise.randbytes(40) + b"\x01\x02" * 3000 + noise.randbytes(40),
        b"binary\x00\xff\r\n\x80": b"\r\n\x00\xff", b"1234567": b"an integer as a name", b"-7": b"another", b"k" * 5000: b"a long name",
        "schlüssel:🦆".encode(): "wert 🦆".encode(),
    }  # fmt: skip
    numbers = (0, -1, 127, 128, -128, -129, 32767, 32768, -32769, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63))
    return values | {b"int:%d" % number: b"%d" % number for number in numbers} | {b"int:padded": b"007", b"int:plus": b"+7", b"int:float": b"1.0"}


def fill(client_of: Callable[[int], redis.Redis]) -> None:
    """Strings in three databases, with and without expiry, and every other type small and large."""
    for db in DATABASES:
        with client_of(db) as client:
            pipe = client.pipeline(transaction=False)
            for number, (key, value) in enumerate(strings().items()):
                pipe.set(key, value, px=(86_400_000 + 7 * number) if number % 3 == 0 else None)
            pipe.execute()
    with client_of(0) as client:
        _other_types(client)
        _field_ttls(client)


def _other_types(client: redis.Redis) -> None:
    many = [b"element %06d" % number for number in range(2000)]
    pipe = client.pipeline(transaction=False)
    for name, elements in (("small", many[:5]), ("large", many)):
        pipe.rpush(f"list:{name}", *elements)
        pipe.sadd(f"set:{name}", *elements)
        pipe.zadd(f"zset:{name}", {element: number / 7 for number, element in enumerate(elements)})
        pipe.hset(f"hash:{name}", mapping={element: b"value" for element in elements})
    pipe.rpush("list:plain", b"y" * 20_000, b"z" * 20_000, "short")
    pipe.sadd("set:ints", *range(100))
    pipe.sadd("set:words", "one", "two", "three")
    pipe.zadd("zset:edges", {"low": float("-inf"), "high": float("inf"), "zero": 0})
    pipe.zadd("zset:edges:large", {"x" * 100: float("-inf"), "y" * 100: float("inf"), "z" * 100: 1.5})
    pipe.expire("hash:small", 86_400)
    for number in range(250):
        pipe.xadd("stream", {"field": number, "other": "x"}, id=f"1-{number + 1}")
    pipe.xdel("stream", "1-7", "1-8")
    pipe.xgroup_create("stream", "group", id="0")
    pipe.xgroup_create("stream", "idle group", id="$")
    pipe.xreadgroup("group", "consumer", {"stream": ">"}, count=20)
    pipe.xadd("stream:empty", {"a": "b"}, maxlen=0, approximate=False)
    pipe.pfadd("hyperloglog", *many[:500])
    pipe.execute()


def _field_ttls(client: redis.Redis) -> None:
    """Where the server has them."""
    with contextlib.suppress(redis.ResponseError):
        client.execute_command("HPEXPIRE", "hash:small", 80_000_000, "FIELDS", 1, "element 000001")
        client.hset("hash:fields", mapping={b"f%04d" % number: b"v" * 100 for number in range(700)})
        client.execute_command("HPEXPIRE", "hash:fields", 80_000_000, "FIELDS", 2, "f0001", "f0002")


def told_by_server(live: LiveServer) -> Cache:
    """Everything in every database."""
    lengths = {"list": "LLEN", "set": "SCARD", "zset": "ZCARD", "hash": "HLEN", "stream": "XLEN"}
    found: dict[tuple[int, bytes], Seen] = {}
    with live.client() as client:
        databases = [int(name[2:]) for name in client.info("keyspace")]
    for db in databases:
        with live.client(db) as client:
            for key in client.scan_iter(count=1000):
                kind = client.type(key).decode()
                value = client.get(key) if kind == "string" else None
                before = time.time()
                ttl_ms = client.pttl(key)
                found[db, key] = Seen(
                    kind, None if value is None else _digest(value), None if value is not None else client.execute_command(lengths[kind], key),
                    None if ttl_ms < 0 else int((before + time.time()) * 500) + ttl_ms,
                )  # fmt: skip
    return found


def told_by_file(path: Path) -> tuple[Cache, Contents]:
    """The same from a file."""
    found: dict[tuple[int, bytes], Seen] = {}
    with opened(path) as contents:
        for held in contents.items():
            assert (held.db, held.key) not in found, f"{held.key!r} comes twice"
            value = contents.value(held, 1 << 30) if held.kind == "string" else None
            assert value is None or len(value) == held.bytes, (held, len(value))
            found[held.db, held.key] = Seen(held.kind, None if value is None else _digest(value), held.elements, held.expires_ms)
    return found, contents


def differences(server: Cache, file: Cache, within_ms: int = 100) -> list[str]:
    """What is not the same: byte for byte, counts where both tell one, expiry to `within_ms`."""
    said = [f"{place} is only {'on the server' if place in server else 'in the file'}" for place in server.keys() ^ file.keys()]
    for place in server.keys() & file.keys():
        live, read = server[place], file[place]
        if (live.kind, live.digest) != (read.kind, read.digest):
            said.append(f"{place}: {read.kind} with another value, {live.kind} on the server")
        if read.elements is not None and live.elements != read.elements:
            said.append(f"{place}: {read.elements} elements, {live.elements} on the server")
        if (live.expires_ms is None) != (read.expires_ms is None) or abs((live.expires_ms or 0) - (read.expires_ms or 0)) > within_ms:
            said.append(f"{place} expires at {read.expires_ms}, on the server at {live.expires_ms}")
    return said


def saved(live: LiveServer) -> Path:
    """Its RDB file, written now."""
    with live.client() as client:
        client.save()
    return live.unix.parent / "dump.rdb"


@contextlib.contextmanager
def configured(live: LiveServer, **options: str) -> Iterator[None]:
    """With other settings for a while."""
    with live.client() as client:
        names = {name: name.replace("_", "-") for name in options}
        before = {name: client.config_get(name)[name] for name in names.values()}
        for name, value in options.items():
            client.config_set(names[name], value)
        yield
        for name, value in before.items():
            client.config_set(name, value)


def wait_until(condition: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
    """Poll, at most so long."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.005)


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


__all__ = ["Held", "Seen", "configured", "differences", "fill", "saved", "strings", "told_by_file", "told_by_server", "wait_until"]
