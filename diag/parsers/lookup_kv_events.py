"""KV cache events of vLLM, SGLang and Dynamo's router, as subscribers record them: JSON lines, or msgpack frames.

    [1796007298.3, [["BlockStored", [8721, 8722], null, [1, 2, 3, 4], 2, null, "GPU"]], 0]             vLLM 0.10-0.20, SGLang
    {"seq": 7, "ts": 1796007298.3, "events": [{"type": "BlockRemoved", "block_hashes": ["5f…"], "medium": "GPU"}]}   newer vLLM
    {"timestamp": 812, "event": {"worker_id": 1, "event": {"event_id": 3, "data": {"stored": {…}}, "dp_rank": 0}}}   Dynamo

Batches and events come as arrays (fields by position, trailing defaults left out) or as maps, in any mix. Frames are
what went over ZeroMQ: four bytes of length (big-endian), then one msgpack value: the batch, or the three parts
[topic, sequence number in eight bytes, batch in msgpack]. Times of Dynamo's recorder are no wall-clock times.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from diag.model import Artefact, Row
from diag.parsers.lookup_jsonl import naive

STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx")
REMOVED = ("block_hashes", "medium", "group_idx")
FIELDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "BlockStored": ("stored", STORED), "BlockRemoved": ("removed", REMOVED), "AllBlocksCleared": ("cleared", ()),
}  # fmt: skip
BATCH = ("ts", "events", "data_parallel_rank")
NAMES = re.compile(rb"BlockStored|BlockRemoved|AllBlocksCleared")
DYNAMO = re.compile(rb'"worker_id".*"event_id"|"event_id".*"worker_id"', re.S)
FRAME_BYTES = 64 << 20
LATEST_S = 32_503_680_000
BROKEN = (msgspec.MsgspecError, ValueError, TypeError, KeyError, UnicodeEncodeError, RecursionError, OverflowError)
Value = Any
"""What JSON or msgpack held: its shape is checked where it is used."""


@dataclass
class Trouble:
    """What of a recording could not be read."""

    count: int = 0
    first: str = ""

    def note(self, where: str, why: object) -> None:
        self.count += 1
        self.first = self.first or f"{where}: {why}"

    @property
    def reason(self) -> str:
        """One sentence; empty: nothing."""
        return f"{self.count} records are no cache events; first {self.first}" if self.count else ""


def recognise(head: bytes) -> bool:
    """Does a file begin with recorded events?"""
    first = head.lstrip()[:1]
    line = head.split(b"\n", 1)[0]
    if first in (b"{", b"[") and (NAMES.search(line) is not None or DYNAMO.search(line) is not None):
        return True
    return _is_frame(head) and NAMES.search(head) is not None


def rows(artefact: Artefact, trouble: Trouble) -> Iterator[Row]:
    """Rows of kv_events, in the order of the recording. What cannot be read goes to `trouble`."""
    with artefact.opener() as stream:
        head = stream.read(64)
    ord_ = 0
    for where, record in _frames(artefact, trouble) if _is_frame(head) else _lines(artefact, trouble):
        try:
            found = list(_record(record))
        except BROKEN as error:
            trouble.note(where, error)
            continue
        for row in found:
            yield "kv_events", {**row, "ord": ord_, "source": where}
            ord_ += 1


def hash_text(value: Value) -> str:
    """A block hash as tables name it: bytes as hex, numbers as decimal. Raises TypeError."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return _hex_of_base64(value) or value.removeprefix("0x")
    raise TypeError(f"{value!r:.80} is no block hash")


def _hex_of_base64(text: str) -> str | None:
    """JSON encoders write bytes as base64: 32 of them are 44 characters."""
    if len(text) != 44 or not text.endswith("="):
        return None
    try:
        return base64.b64decode(text, validate=True).hex()
    except (binascii.Error, ValueError):
        return None


def _is_frame(head: bytes) -> bool:
    """Four bytes of length, then a msgpack array or map."""
    if len(head) < 6 or not 0 < int.from_bytes(head[:4], "big") <= FRAME_BYTES:
        return False
    return head[4] & 0xF0 in (0x80, 0x90) or head[4] in (0xDC, 0xDD, 0xDE, 0xDF)


def _lines(artefact: Artefact, trouble: Trouble) -> Iterator[tuple[str, Value]]:
    for number, text in artefact.lines():
        if not text.strip():
            continue
        try:
            yield artefact.at(number), msgspec.json.decode(text)
        except BROKEN as error:
            trouble.note(artefact.at(number), error)


def _frames(artefact: Artefact, trouble: Trouble) -> Iterator[tuple[str, Value]]:
    with artefact.opener() as stream:
        number = 0
        while (data := _frame(stream)) is not None:
            where = artefact.key(f"frame {number}")
            number += 1
            try:
                record = msgspec.msgpack.decode(data)
                if isinstance(record, list) and len(record) == 3 and isinstance(record[2], bytes):
                    record = {"seq": _seq(record[1]), "batch": msgspec.msgpack.decode(record[2])}
                yield where, record
            except BROKEN as error:
                trouble.note(where, error)
                if data == b"":
                    return


