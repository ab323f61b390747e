"""SIGKILL at any moment of a purge loses nothing: after a restore the keyspace is what it was.

The moments are commands, counted by a proxy: killed before the server gets one, or after it has carried it out and
before the answer is heard. LLMDIAG_SWEEP=full tries fifty of them instead of a dozen.
"""

import json
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from diag.cache.purging import backup
from diag.cache.purging.restore import restore
from diag.cache.scanning.server import connect
from tests.cache.cli import PURGE, run, start
from tests.cache.proxy import Command, Proxy
from tests.cache.servers import on_every_server
from tests.cache.world import Keyspace, differences, fill, keyspace

FULL = os.environ.get("LLMDIAG_SWEEP") == "full"
GHOSTS = 600 if FULL else 200
VALUE = pickle.dumps(np.zeros((1, 64)))
SLOWLY = ("--rate", "1000")
"""Ten keys a batch, so that there are many deletes to be killed between."""


@dataclass(frozen=True)
class World:
    """A server with ghosts, the plan to purge them, and what was there before."""

    server: Any
    client: redis.Redis
    user: str
    folder: Path
    before: Keyspace

    def proxy(self, **acting: Any) -> Proxy:
        return Proxy(self.server.port, **acting)

    def purge(self, proxy: Proxy, saved: Path) -> subprocess.Popen[str]:
        url = proxy.url.replace("redis://", f"redis://{self.user}")
        plan = self.folder / "plan.json"
        plan.write_text(plan.read_text().replace(plan_target(plan), proxy.url))
        return start("scan-cache", url, *PURGE, "--force", *SLOWLY, "--plan", str(plan), "--backup", str(saved), cwd=self.folder)


def plan_target(plan: Path) -> str:
    return str(json.loads(plan.read_text())["target"])


def _world(server: Any, folder: Path, user: str = "") -> World:
    """Ghosts that never expire and ghosts that do, in a family four times as large."""
    client: redis.Redis = server.client()
    pipe = client.pipeline(transaction=False)
    for name in fill(client, GHOSTS, value=VALUE, healthy=4 * GHOSTS)[::3]:
        pipe.expire(name, 200_000)
    pipe.execute()
    said = run("scan-cache", server.url, "--plan", str(folder / "plan.json"), "--max-keys", "9999", cwd=folder)
    assert said.code == 1, said
    return World(server, client, user, folder, keyspace(client))


@pytest.fixture
def no_scripts(server: Any) -> Iterator[str]:
    """A user who may run none."""
    admin = server.client()
    admin.execute_command("ACL", "SETUSER", "nolua", "on", ">pw", "~*", "+@all", "-@scripting", *_without("delifeq", admin))
    yield "nolua:pw@"
    admin.execute_command("ACL", "DELUSER", "nolua")


def _without(command: str, client: redis.Redis) -> list[str]:
    """Taken away where the server has it: so the transactions are what is left."""
    try:
        client.execute_command("ACL", "SETUSER", "probe", f"-{command}")
    except redis.ResponseError:
        return []
    client.execute_command("ACL", "DELUSER", "probe")
    return [f"-{command}"]


def _deletes(commands: Sequence[Command]) -> list[int]:
    """Numbers of the commands that delete, from 1."""
    return [number for number, words in enumerate(commands, 1) if _is_delete(words)]


def _is_delete(words: Command) -> bool:
    return words[0].upper() == b"EXEC" or (words[0].upper() == b"EVAL" and words[1] != b"return 0")


