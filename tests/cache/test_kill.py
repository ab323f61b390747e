"""SIGKILL at any moment of a purge loses nothing: after a restore the keyspace is what it was."""

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from diag.cache import backup
from tests.cache.cli import PURGE, run, start
from tests.cache.servers import on_every_server
from tests.cache.world import differences, fill, keyspace

GHOSTS = 600
ZEROS = pickle.dumps(np.zeros((1, 2048)))  # long enough that the server takes its time to compare them
TRIES = 5
"""A purge may be over before our look at its counters comes round: such a try says nothing and is made again."""


def _world(server: Any) -> redis.Redis:
    """Ghosts that never expire and ghosts that do, in a family four times as large."""
    client: redis.Redis = server.client()
    pipe = client.pipeline(transaction=False)
    for name in fill(client, GHOSTS, value=ZEROS, healthy=4 * GHOSTS)[::3]:
        pipe.expire(name, 200_000)
    pipe.execute()
    return client


def _calls(client: redis.Redis, command: str) -> int:
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def _killed(client: redis.Redis, url: str, saved: Path, reached: Callable[[], bool]) -> int:
    """Start a purge, kill it when `reached` (asked from the backup on); how many keys it had deleted by then."""
    before = client.dbsize()
    client.config_resetstat()
    process = start("scan-cache", url, *PURGE, "--force", "--backup", str(saved), cwd=saved.parent)
    while not saved.exists() and process.poll() is None:
        time.sleep(0.001)
    while not reached() and process.poll() is None:
        pass
    process.kill()
    process.communicate()
    while any(item["name"] == "llmdiag" for item in client.client_list()):
        pass  # a last batch may be on its way
    return before - client.dbsize()


def _killed_between(client: redis.Redis, url: str, folder: Path, deletes: int) -> Path:
    """Killed after at least so many deletes and before the last one; the backup of that purge."""
    for attempt in range(TRIES):
        saved = folder / f"{deletes}-{attempt}.jsonl"
        gone = _killed(client, url, saved, lambda: _calls(client, "unlink") >= deletes)
        if deletes <= gone < GHOSTS:
            return saved
        assert run("restore-cache", str(saved), url, cwd=folder).code == 0
    pytest.fail(f"no try of {TRIES} was killed between the first and the last delete")


@on_every_server
def test_killed_half_way(server: Any, tmp_path: Path) -> None:
    client = _world(server)
    before = keyspace(client)
    saved = _killed_between(client, server.url, tmp_path, GHOSTS // 2)
    assert len(differences(before, keyspace(client))) >= GHOSTS // 2
    said = run("restore-cache", str(saved), server.url, cwd=tmp_path)
    assert said.code == 0 and differences(before, keyspace(client)) == []


@pytest.mark.parametrize(("user", "points"), [("script", (1, GHOSTS // 4)), ("watch", (1, 3 * GHOSTS // 4))])
def test_killed_early_and_late(server: Any, tmp_path: Path, user: str, points: tuple[int, ...]) -> None:
    """Also where the user may run no script, and keys go one by one (which leaves time to be killed late)."""
    client = _world(server)
    before = keyspace(client)
    url = server.url
    if user == "watch":
        client.execute_command("ACL", "SETUSER", "nolua", "on", ">pw", "~*", "+@all", "-@scripting")
        url = f"redis://nolua:pw@127.0.0.1:{server.port}"
    try:
        for deletes in points:
            saved = _killed_between(client, url, tmp_path, deletes)
            assert run("restore-cache", str(saved), server.url, cwd=tmp_path).code == 0
            assert differences(before, keyspace(client)) == []
    finally:
        client.execute_command("ACL", "DELUSER", "nolua")


def test_killed_while_the_backup_is_written(server: Any, tmp_path: Path) -> None:
    """Half a backup is no reason for anything to be gone; what it has can be read."""
    client = _world(server)
    before = keyspace(client)
    saved = tmp_path / "half.jsonl"
    assert _killed(client, server.url, saved, lambda: True) == 0
    assert differences(before, keyspace(client)) == []
    whole = [entry for entry in backup.read(saved) if isinstance(entry, backup.Entry)] if saved.exists() and saved.stat().st_size else []
    assert all(before[0, entry.key][0] == entry.value for entry in whole)
    if whole:
        run("restore-cache", str(saved), server.url, cwd=tmp_path)
        assert differences(before, keyspace(client)) == []
