"""A pass over a live server: alone, with a second process, gently, by sample, stopped and resumed - always the same findings."""

import hashlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import redis

from diag.cache.scanning import pace, resume, second
from diag.cache.scanning.how import How, Watch
from diag.cache.scanning.server import connect, scan
from diag.cache.scanning.wire import Wire
from diag.cache.values.keys import CacheKey, ScanResult
from diag.errors import BadInput
from tests.cache.servers import on_every_server
from tests.cache.test_server import FAMILY, digest, ghosts, look_alikes, plant_healthy, put, vector

PEAK = (
    "import re, sys\nfrom pathlib import Path\nfrom diag.cache.scanning.server import connect, scan\n"
    "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
)
"""KiB that the process held at most."""

Findings = dict[bytes, tuple[str, tuple[str, ...]]]


def findings(result: ScanResult) -> Findings:
    return {row.name: (row.verdict, row.reasons) for row in (*result.ghosts, *result.soft)}


def plant(client: redis.Redis, app: Any) -> None:
    """A family of twenty times what it takes to learn it, with every ghost and every look-alike late among them."""
    plant_healthy(client)
    pipe = client.pipeline(transaction=False)
    for number in range(4000):
        pipe.set(FAMILY + digest(f"more {number}"), pickle.dumps(vector(number % 50)), ex=86_400)
    for number in range(300):
        pipe.set(b"doc:%d" % number, b'{"answer": "text %d", "model": "m"}' % number, ex=600)
    pipe.hset("hash:1", mapping={"a": "b"})
    pipe.execute()
    for name, (value, ttl_s) in {**ghosts(app), **look_alikes(app)}.items():
        put(client, FAMILY + digest(name), value, ttl_s and max(ttl_s, 600))  # the shortest would be over before the last scan


@on_every_server
def test_what_is_found_at_a_glance_row_by_row_and_by_two_processes_is_the_same(server: Any, app: Any) -> None:
    client = server.client()
    plant(client, app)
    rows: list[CacheKey] = []
    by_row = scan(connect(server.url), server.target, each=rows.append)
    at_a_glance = scan(connect(server.url), server.target)
    together = scan(connect(server.url), server.target, how=How(workers=1))
    gently = scan(connect(server.url), server.target, how=How(pace=pace.Pace(40, 64 << 10, 100_000.0, True)))
    assert len(rows) == client.dbsize() == by_row.keys
    assert set(ghosts(app)) <= {reason for row in by_row.ghosts for reason in row.reasons}
    assert ("soft", ("no-ttl",)) in findings(by_row).values()
    for name, other in {"at a glance": at_a_glance, "two processes": together, "gently": gently}.items():
        assert findings(other) == findings(by_row), name
        assert (other.keys, other.bytes, other.unknown) == (by_row.keys, by_row.bytes, by_row.unknown), name
        assert [(f.family, f.keys, f.reasons) for f in other.families] == [(f.family, f.keys, f.reasons) for f in by_row.families], name
    sound = [row for row in rows if row.verdict == "ok" and row.codec == "pickle"]
    assert all(row.ttl_s is not None and row.sha256 is not None and row.norm for row in sound)


def test_a_second_process_is_started_where_it_pays(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, fast = connect(server.url), pace.Pace()
    found = []
    for processors in (1, 2, 3):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, processors=processors: set(range(processors)))
        found.append(second.how_many(client, 60_000, fast, None))
    assert found == [0, 0, 1], "the server on this machine wants one of them"
    assert second.how_many(client, 40_000, fast, None) == 0
    assert second.how_many(client, 10, fast, 2) == 2
    assert second.how_many(client, 60_000, pace.gentle(), 2) == 0


