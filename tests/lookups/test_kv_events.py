"""Recorded KV events: what vLLM 0.32.0 itself encoded, the layouts of its predecessors, SGLang and Dynamo, and damage."""

import json
import random
from collections.abc import Mapping

import msgspec
import pytest

from diag.collectors import lookups
from diag.model import Artefact
from diag.parsers import lookup_kv_events

FIRST = "154739ec8753896a99acaf9629b8bf9a175b7beb03f9420bad70897f2f785fec"
SECOND = "c1815b221a9eb66458f542fe84259716bcfac45ece64c8f343b0c55eb71707c0"
# msgspec.msgpack.encode(KVEventBatch(...)) and msgspec.json.encode of the same, by vLLM 0.32.0
REAL = bytes.fromhex(
    "93cb41dac33960900000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c420154739ec8753896a99acaf9629b8bf9a"
    "175b7beb03f9420bad70897f2f785fecc420c1815b221a9eb66458f542fe84259716bcfac45ece64c8f343b0c55eb71707c0b1706172656e745f626c"
    "6f636b5f68617368c0a9746f6b656e5f69647398001718ccffcd0100cdffffce00010000ce0002505baa626c6f636b5f73697a6504a76c6f72615f69"
    "64c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a673616c742d31c0a967726f75705f69647800b26b765f"
    "63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368"
    "657391c420154739ec8753896a99acaf9629b8bf9a175b7beb03f9420bad70897f2f785feca66d656469756da3475055a967726f75705f6964780081"
    "a474797065b0416c6c426c6f636b73436c656172656400"
)
REAL_JSON = (
    '[1796007298.25,[{"type":"BlockStored","block_hashes":["FUc57IdTiWqZrK+WKbi/mhdbe+sD+UILrXCJfy94X+w=","wYFbIhqetmRY9UL+hCWXFrz6xF7'
    'OZMjzQ7DFXrcXB8A="],"parent_block_hash":null,"token_ids":[0,23,24,255,256,65535,65536,151643],"block_size":4,"lora_id":null,'
    '"medium":"GPU","lora_name":null,"extra_keys":[["salt-1"],null],"group_idx":0,"kv_cache_spec_kind":"full_attention"},{"type":'
    '"BlockRemoved","block_hashes":["FUc57IdTiWqZrK+WKbi/mhdbe+sD+UILrXCJfy94X+w="],"medium":"GPU","group_idx":0},{"type":"AllBlocksCleared"}],0]'
)
STORED = {"kind": "stored", "event_tokens": 8, "event_blocks": 2, "block_size": 4, "medium": "GPU", "group_idx": 0, "spec_kind": "full_attention"}


def frame(value: object) -> bytes:
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(4, "big") + data


def rows(data: bytes) -> tuple[list[dict[str, object]], list[Mapping[str, object]]]:
    """(rows of kv_events, what is said about them)"""
    found = list(lookups.parse([Artefact.of_bytes("events", "lookups", data)]))
    return [dict(row) for table, row in found if table == "kv_events"], [row for table, row in found if table == "collected"]


