"""Append-only files that real servers wrote: the state after them is the server's; what cannot be known is said."""

import contextlib
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import redis

from diag.cache.offline.contents import opened
from diag.cache.offline.target import files_of
from diag.errors import BadInput
from tests.cache import offline_world as world
from tests.cache import servers
from tests.cache.conftest import LiveServer
from tests.cache.fuzz_rdb import dump

on_every_server = pytest.mark.parametrize("appending", list(servers.SERVERS), indirect=True)


@pytest.fixture(scope="session")
def shared_appending(start_server: Callable[..., LiveServer]) -> Callable[[str | None], LiveServer]:
    """One server of each kind whose append-only file is written before it answers (with fsync it may be up to 2 s later)."""
    options = ("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
    return cache(lambda name: start_server(*options, binary=servers.binary(name)))


@pytest.fixture
def appending(request: pytest.FixtureRequest, shared_appending: Callable[[str | None], LiveServer]) -> LiveServer:
    live = shared_appending(getattr(request, "param", None))
    with live.client() as client:
        client.flushall()
    return live


def place(live: LiveServer) -> Path:
    """The folder of Redis 7, or the one file of before."""
    folder = live.unix.parent / "appendonlydir"
    return folder if folder.is_dir() else live.unix.parent / "appendonly.aof"


def last_file(live: LiveServer) -> Path:
    path = place(live)
    return files_of(path).since[-1] if path.is_dir() else path


def rewrite(live: LiveServer) -> None:
    """All that is there now becomes the base."""
    with live.client() as client:
        client.bgrewriteaof()

        def done() -> bool:
            info = client.info("persistence")
            return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]

        world.wait_until(done, "a rewrite")


def change_everything(live: LiveServer) -> None:
    """Every command that is applied, on keys that were there and on keys that were not."""
    far = int(time.time()) + 80_000
    with live.client() as c, live.client(3) as third:
        run = c.execute_command
        c.set("set", "a" * 300), c.set("set:ex", "v", ex=9000), c.set("set:px", "v", px=9_000_000)
        c.set("set:exat", "v", exat=far), c.set("set:pxat", "v", pxat=far * 1000), c.set("set:nx", "v", nx=True), c.set("set:ex", "w", xx=True)
        c.set("set:px", "kept ttl", keepttl=True), c.set("raw:64", "kept ttl of the base", keepttl=True), c.set("set", "got", get=True)
        run("SETEX", "setex", 9000, "v"), run("PSETEX", "psetex", 9_000_000, "v"), run("SETNX", "setnx", "v"), run("SETNX", "setnx", "w")
        c.mset({"mset:1": "1", "mset:2": b"\x00\r\n*3\r\n", "one": "mset over the base"}), c.msetnx({"msetnx:1": "1", "msetnx:2": "2"})
        run("GETSET", "lzf:text", "getset over the base"), run("GETDEL", "raw:63")
        c.append("append:new", "abc"), c.append("append:new", "def"), c.append("raw:16383", "-tail of the base"), c.append("setex", "+")
        c.set("gone:1", "v"), c.delete("gone:1", "int:0", "never"), c.unlink("int:127", "list:small"), c.delete("hash:large")
        c.expire("int:128", 7000), c.pexpire("int:-128", 7_000_000), c.expireat("int:32767", far), c.pexpireat("int:-32769", far * 1000)
        c.persist("empty"), c.persist("set:pxat"), c.expire("zset:small", 7000), c.expire("setnx", -5)
        c.execute_command("GETEX", "mset:1", "EX", 5000), c.execute_command("GETEX", "set:exat", "PERSIST")
        c.rename("int:2147483648", "renamed"), c.rename("lzf:zeros", "raw:80k"), c.renamenx("mset:2", "renamed:2"), c.rename("set:large", "set:renamed")
        c.copy("renamed", "copied"), c.copy("lzf:mixed", "copied:base", destination_db=3), c.copy("int:padded", "int:plus", replace=True)
        c.move("int:float", 7), c.move("renamed:2", 7)
        c.hset("hash:new", "f", "v"), c.hset("hash:small", "f", "v"), c.rpush("list:new", "a"), c.lpush("list:large", "b"), c.sadd("set:new", "a")
        c.zadd("zset:new", {"a": 1}), c.xadd("stream:new", {"a": "b"}), c.lpop("list:large"), c.hdel("hash:small", "f"), c.zrem("zset:large", "x")
        dumped = c.dump("set"), c.dump("int:2147483647"), c.dump("lzf:mixed"), c.dump("list:large")
        for number, payload in enumerate(dumped):
            c.restore(f"restored:{number}", 0 if number else 8_000_000, payload)
        c.restore("renamed", far * 1000, dumped[0], replace=True, absttl=True)
        third.set("third", "before the swap"), third.delete("one"), third.set("int:-1", "changed in 3")
        c.swapdb(3, 9), c.swapdb(15, 3)
        third.set("third", "after the swap"), third.append("raw:64", "+15")
        with live.client(5) as fifth:
            fifth.set("k", "v"), fifth.flushdb(), fifth.set("after", "v")
        pipe = c.pipeline(transaction=True)
        pipe.set("multi:1", "v"), pipe.set("multi:2", "v", px=9_000_000), pipe.delete("multi:1"), pipe.execute()
        c.eval("redis.call('SET', KEYS[1], ARGV[1]); redis.call('DEL', KEYS[2])", 2, "from lua", "psetex", "v")


