"""RDB files that real servers wrote, read back byte for byte; damaged and hostile ones end in words."""

import contextlib
import hashlib
import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag.cache.offline.contents import describe, opened
from diag.cache.offline.lzf import Unpackable, unpack
from diag.cache.offline.rdb import open_rdb
from diag.errors import BadInput
from tests.cache import fuzz_seeds
from tests.cache import offline_world as world
from tests.cache.conftest import LiveServer
from tests.cache.fuzz_rdb import END, check, dump, mutated, text
from tests.cache.servers import on_every_server


@on_every_server
def test_every_key_is_read_as_the_server_has_it(server: LiveServer) -> None:
    world.fill(server.client)
    path = world.saved(server)
    found, contents = world.told_by_file(path)
    assert not world.differences(world.told_by_server(server), found)
    assert contents.notes == []
    with server.client() as client:
        info = client.info("server")
    assert contents.version == (info.get("valkey_version") or info["redis_version"])
    assert contents.product == ("valkey" if "valkey_version" in info else "redis")
    counted = [seen.elements for seen in found.values() if seen.kind != "string"]
    assert None not in counted, "every type of these servers tells its count"


@on_every_server
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu"])
def test_idle_times_and_frequencies_stand_before_keys(server: LiveServer, policy: str) -> None:
    begun_s = time.monotonic()
    with world.configured(server, maxmemory_policy=policy):
        world.fill(server.client)
        path = world.saved(server)
    most_s = int(time.monotonic() - begun_s) + 3  # the clock of the server has whole seconds, and a machine under load moves it late
    with opened(path) as contents:
        idle = {held.idle_s for held in contents.items()}
    assert idle <= ({*range(most_s + 1)} if policy == "allkeys-lru" else {None}), idle
    assert not world.differences(world.told_by_server(server), world.told_by_file(path)[0])


@on_every_server
def test_without_compression_and_with_compressed_lists(server: LiveServer) -> None:
    with world.configured(server, rdbcompression="no", list_compress_depth="1"):
        world.fill(server.client)
        path = world.saved(server)
        plain = path.stat().st_size
        assert not world.differences(world.told_by_server(server), world.told_by_file(path)[0])
    assert world.saved(server).stat().st_size < plain, "the usual file is compressed"


@on_every_server
def test_a_wrong_checksum_is_said_and_a_switched_off_one_is_fine(server: LiveServer) -> None:
    world.fill(server.client)
    path = world.saved(server)
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"an integer as a name")
    damaged[at] ^= 1
    other = path.with_name("changed.rdb")
    other.write_bytes(damaged)
    _, contents = world.told_by_file(other)
    assert len(contents.notes) == 1
    assert f"its checksum at byte {len(damaged) - 8} is wrong" in contents.notes[0]
    damaged[-8:] = bytes(8)
    other.write_bytes(damaged)
    assert world.told_by_file(other)[1].notes == []


def test_a_file_that_ends_anywhere_shows_what_it_has(server: LiveServer) -> None:
    world.fill(server.client)
    whole = world.saved(server).read_bytes()
    everything, _ = world.told_by_file(world.saved(server))
    path = server.unix.parent / "cut.rdb"
    counts = []
    for end in [*range(9, 1200, 7), *range(1200, len(whole), 4001), *range(len(whole) - 20, len(whole))]:
        path.write_bytes(whole[:end])
        try:
            found, contents = world.told_by_file(path)
        except BadInput as error:
            assert f"{path}: byte " in error.message and "no key was read" in error.message, error
            continue
        assert found.items() <= everything.items(), f"cut at {end}"
        assert any(note.startswith(f"{path}: byte {end}: the file ends") or "bytes where" in note or "after the end of the file" in note for note in contents.notes), contents.notes
        counts.append(len(found))
    assert len(set(counts)) > 8 and max(counts) == len(everything), sorted(set(counts))  # the server writes them in no order


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (b"", "is empty"), (b"hello", "is no RDB file and no append-only file"), (b"REDIS", "is no RDB file"), (b"REDISabcd", "is no RDB file"),
        (b"\x1f\x8b\x08", "compressed with gzip"), (b"VCS\x01", "rdbcompression lz4"), (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        (b"REDIS0010", "byte 9: the file ends"), (b"VALKEY080\xfa\x09", "byte 10"), (b"REDIS0010\xf6", "byte 9: functions"),
        (b"REDIS0010\x1c\x01k", "a value of type 28"), (b"VALKEY080\x18\x01k", "a value of type 24"),
    ],
)  # fmt: skip
def test_what_is_no_rdb_file_is_named(tmp_path: Path, begin: bytes, says: str) -> None:
    path = tmp_path / "x.rdb"
    path.write_bytes(begin)
    with pytest.raises(BadInput, match=says):
        world.told_by_file(path)


TERABYTES = b"\x81" + struct.pack(">Q", 1 << 43)


