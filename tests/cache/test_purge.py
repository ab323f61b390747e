"""Purge and restore against a real server: nothing that lives is lost, everything deleted comes back."""

import base64
import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from diag.cache.purging import backup
from diag.cache.purging.purge import Options, Plan, plan, purge
from diag.cache.purging.restore import restore
from diag.cache.scanning.server import connect, scan
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, CannotConnect, Denied, LlmdiagError
from tests.cache.servers import on_every_server
from tests.cache.world import FRESH, GHOST, SOUND, differences, fill, keyspace

GHOSTS = 500


def planned(server: Any, **options: Any) -> tuple[redis.Redis, Plan]:
    client = connect(server.url)
    found = scan(client, server.target)
    sizes = {family.family: family.keys for family in found.families}
    return client, plan((*found.ghosts, *found.soft), target=server.target, sizes=sizes, **options)


@on_every_server
def test_a_purge_deletes_the_ghosts_and_restore_brings_them_back(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 12)
    client.set(b"emb:img777771", b"", ex=86_400)
    client.set(b"emb:img\xff\xfe", "untouched")
    before = keyspace(client)
    reader, what = planned(server)
    assert what.refusals == () and what.reasons == {"null-marker": 12}
    assert [row.reasons for row in what.left_out] == [("null-marker",)]  # an empty value for a day: a defence
    path = tmp_path / "backup.jsonl"
    done = purge(reader, what, path)
    assert (done.planned, done.deleted, done.changed, done.missing, done.failed) == (12, 12, 0, 0, 0)
    assert done.backup == str(path) and done.error is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(before) - len(keyspace(client)) == 12
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["schema"] == "llmdiag.backup/1" and lines[0]["target"] == server.target
    assert {base64.b64decode(line["value"]) for line in lines[1:]} == {GHOST}
    back = restore(reader, server.target, path)
    assert (back.restored, back.kept_newer, back.expired, back.failed) == (12, 0, 0, ())
    assert differences(before, keyspace(client)) == []
    assert restore(reader, server.target, path).kept_newer == 12


@on_every_server
def test_soft_keys_go_only_when_included(server: Any, tmp_path: Path) -> None:
    client = server.client()
    for number in range(SOUND):
        client.set(b"emb:img%05d" % number, pickle.dumps(np.random.default_rng(number).normal(size=(1, 64))), ex=9999)
    client.set(b"emb:img77777", pickle.dumps(np.random.default_rng(1).normal(size=(1, 64))))
    reader, what = planned(server)
    assert what.keys == () and [row.include for row in what.left_out] == ["no-ttl"]
    assert purge(reader, what, tmp_path / "none.jsonl").backup is None
    assert list(tmp_path.iterdir()) == []
    reader, what = planned(server, include=["no-ttl"])
    assert purge(reader, what, tmp_path / "one.jsonl").deleted == 1
    assert not client.exists(b"emb:img77777")


def test_limits_refuse_and_force_overrides(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 40)
    reader, what = planned(server, max_keys=30)
    assert len(what.refusals) == 2 and "limit of 30" in what.refusals[0] and "emb:img<n>" in what.refusals[1]
    with pytest.raises(BadInput, match="too much"):
        purge(reader, what, tmp_path / "a.jsonl")
    assert client.dbsize() == SOUND + 40 and list(tmp_path.iterdir()) == []
    assert purge(reader, what, tmp_path / "a.jsonl", force=True).deleted == 40


def test_four_keys_of_a_small_family_are_no_reason_to_refuse(server: Any) -> None:
    fill(server.client(), 4, healthy=30)
    assert planned(server)[1].refusals == ()


@on_every_server
def test_keys_changed_since_the_scan_stay(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 10)
    reader, what = planned(server)
    client.set(names[0], FRESH)
    client.delete(names[1])
    client.delete(names[2])
    client.hset(names[2].decode(), "a", "b")
    client.expire(names[3], 100)
    done = purge(reader, what, tmp_path / "b.jsonl")
    assert (done.planned, done.deleted, done.changed, done.missing, done.failed) == (10, 6, 3, 1, 0)
    assert client.get(names[0]) == FRESH and client.exists(names[2], names[3]) == 2
    saved = [entry.key for entry in backup.read(tmp_path / "b.jsonl") if isinstance(entry, backup.Entry)]
    assert set(saved) == set(names[4:])


