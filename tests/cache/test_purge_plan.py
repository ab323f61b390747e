"""A plan as a file: what a dry run writes is what a purge carries out; caps; pairs; the log of it all."""

import hashlib
import json
import pickle
import random
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from diag.cache.purging import audit, backup, pairs, plan_file, planning
from diag.cache.purging.purge import Options, purge
from diag.cache.purging.restore import restore
from diag.cache.scanning.server import connect, scan
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, LlmdiagError
from tests.cache.cli import PURGE, run
from tests.cache.servers import on_every_server
from tests.cache.test_cli import valid
from tests.cache.world import FRESH, GHOST, SOUND, differences, fill, keyspace, sound

DRY = ("scan-cache", "--plan", "plan.json")
CARRY_OUT = ("scan-cache", *PURGE, "--plan", "plan.json", "--backup", "b.jsonl")


@on_every_server
def test_a_purge_carries_out_exactly_the_plan(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 8)
    client.expire(names[3], 200_000)
    said = run(*DRY, server.url, cwd=tmp_path)
    assert said.code == 1 and "8 of 208" in said.out, said
    path = tmp_path / "plan.json"
    plan = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and plan["schema"] == "llmdiag.plan/1" and plan["target"] == server.target
    (family,) = plan["families"]
    assert (family["family"], family["keys"], family["of"], family["bytes"]) == ("emb:img<n>", 8, SOUND + 8, 8 * len(GHOST))
    assert family["reasons"] == {"null-marker": 8} and len(family["samples"]) == 5 and set(family["samples"]) < {name.decode() for name in names}
    assert {bytes.fromhex(entry["key_hex"]) for entry in plan["entries"]} == set(names)
    assert {entry["sha256"] for entry in plan["entries"]} == {hashlib.sha256(GHOST).hexdigest()}
    assert {(entry["db"], *entry["reasons"]) for entry in plan["entries"]} == {(0, "null-marker")}
    client.set(names[0], sound(7))  # lives
    client.set("emb:img977777", GHOST)  # a ghost that is not in the plan
    said = run(*CARRY_OUT, server.url, "-f", "json", cwd=tmp_path)
    found = valid(said.json)
    assert said.code == 0 and (found["purge"]["deleted"], found["purge"]["changed"]) == (7, 1), said
    assert client.exists(names[0], "emb:img977777") == 2 and client.dbsize() == SOUND + 2
    log = [json.loads(line) for line in (tmp_path / "b.audit.jsonl").read_text().splitlines()]
    assert log[0]["plan_sha256"] == plan["sha256"]
    assert run("restore-cache", "b.jsonl", server.url, cwd=tmp_path).code == 0
    assert set(client.keys("emb:img9*")) == {*names, b"emb:img977777"}


def test_a_plan_that_is_none_or_was_changed_or_is_of_another_server(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 3)
    (tmp_path / "mine").write_text("mine")
    said = run("scan-cache", server.url, "--plan", "mine", cwd=tmp_path)
    assert said.code == 2 and "no plan" in said.err and (tmp_path / "mine").read_text() == "mine"
    assert run(*DRY, server.url, cwd=tmp_path).code == 1
    assert run(*DRY, server.url, cwd=tmp_path).code == 1  # an older plan is replaced
    path = tmp_path / "plan.json"
    good = path.read_text()
    plan = json.loads(good)
    wrong = {
        "its digest": json.dumps({**plan, "entries": [{**plan["entries"][0], "key_hex": "00"}, *plan["entries"][1:]]}),
        "no plan": good[:-30],
        "schema": good.replace("llmdiag.plan/1", "llmdiag.plan/9"),
        "not for": good.replace(server.target, "redis://elsewhere:6379"),
        "damaged": json.dumps({**plan, "entries": [{**plan["entries"][0], "sha256": "00"}, *plan["entries"][1:]]}),
    }
    for said_of, text in wrong.items():
        path.write_text(text)
        said = run(*CARRY_OUT, server.url, cwd=tmp_path)
        assert said.code == 2 and said_of in said.err and "plan.json" in said.err, (said_of, said)
    path.write_text(good)
    said = run(*CARRY_OUT, server.url, "--include", "no-ttl", cwd=tmp_path)
    assert said.code == 2 and "--include" in said.err
    assert client.dbsize() == SOUND + 3 and not (tmp_path / "b.jsonl").exists()


