"""`llmdiag scan-cache --purge` and `restore-cache` as processes: asked or not, exactly the ghosts, and back again."""

import itertools
import json
import pickle
import resource
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from diag.cache.purging import audit, backup
from tests.cache.cli import PURGE, at_terminal, ended, run, start
from tests.cache.proxy import DROP, Command, Proxy
from tests.cache.servers import on_every_server
from tests.cache.test_cli import valid
from tests.cache.world import SOUND, differences, fill, keyspace, sound


@on_every_server
def test_a_purge_deletes_exactly_the_ghosts_and_restore_undoes_it(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 4)
    client.expire(names[0], 200_000)
    for number in range(30):
        server.client(db=2).set(b"emb:\xff%d" % number, sound(number))
    server.client(db=2).set(b"emb:\xff\xfe", sound(1)[:-9])  # not UTF-8, in another database
    client.set("emb:img55555", b"", ex=60)  # soft
    before = keyspace(client)
    said = run("scan-cache", server.url, *PURGE, "-f", "json", cwd=tmp_path)
    found = valid(said.json)
    assert said.code == 0 and {**found["purge"], "backup": None} == {
        "mode": "done", "planned": 5, "deleted": 5, "changed": 0, "missing": 0, "failed": 0, "backup": None,
    }  # fmt: skip
    assert before.keys() - keyspace(client).keys() == {*((0, name) for name in names), (2, b"emb:\xff\xfe")}
    saved = tmp_path / found["purge"]["backup"]
    log = tmp_path / f"{saved.stem}.audit.jsonl"
    assert {*tmp_path.iterdir()} == {saved, log} and {path.stat().st_mode & 0o777 for path in (saved, log)} == {0o600}
    assert audit.verify(log) == 1 + 5 + 1
    assert run("scan-cache", server.url, cwd=tmp_path).code == 0
    back = run("restore-cache", str(saved), server.url, "-f", "json", cwd=tmp_path)
    assert back.code == 0 and valid(back.json) == {"schema": "llmdiag.restore/1", "restored": 5, "kept_newer": 0, "expired": 0, "failed": []}
    assert differences(before, keyspace(client)) == []


def test_without_a_terminal_and_without_yes_nothing_is_deleted(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 2)
    for form in ("text", "json"):
        said = run("scan-cache", server.url, "--purge", "-f", form, cwd=tmp_path)
        assert said.code == 2 and "nothing was deleted" in said.err and "--yes" in said.err
        assert (said.out == "") == (form == "json")
    assert server.client().dbsize() == SOUND + 2 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 2), ("\x03", 2, 2), ("\x04", 2, 2)])
def test_a_person_is_asked_and_obeyed(server: Any, tmp_path: Path, answer: str, code: int, left: int) -> None:
    """Yes, no, Ctrl-C, Ctrl-D."""
    fill(server.client(), 2)
    got, screen = at_terminal("scan-cache", server.url, "--purge", cwd=tmp_path, answer=answer)
    assert got == code, screen
    assert screen.index("emb:img900000") < screen.index("Delete 2 keys")
    assert server.client().dbsize() == SOUND + left
    assert ("2 deleted" in screen) == (left == 0) and ("nothing was deleted" in screen) == (left == 2)
    assert len(list(tmp_path.iterdir())) == (2 if left == 0 else 0)  # the backup and its log


def test_soft_keys_go_only_by_the_reason_that_is_named(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 1)
    client.set("emb:img55555", b"", ex=60)
    client.set("emb:img44444", pickle.dumps(np.random.default_rng(1).normal(size=(1, 64)) * 9_000))
    purge = ("scan-cache", server.url, *PURGE, "-f", "json")
    said = run(*purge, "--include", "length-outlier", "--include", "stale-version", cwd=tmp_path)
    assert said.code == 0 and valid(said.json)["purge"]["deleted"] == 1 and client.exists("emb:img55555", "emb:img44444") == 2
    undo = tmp_path / "soft.jsonl"
    said = run(*purge, "--include", "null-marker", "--backup", str(undo), cwd=tmp_path)
    assert said.code == 0 and valid(said.json)["purge"]["deleted"] == 1
    assert client.exists("emb:img44444") and not client.exists("emb:img55555")
    assert run("restore-cache", str(undo), server.url, cwd=tmp_path).code == 0
    assert 0 < client.ttl("emb:img55555") <= 60


