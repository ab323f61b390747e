"""Formats of caches beside pickles: msgpack, Python literals, base64, LMCache metadata, lz4 and Zstandard."""

import base64
import json
import pickle
import struct
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag.decode import DECODER_FAILED, decode
from diag.decode.literal import Unfit, read

ARRAY = np.random.default_rng(0).normal(size=(4, 64)).astype("<f4")


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def numpy_packed(array: Any) -> bytes:
    """As msgpack-numpy writes an array."""
    return b"\x85" + b"".join(
        packed(part)
        for part in (b"nd", True, b"type", array.dtype.str, b"kind", b"", b"shape", list(array.shape), b"data", array.tobytes())
    )


def test_arrays_and_embeddings_in_msgpack() -> None:
    found = decode(numpy_packed(ARRAY))
    assert (found.codec, found.dtype, found.shape) == ("msgpack", "float32", (4, 64))
    assert found.array is not None and np.array_equal(found.array, ARRAY)
    inside = decode(packed({"v": 2, "data": pickle.dumps(ARRAY)}))
    assert (inside.shape, inside.keys[:2]) == ((4, 64), ("v", "data"))
    assert inside.wrapper is not None and inside.wrapper.version == "2"
    assert decode(packed(ARRAY[0].tolist())).shape == (64,)
    raw = decode(packed({"emb": ARRAY.tobytes()}))
    assert raw.blob is not None and bytes(raw.blob) == ARRAY.tobytes()


@pytest.mark.parametrize("value", [numpy_packed(ARRAY), packed({"embedding": [0.5] * 40, "model": "m"}), packed([0.5] * 40)])
def test_no_cut_of_msgpack_passes_for_whole(value: bytes) -> None:
    for end in range(48, len(value), 7):
        assert decode(value[:end]).problem == "truncated", end


@pytest.mark.parametrize(("value", "field"), [(b"\xc0", "is_none"), (b"\x90", "is_empty"), (packed({"embedding": None}), "hollow")])
def test_msgpack_that_holds_nothing(value: bytes, field: str) -> None:
    found = decode(value)
    assert found.codec == "msgpack" and getattr(found, field)


def test_raw_buffers_that_begin_like_msgpack_stay_raw() -> None:
    rng = np.random.default_rng(0)
    for first in (*range(0x81, 0xA0), 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDC, 0xDD, 0xDE, 0xDF):
        found = decode(bytes([first]) + rng.bytes(255))
        assert (found.codec, found.problem) == ("raw", None), hex(first)


@pytest.mark.parametrize("head", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000, b"\xdc\xff\xff" * 60_000])
def test_hostile_msgpack_costs_nothing(head: bytes) -> None:
    started = time.process_time()
    assert decode(head + b"\x01" * 100).detail.startswith(DECODER_FAILED) is False
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "value",
    [
        {"timestamp": 1796007298.3, "response": '{"id": "x", "choices": []}'}, {"a": [1, -2.5e-3, None, True], "b": (1,), "c": {}, "d": ()},
        ["it's", 'a "quote"', "tab\t\\", "ü"], {"x": b"\x00\xff"}, {"nested": {"deep": [[[]]]}}, [1, 2, 3], {1: 2, (1, 2): "k"},
    ],
)  # fmt: skip
def test_python_literals_are_read_as_what_they_were(value: Any) -> None:
    def as_lists(node: Any) -> Any:
        if isinstance(node, (list, tuple)):
            return [as_lists(item) for item in node]
        return {key: as_lists(item) for key, item in node.items()} if isinstance(node, dict) else node

    if (1, 2) in (value if isinstance(value, dict) else ()):
        with pytest.raises(Unfit):  # a tuple as a key: lists are no keys
            read(str(value))
        return
    assert read(str(value)) == as_lists(value)


def test_literals_of_litellm_cut_and_damaged() -> None:
    text = str({"timestamp": 1.5, "response": {"embedding": [0.5, float("nan"), 0.25], "format_version": 2}})
    found = decode(text.encode())
    assert (found.codec, found.shape) == ("literal", (3,)) and "response.embedding" in found.keys
    assert found.wrapper is not None and found.wrapper.version == "2"
    assert decode(text[:60].encode()).problem == "truncated"
    assert decode(text.replace("0.25", "0.25 !!").encode()).problem == "corrupt"
    assert decode(json.dumps({"t": "[b'x']", "n": None}).encode()).codec == "json"