@on_every_server
@pytest.mark.parametrize("rights", ["script", "watch"])
def test_no_fresh_value_is_lost_while_a_writer_refills(server: Any, tmp_path: Path, rights: str) -> None:
    """A writer replaces ghosts by data all through the delete; whatever it wrote must be there afterwards."""
    admin = server.client()
    user = ""
    if rights == "watch":
        admin.execute_command("ACL", "SETUSER", "nolua", "on", ">pw", "~*", "+@all", "-@scripting")
        user = "nolua:pw@"
    reader = connect(f"redis://{user}127.0.0.1:{server.port}/0")
    try:
        # who of the two comes first to which key is the scheduler's choice: until they have met in the middle
        met = any(_refilled_while_purged(server, reader, tmp_path / f"{rights}-{round_}.jsonl") for round_ in range(5))
    finally:
        if rights == "watch":
            admin.execute_command("ACL", "DELUSER", "nolua")
    assert met, "the writer and the purge never met"


def _refilled_while_purged(server: Any, reader: redis.Redis, path: Path) -> bool:
    """Did the purge delete some keys, and find others rewritten? Whatever was written is there in any case."""
    admin = server.client()
    admin.flushall()
    names = fill(admin, GHOSTS, healthy=4 * GHOSTS)
    _, what = planned(server)
    assert len(what.keys) == GHOSTS
    admin.config_resetstat()
    written: set[bytes] = set()
    stop = threading.Event()

    def refill() -> None:
        writer = server.client()
        while writer.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"] < GHOSTS and not stop.is_set():
            pass  # the second read is not over: what is written now would drop out before the delete
        for name in reversed(names[GHOSTS // 2 :]):
            if stop.is_set():
                return
            writer.set(name, FRESH)
            written.add(name)

    thread = threading.Thread(target=refill)
    thread.start()
    try:
        done = purge(reader, what, path, force=True)
    finally:
        stop.set()
        thread.join()
    assert done.error is None and done.deleted + done.changed + done.missing == GHOSTS
    assert [name for name in written if admin.get(name) != FRESH] == []
    back = restore(connect(server.url), server.target, path)
    assert back.failed == () and [name for name in written if admin.get(name) != FRESH] == []
    assert admin.dbsize() == 5 * GHOSTS
    return done.deleted > 0 and done.changed > 0


@on_every_server
def test_expiry_comes_back_as_a_moment_and_what_is_over_stays_away(server: Any, tmp_path: Path) -> None:
    client = server.client()
    now = int(time.time() * 1000)
    entries = [
        backup.Entry(0, b"forever", b"a", None),
        backup.Entry(0, b"later", b"b", now + 600_000),
        backup.Entry(0, b"over", b"c", now - 1),
        backup.Entry(0, b"newer", b"d", None),
        backup.Entry(5, b"\xff\x00", b"\x00\xff", now + 700_000),
    ]
    backup.write(tmp_path / "x.jsonl", server.target, entries)
    client.set("newer", "fresh")
    back = restore(connect(server.url), server.target, tmp_path / "x.jsonl")
    assert (back.restored, back.kept_newer, back.expired, back.failed) == (3, 1, 1, ())
    found = keyspace(client)
    assert abs((found[0, b"later"][1] or 0) - now - 600_000) < 1000 and found[0, b"forever"][1] is None
    assert client.get("newer") == b"fresh" and not client.exists("over")
    assert server.client(db=5).get(b"\xff\x00") == b"\x00\xff"


def test_damaged_backups_are_named_by_line(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    backup.write(path, server.target, [backup.Entry(0, b"k%d" % n, b"value%d" % n, None) for n in range(3)])
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace(base64.b64encode(b"value1").decode(), base64.b64encode(b"valueX").decode())
    path.write_text("\n".join(lines)[:-20])
    back = restore(connect(server.url), server.target, path)
    assert back.restored == 1
    assert [(item.line, item.key_hex) for item in back.failed] == [(3, b"k1".hex()), (4, None)]
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(BadInput, match=r"other\.jsonl:1"):
        restore(connect(server.url), server.target, tmp_path / "other.jsonl")
    with pytest.raises(BadInput, match="cannot be read"):
        restore(connect(server.url), server.target, tmp_path / "absent.jsonl")


def test_a_backup_is_never_overwritten_and_nowhere_means_no_purge(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 3)
    reader, what = planned(server)
    taken = tmp_path / "taken.jsonl"
    taken.write_text("mine")
    with pytest.raises(BadInput, match="exists"):
        purge(reader, what, taken)
    with pytest.raises(LlmdiagError, match="cannot be written"):
        purge(reader, what, tmp_path / "no" / "such" / "folder.jsonl")
    assert taken.read_text() == "mine" and client.dbsize() == SOUND + 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_stops_before_the_first_delete(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.client()
    fill(client, 3)
    reader, what = planned(server)
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: real("/dev/full", os.O_WRONLY) if "full" in str(path) else real(path, *rest))
    with pytest.raises(LlmdiagError, match="No space left") as error:
        purge(reader, what, tmp_path / "full.jsonl")
    assert "nothing was deleted" in str(error.value) and client.dbsize() == SOUND + 3


@on_every_server
def test_without_the_right_to_delete_nothing_is_lost(server: Any, tmp_path: Path) -> None:
    admin = server.client()
    fill(admin, 3)
    _, what = planned(server)
    admin.execute_command("ACL", "SETUSER", "noun", "on", ">pw", "~*", "+@all", "-unlink", "-del")
    try:
        with pytest.raises(Denied, match="UNLINK") as error:
            purge(connect(f"redis://noun:pw@127.0.0.1:{server.port}/0"), what, tmp_path / "n.jsonl")
    finally:
        admin.execute_command("ACL", "DELUSER", "noun")
    assert "ACL SETUSER noun +unlink" in error.value.hint and "--use-del" in error.value.hint
    assert admin.dbsize() == SOUND + 3 and list(tmp_path.iterdir()) == []


@on_every_server
def test_del_only_when_a_person_says_so(server: Any, tmp_path: Path) -> None:
    admin = server.client()
    fill(admin, 3)
    _, what = planned(server)
    admin.execute_command("ACL", "SETUSER", "noun", "on", ">pw", "~*", "+@all", "-unlink")
    reader = connect(f"redis://noun:pw@127.0.0.1:{server.port}/0")
    try:
        with pytest.raises(Denied, match="UNLINK"):
            purge(reader, what, tmp_path / "n.jsonl")
        done = purge(reader, what, tmp_path / "n.jsonl", options=Options(use_del=True))
    finally:
        admin.execute_command("ACL", "DELUSER", "noun")
    assert done.deleted == 3 and admin.dbsize() == SOUND and any("DEL" in note for note in done.notes)


@on_every_server
def test_a_replica_is_refused(server: Any, start_server: Callable[..., Any], tmp_path: Path) -> None:
    client = server.client()
    fill(client, 3)
    _, what = planned(server)
    client.config_set("repl-diskless-sync-delay", 0)
    replica = start_server("--replicaof", "127.0.0.1", str(server.port), binary=server.binary)
    copy = replica.client()
    deadline = time.monotonic() + 30
    while copy.info("replication")["master_link_status"] != "up" or copy.dbsize() != SOUND + 3:
        assert time.monotonic() < deadline, "the replica did not follow"
    with pytest.raises(Denied, match="replica") as error:
        purge(connect(replica.url), what, tmp_path / "r.jsonl")
    assert str(server.port) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_dies_in_between_is_reported(start_server: Callable[..., Any], tmp_path: Path) -> None:
    doomed = start_server()
    fill(doomed.client(), 3)
    reader, what = planned(doomed)
    doomed.process.kill()
    doomed.process.wait()
    with pytest.raises(CannotConnect):
        purge(reader, what, tmp_path / "d.jsonl")
    assert not (tmp_path / "d.jsonl").exists()


def test_the_plan_keeps_out_what_was_not_read_whole() -> None:
    row = CacheKey(
        "redis://h:1", 0, "k", "6b", "k", 9_000_000, None, None, "npy", None, None, None, None, None, None, None,
        None, None, None, ("truncated",), "ghost", None,
    )  # fmt: skip
    what = plan([row], target="redis://h:1")
    assert what.keys == () and what.left_out == (row,)