def test_ghosts_that_stay_are_exit_1(server: Any, app: ModuleType, tmp_path: Path) -> None:
    """One is too long to be read whole, so it is never deleted; the other is written anew all the time."""
    client = server.client()
    fill(client, 1)
    client.set("emb:img77777", app.npy(np.ones((3, 1 << 20), "f4"))[:-1000])
    said = run("scan-cache", server.url, *PURGE, "-f", "json", cwd=tmp_path)
    assert said.code == 1 and client.exists("emb:img77777") and not client.exists("emb:img900000")
    long = {item["key"]: item for item in valid(said.json)["ghosts"]}["emb:img77777"]
    assert (long["verdict"], long["purgeable"], long["sha256"]) == ("ghost", False, None)

    fill(client, 1)
    client.delete("emb:img77777")
    stop = threading.Event()

    def loop() -> None:
        writer = server.client()
        for number in itertools.count():
            writer.set("emb:img900000", f"__PLACEHOLDER__ {number}")  # never twice the same, always a ghost
            if stop.is_set():
                return

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        said = run("scan-cache", server.url, *PURGE, "-f", "json", "--backup", "two.jsonl", cwd=tmp_path)
    finally:
        stop.set()
        thread.join()
    found = valid(said.json)
    assert said.code == 1 and (found["purge"]["deleted"], found["purge"]["changed"]) == (0, 1)
    assert any("ghosts now" in text for text in found["warnings"])


def test_caps_refuse_and_force_overrides(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 40)
    purge = ("scan-cache", server.url, *PURGE, "--max-keys", "39")
    said = run(*purge, cwd=tmp_path)
    assert said.code == 2 and "limit of 39" in said.err and "--force" in said.err and server.client().dbsize() == SOUND + 40
    assert run(*purge, "--force", cwd=tmp_path).code == 0
    assert server.client().dbsize() == SOUND


def test_a_backup_is_never_overwritten_and_must_have_a_place(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 2)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("elsewhere")
    purge = ("scan-cache", server.url, *PURGE, "-f", "json", "--backup")
    places = {"mine": "exists", "link": "exists", "no/such/folder": "no such folder", "mine/x": "no such folder", "/proc/x.jsonl": "cannot be written"}
    running = {place: start(*purge, place, cwd=tmp_path) for place in places}
    for place, process in running.items():
        said = ended(process)
        assert (said.code, said.out) == (2, "") and places[place] in said.err and "nothing was deleted" in said.err, (place, said)
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "elsewhere").exists()
    assert server.client().dbsize() == SOUND + 2


def test_a_disk_that_fills_up_stops_before_the_first_delete(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 4)
    command = start("scan-cache", server.url, *PURGE, "--backup", "b.jsonl", cwd=tmp_path)
    resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (200, 200))
    said = ended(command)
    assert said.code == 2 and "cannot be written" in said.err and "nothing was deleted" in said.err
    assert server.client().dbsize() == SOUND + 4 and list(tmp_path.iterdir()) == []


def test_a_replica_is_refused(server: Any, start_server: Callable[..., Any], tmp_path: Path) -> None:
    client = server.client()
    fill(client, 2)
    client.config_set("repl-diskless-sync-delay", 0)
    replica = start_server("--replicaof", "127.0.0.1", str(server.port), binary=server.binary)
    copy = replica.client()
    while copy.dbsize() != SOUND + 2:
        assert replica.process.poll() is None
    said = run("scan-cache", replica.url, cwd=tmp_path)
    assert said.code == 1 and "role slave" in said.out.splitlines()[0]
    said = run("scan-cache", replica.url, *PURGE, cwd=tmp_path)
    assert said.code == 2 and "is a replica" in said.err and f"127.0.0.1:{server.port}" in said.err
    backup.write(tmp_path / "b.jsonl", server.target, [backup.Entry(0, b"x", b"y", None)])
    said = run("restore-cache", "b.jsonl", replica.url, cwd=tmp_path)
    assert said.code == 2 and "replica" in said.err and said.out == ""
    assert client.dbsize() == copy.dbsize() == SOUND + 2
    replica.process.kill()