def _sweep(world: World, moments: int) -> tuple[int, int]:
    """Kill a purge at so many commands. How many it were, and how many of them between the first and the last delete."""
    whole = world.proxy()
    process = world.purge(whole, world.folder / "whole.jsonl")
    out, err = process.communicate()
    assert process.returncode == 0, (out, err)
    whole.close()
    _restored(world, world.folder / "whole.jsonl")
    deletes = _deletes(whole.commands)
    first, last = deletes[0], deletes[-1]
    outside = max(1, moments // 10)
    inside = moments - 2 * outside
    points = [
        *(first * (n + 1) // (outside + 1) for n in range(outside)),
        *(first + 1 + (last - first - 1) * n // inside for n in range(inside)),
        *(last + n for n in range(outside)),
    ]
    for turn, point in enumerate(points):
        _killed(world, point, turn, between=first < point < last)
    return len(points), sum(first < point < last for point in points)


def _killed(world: World, point: int, turn: int, *, between: bool) -> None:
    """Killed at this command; every second time only once the server has carried it out."""
    saved = world.folder / f"{point}-{turn}.jsonl"
    reached = threading.Event()
    running: list[subprocess.Popen[str]] = []
    ready = threading.Event()

    def act(number: int, command: Command) -> None:
        if number == point:
            ready.wait(20)
            running[0].kill()
            running[0].wait()
            reached.set()

    proxy = world.proxy(after=act) if turn % 2 else world.proxy(before=act)
    running.append(world.purge(proxy, saved))
    ready.set()
    running[0].communicate()
    assert reached.wait(20), f"command {point} never came: {len(proxy.commands)} did"
    assert running[0].returncode == -9 and reached.is_set(), f"command {point} never came: {len(proxy.commands)} did"
    proxy.close()
    _idle(world.client)
    gone = len(world.before) - world.client.dbsize()
    assert not between or 0 < gone < GHOSTS, f"killed at command {point}, {gone} keys were gone"
    _restored(world, saved)


def _idle(client: redis.Redis) -> None:
    """A last batch may be on its way."""
    deadline = time.monotonic() + 20
    while left := [item for item in client.client_list() if item["name"] == "llmdiag"]:
        assert time.monotonic() < deadline, left


def _restored(world: World, saved: Path) -> None:
    if saved.exists() and _is_whole(saved):
        back = restore(connect(world.server.url), world.server.target, saved)
        assert back.failed == () and back.expired == 0, back
    assert differences(world.before, keyspace(world.client)) == []


def _is_whole(saved: Path) -> bool:
    """Killed while it was written, when nothing could be gone: then it has fewer keys, and the last line may be cut."""
    return saved.stat().st_size > 0 and saved.read_bytes().endswith(b"\n")


def test_killed_at_any_command(server: Any, tmp_path: Path) -> None:
    """At least four in five between the first and the last delete."""
    moments, between = _sweep(_world(server, tmp_path), 50 if FULL else 12)
    assert between >= 0.8 * moments, (moments, between)
    assert not FULL or between >= 40


@on_every_server
def test_killed_half_way_everywhere(server: Any, tmp_path: Path) -> None:
    world = _world(server, tmp_path)
    _sweep(world, 50 if FULL else 3)


@pytest.mark.parametrize("moments", [50 if FULL else 4])
def test_killed_where_no_script_runs(server: Any, tmp_path: Path, no_scripts: str, moments: int) -> None:
    """A transaction a key: six hundred of them."""
    _sweep(_world(server, tmp_path, no_scripts), moments)


def test_killed_while_the_backup_is_written(server: Any, tmp_path: Path) -> None:
    """Half a backup is no reason for anything to be gone; what it has can be read."""
    world = _world(server, tmp_path)
    saved = tmp_path / "half.jsonl"
    reading: list[int] = []
    running: list[subprocess.Popen[str]] = []

    def act(number: int, command: Command) -> None:
        if command[0].upper() == b"PEXPIRETIME" or (command[0].upper() == b"GET" and saved.exists()):
            reading.append(number)
        if len(reading) == GHOSTS // 2:
            running[0].kill()

    proxy = world.proxy(before=act)
    running.append(world.purge(proxy, saved))
    running[0].communicate()
    assert running[0].returncode == -9 and not _deletes(proxy.commands)
    assert differences(world.before, keyspace(world.client)) == []
    whole = [entry for entry in backup.read(saved) if isinstance(entry, backup.Entry)] if saved.stat().st_size else []
    assert all(world.before[0, entry.key][0] == entry.value for entry in whole)
    if whole:
        run("restore-cache", str(saved), server.url, cwd=tmp_path)
        assert differences(world.before, keyspace(world.client)) == []