def test_pages_of_a_process_that_dies_are_read_again(server: Any, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(server.client(), app)
    alone = scan(connect(server.url), server.target)
    killed: list[int] = []
    take = second.Second.take

    def take_and_die(self: second.Second, *args: Any) -> None:
        take(self, *args)
        if not killed:
            killed.append(self.process.pid)
            self.process.kill()
            self.process.wait()

    monkeypatch.setattr(second.Second, "take", take_and_die)
    result = scan(connect(server.url), server.target, how=How(workers=1))
    assert killed, "the second process got no page"
    assert findings(result) == findings(alone)
    assert result.keys == alone.keys


def test_a_second_process_ends_with_the_scan_and_knows_no_address_by_its_command_line(server: Any, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(server.client(), app)
    seen: list[tuple[int, bytes, bytes]] = []
    begin = second.Second.__init__

    def watched(self: second.Second, order: second.Begin) -> None:
        begin(self, order)
        there = Path(f"/proc/{self.process.pid}")
        seen.append((self.process.pid, (there / "cmdline").read_bytes(), (there / "environ").read_bytes()))

    monkeypatch.setattr(second.Second, "__init__", watched)
    monkeypatch.setenv("LLMDIAG_REDIS_URL", server.url)
    client = server.client()
    client.execute_command("ACL", "SETUSER", "other", "on", ">secret-word", "~*", "+@all")
    try:
        scan(connect(f"redis://other:secret-word@127.0.0.1:{server.port}/0"), server.target, how=How(workers=1))
    finally:
        client.execute_command("ACL", "DELUSER", "other")
    ((pid, command, environment),) = seen
    assert b"secret-word" not in command + environment
    assert not Path(f"/proc/{pid}").exists(), "the second process is still there"


@on_every_server
def test_a_server_is_asked_in_small_bites_and_never_for_what_it_must_not_be_asked(server: Any, app: Any) -> None:
    client = server.client()
    plant(client, app)
    keys = client.dbsize()
    client.config_resetstat()
    result = scan(connect(server.url), server.target)
    calls = {name.removeprefix("cmdstat_"): facts["calls"] for name, facts in client.info("commandstats").items()}
    assert calls["mget"] >= keys / pace.BATCH_KEYS
    assert calls.keys() <= {"scan", "mget", "pttl", "strlen", "type", "getrange", "object|idletime", "object", "info", "select", "ping", "hello",
                            "client|setname", "client|no-touch", "client", "client|setinfo", "hlen", "memory|usage", "memory", "hgetall", "dump",
                            "config|resetstat", "config", "exists", "get", "auth",
                            "replconf"}  # a replica that another test gave this server says every second that it lives  # fmt: skip
    odd = len(result.ghosts) + len(result.soft)
    idle = calls.get("object|idletime", calls.get("object", 0))
    assert idle <= 4 * pace.BATCH_KEYS + odd < keys / 3, "idle times are for odd keys and for those that teach a family"
    if not result.server.no_touch:
        assert idle == 0


def test_a_family_whose_keys_all_expire_needs_no_ttl_of_each(server: Any) -> None:
    client = server.client()
    pipe = client.pipeline(transaction=False)
    for number in range(3000):
        pipe.set(FAMILY + digest(number), pickle.dumps(vector(number % 40)), ex=86_400)
    pipe.execute()
    client.config_resetstat()
    assert findings(scan(connect(server.url), server.target)) == {}
    asked = client.info("commandstats")["cmdstat_pttl"]["calls"]
    assert asked < 1000
    client.persist(FAMILY + digest(7))
    assert findings(scan(connect(server.url), server.target)) == {FAMILY + digest(7): ("soft", ("no-ttl",))}


def test_a_huge_value_among_small_ones_does_not_fill_the_memory(server: Any) -> None:
    client = server.client()
    pipe = client.pipeline(transaction=False)
    for number in range(2000):
        pipe.set(FAMILY + digest(number), pickle.dumps(vector(number % 40)))
    pipe.execute()
    huge = 200 << 20
    client.setrange(FAMILY + digest("huge"), huge - 1, b"x")
    code = (
        f"{PEAK}before = peak()\n"
        "found = scan(connect(sys.argv[1]), 'x')\n"
        "print(found.keys, found.bytes, [row.bytes for row in found.ghosts], peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, check=True, timeout=60)
    keys, _, rest = done.stdout.partition(" ")
    assert int(keys) == 2001
    assert f"[{huge}]" in rest, rest
    assert int(rest.rsplit(" ", 1)[1]) < 30 << 10, "KiB more than before"


def test_other_types_in_a_known_family_are_seen(server: Any) -> None:
    client = server.client()
    for number in range(600):
        client.set(FAMILY + digest(number), pickle.dumps(vector(number % 40)))
    for number in range(5):
        client.rpush(FAMILY + digest(f"list {number}"), "a")
    rows: list[CacheKey] = []
    by_row = scan(connect(server.url), server.target, each=rows.append)
    assert sum(row.codec == "redis-list" for row in rows) == 5
    result = scan(connect(server.url), server.target)
    assert (result.keys, result.unknown) == (by_row.keys, by_row.unknown) == (605, 5)


def test_a_sample_and_lengths_say_what_they_did_not_look_at(server: Any, app: Any) -> None:
    client = server.client()
    plant(client, app)
    some = scan(connect(server.url), server.target, how=How(per_family=100))
    assert {family.keys for family in some.families if family.family != "hash:<n>"} == {100}
    assert any("100 keys of each family" in note and "may be ghosts" in note for note in some.warnings), some.warnings
    client.config_resetstat()
    lengths = scan(connect(server.url), server.target, how=How(values=False))
    whole = scan(connect(server.url), server.target)
    assert [(f.family, f.keys) for f in sorted(lengths.families, key=lambda f: f.family)] == [
        (f.family, f.keys) for f in sorted(whole.families, key=lambda f: f.family)
    ]
    assert lengths.ghosts == () and lengths.soft == ()
    assert any("no value was read" in note for note in lengths.warnings)
    rows: list[CacheKey] = []
    scan(connect(server.url), server.target, each=rows.append, how=How(values=False))
    assert {row.bytes for row in rows if row.name == FAMILY + digest(1)} == {len(pickle.dumps(vector(1)))}
    assert {row.verdict for row in rows} == {"unknown"}


def test_lengths_read_no_value(server: Any, app: Any) -> None:
    client = server.client()
    plant(client, app)
    client.config_resetstat()
    scan(connect(server.url), server.target, how=How(values=False))
    assert not {"cmdstat_mget", "cmdstat_get", "cmdstat_getrange"} & set(client.info("commandstats"))


@pytest.mark.parametrize("pages", [1, 3, 12])
def test_a_scan_that_is_stopped_goes_on_from_its_file(server: Any, app: Any, tmp_path: Path, pages: int) -> None:
    client = server.client()
    plant(client, app)
    third = server.client(db=3)
    for number in range(60):
        third.set(b"e:" + digest(number), pickle.dumps(vector(number)))
    third.set(b"e:" + digest("zero"), pickle.dumps(np.zeros((1, 512), "f2")))
    whole = scan(connect(server.url), server.target)
    asked = [0]

    def stop() -> bool:
        asked[0] += 1
        return asked[0] >= pages

    with pytest.raises(resume.Stopped, match="keys were looked at") as stopped:
        scan(connect(server.url), server.target, how=How(stop=stop))
    file = tmp_path / "scan.json"
    resume.write(file, stopped.value.saved)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["scan.json"]
    saved = resume.read(file)
    assert 0 < saved.keys < whole.keys and saved.left == [3]
    rest = scan(connect(server.url), server.target, how=How(begin=saved))
    assert findings(rest) == findings(whole)
    assert (rest.keys, rest.bytes, rest.unknown) == (whole.keys, whole.bytes, whole.unknown)


def test_a_file_that_is_no_interrupted_scan_is_refused(server: Any, tmp_path: Path) -> None:
    saved = resume.Saved(resume.SCHEMA, "x", 0, 1, [], None, [], True, None, 1, 0, **cast(Any, resume.state(SimpleNamespaceScan())))
    for name, content in {
        "text": b"hello", "empty": b"", "other": b"{}", "types": b'{"schema": 3}', "binary": b"\xff\xfe",
    }.items():  # fmt: skip
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(BadInput, match="no interrupted scan"):
            resume.read(file)
    resume.write(tmp_path / "newer", replace_schema(saved))
    with pytest.raises(BadInput, match="another version"):
        resume.read(tmp_path / "newer")


def SimpleNamespaceScan() -> Any:
    from diag.cache.values.judging import Scan

    return Scan()


def replace_schema(saved: resume.Saved) -> resume.Saved:
    saved.schema = "llmdiag.scan/2"
    return saved


def test_progress_says_rate_share_and_ghosts(server: Any, app: Any) -> None:
    client = server.client()
    plant(client, app)
    said: list[tuple[str, float]] = []
    watch = Watch(show=lambda what, share: said.append((what, share)))
    scan(connect(server.url), server.target, how=How(watch=watch))
    total = f"{client.dbsize():,}"
    assert said and all(f"of {total} keys (" in what and "keys/s" in what and what.endswith(" ghosts") for what, _ in said), said
    watch.shown = 0.0
    watch.tick(0)
    text, share = said[-1]
    assert text.startswith(f"{total} of {total} keys (100 %)") and share == 1.0
    assert text.endswith(f" {len(ghosts(app))} ghosts"), text


@contextmanager
def saying(*chunks: bytes) -> Iterator[Wire]:
    """A wire whose server says exactly this, in these pieces, then closes."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5.0)

    def say() -> None:
        with theirs:
            for chunk in chunks:
                theirs.sendall(chunk)

    speaker = threading.Thread(target=say)
    speaker.start()
    wire = Wire.__new__(Wire)
    wire._connection, wire._client, wire._socket = cast(Any, None), cast(Any, None), ours
    wire._buffer = bytearray(64)
    wire._view = memoryview(wire._buffer)
    wire._at = wire._end = 0
    try:
        yield wire
    finally:
        ours.close()
        speaker.join()


REPLIES = b"*2\r\n$3\r\n176\r\n*2\r\n$5\r\nimg:1\r\n$200\r\n" + b"k" * 200 + b"\r\n:86399\r\n:-1\r\n-NOPERM no\r\n*3\r\n$4\r\n\r\n\r\n\r\n$-1\r\n$0\r\n\r\n+OK\r\n"


@pytest.mark.parametrize("size", [1, 2, 7, 33, 1000])
def test_replies_are_understood_however_they_are_cut(size: int) -> None:
    with saying(*(REPLIES[at : at + size] for at in range(0, len(REPLIES), size))) as wire:
        assert wire.page() == (176, [b"img:1", b"k" * 200])
        first, second_, third = wire.numbers(3)
        assert (first, second_) == (86399, -1)
        assert isinstance(third, redis.exceptions.NoPermissionError) and str(third) == "no"
        assert [(None if value is None else bytes(value), length) for value, length in wire.values(3)] == [(b"\r\n\r\n", 4), (None, 0), (b"", 0)]
        assert wire.reply() == b"OK"
        with pytest.raises(redis.ConnectionError, match="closed"):
            wire.reply()


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$abc\r\nxx\r\n", b"*x\r\n", b"\0" * 70_000, b":1\r\n", b"*1\r\n*1\r\n:1\r\n"])
def test_what_is_no_reply_is_an_error_and_no_crash(garbage: bytes) -> None:
    for ask in (lambda wire: wire.page(), lambda wire: list(wire.values(1)), lambda wire: wire.numbers(2), lambda wire: wire.value()):
        with saying(garbage) as wire, pytest.raises((redis.RedisError,)):
            ask(wire)


def test_of_a_value_longer_than_is_read_the_head_is_kept() -> None:
    size = (8 << 20) + 100
    body = os.urandom(1 << 20)
    chunks = [b"*2\r\n$%d\r\n" % size, *([body] * 8), body[:100], b"\r\n$2\r\nok\r\n"]
    with saying(*chunks) as wire:
        (head, length), (rest, _) = [(bytes(value), n) if value is not None else (b"", n) for value, n in wire.values(2)]
    assert length == size and rest == b"ok"
    assert hashlib.sha256(head).digest() == hashlib.sha256(body[: 256 << 10]).digest()


def test_memory_of_a_scan_does_not_grow_with_the_keys(server: Any) -> None:
    client = server.client()
    found = []
    value = pickle.dumps(np.arange(40, dtype="f2"))
    for more in range(2):
        pipe = client.pipeline(transaction=False)
        for number in range(5_000 * (1 + 4 * more)):
            pipe.set(b"emb:%08d" % number, value)
        pipe.execute()
        code = f"{PEAK}found = scan(connect(sys.argv[1]), 'x')\nprint(found.keys, peak())\n"
        done = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, check=True, timeout=60)
        found.append([int(word) for word in done.stdout.split()])
    (few, before), (many, after) = found
    assert many == 5 * few
    assert after - before < 4 << 10, "KiB for 20,000 more keys"
    assert after < 150 << 10