def test_a_plan_breaks_its_caps_until_forced(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 40)
    assert run(*DRY, server.url, cwd=tmp_path).code == 1
    said = run(*CARRY_OUT, server.url, cwd=tmp_path)
    assert said.code == 2 and "40 of 240 keys of emb:img<n> are more than 10%" in said.err and client.dbsize() == SOUND + 40
    said = run(*CARRY_OUT, server.url, "--force", cwd=tmp_path)
    assert said.code == 0 and client.dbsize() == SOUND


@pytest.mark.parametrize(
    ("counts", "sizes", "said"),
    [
        ({"a": 5}, {"a": 50}, None),
        ({"a": 6}, {"a": 50}, "6 of 50 keys of a are more than 10%"),
        ({"a": 4}, {"a": 10}, None),
        ({"a": 2}, {"a": 3}, "2 of 3 keys of a are more than half"),
        ({"a": 1}, {"a": 1, "b": 9}, None),
        ({"a": 2, "b": 2, "c": 2}, {"a": 4, "b": 4, "c": 3}, "6 of 11 keys are more than half of everything"),
        ({"a": 9}, None, None),
        ({"a": 11}, None, "11 keys are more than the limit of 10"),
    ],
)
def test_the_caps(counts: dict[str, int], sizes: dict[str, int] | None, said: str | None) -> None:
    found = list(planning.refusals(counts, sizes, 10))
    assert (found == []) if said is None else any(said in text for text in found), found


def test_protected_keys_go_only_when_forced() -> None:
    row = _row("spend:1", b"x")
    guarded = replace(row, verdict="soft", reasons=("protected",))
    for include, force, goes in (((), False, 0), (("protected",), False, 0), ((), True, 0), (("protected",), True, 1)):
        what = planning.plan([guarded], target="t", include=include, force=force)
        assert len(what.keys) == goes and len(what.left_out) == 1 - goes, (include, force)


def _row(name: str, value: bytes, verdict: Any = "ghost", reasons: tuple[str, ...] = ("empty",)) -> CacheKey:
    return CacheKey(
        "t", 0, name, name.encode().hex(), "f", len(value), None, None, "raw", None, None, None, None, None, None, None, None, None, None,
        reasons, verdict, hashlib.sha256(value).hexdigest(),
    )  # fmt: skip


# -- pairs


HALF = "llama@1@0@%08x@half"


def _half(number: int, end: str) -> str:
    return HALF % number + end


@on_every_server
def test_both_halves_go_or_none_metadata_first(server: Any, tmp_path: Path) -> None:
    client = server.client()
    for number in range(4):
        client.set(_half(number, "kv_bytes"), b"\0" * 64)
        client.set(_half(number, "metadata"), b"m" * 28)
    client.set(_half(9, "kv_bytes"), b"\0" * 64)  # alone
    before = keyspace(client)
    reader = connect(server.url)
    odd = [
        replace(_row(_half(number, "kv_bytes"), b"\0" * 64, reasons=("all-zero",)), target=server.target) for number in (0, 1, 2, 3)
    ] + [replace(_row(_half(9, "kv_bytes"), b"\0" * 64, reasons=("missing-half",)), target=server.target)]
    assert len(planning.plan(odd, target=server.target).keys) == 1  # nobody looked for the other halves
    partners = pairs.look_up(reader, server.target, odd)
    what = planning.plan(odd, target=server.target, partners=partners)
    order = [row.key for row in what.keys]
    assert order == [_half(n, end) for n in range(4) for end in ("metadata", "kv_bytes")] + [_half(9, "kv_bytes")]
    assert what.reasons == {"all-zero": 4, "missing-half": 1}
    plan_file.write(tmp_path / "p.json", what)
    assert plan_file.read(tmp_path / "p.json", server.target).keys == tuple(_bare(row) for row in what.keys)
    client.set(_half(1, "metadata"), b"M" * 28)  # one half changes: both stay
    client.delete(_half(2, "metadata"))  # one half goes: the other stays
    client.set(_half(9, "metadata"), b"m" * 28)  # the missing one comes
    done = purge(reader, what, tmp_path / "b.jsonl", options=Options(force=True))
    assert (done.deleted, done.changed, done.missing) == (4, 4, 1), done
    assert {name.decode() for name in client.scan_iter()} == {
        *(_half(1, end) for end in ("metadata", "kv_bytes")), _half(2, "kv_bytes"), *(_half(9, end) for end in ("metadata", "kv_bytes")),
    }  # fmt: skip
    assert restore(reader, server.target, tmp_path / "b.jsonl").restored == 4
    client.set(_half(1, "metadata"), b"m" * 28)
    client.set(_half(2, "metadata"), b"m" * 28)
    client.delete(_half(9, "metadata"))
    assert differences(before, keyspace(client)) == []