@pytest.mark.parametrize(
    "record",
    [
        b"\x00\x01k" + TERABYTES, b"\x00" + TERABYTES, b"\x00\x01k\xc3\x05" + TERABYTES + b"abcde", b"\x00\x01k\xc3" + TERABYTES + TERABYTES,
        b"\x01\x01k" + TERABYTES + b"\x01e" * 50, b"\x04\x01k" + TERABYTES, b"\x0e\x01k" + TERABYTES, b"\x12\x01k" + TERABYTES,
        b"\x15\x01k" + TERABYTES, b"\x05\x01k" + TERABYTES, b"\x07\x01k" + TERABYTES + b"\x05" + TERABYTES, b"\xf5" + TERABYTES,
        b"\xfa\x01a" + TERABYTES, b"\xfe" + TERABYTES, b"\xf7" + TERABYTES * 3, b"\xf3" + TERABYTES, b"\xfb" + TERABYTES * 2,
        b"\x0a\x01k\xc3\x05" + TERABYTES + b"abcde", b"\x15\x01k\x00\x00" + b"\x00" * 7 + b"\x01\x01g\x00\x00\x00" + TERABYTES,
    ],
)  # fmt: skip
@pytest.mark.parametrize("magic", [b"REDIS0011", b"VALKEY080"])
def test_announced_terabytes_take_no_memory(tmp_path: Path, magic: bytes, record: bytes) -> None:
    path = tmp_path / "x.rdb"
    path.write_bytes(magic + b"\x00\x05first\x05value" + record + END)
    with opened(path) as contents:
        tracemalloc.start()
        found = [(held.key, _value_of(contents, held)) for held in contents.items()]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found[0] == (b"first", b"value")
    assert peak < 1 << 20, peak


def _value_of(contents: "world.Contents", held: "world.Held") -> bytes | str:
    try:
        return contents.value(held, 1 << 20)
    except Unpackable as error:
        return str(error)


def test_values_by_hand(tmp_path: Path) -> None:
    """What no server at hand writes: seconds, old encodings, slots, functions, modules, meta data of keys."""
    module = b"\x07" + text(b"json") + b"\x81" + struct.pack(">Q", int.from_bytes(b"\x24\x92\x49\x24\x92\x49\x24\x01", "big")) + b"\x05\x03abc\x02\x07\x04" + bytes(8) + b"\x03" + bytes(4) + b"\x00"
    body = (
        b"\xfa\x09redis-ver\x058.6.0\xf5\x04code\xf4\x05\x02\x01\xf7\x81" + bytes(8) + b"\x02\x02\x01\x07\x00"
        + b"\xfd" + struct.pack("<i", 1_700_000_000) + b"\x00\x01s\x01v"
        + b"\xf3\x01" + bytes(4) + b"\x02\x07\x00" + b"\xf9\x05\xf8\x09\x00\x01m\x01v"
        + b"\x03" + text(b"oldzset") + b"\x03\x01a\x041.25\x01b\xfe\x01c\xfd"
        + b"\x09" + text(b"zipmap") + text(b"\x02\x01a\x01\x00b\x01c\x01\x00d\xff")
        + b"\x0e" + text(b"ziplists") + b"\x01" + text(struct.pack("<IIH", 14, 10, 3) + b"x")
        + b"\x16" + text(b"rc hash") + b"\x01\x00\x01f\x01v"
        + b"\x1a" + text(b"stream 8.6") + b"\x00\x05" + b"\x01" * 7 + b"\x00" + b"\x0a\x0a\x01\x03pid\x02\x01a\x01\x02\x01b\x03\x04\x05\x06"
        + module + b"\x00\x04last\x01v"
    )  # fmt: skip
    path = tmp_path / "x.rdb"
    path.write_bytes(dump(body, b"REDIS0013"))
    found, contents = world.told_by_file(path)
    assert contents.notes == []
    assert {key: (seen.kind, seen.elements) for (_, key), seen in found.items()} == {
        b"s": ("string", None), b"m": ("string", None), b"oldzset": ("zset", 3), b"zipmap": ("hash", 2), b"ziplists": ("list", 3),
        b"rc hash": ("hash", 1), b"stream 8.6": ("stream", 5), b"json": ("JJJJJJJJJ", None), b"last": ("string", None),
    }  # fmt: skip
    assert found[0, b"s"].expires_ms == 1_700_000_000_000
    assert contents.version == "8.6.0"