def short(found: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [tuple(row.get(name) for name in ("kind", "block_hash", "parent_hash", "tokens")) for row in found]


@pytest.mark.parametrize(
    "data",
    [
        len(REAL).to_bytes(4, "big") + REAL,
        frame([b"kv-events", (7).to_bytes(8, "big"), REAL]),
        REAL_JSON.encode() + b"\n",
        json.dumps({"seq": 7, "batch": json.loads(REAL_JSON)}).encode() + b"\n",
    ],
    ids=["frame", "three parts", "json", "json with a number"],
)
def test_what_the_engine_encoded(data: bytes) -> None:
    assert lookups.recognise("recording", data)
    found, said = rows(data)
    assert short(found) == [
        ("stored", FIRST, None, "0 23 24 255"), ("stored", SECOND, FIRST, "256 65535 65536 151643"), ("removed", FIRST, None, None),
        ("cleared", None, None, None),
    ]  # fmt: skip
    assert found[0] | STORED == found[0]
    assert found[0]["extra_keys"] == '["salt-1"]'
    assert "extra_keys" in found[1]
    assert found[1]["extra_keys"] is None
    assert [row["origin"] for row in found] == ["0"] * 4
    assert str(found[3]["ts"]) == "2026-11-30 02:54:58.250000"
    assert said == [{"table_name": "kv_events", "status": "ok"}]
    if b"kv-events" in data or b"seq" in data:
        assert found[2]["seq"] == 7


def batch(*events: object, ts: float = 1.5) -> list[object]:
    return [ts, list(events), 3]


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        (["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, None], {"block_hash": "1", "tokens": "5 6", "lora": None}),
        (["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, 4, "GPU"], {"lora": "4", "medium": "GPU"}),
        (["BlockStored", [1], 9, [5, 6], 2, None, "CPU", "adapter"], {"parent_hash": "9", "lora": "adapter", "medium": "CPU"}),
        (["BlockStored", [1], 9, [5, 6], 2, None, "CPU", None, [["salt", ["img", 3]]]], {"extra_keys": '["salt", ["img", 3]]'}),
        (["BlockStored", [1], 9, [5, 6], 2, None, "CPU", None, None, 2], {"group_idx": 2}),
        (["BlockStored", [-(2**62)], None, [5, 6], 2, None], {"block_hash": str(-(2**62))}),
        (["BlockStored", [b"\1\2"], b"\3", [5, 6], 2, None], {"block_hash": "0102", "parent_hash": "03"}),
        (["BlockStored", [2**64 - 1], None, [5, 6], 2, None], {"block_hash": "18446744073709551615"}),
        ({"type": "BlockStored", "block_hashes": [1], "token_ids": [5, 6], "block_size": 2}, {"parent_hash": None, "tokens": "5 6"}),
        ({"type": "BlockStored", "block_hashes": [1]}, {"tokens": None, "event_tokens": None, "block_size": None}),
        (["BlockRemoved", [8], "GPU", 1], {"kind": "removed", "block_hash": "8", "medium": "GPU", "group_idx": 1}),
        (["AllBlocksCleared"], {"kind": "cleared"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["array", "map"])
def test_layouts_of_events_and_batches(event: object, wanted: dict[str, object], layout: str) -> None:
    told = batch(event) if layout == "array" else {"ts": 1.5, "events": [event], "data_parallel_rank": 3}
    found, said = rows(frame(told))
    assert said == [{"table_name": "kv_events", "status": "ok"}]
    assert {name: found[0].get(name) for name in wanted} == wanted
    assert found[0]["origin"] == "3"


def test_events_of_a_kind_that_says_nothing_of_blocks_are_left_out() -> None:
    found, said = rows(frame(batch({"type": "TransferInitiated", "transfer_id": 3}, ["BlockRemoved", [8]])))
    assert [row["kind"] for row in found] == ["removed"]
    assert said[0]["status"] == "ok"


def test_the_recorder_of_dynamo() -> None:
    about = {"event_id": 3, "dp_rank": 0}
    stored = {"stored": {"parent_hash": 17, "blocks": [{"block_hash": 18, "tokens_hash": 5}, {"block_hash": 19, "tokens_hash": 6}]}}
    lines = [
        {"timestamp": 12, "event": {"worker_id": 1, "event": {**about, "data": stored}}},
        {"timestamp": 15, "event": {"worker_id": 1, "event": {"event_id": 4, "data": {"removed": {"block_hashes": [18]}}, "dp_rank": 2}}},
        {"timestamp": 19, "event": {"worker_id": 1, "event": {"event_id": 5, "data": "cleared"}}},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    assert lookups.recognise("kv.jsonl", data)
    found, _ = rows(data)
    assert short(found) == [("stored", "18", "17", None), ("stored", "19", "18", None), ("removed", "18", None, None), ("cleared", None, None, None)]
    assert [(row["seq"], row["origin"], row.get("ts")) for row in found] == [(3, "1", None), (3, "1", None), (4, "1/2", None), (5, "1", None)]


@pytest.mark.parametrize(
    "damage",
    [
        b'{"ts": 1.5, "events": [["BlockRemoved", 7]]}\n',
        b'{"ts": 1.5, "events": [["BlockStored", [true], null, [1], 1]]}\n',
        b'{"ts": 1.5, "events": [["BlockStored", [1], null, ["a"], 1]]}\n',
        b'{"ts": 1.5, "events": "BlockStored"}\n',
        b'{"BlockStored"\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_line_is_said_and_costs_no_other(damage: bytes) -> None:
    good = b'{"ts": 1.5, "events": [["BlockRemoved", [8]]]}\n'
    found, said = rows(good + damage + good)
    assert [row["block_hash"] for row in found] == ["8", "8"]
    (about,) = said
    assert about["status"] == "partial"
    assert "1 records are no cache events; first events:2: " in str(about["reason"])


@pytest.mark.parametrize("cut", [2, 6, 60])
def test_a_recording_that_was_cut_is_partial(cut: int) -> None:
    whole = frame(batch(["BlockRemoved", [8], "GPU"]))
    long = frame(batch(["BlockStored", list(range(40)), None, list(range(40)), 1, None]))
    found, said = rows(whole + long[:cut])
    assert [row["block_hash"] for row in found] == ["8"]
    assert said[0]["status"] == "partial"


def test_a_length_of_gigabytes_allocates_nothing() -> None:
    found, said = rows(frame(batch(["BlockRemoved", [8], "GPU"])) + b"\xff\xff\xff\xff\x93")
    assert (len(found), said[0]["status"]) == (1, "partial")


def test_mutated_recordings_never_hurt() -> None:
    """Whatever stands in a recording: rows, or a sentence about what could not be read."""
    chance = random.Random(11)
    whole = frame([b"", (7).to_bytes(8, "big"), REAL]) + frame(batch(["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, None]))
    lines = REAL_JSON.encode() + b"\n" + json.dumps(batch(["BlockRemoved", [8]])).encode()
    for original in (whole, lines):
        for _ in range(1500):
            data = bytearray(original)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            for row in lookup_kv_events.rows(Artefact.of_bytes("e", "lookups", bytes(data)), lookup_kv_events.Trouble()):
                assert row[0] == "kv_events"
