"""Raw files with a description beside them, and the names of element types."""

import json
from pathlib import Path

import numpy as np
import pytest

from diag.decode.dtypes import itemsize as decoded_itemsize
from diag.tensors import elements
from diag.tensors.files import formats
from tests.tensors.reading import cells, read, refusal

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def described(folder: Path, content: bytes, told: object, beside: str = "a.json") -> Path:
    path = folder / "a.bin"
    path.write_bytes(content)
    (folder / beside).write_text(told if isinstance(told, str) else json.dumps(told))
    return path


@pytest.mark.parametrize(("content", "told"), [
    (VALUES.tobytes(), {"dtype": "float32", "shape": [2, 3]}),
    (VALUES.tobytes(), {"dtype": "torch.float32", "shape": [2, 3], "order": "C", "byteorder": "little", "written_by": "me"}),
    (VALUES.tobytes("F"), {"dtype": "<f4", "shape": [2, 3], "order": "F"}),
    (VALUES.astype(">f4").tobytes(), {"dtype": "float", "shape": [2, 3], "byteorder": "big"}),
    (b"head" + VALUES.tobytes(), {"dtype": "F32", "shape": [2, 3], "offset": 4}),
])  # fmt: skip
def test_described(tmp_path: Path, content: bytes, told: dict[str, object]) -> None:
    for beside in ("a.json", "a.bin.json"):
        (tensor,) = read(described(tmp_path, content, told, beside))[0].values()
        assert (tensor.name, tensor.dtype) == ("a", "float32")
        np.testing.assert_array_equal(cells(tensor), VALUES)


def test_codes(tmp_path: Path) -> None:
    (tensor,) = read(described(tmp_path, bytes(8), {"dtype": "bfloat16", "shape": [2, 2]}))[0].values()
    assert (tensor.dtype, tensor.shape) == ("bfloat16", (2, 2))
    (tensor,) = read(described(tmp_path, bytes(8), {"dtype": "int4", "shape": [4, 4]}))[0].values()
    assert (tensor.dtype, tensor.shape) == ("int4_x2", (4, 2))


@pytest.mark.parametrize(("told", "reason"), [
    ({"dtype": "float32", "shape": [2, 4]}, "needs 32 bytes, 24 are stored"), ({"dtype": "float32", "shape": [2, 2]}, "needs 16"),
    ({"dtype": "f4", "shape": [6]}, "unknown dtype 'f4'"), ({"dtype": "object", "shape": [6]}, "unknown dtype"), ({"shape": [6]}, "dtype"),
    ({"dtype": "float32", "shape": [6], "order": "K"}, "order"), ("{", "a.json, which cannot be read"), ({"dtype": "uint8", "shape": [-6]}, "impossible"),
    ({"dtype": "uint8", "shape": [1], "offset": 99}, "offset of 99"), ({"dtype": "uint8", "shape": [1], "offset": -1}, "offset of -1"), ([1], "object"),
    ("x" * 70_000, "more than 65536"), ("", "0 bytes"),
])  # fmt: skip
def test_descriptions_that_do_not_fit(tmp_path: Path, told: object, reason: str) -> None:
    assert reason in refusal(described(tmp_path, VALUES.tobytes(), told))


def test_without_a_description(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(8))
    assert 'write a.bin.json like {"dtype"' in refusal(tmp_path / "a.bin")
    (tmp_path / "a.bin").write_bytes(b"")
    assert "0 bytes" in refusal(tmp_path / "a.bin")


@pytest.mark.parametrize("name", elements.NAMES)
def test_every_type_has_one_size(name: str) -> None:
    kind = elements.numpy_dtype(name)
    if name == "complex128":
        with pytest.raises(KeyError):
            elements.code_dtype(name)
    else:
        assert elements.code_dtype(name).itemsize == elements.itemsize(name)
    assert kind is None or (kind.name == name and kind.itemsize == elements.itemsize(name))
    assert elements.stored(name, (3, 2)) == (name, (3, 2))
    assert elements.named(name) == (None if name.startswith("opaque") else name) or elements.named(name) == name
    if not elements.is_opaque(name):
        assert decoded_itemsize(name) == elements.itemsize(name)


@pytest.mark.parametrize(("text", "name"), [
    ("torch.half", "float16"), ("BF16", "bfloat16"), ("<f4", "float32"), (">i8", "int64"), ("|b1", "bool"), ("<U4", None), ("<u4", "uint32"),
    ("F8_E4M3", "float8_e4m3fn"), ("torch.float8_e5m2", "float8_e5m2"), ("i8", None), ("f4", None), ("", None), ("<", None), ("ml_dtypes.bfloat16", "bfloat16"),
    ("ComplexDouble", "complex128"), ("torch.uint16", "uint16"), ("int4", "int4"), ("object", None), ("str", None), ("m8", None),
])  # fmt: skip
def test_names_of_other_programs(text: str, name: str | None) -> None:
    assert elements.named(text) == name


@pytest.mark.parametrize(("name", "shape", "stored"), [
    ("int4", (4, 8), ("int4_x2", (4, 4))), ("int4", (4, 7), ("int4_x2", (14,))), ("int4", (3, 1), ("int4_x2", (2,))), ("uint1", (), ("uint1_x8", (1,))),
    ("float6_e2m3fn", (2, 4), ("float6_e2m3fn_bytes", (2, 3))), ("float4_e2m1fn", (0, 8), ("float4_e2m1fn_x2", (0, 4))),
])  # fmt: skip
def test_types_smaller_than_a_byte(name: str, shape: tuple[int, ...], stored: tuple[str, tuple[int, ...]]) -> None:
    assert elements.stored(name, shape) == stored
    with pytest.raises(KeyError):
        elements.itemsize(name)


def test_unknown_types() -> None:
    for call in (elements.itemsize, elements.code_dtype, lambda name: elements.stored(name, (1,))):
        with pytest.raises(KeyError):
            call("float128")
    assert elements.numpy_dtype("float128") is None


def test_no_format_takes_what_is_none(tmp_path: Path) -> None:
    """Recognising is pure: any name, any head."""
    for name in ("a", "a.txt", "dump.json", "a.csv"):
        for head in (b"", b"\x00", b"text", b"PK\x03\x04", b"\x80", b'{"a": 1}' * 100, b"\xff" * 4096):
            assert not [item.NAME for item in formats() if item.recognise(tmp_path / name, head)], (name, head[:10])