def test_restore_keeps_what_is_newer_and_names_what_is_damaged(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    backup.write(path, server.target, [backup.Entry(0, b"k%d" % n, b"old", 1 if n == 3 else None) for n in range(4)])
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace(json.loads(lines[2])["sha256"], "0" * 64)
    path.write_text("\n".join(lines))
    server.client().set("k0", "new")
    said = run("restore-cache", str(path), server.url, "-f", "json", cwd=tmp_path)
    found = valid(said.json)
    assert (said.code, found["restored"], found["kept_newer"], found["expired"]) == (2, 1, 1, 1)
    assert [(item["line"], bytes.fromhex(item["key_hex"])) for item in found["failed"]] == [(3, b"k1")]
    assert server.client().get("k0") == b"new" and not server.client().exists("k1", "k3")
    text = run("restore-cache", str(path), server.url, cwd=tmp_path)
    assert text.code == 2 and "line 3" in text.out
    said = run("restore-cache", str(Path(__file__)), server.url, cwd=tmp_path)
    assert said.code == 2 and f"{Path(__file__).name}:1" in said.err


def test_ctrl_c_stops_after_the_batch_that_is_under_way(server: Any, tmp_path: Path) -> None:
    """Pressed while the server works at the first of six: its answer is awaited and counted, no second one is sent."""
    client = server.client()
    fill(client, 60, healthy=600)
    before = keyspace(client)
    running: list[subprocess.Popen[str]] = []
    deletes: list[int] = []
    ready = threading.Event()

    def press(number: int, command: Command) -> None:
        if command[0] == b"EVAL" and command[1] != b"return 0":
            deletes.append(number)
            if len(deletes) == 1:
                ready.wait(20)
                running[0].send_signal(signal.SIGINT)
                while int(Path(f"/proc/{running[0].pid}/status").read_text().partition("SigPnd:")[2].split()[0], 16):
                    pass  # not delivered yet

    proxy = Proxy(server.port, after=press)
    running.append(start("scan-cache", proxy.url, *PURGE, "--rate", "1000", "--backup", "b.jsonl", cwd=tmp_path))
    ready.set()
    said = ended(running[0])
    proxy.close()
    assert said.code == 2 and "interrupted" in said.err and "10 deleted" in said.out and "50 failed" in said.out, said
    assert "undo: llmdiag restore-cache b.jsonl" in said.out and len(deletes) == 1
    assert client.dbsize() == len(before) - 10
    assert run("restore-cache", "b.jsonl", server.url, cwd=tmp_path).code == 0
    assert differences(before, keyspace(client)) == []


def test_a_server_that_takes_no_writes_is_said_to_and_ctrl_c_ends_the_wait(server: Any, tmp_path: Path) -> None:
    """Writes are paused, as in a fail-over: seen before anything is written anywhere."""
    client = server.client()
    fill(client, 4)
    client.client_pause(30_000, all=False)
    try:
        process = start("scan-cache", server.url, *PURGE, "--backup", "b.jsonl", cwd=tmp_path)
        while not any(item["cmd"] == "unlink" for item in client.client_list() if item["name"] == "llmdiag"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = ended(process)
    finally:
        client.client_unpause()
    assert said.code == 2 and "interrupted: nothing was deleted" in said.err, said
    assert client.dbsize() == SOUND + 4 and list(tmp_path.iterdir()) == []


@on_every_server
def test_a_server_that_dies_in_the_middle(server: Any, start_server: Callable[..., Any], tmp_path: Path) -> None:
    """With an append-only file: when it is back, a restore makes it what it was."""
    doomed = start_server("--appendonly", "yes", "--appendfsync", "always", binary=server.binary)
    fill(doomed.client(), 60, healthy=600)
    before = keyspace(doomed.client())
    deletes: list[int] = []

    def end(number: int, command: Command) -> object:
        if command[0] == b"EVAL" and command[1] != b"return 0":
            deletes.append(number)
            if len(deletes) == 3:
                doomed.process.kill()
                doomed.process.wait()
                return DROP
        return None

    proxy = Proxy(doomed.port, after=end)
    said = run("scan-cache", proxy.url, *PURGE, "--rate", "1000", "--backup", "b.jsonl", "-f", "json", cwd=tmp_path)
    proxy.close()
    found = valid(said.json)
    assert said.code == 2 and "the purge stopped early" in said.err and "cannot be reached" in said.err, said
    assert (found["purge"]["deleted"], found["purge"]["failed"]) == (20, 40)
    log = [json.loads(line) for line in (tmp_path / "b.audit.jsonl").read_text().splitlines()]
    assert Counter(line["result"] for line in log if "result" in line) == {"deleted": 20, "unknown": 10}
    again = start_server("--appendonly", "yes", "--dir", str(doomed.unix.parent), binary=server.binary)
    assert 0 < len(before) - again.client().dbsize() <= 30
    assert run("restore-cache", "b.jsonl", again.url, cwd=tmp_path).code == 0
    assert differences(before, keyspace(again.client())) == []
    again.process.kill()


def test_a_disk_that_fills_up_while_keys_go(server: Any, tmp_path: Path) -> None:
    """The backup fits, its log does not: what is gone is in the backup, and the rest stays."""
    client = server.client()
    fill(client, 60, healthy=600)
    before = keyspace(client)
    process = start("scan-cache", server.url, *PURGE, "--rate", "1000", "--backup", "b.jsonl", cwd=tmp_path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (14_000, 14_000))
    said = ended(process)
    assert said.code == 2 and "the audit log b.audit.jsonl cannot be written" in said.err, said
    assert 0 < len(before) - client.dbsize() < 60
    assert run("restore-cache", "b.jsonl", server.url, cwd=tmp_path).code == 0
    assert differences(before, keyspace(client)) == []