@pytest.mark.parametrize(
    "text", ["['" + "\\" * 500_001, "[" * 100_000, "{'a'" + " " * 500_000 + "b", "['" + "x" * 900_000, "[1" + "+1" * 200_000 + ", 'x']", "{'a': " + "1" * 900_000 + "}"]
)
def test_hostile_literals_cost_nothing(text: str) -> None:
    started = time.process_time()
    assert not decode(text.encode()).detail.startswith(DECODER_FAILED)
    assert time.process_time() - started < 1.0


def test_base64_of_values_and_buffers_but_not_digests_and_words() -> None:
    assert decode(base64.b64encode(pickle.dumps(ARRAY))).shape == (4, 64)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        found = decode(encode(ARRAY.tobytes()))
        assert found.codec == "base64+raw" and found.blob is not None and bytes(found.blob) == ARRAY.tobytes()
    assert decode(b"d41d8cd98f00b204" * 8).codec == "text"
    assert decode(b"a short token").codec == "text"


@pytest.mark.parametrize(
    ("numbers", "problem", "keys"),
    [
        ((2 * 2 * 256 * 16 * 2, 1, 3, 2, 2, 256, 16), None, ("KV_2LTD", "bfloat16", "2x2x256x16")),
        ((99, 1, 3, 2, 2, 256, 16), "corrupt", ("KV_2LTD", "bfloat16", "2x2x256x16")),
        ((577 * 4096 * 2, 7, 1, 577, 4096, 0, 0), None, ("EC_TD", "float16", "577x4096")),
        ((640, 1, 3, 2, 2, 5, 16), None, ("KV_2LTD", "bfloat16", "2x2x5x16")),  # begins with the bytes of a pickle
    ],
)
def test_lmcache_metadata(numbers: tuple[int, ...], problem: str | None, keys: tuple[str, ...]) -> None:
    found = decode(struct.pack("=7i", *numbers))
    assert (found.codec, found.problem, found.keys, found.announces_bytes) == ("lmcache-metadata", problem, keys, numbers[0])


def test_other_28_bytes_are_no_lmcache_metadata() -> None:
    rng = np.random.default_rng(0)
    assert {decode(rng.bytes(28)).codec == "lmcache-metadata" for _ in range(300)} == {False}
    assert decode(bytes(28)).codec == "raw"


@pytest.mark.parametrize(("module", "name"), [("lz4.frame", "lz4"), ("backports.zstd", "zstd")])
def test_lz4_and_zstandard_are_opened_under_a_cap(module: str, name: str) -> None:
    compress = pytest.importorskip(module).compress
    data = compress(pickle.dumps(ARRAY))
    found = decode(data)
    assert (found.codec, found.shape, found.problem) == (f"{name}+pickle", (4, 64), None)
    assert decode(data[:-20]).problem == "truncated"
    middle = len(data) // 2
    damaged = decode(data[:middle] + b"\xff" * 32 + data[middle + 32 :])
    assert damaged.problem is not None or damaged.array is None or not np.array_equal(damaged.array, ARRAY)
    bomb = decode(compress(bytes(100 << 20)))
    assert "not read: inflates to more than" in bomb.detail


def test_a_header_of_npy_with_bytes_that_are_no_text_is_damage(tmp_path: Any) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ARRAY)
    data = path.read_bytes()
    assert decode(data).problem is None
    assert decode(data[:7] + b"\x04" + data[8:]).problem == "corrupt"
    assert decode(data.replace(b" \n", b"\x07\n", 1)).problem == "corrupt"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_values_of_these_formats_never_break_a_decoder(data: st.DataObject) -> None:
    seeds = [
        numpy_packed(ARRAY), packed({"a": [1.5, None], "b": b"x" * 80}), str({"a": [0.5, None], "b": "c"}).encode(),
        base64.b64encode(pickle.dumps(ARRAY)), struct.pack("=7i", 640, 1, 3, 2, 2, 5, 16), json.dumps({"embedding": [0.5, 0.25], "error": None}).encode(),
    ]  # fmt: skip
    value = bytearray(data.draw(st.sampled_from(seeds)))
    for _ in range(data.draw(st.integers(1, 6))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    found = decode(bytes(value[: data.draw(st.integers(1, len(value)))]))
    assert not found.detail.startswith(DECODER_FAILED), found.detail