def _bare(row: CacheKey) -> CacheKey:
    """What a plan keeps of a row."""
    return replace(row, detail="", idle_s=None, version=None)


@on_every_server
@pytest.mark.parametrize("way", ["script", "delifeq", "watch"])
def test_a_pair_that_changes_at_the_last_moment_stays_whole(server: Any, tmp_path: Path, way: str) -> None:
    """Changed after the backup: what the delete itself compares decides."""
    from diag.cache.purging.deleting import Fingerprint, Means, delete_batch

    client = server.client()
    if way == "delifeq" and not _knows(client, "DELIFEQ"):
        pytest.skip("no DELIFEQ here")
    values = {_half(n, end): b"%d" % n + end.encode() for n in range(3) for end in ("metadata", "kv_bytes")}
    client.mset(values)
    client.set(_half(5, "kv_bytes"), b"five")
    prints = [
        Fingerprint(0, name.encode(), hashlib.sha1(value).hexdigest(), False, len(value), follows=name.endswith("kv_bytes"))
        for name, value in values.items()
    ]
    prints += [
        Fingerprint(0, _half(5, "kv_bytes").encode(), hashlib.sha1(b"five").hexdigest(), False, 4),
        Fingerprint(0, _half(5, "metadata").encode(), "", False, 0, follows=True, absent=True),
    ]
    client.set(_half(0, "metadata"), "new")
    client.set(_half(1, "kv_bytes"), "new")
    client.set(_half(5, "metadata"), "came")
    found = delete_batch(connect(server.url), prints, Means(way))  # type: ignore[arg-type]
    assert found == ["changed", "changed", "changed", "changed", "deleted", "deleted", "changed", "changed"]
    assert client.dbsize() == 6
    client.delete(_half(5, "metadata"))
    assert delete_batch(connect(server.url), prints[-2:], Means(way)) == ["deleted", "absent"]  # type: ignore[arg-type]


def _knows(client: redis.Redis, command: str) -> bool:
    from diag.cache.purging.rights import known_commands

    return command.lower() in {name.lower() for name in known_commands(client, [command]) or ()}


# -- other types


@pytest.fixture
def others(server: Any) -> Iterator[redis.Redis]:
    client: redis.Redis = server.client()
    client.hset("h", mapping={b"a\xff": b"\x00", "b": "2"})
    client.rpush("l", "1", "2", "1")
    client.sadd("s", *map(str, range(600)))
    client.zadd("z", {"a": 1.5, "b": -2})
    client.xadd("x", {"a": "1"}, id="1-1")
    client.pexpire("h", 900_000)
    yield client


