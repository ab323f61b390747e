"""safetensors: files of the owner's package, and heads that lie."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from diag.tensors.dump import ReadError
from diag.tensors.files import safetensors
from tests.tensors.reading import logical_bytes, read, refusal

DATA = Path(__file__).parent / "data" / "safetensors"
EXPECTED = json.loads((DATA / "expected.json").read_text())["files"]


def written(path: Path, head: object, content: bytes = b"") -> Path:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("name", EXPECTED)
def test_as_the_package_writes_it(name: str) -> None:
    tensors, unread = read(DATA / name)
    assert set(tensors) == set(EXPECTED[name])
    assert not unread
    for key, told in EXPECTED[name].items():
        tensor = tensors[key]
        assert (tensor.name, tensor.dtype, list(tensor.shape)) == (key, told["dtype"], told["shape"])
        assert hashlib.sha256(logical_bytes(tensor)).hexdigest() == told["sha256"], key


def test_the_writers_notes() -> None:
    assert safetensors.metadata(DATA / "types.safetensors") == {"format": "pt", "step": "3"}
    assert safetensors.metadata(DATA / "edge_llm.safetensors") == {}


def test_types_smaller_than_a_byte(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {"a": entry("F4", [2, 6], 0, 6), "b": entry("F6_E2M3", [4], 6, 9)}, bytes(range(9)))
    tensors, _unread = read(path)
    assert (tensors["a"].dtype, tensors["a"].shape) == ("float4_e2m1fn_x2", (2, 3))
    assert (tensors["b"].dtype, tensors["b"].shape) == ("float6_e2m3fn_bytes", (3,))
    assert logical_bytes(tensors["b"]) == b"\x06\x07\x08"


@pytest.mark.parametrize(("head", "content", "reason"), [
    ({"a": entry("F32", [2], 0, 8)}, bytes(7), "announces 8 bytes of content, 7 are stored"),
    ({"a": entry("F32", [2], 0, 8)}, bytes(9), "announces 8 bytes of content, 9 are stored"),
    ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, bytes(8), "where 8 was due"),
    ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 12, 16)}, bytes(16), "where 8 was due"),
    ({"a": entry("F32", [2], -8, 0)}, bytes(8), "where 0 was due"),
    (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8), "'a' is there twice"),
    (b'{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}', bytes(8), "'dtype' is there twice"),
    (b'{"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}}', bytes(8), "at tensor 'a'"),
    (b'{"a":{"dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,8]}}', bytes(8), "impossible shape"),
    (b'{"a":[]}', b"", "at tensor 'a'"), (b"[1, 2]", b"", "no JSON object"), (b"{", b"", "damaged"), (b'{"a":\xff}', b"", "damaged"),
    (b'{"__metadata__": {"a": 1}}', b"", "damaged"), (b"{" + b'"a":{' * 5_000, b"", "damaged"),
])  # fmt: skip
def test_heads_that_lie(tmp_path: Path, head: object, content: bytes, reason: str) -> None:
    assert reason in refusal(written(tmp_path / "a.safetensors", head, content))


@pytest.mark.parametrize(("lie", "reason"), [
    (entry("F32", [3], 0, 8), "needs 12 bytes, its offsets give 8"), (entry("Q7", [2], 0, 8), "'Q7'"),
    (entry("U8", [-2, -4], 0, 8), "impossible shape"), (entry("U8", [1] * 33 + [8], 0, 8), "34 axes"),
])  # fmt: skip
def test_one_tensor_that_lies(tmp_path: Path, lie: dict[str, object], reason: str) -> None:
    """The others are compared."""
    tensors, unread = read(written(tmp_path / "a.safetensors", {"a": lie, "b": entry("U8", [1], 8, 9)}, bytes(9)))
    assert set(tensors) == {"b"}
    assert reason in unread["a"]


def test_a_header_of_a_terabyte(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + b'{"a"')
    assert "1099511627776 bytes, the file has 12" in refusal(path)
    try:
        os.truncate(path, (1 << 40) + 100)
    except OSError:
        pytest.skip("this file system has no sparse files of a terabyte")
    assert "split the dump" in refusal(path)


def test_empty_and_tiny(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.touch()
    assert "0 bytes" in refusal(path)
    path.write_bytes(b"\x02\x00\x00")
    assert "the file has 3" in refusal(path)
    assert read(written(path, b"{}")) == ({}, {})


def test_a_link_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="is gone"):
        list(safetensors.read(tmp_path / "gone.safetensors"))


def test_half_a_character_in_a_name(tmp_path: Path) -> None:
    """Names go into tables and terminals: whatever is accepted can be encoded."""
    path = written(tmp_path / "a.safetensors", b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x")
    try:
        tensors, _unread = read(path)
    except ReadError as error:
        assert "damaged" in str(error)
    else:
        assert [key.encode() for key in tensors]