def agrees(live: LiveServer) -> list[str]:
    found, contents = world.told_by_file(place(live))
    assert not [note for note in contents.notes if "relative" not in note], contents.notes
    return world.differences(world.told_by_server(live), found, within_ms=5000)  # Redis 6.2 writes RESTORE as it came


@on_every_server
def test_the_state_after_a_base_and_every_command_is_the_servers(appending: LiveServer) -> None:
    world.fill(appending.client)
    rewrite(appending)
    change_everything(appending)
    assert not agrees(appending)


@on_every_server
def test_commands_alone_are_enough(appending: LiveServer) -> None:
    rewrite(appending)
    world.fill(appending.client)
    change_everything(appending)
    found, _ = world.told_by_file(place(appending))
    server = world.told_by_server(appending)
    assert [item for item in world.differences(server, found, within_ms=5000) if "hyperloglog" not in item and "stream:empty" not in item] == []
    assert found[0, b"hyperloglog"].kind == "unknown", "PFADD is not computed"


@on_every_server
def test_after_a_flush_nothing_of_the_base_is_left(appending: LiveServer) -> None:
    world.fill(appending.client)
    rewrite(appending)
    with appending.client(3) as third, appending.client() as client:
        client.append("one", "+")
        third.flushdb()
        assert not agrees(appending)
        client.flushall()
        third.set("new", "v")
        client.swapdb(0, 3)
        client.append("one", "v")
    assert not agrees(appending)


@on_every_server
def test_what_other_commands_make_of_a_string_is_unknown(appending: LiveServer) -> None:
    world.fill(appending.client)
    rewrite(appending)
    with appending.client() as client:
        client.incr("int:127"), client.incrby("counter", 5), client.setrange("raw:64", 3, "xyz"), client.setbit("bits", 7, 1)
        client.bitop("OR", "ored", "raw:64"), client.pexpire("counter", 9_000_000), client.sort("set:ints", store="sorted")
        client.rename("int:127", "counted")
    found, contents = world.told_by_file(place(appending))
    unknown = {key for (_, key), seen in found.items() if seen.kind == "unknown"}
    assert unknown >= {b"counted", b"counter", b"raw:64", b"bits", b"ored"}, unknown
    assert unknown <= {b"counted", b"counter", b"raw:64", b"bits", b"ored", b"sorted"}, unknown
    assert found[0, b"counter"].expires_ms is not None
    assert (0, b"int:127") not in found
    assert [note for note in contents.notes if "commands whose effect is not known here: SORT 1" in note], contents.notes