@on_every_server
def test_other_types_go_and_come_back(server: Any, others: redis.Redis, tmp_path: Path) -> None:
    """By DUMP: judged, backed up, compared, restored; a changed one stays, a newer one wins."""
    reader = connect(server.url)
    dumps = {name: others.dump(name) for name in "hlszx"}
    rows = [replace(_row(name, dump), target=server.target, codec="redis-x", ttl_s=900.0 if name == "h" else None) for name, dump in dumps.items()]
    what = planning.plan(rows, target=server.target)
    expires = others.pttl("h")
    others.rpush("l", "changed")
    done = purge(reader, what, tmp_path / "b.jsonl")
    assert (done.deleted, done.changed) == (4, 1) and others.keys() == [b"l"], done
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert {line["type"] for line in lines[1:]} == {"hash", "set", "zset", "stream"} and {line["server"] for line in lines} == {lines[0]["server"]}
    assert lines[0]["server"].split()[0] in ("redis", "valkey") and all("value" not in line for line in lines[1:])
    others.hset("h", "newer", "1")
    back = restore(reader, server.target, tmp_path / "b.jsonl")
    assert (back.restored, back.kept_newer, back.failed) == (3, 1, ()), back
    assert others.hgetall("h") == {b"newer": b"1"} and others.zrange("z", 0, -1, withscores=True) == [(b"b", -2.0), (b"a", 1.5)]
    assert others.smembers("s") == {b"%d" % n for n in range(600)} and others.xrange("x") == [(b"1-1", {b"a": b"1"})]
    others.delete("h")
    assert restore(reader, server.target, tmp_path / "b.jsonl").restored == 1
    assert others.hgetall("h") == {b"a\xff": b"\x00", b"b": b"2"} and abs(others.pttl("h") - expires) < 60_000


def test_what_a_server_cannot_read_is_counted_and_named(server: Any, tmp_path: Path) -> None:
    client = server.client()
    client.hset("h", "a", "1")
    dump = client.dump("h")
    newer = dump[:-10] + (79).to_bytes(2, "little") + dump[-8:]
    entries = [
        backup.Entry(0, b"h2", newer, None, "hash", "redis 9.9"), backup.Entry(0, b"h3", dump, 1, "hash", "redis 7"), backup.Entry(0, b"s", b"v", None),
    ]
    backup.write(tmp_path / "b.jsonl", server.target, entries)
    back = restore(connect(server.url), server.target, tmp_path / "b.jsonl")
    assert (back.restored, back.expired) == (1, 1) and [(item.line, item.key_hex) for item in back.failed] == [(2, b"h2".hex())]
    assert "redis 9.9" in back.failed[0].why and not client.exists("h2", "h3")


@on_every_server
def test_strings_come_back_on_every_other_server(server: Any, shared_server: Any, tmp_path: Path) -> None:
    from tests.cache.servers import SERVERS

    values = [b"", b"\x00\xff" * 100, sound(1), pickle.dumps(None), b"17", b"a" * 100_000]
    backup.write(tmp_path / "b.jsonl", server.target, [backup.Entry(0, b"k%d" % n, value, None) for n, value in enumerate(values)])
    for name in (name for name, path in SERVERS.items() if path is not None):
        other = shared_server(name)
        other.client().flushall()
        assert restore(connect(other.url), other.target, tmp_path / "b.jsonl").restored == len(values)
        assert other.client().mget([b"k%d" % n for n in range(len(values))]) == values


@on_every_server
def test_a_server_without_memory_can_be_purged_and_says_no_to_a_restore(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 3)
    found = scan(client, server.target)
    what = planning.plan(found.ghosts, target=server.target)
    client.config_set("maxmemory", 1)
    try:
        assert purge(connect(server.url), what, tmp_path / "b.jsonl").deleted == 3
        with pytest.raises(LlmdiagError, match="maxmemory"):
            restore(connect(server.url), server.target, tmp_path / "b.jsonl")
    finally:
        client.config_set("maxmemory", 0)
    assert client.dbsize() == SOUND and restore(connect(server.url), server.target, tmp_path / "b.jsonl").restored == 3


# -- the log


