"""Small files of real servers for the fuzzers: RDB and append-only, of every server that is here."""

import contextlib
import subprocess
import time
from pathlib import Path

import redis

from tests.cache import offline_world as world
from tests.cache.servers import SERVERS


def fill(client: redis.Redis) -> None:
    """A little of everything."""
    client.delete("stream")
    pipe = client.pipeline(transaction=False)
    for number, (key, value) in enumerate(world.strings().items()):
        pipe.set(key[:40], value[:200], px=86_400_000 if number % 3 == 0 else None)
    pipe.set("lzf", b"abc" * 300)
    pipe.rpush("list", *range(9), b"p" * 9000), pipe.sadd("ints", 1, 2, 3), pipe.sadd("set", "a", "b", "c" * 70), pipe.zadd("zset", {"a": 1, "b" * 70: 2})
    pipe.hset("hash", mapping={"f": "v", "g": "w" * 70}), pipe.xadd("stream", {"a": "b"}), pipe.xgroup_create("stream", "g", id="0")
    pipe.xreadgroup("g", "c", {"stream": ">"})
    pipe.execute()
    with contextlib.suppress(redis.ResponseError):
        client.execute_command("HPEXPIRE", "hash", 80_000_000, "FIELDS", 1, "f")


def seeds(folder: Path) -> list[bytes]:
    """Bytes of the files; servers are started for it and ended."""
    found: list[bytes] = []
    for name, binary in SERVERS.items():
        if binary is not None:
            place = folder / name
            place.mkdir()
            found += _of(binary, place)
    assert found, "no cache server is here"
    return found


def _of(binary: Path, folder: Path) -> list[bytes]:
    unix = folder / "s"
    command = [str(binary), "--port", "0", "--save", "", "--dir", str(folder), "--unixsocket", str(unix), "--appendonly", "yes", "--appendfsync", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(unix_socket_path=str(unix), protocol=2) as client:
            world.wait_until(lambda: _answers(client), "the server")
            fill(client)
            client.save()
            rdb = (folder / "dump.rdb").read_bytes()
            client.bgrewriteaof()
            world.wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the rewrite")
            fill(client)
            client.rename("lzf", "renamed"), client.append("int:0", "x"), client.delete("ints"), client.swapdb(0, 3), client.incr("counter")
            logs = [path.read_bytes() for path in folder.rglob("*.aof") if path.stat().st_size]
        return [rdb, *logs]
    finally:
        process.kill()
        process.wait()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        time.sleep(0.01)
        return False