@on_every_server
def test_a_cut_tail_is_left_out_and_said(appending: LiveServer, tmp_path: Path) -> None:
    rewrite(appending)
    with appending.client() as client:
        client.set("first", "v")
        whole = last_file(appending).stat().st_size
        client.set("second", "w" * 50)
    copy = tmp_path / "copy"
    for end in range(whole + 1, last_file(appending).stat().st_size):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        source = place(appending)
        for file in source.iterdir() if source.is_dir() else [source]:
            shutil.copy(file, copy)
        cut = copy / last_file(appending).name
        with cut.open("r+b") as stream:
            stream.truncate(end)
        found, contents = world.told_by_file(copy if source.is_dir() else cut)
        assert {key for _, key in found} == {b"first"}, end
        assert contents.notes == [f"{cut}: its last command, at byte {whole}, is cut off and left out, as the server would do"], contents.notes


def test_a_transaction_without_end_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "x.aof"
    path.write_bytes(resp("SET", "a", "1") + resp("MULTI") + resp("SET", "b", "2") + resp("DEL", "a"))
    found, contents = world.told_by_file(path)
    assert [key for _, key in found] == [b"a"]
    assert len(contents.notes) == 1 and "its last transaction" in contents.notes[0], contents.notes


def test_expired_keys_of_both_halves_are_shown(appending: LiveServer) -> None:
    with appending.client() as client:
        client.config_set("save", "")
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0") if _may_debug(client) else None
        client.set("base", "v", px=1500)
        rewrite(appending)
        client.set("since", "v", px=300)
        found, _ = world.told_by_file(place(appending))
        assert {key for _, key in found} == {b"base", b"since"}
        expiry = found[0, b"since"].expires_ms
        assert expiry is not None
        world.wait_until(lambda: time.time() * 1000 > expiry + 50, "the key to expire")
        with opened(place(appending)) as contents:
            left = {held.key: (held.expires_ms or 0) / 1000 - contents.clock_s for held in contents.items()}
    assert b"since" in left or b"since" not in world.told_by_file(place(appending))[0]
    assert set(left) >= {b"base"}


def _may_debug(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ResponseError):
        return bool(client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1"))
    return False


def resp(*words: str | bytes) -> bytes:
    """One command as the file has it."""
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in raw)


def test_time_stamps_of_the_file_are_its_clock(tmp_path: Path) -> None:
    path = tmp_path / "x.aof"
    path.write_bytes(b"#TS:1700000000\r\n" + resp("SET", "k", "v", "EX", "60") + b"#TS:1700000050\r\n" + resp("SET", "j", "v"))
    found, contents = world.told_by_file(path)
    assert found[0, b"k"].expires_ms == 1_700_000_060_000
    assert contents.clock_s == 1_700_000_050