def test_the_log_says_who_what_and_how_it_ended_and_holds_together(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 12)
    found = scan(client, server.target)
    what = planning.plan(found.ghosts, target=server.target)
    client.set(names[0], FRESH)
    arguments = ("scan-cache", "redis://bob:hunter22@h/0", "--purge")
    done = purge(connect(server.url), what, tmp_path / "b.jsonl", options=Options(arguments=arguments))
    path = tmp_path / "b.audit.jsonl"
    assert done.audit == str(path) and audit.verify(path) == 14
    head, *rows, end = (json.loads(line) for line in path.read_text().splitlines())
    assert head["schema"] == "llmdiag.audit/1" and head["plan_sha256"] == plan_file.digest(what) and head["backup"] == "b.jsonl"
    assert head["who"] and head["host"] and head["version"] and head["server"] and "hunter22" not in path.read_text()
    assert head["arguments"][0] == "scan-cache" and head["arguments"][2] == "--purge"
    assert (rows[0]["result"], rows[0]["key_hex"]) == ("changed", names[0].hex())
    assert sum(row["result"] == "deleted" for row in rows) == 11
    row = rows[-1]
    assert (row["verdict"], row["reasons"], row["sha256"], row["ttl_s"], row["db"]) == ("ghost", ["null-marker"], hashlib.sha256(GHOST).hexdigest(), None, 0)
    assert end["end"] == {"deleted": 11, "changed": 1, "missing": 0, "failed": 0} and end["error"] is None
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong, line in ((lines[:3] + lines[4:], 4), ([*lines[:5], lines[5].replace(b"deleted", b"changed"), *lines[6:]], 7), ([*lines[:-1], lines[-1][:20]], 14)):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(BadInput, match=rf"b\.audit\.jsonl:{line}"):
            audit.verify(path)


def test_a_log_is_never_overwritten(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 3)
    (tmp_path / "b.audit.jsonl").write_text("mine")
    said = run("scan-cache", server.url, *PURGE, "--backup", "b.jsonl", cwd=tmp_path)
    assert said.code == 2 and "audit log" in said.err and "nothing was deleted" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["b.audit.jsonl"] and server.client().dbsize() == SOUND + 3


def test_long_halves_are_read_whole_and_go_with_their_metadata(server: Any, tmp_path: Path) -> None:
    """LMCache chunks are longer than what a scan reads: it judges their head; the plan wants the digest of the whole."""
    client = server.client()
    length = 9 << 20
    metadata = struct.pack("7i", length, 2, 3, 2, 32, 256, length // 2 // 2 // 32 // 256)
    dice = random.Random(3)
    for number in range(12):
        client.set(_name(number) + "kv_bytes", dice.randbytes(length))
        client.set(_name(number) + "metadata", metadata)
    client.set(_name(3) + "kv_bytes", dice.randbytes(length - 1000))
    client.delete(_name(5) + "metadata")
    said = run("scan-cache", server.url, "-f", "json", cwd=tmp_path)
    ghosts = {item["key"]: item for item in valid(said.json)["ghosts"] if item["verdict"] == "ghost"}
    assert {_name(3) + "kv_bytes", _name(5) + "kv_bytes"} <= ghosts.keys(), said.json["ghosts"]
    assert all(ghosts[_name(number) + "kv_bytes"]["purgeable"] for number in (3, 5))
    before = keyspace(client)
    said = run("scan-cache", server.url, *PURGE, "--force", "--rate", "5000,1GB", "--backup", "b.jsonl", "-f", "json", cwd=tmp_path)
    assert said.code == 0 and said.json["purge"]["deleted"] == 3, (said.json["purge"], said.err)
    assert before.keys() - keyspace(client).keys() == {(0, name.encode()) for name in (_name(3) + "kv_bytes", _name(3) + "metadata", _name(5) + "kv_bytes")}
    assert run("restore-cache", "b.jsonl", server.url, cwd=tmp_path).code == 0
    assert differences(before, keyspace(client)) == []


def _name(number: int) -> str:
    return f"meta/llama@1@0@{number * 7919 + 1:016x}@bfloat16"


@on_every_server
def test_a_server_that_knows_no_absolute_expiry_with_set_gets_it_afterwards(server: Any) -> None:
    """The way of Redis before 6.2, tried on newer ones: there is none so old to be had."""
    from diag.cache.purging.restore import _put_back_at_an_old_server

    client = connect(server.url)
    expires = int(time.time() * 1000) + 600_000
    entry = backup.Entry(0, b"k", b"value", expires)
    assert _put_back_at_an_old_server(client, entry)
    seen = keyspace(client)[0, b"k"]
    assert seen[0] == b"value" and abs((seen[1] or 0) - expires) < 1000, seen
    assert not _put_back_at_an_old_server(client, replace(entry, value=b"older"))
    assert client.get("k") == b"value"