@on_every_server
def test_small_hashes_are_read_as_the_server_has_them(server: LiveServer) -> None:
    noise = random.Random(2)
    numbers = [0, 12, 13, 127, 128, -1, -4096, -4097, 4095, 4096, 32767, 32768, 8388607, 8388608, -8388609, 2**31, -(2**31), 2**63 - 1, -(2**63)]
    hashes = {
        b"numbers": {b"n%d" % number: b"%d" % number for number in numbers}, b"long": {b"f" * 64: noise.randbytes(5000), b"g": b"x" * 20_000},
        b"texts": {b"a" * size: b"b" * size for size in (1, 63, 64)}, b"packed": {b"f%d" % number: b"same " * 12 for number in range(60)},
        b"binary": {b"\x00\xff": b"", b"": b"\r\n"}, b"middle": {b"f": noise.randbytes(300), b"g": noise.randbytes(4095), b"h": noise.randbytes(4096)},
        b"many": {b"%d" % number: b"v" for number in range(65)},
    }  # fmt: skip
    with server.client() as client, world.configured(server, hash_max_ziplist_value="5000"):
        for key, fields in hashes.items():
            client.hset(key, mapping=fields)
        with contextlib.suppress(redis.ResponseError):
            client.hset("ttl:packed", mapping={"f": "v", "g": "7"})
            client.hset("ttl:plain", mapping={"f": "v" * 6000, "g": "7"})
            for name in ("ttl:packed", "ttl:plain"):
                client.execute_command("HPEXPIRE", name, 80_000_000, "FIELDS", 1, "f")
        told = {key: client.hgetall(key) for key in client.scan_iter()}
        digests = {key: hashlib.sha256(client.dump(key)).hexdigest() for key in told}
        path = world.saved(server)
    with opened(path) as contents:
        found = {held.key: contents.hash_of(held) for held in contents.items()}
    assert found.pop(b"many") is None
    assert {key: None if read is None else read[0] for key, read in found.items()} == {key: told[key] for key in found}
    assert {key: None if read is None else read[1] for key, read in found.items()} == {key: digests[key] for key in found}


def test_a_newer_version_is_tried_and_said(tmp_path: Path) -> None:
    path = tmp_path / "x.rdb"
    path.write_bytes(dump(b"\x00\x01k\x01v", b"REDIS0099"))
    found, contents = world.told_by_file(path)
    assert list(found) == [(0, b"k")]
    assert "RDB version 99, newer than" in contents.notes[0]


def test_bytes_behind_the_end_and_names_that_are_too_long_are_said(tmp_path: Path) -> None:
    path = tmp_path / "x.rdb"
    path.write_bytes(dump(b"\x00" + text(b"n" * 70_000) + b"\x01v\x00\x01k\x01v") + b"rest")
    found, contents = world.told_by_file(path)
    assert list(found) == [(0, b"k")]
    assert any("4 bytes follow its end" in note for note in contents.notes), contents.notes
    assert any("1 keys have names of more than 65536 bytes" in note for note in contents.notes), contents.notes


def test_the_walk_holds_no_values(tmp_path: Path) -> None:
    """10,000 values of 4 KB: what the walk takes does not depend on how many there are."""
    path = tmp_path / "x.rdb"
    path.write_bytes(dump(b"".join(b"\x00" + text(b"k%05d" % number) + text(bytes(4000)) for number in range(10_000))))
    with opened(path) as contents:
        tracemalloc.start()
        count = sum(1 for _ in contents.items())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert count == 10_000
    assert peak < 200_000, peak


def test_a_record_says_where_it_is(tmp_path: Path) -> None:
    data = dump(b"\xfe\x00\xfc" + bytes(8) + b"\x00\x01a\x01v\x00\x01b\x01w")
    rdb = open_rdb(data, len(data))
    assert rdb is not None
    assert [(entry.at, entry.start) for entry in rdb.entries()] == [(11, 24), (25, 29)]


@pytest.mark.parametrize(
    ("packed", "size"),
    [(b"\xff" * 20, 500), (b"\x20\x00", 3), (b"\x05abc", 6), (b"\x00a\xe0", 50), (b"\x00a\x20\x00", 99), (b"\x00a\x20\x00\x00b", 4), (b"", 1)],
)
def test_lzf_that_is_none(packed: bytes, size: int) -> None:
    with pytest.raises(Unpackable):
        unpack(packed, size)


def test_lzf_of_which_only_the_head_is_wanted() -> None:
    packed = b"\x00a" + b"\xe0\xff\x00" * 1000
    assert unpack(packed, 1 + 264 * 1000) == b"a" * 264_001
    assert unpack(packed, 1 + 264 * 1000, 300) == b"a" * 300
    assert unpack(packed, 1 + 264 * 1000, 0) == b""


def test_a_file_says_what_it_is_before_it_is_read(server: LiveServer) -> None:
    with server.client() as client:
        client.set("k", "v")
    path = world.saved(server)
    said = describe(path)
    assert said.startswith(f"{path} (redis 7.") and "RDB version 10" in said and "UTC" in said, said


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return fuzz_seeds.seeds(tmp_path_factory.mktemp("seeds"))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_files_end_in_keys_or_in_words(seeds: list[bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    noise = data.draw(st.randoms(use_true_random=False))
    seed = data.draw(st.sampled_from(seeds))
    tracemalloc.start()
    try:
        check(tmp_path_factory.getbasetemp() / "mutated", mutated(seed, noise))
    finally:
        tracemalloc.stop()