def manifest(folder: Path, text_: str, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.manifest").write_text(text_)
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


BASE = dump(b"\xfa\x08aof-base\xc0\x01\x00\x01a\x01v\x00\x01b\x01w")


def test_files_of_a_manifest_come_in_order_and_history_does_not_count(tmp_path: Path) -> None:
    lines = "file i2.aof seq 2 type i\nfile old.aof seq 1 type h\nfile \"b.\\x72db\" seq 1 type b\n\nfile i1.aof seq 1 type i startoffset 0\n"
    folder = manifest(tmp_path / "d", lines, b_rdb=BASE, i1_aof=resp("SET", "a", "1"), i2_aof=resp("SET", "a", "2"), old_aof=resp("FLUSHALL"))
    with opened(folder) as contents:
        assert {held.key: contents.value(held, 99) for held in contents.items()} == {b"a": b"2", b"b": b"w"}
        assert contents.notes == []
    assert world.told_by_file(folder / "a.manifest")[0] == world.told_by_file(folder)[0] == world.told_by_file(tmp_path)[0]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "names no file"), ("nonsense", "a.manifest:1: not `file NAME"), ("file b.rdb seq 1 type b\nfile ../x seq 1 type i", "a.manifest:2: a file outside"),
        ("file no.rdb seq 1 type b", "a.manifest:1: .*no.rdb is missing"), ("file b.rdb seq x type b", "a.manifest:1: not"),
        ("file b.rdb seq 1 type b\nfile b.rdb seq 2 type b", "names 2 base files"),
    ],
)  # fmt: skip
def test_a_wrong_manifest_is_named_with_its_line(tmp_path: Path, lines: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        world.told_by_file(manifest(tmp_path / "d", lines, b_rdb=BASE))


def test_a_folder_with_several_caches_or_none_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no cache"):
        files_of(tmp_path)
    (tmp_path / "dump.rdb").write_bytes(BASE)
    assert files_of(tmp_path).whole == tmp_path / "dump.rdb"
    manifest(tmp_path / "appendonlydir", "file b.rdb seq 1 type b", b_rdb=BASE)
    with pytest.raises(BadInput, match="holds 2 caches") as refused:
        files_of(tmp_path)
    assert "dump.rdb" in refused.value.hint and "a.manifest" in refused.value.hint


def test_one_increment_without_its_base_is_said(tmp_path: Path) -> None:
    folder = manifest(tmp_path / "d", "file b.rdb seq 1 type b\nfile x.1.incr.aof seq 1 type i", b_rdb=BASE)
    (folder / "x.1.incr.aof").write_bytes(resp("SET", "c", "1") + resp("EXPIRE", "a", "60"))
    found, contents = world.told_by_file(folder / "x.1.incr.aof")
    assert [key for _, key in found] == [b"c"]
    assert "name its folder" in contents.notes[0]


@pytest.mark.parametrize(
    ("data", "keys", "says"),
    [
        (resp("SET", "a", "1") + b"garbage" + resp("SET", "b", "1"), {b"a"}, "byte 27: no command"),
        (resp("SET", "a", "1") + b"*2\r\n$3\r\nDELxx$1\r\na\r\n", {b"a"}, "byte 27: a word of 3 bytes"),
        (resp("SET", "a", "1") + b"*0\r\n", {b"a"}, "byte 27: a command of 0 words"),
        (resp("SET", "a", "1") + b"*99999999\r\n", {b"a"}, "byte 27: a command of 99999999 words"),
        (resp("SET", "a", "1") + b"*2\r\n$8796093022208\r\nx", {b"a"}, "byte 27, is cut off"),
        (resp("SET", "a", "1") + resp("SET", "b") + resp("EXPIRE", "a", "soon") + resp("SELECT", "x"), {b"a"}, "EXPIRE 1"),
        (resp("SET", "a", "1") + resp("RESTORE", "b", "0", "\x00"), {b"a"}, "RESTORE 1"),
        (BASE[:-12] + resp("SET", "c", "1"), {b"a"}, "commands were not read: where they begin is unknown"),
        (BASE + resp("SET", "c", "1")[:-1], {b"a", b"b"}, "is cut off"),
    ],
)  # fmt: skip
def test_damaged_files_show_what_was_read(tmp_path: Path, data: bytes, keys: set[bytes], says: str) -> None:
    path = tmp_path / "x.aof"
    path.write_bytes(data)
    found, contents = world.told_by_file(path)
    assert {key for _, key in found} == keys
    assert any(says in note for note in contents.notes), contents.notes


def test_a_file_of_which_no_key_was_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.aof"
    path.write_bytes(b"*1\r\n$x\r\n")
    with pytest.raises(BadInput, match="byte 0: no command, or a damaged one; commands from there on were not read; no key was read"):
        world.told_by_file(path)


def test_appending_for_ever_and_names_of_every_length(tmp_path: Path) -> None:
    path = tmp_path / "x.aof"
    path.write_bytes(resp("APPEND", "k", "x") * 70 + resp("SET", "n" * 70_000, "v") + resp("SET", "", "v"))
    found, _ = world.told_by_file(path)
    assert {key: seen.kind for (_, key), seen in found.items()} == {b"k": "unknown", b"": "string"}