def _frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end, empty where the file ends in the middle of one (msgpack says so)."""
    head = stream.read(4)
    if not head:
        return None
    size = int.from_bytes(head, "big")
    data = stream.read(min(size, FRAME_BYTES)) if len(head) == 4 else b""
    return data if size <= FRAME_BYTES and len(data) == size else b""


def _seq(value: Value) -> int | None:
    if isinstance(value, bytes) and len(value) == 8:
        number = int.from_bytes(value, "big", signed=True)
        return None if number < 0 else number
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _record(record: Value) -> Iterator[dict[str, object]]:
    """One line or frame -> rows, without place and source. Raises one of BROKEN."""
    about: dict[str, object] = {}
    if isinstance(record, dict):
        about["seq"] = _seq(record.get("seq", record.get("sequence")))
        if isinstance(record.get("event"), dict) and "worker_id" in record["event"]:
            yield from _dynamo(record["event"])
            return
        batch = next((record[name] for name in ("batch", "payload", "data") if isinstance(record.get(name), dict | list)), record)
    else:
        batch = record
    if isinstance(batch, list):
        if not 2 <= len(batch) <= 16 or not isinstance(batch[1], list):
            raise TypeError("a batch is [time, events, rank]")
        batch = dict(zip(BATCH, batch, strict=False))
    if not isinstance(batch, dict):
        raise TypeError("neither a batch nor an event")
    about["ts"] = _time(batch.get("ts", record.get("ts") if isinstance(record, dict) else None))
    rank = next((batch[name] for name in ("data_parallel_rank", "dp_rank", "attn_dp_rank") if batch.get(name) is not None), None)
    about["origin"] = None if rank is None else str(rank)
    events = batch.get("events", [batch])
    if not isinstance(events, list):
        raise TypeError("events is no list")
    for event in events:
        yield from ({**about, **row} for row in _event(event))


def _time(value: Value) -> object:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LATEST_S:
        return None
    return naive(value)


def _event(event: Value) -> Iterator[dict[str, object]]:
    if isinstance(event, list):
        tag, told = (event[0], event[1:]) if event else (None, [])
        kind, names = FIELDS.get(tag, (None, ())) if isinstance(tag, str) else (None, ())
        event = dict(zip(names, told, strict=False))
    elif isinstance(event, dict):
        tag = event.get("type", event.get("event_type"))
        kind, names = FIELDS.get(tag, (None, ())) if isinstance(tag, str) else (None, ())
    else:
        raise TypeError("an event is an array or a map")
    if kind is None:
        return  # of a kind that says nothing about blocks (transfers, say)
    if kind == "cleared":
        yield {"kind": kind}
        return
    hashes = [hash_text(value) for value in _list(event.get("block_hashes"))]
    about = {
        "kind": kind, "event_blocks": len(hashes), "medium": _text(event.get("medium")), "group_idx": _seq(event.get("group_idx")),
    }
    if kind == "removed":
        for position, text in enumerate(hashes):
            yield {**about, "position": position, "block_hash": text}
        return
    yield from _stored(event, hashes, about)


def _stored(event: Mapping[str, Value], hashes: Sequence[str], about: Mapping[str, object]) -> Iterator[dict[str, object]]:
    tokens = [_token(value) for value in _list(event.get("token_ids"))]
    size = _seq(event.get("block_size"))
    extras = event.get("extra_keys")
    lora = event.get("lora_name") if event.get("lora_name") is not None else event.get("lora_id")
    parent = None if event.get("parent_block_hash") is None else hash_text(event["parent_block_hash"])
    for position, text in enumerate(hashes):
        mine = tokens[position * size : (position + 1) * size] if size else []
        extra = extras[position] if isinstance(extras, list) and position < len(extras) else None
        yield {
            **about, "position": position, "block_hash": text, "parent_hash": parent, "tokens": " ".join(map(str, mine)) or None,
            "event_tokens": len(tokens) if "token_ids" in event else None, "block_size": size, "lora": _text(lora),
            "extra_keys": None if extra is None else json.dumps(extra, default=_plain, ensure_ascii=False),
            "spec_kind": _text(event.get("kv_cache_spec_kind")),
        }
        parent = text


def _dynamo(routed: Mapping[str, Value]) -> Iterator[dict[str, object]]:
    """Dynamo's RouterEvent: its event ids count per worker."""
    event = routed["event"]
    data = event["data"]
    rank = event.get("dp_rank")
    about = {"seq": _seq(event.get("event_id")), "origin": f"{routed['worker_id']}" + (f"/{rank}" if rank else "")}
    if data == "cleared" or (isinstance(data, dict) and "cleared" in data):
        yield {**about, "kind": "cleared"}
    elif "stored" in data:
        blocks = _list(data["stored"]["blocks"])
        parent = data["stored"].get("parent_hash")
        parent = None if parent is None else hash_text(parent)
        for position, block in enumerate(blocks):
            text = hash_text(block["block_hash"])
            yield {**about, "kind": "stored", "event_blocks": len(blocks), "position": position, "block_hash": text, "parent_hash": parent}
            parent = text
    elif "removed" in data:
        hashes = _list(data["removed"]["block_hashes"])
        for position, value in enumerate(hashes):
            yield {**about, "kind": "removed", "event_blocks": len(hashes), "position": position, "block_hash": hash_text(value)}


def _list(value: Value) -> list[Value]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.80} is no list")
    return value


def _token(value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r:.80} is no token id")
    return value


def _text(value: Value) -> str | None:
    return None if value is None else str(value)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
