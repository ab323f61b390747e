"""Entries of two keys on a real server: which halves are alone, which disagree, which are only young."""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import pytest
import redis

from diag.cache.scanning.server import inspect_keys, scan
from diag.cache.servers.connection import connect
from diag.cache.values import halves
from diag.cache.values.facts import facts_of
from diag.cache.values.family_files import shipped
from diag.cache.values.judging import Scan
from diag.cache.values.keys import CacheKey, Place
from diag.cache.values.profile import Sample, learn
from tests.cache.conftest import LiveServer

ROWS = 16


def name(number: int) -> bytes:
    return f"Qwen/Qwen3-8B@2@0@{hashlib.md5(str(number).encode()).hexdigest()[:16]}@bfloat16".encode()


def chunk(seed: int, tokens: int = ROWS) -> bytes:
    numbers = np.random.default_rng(seed).normal(size=4 * tokens * 8).astype("<f4")
    return (numbers.view("<u4") >> 16).astype("<u2").tobytes()


def metadata(data: bytes, tokens: int = ROWS, *, form: int = 1, code: int = 3) -> bytes:
    return struct.pack("=7i", len(data), form, code, 2, 2, tokens, 8)


def fill(client: redis.Redis, count: int = 40) -> None:
    for number in range(count):
        tokens = ROWS if number % 8 else 3 + number // 8  # every eighth chunk is a tail
        data = chunk(number, tokens)
        client.mset({name(number) + b"kv_bytes": data, name(number) + b"metadata": metadata(data, tokens)})


def odd(server: LiveServer) -> dict[bytes, tuple[str, tuple[str, ...]]]:
    found = scan(connect(server.url), server.target)
    return {row.name: (row.verdict, row.reasons) for row in (*found.ghosts, *found.soft)}


def test_whole_entries_and_tails_are_sound(server: LiveServer) -> None:
    fill(server.client())
    assert odd(server) == {}


def test_what_is_wrong_with_an_entry_is_told_by_its_half(server: LiveServer) -> None:
    client = server.client()
    fill(client)
    good = chunk(99)
    client.delete(name(1) + b"kv_bytes", name(2) + b"metadata")
    client.set(name(3) + b"kv_bytes", chunk(3)[:-64])
    client.set(name(4) + b"kv_bytes", bytes(len(good)))
    client.set(name(5) + b"kv_bytes", good[:100] + b"\xc0\x7f" * 20 + good[140:])
    client.set(name(6) + b"metadata", struct.pack("=7i", len(good), 1, 3, 2, 2, 999, 8))
    client.set(name(7) + b"metadata", metadata(chunk(7), code=4))
    client.set(name(9) + b"metadata", b"not the integers")
    found = odd(server)
    assert {key: found[key][1][0] for key in found} == {
        name(1) + b"metadata": "missing-half", name(2) + b"kv_bytes": "missing-half", name(3) + b"kv_bytes": "truncated",
        name(4) + b"kv_bytes": "all-zero", name(5) + b"kv_bytes": "nan-inf", name(6) + b"metadata": "corrupt",
        name(7) + b"metadata": "corrupt", name(9) + b"metadata": "corrupt",
    }  # fmt: skip
    assert {verdict for verdict, _ in found.values()} == {"ghost"}
    assert "dtype-mismatch" in found[name(7) + b"metadata"][1]


def test_keys_that_are_asked_for_are_compared_with_their_other_half(server: LiveServer) -> None:
    client = server.client()
    fill(client)
    client.delete(name(1) + b"kv_bytes")
    client.set(name(3) + b"kv_bytes", chunk(3)[:-64])
    asked = [name(1) + b"metadata", name(2) + b"metadata", name(3) + b"kv_bytes", name(5) + b"kv_bytes"]
    rows = inspect_keys(connect(server.url), server.target, asked)
    told = {row.name: (row.verdict, row.reasons[:1]) for row in rows if row.name in asked}
    assert told == {
        asked[0]: ("ghost", ("missing-half",)), asked[1]: ("ok", ()), asked[2]: ("ghost", ("truncated",)), asked[3]: ("ok", ()),
    }  # fmt: skip


@pytest.fixture
def lone() -> halves.Waiting:
    """A metadata half that was just written, and nothing else."""
    return waiting_for(5.0)


def waiting_for(idle_s: float | None, key: bytes = name(1) + b"metadata") -> halves.Waiting:
    facts = facts_of(metadata(chunk(1)))
    known = shipped().find([(key, facts)])
    profile = learn("f", [Sample(facts, None)] * 30, None, known)
    found = Scan()
    found.profiles[0, "f"] = profile
    waiting = halves.Waiting()
    row = CacheKey(
        "t", 0, key.decode(), key.hex(), "f", 28, None, idle_s, "lmcache-metadata", None, None, None, None, None, None, None, None, None, None,
        (), "ok", "0" * 64,
    )  # fmt: skip
    assert waiting.meet(row, facts, profile) == []
    return waiting


def test_a_half_whose_other_half_comes_while_we_look_is_none(lone: halves.Waiting) -> None:
    looks: list[Sequence[bytes]] = []

    def exists(keys: Sequence[bytes]) -> list[bool]:
        looks.append(keys)
        return [True, len(looks) > 1]  # the writer's second SET lies between our two looks

    assert [row.verdict for row in lone.settle(exists, pause_s=0)] == ["ok"]
    assert looks == [[name(1) + b"metadata", name(1) + b"kv_bytes"]] * 2


def test_a_half_that_is_gone_itself_is_none_and_an_old_one_needs_one_look(lone: halves.Waiting) -> None:
    assert [row.verdict for row in lone.settle(lambda keys: [False, False], pause_s=0)] == ["ok"]
    old, looks = waiting_for(3600.0), [0]

    def exists(keys: Sequence[bytes]) -> list[bool]:
        looks[0] += 1
        return [True, False]

    (row,) = old.settle(exists, pause_s=0)
    assert (row.verdict, row.reasons, looks) == ("ghost", ("missing-half",), [1])


def test_in_a_file_there_is_nothing_to_look_at_again(lone: halves.Waiting) -> None:
    assert [row.reasons for row in lone.settle(None)] == [("missing-half",)]


def test_halves_that_are_only_assumed_are_none_where_most_are_alone() -> None:
    facts = facts_of(chunk(1))
    known = shipped().find([(b"embeddings:1", facts)])
    assert known is not None and known.name == "multimodal-pairs"
    scanned = Scan()
    for number in range(60):
        scanned.add(Place("t", 0, b"embeddings:%d" % number, None, None), facts_of(chunk(number)))
        if number < 10:
            scanned.add(Place("t", 0, b"values:%d" % number, None, None), facts_of(b'{"caption": "a dog on a lawn"}'))
    scanned.finish()
    assert scanned.ghosts == {}


def test_partners_of_keys() -> None:
    assert halves.partner(name(1) + b"metadata") == name(1) + b"kv_bytes"
    assert halves.partner(name(1) + b"kv_bytes") == name(1) + b"metadata"
    assert halves.partner(b"some:metadata") is None and halves.partner(b"embeddings:1") is None
