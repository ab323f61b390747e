"""Values as real libraries write them -> facts, without executing anything."""

import collections
import datetime
import importlib
import json
import os
import pickle
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag.decode import DECODER_FAILED, codecs, decode, numbers
from diag.decode.dtypes import widen

DATA = Path(__file__).parent / "data"
ARRAY = np.random.default_rng(0).normal(size=(3, 64))
PROTOCOLS = range(6)


class Canary:
    """Unpickling this would create a file."""

    path = "unset"

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


class Item:
    """A cache item as services write it."""

    def __init__(self, data: bytes, checksum: int) -> None:
        self.version = "v2"
        self.data = data
        self.checksum = checksum
        self.created_at = 1_700_000_000.5


def test_every_codec_has_the_shape_of_one() -> None:
    found = codecs()
    assert [codec.NAME for codec in found][-1] == "raw"
    for codec in found:
        assert isinstance(codec.ORDER, int)
        assert callable(codec.sniff) and callable(codec.decode)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", "<i8", "|i1", "|u1", "|b1", "<c8"])
def test_numpy_arrays_of_all_protocols(protocol: int, dtype: str) -> None:
    array = (ARRAY * 3).astype(dtype)
    found = decode(pickle.dumps(array, protocol))
    assert (found.codec, found.dtype, found.shape) == ("pickle", array.dtype.name, (3, 64))
    assert found.array is not None
    assert np.array_equal(found.array, array)
    assert found.problem is None and found.trailing_bytes == 0 and found.foreign == ()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fortran_order_scalars_and_empty_arrays(protocol: int) -> None:
    turned = ARRAY.astype("<f4").T
    found = decode(pickle.dumps(turned, protocol))
    assert found.array is not None and np.array_equal(found.array, turned)
    scalar = decode(pickle.dumps(np.float32(2.5), protocol))
    assert scalar.shape == () and scalar.array is not None and float(scalar.array) == 2.5
    empty = decode(pickle.dumps(np.zeros((0, 512), "f4"), protocol))
    assert empty.shape == (0, 512) and empty.problem is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_in_dicts_lists_and_objects_are_found(protocol: int) -> None:
    small, large = np.arange(3, dtype="f4"), ARRAY.astype("f2")
    value = {"meta": ["a text", {"deep": (small,)}], "embedding": large, "n": 7}
    found = decode(pickle.dumps(value, protocol))
    assert [array.shape for array in found.arrays] == [(3, 64), (3,)]
    assert found.texts == ("a text",)
    assert found.keys == ("meta", "embedding", "n")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cache_items_tell_version_age_and_checksum(protocol: int) -> None:
    data = pickle.dumps(ARRAY.astype("f2"), protocol)
    good = decode(pickle.dumps(Item(data, zlib.crc32(data)), protocol))
    assert good.wrapper is not None
    assert (good.wrapper.kind, good.wrapper.version, good.wrapper.created_at) == ("Item", "v2", 1_700_000_000.5)
    assert good.wrapper.crc_ok is True
    assert good.dtype == "float16" and good.shape == (3, 64)
    assert good.foreign == (f"{__name__}.Item",)
    bad = decode(pickle.dumps(Item(data, zlib.crc32(data) ^ 1), protocol))
    assert bad.wrapper is not None and bad.wrapper.crc_ok is False
    inner = decode(pickle.dumps(Item(data[:-40], zlib.crc32(data)), protocol))
    assert inner.problem is not None and inner.detail.startswith("inside: ")


def test_hand_written_raw_arrays_and_lists_of_floats() -> None:
    raw = {"shape": [3, 64], "dtype": "float32", "data": ARRAY.astype("<f4").tobytes()}
    found = decode(pickle.dumps(raw))
    assert (found.dtype, found.shape) == ("float32", (3, 64))
    assert decode(pickle.dumps({**raw, "shape": [4, 64]})).problem == "corrupt"
    listed = decode(json.dumps({"embedding": ARRAY[0].tolist(), "model": "m"}).encode())
    assert listed.codec == "json" and listed.shape == (64,) and listed.texts == ("m",)
    assert decode(pickle.dumps(ARRAY.tolist())).shape == (3, 64)


def test_plain_values_of_daily_use_are_not_foreign() -> None:
    value = [
        collections.OrderedDict(a=1), datetime.datetime(2024, 1, 1), {1, 2}, frozenset("ab"), 3 + 4j, bytearray(b"x"),
        collections.Counter("aab"), 10**200, -5, 1.5, None, True,
    ]  # fmt: skip
    for protocol in PROTOCOLS:
        found = decode(pickle.dumps(value, protocol))
        assert found.problem is None and found.foreign == (), protocol


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_torch_tensors_inside_pickles(protocol: int) -> None:
    expected = np.load(DATA / "torch_expected.npy")
    found = decode((DATA / f"torch_f32_p{protocol}.pickle").read_bytes())
    assert found.array is not None and np.array_equal(found.array, expected)
    assert found.foreign == () and found.problem is None


@pytest.mark.parametrize(
    ("name", "dtype", "error"),
    [
        ("torch_bf16_p4.pickle", "bfloat16", 2e-2),
        ("torch_f8_p4.pickle", "float8_e4m3fn", 0.13),
        ("torch_f16_t_p4.pickle", "float16", 2e-3),
        ("torch_param_p4.pickle", "float32", 0.0),
        ("torch_save_legacy.pt", "float32", 0.0),
    ],
)
def test_torch_types_and_layouts(name: str, dtype: str, error: float) -> None:
    expected = np.load(DATA / "torch_expected.npy")
    found = decode((DATA / name).read_bytes())
    assert found.main is not None and found.dtype == dtype
    values = numbers(found.main)
    assert values is not None
    values = values.T if found.shape == (8, 4) else values
    assert np.abs(values.astype("f8") - expected).max() <= error


def test_types_numpy_lacks_are_widened_by_their_definition() -> None:
    cases = {
        "bfloat16": (b"\x80\x3f\x80\xff\xc0\x7f", [1.0, -np.inf, np.nan]),
        "float8_e4m3fn": (bytes([0x38, 0x7E, 0x7F, 0x01, 0xB8]), [1.0, 448.0, np.nan, 2**-9, -1.0]),
        "float8_e5m2": (bytes([0x3C, 0x7B, 0x7C, 0x7D, 0x01]), [1.0, 57344.0, np.inf, np.nan, 2**-16]),
        "float8_e4m3fnuz": (bytes([0x40, 0x7F, 0x80]), [1.0, 240.0, np.nan]),
        "float8_e5m2fnuz": (bytes([0x40, 0x7F, 0x80]), [1.0, 57344.0, np.nan]),
    }
    for name, (data, expected) in cases.items():
        found = widen(data, name)
        assert found is not None
        assert np.array_equal(found, np.array(expected, "f4"), equal_nan=True), name


def test_npy_whole_cut_and_damaged(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(ARRAY.astype("f4")))
    data = (tmp_path / "a.npy").read_bytes()
    whole = decode(data)
    assert whole.codec == "npy" and whole.array is not None and np.array_equal(whole.array, ARRAY.astype("f4"))
    cut = decode(data[:-5])
    assert (cut.problem, cut.shape, cut.needs_bytes) == ("truncated", (3, 64), len(data))
    assert decode(data[:9]).problem == "truncated"
    assert decode(data.replace(b"(3, 64)", b"(3, -4)")).problem == "corrupt"
    assert decode(data.replace(b"<f4", b"<f3")).problem == "corrupt"


def test_what_torch_saves_is_read_and_damage_seen() -> None:
    expected = np.load(DATA / "torch_expected.npy")
    data = (DATA / "torch_save.pt").read_bytes()
    found = decode(data)
    assert (found.codec, found.dtype) == ("torch", "float32")
    assert found.array is not None and np.array_equal(found.array, expected)
    assert decode(data[:-50]).problem == "truncated"
    at = data.index(expected.tobytes())
    assert decode(data[:at] + b"\xff" + data[at + 1 :]).problem == "corrupt"
    legacy = (DATA / "torch_save_legacy.pt").read_bytes()
    cut = decode(legacy[:-5])
    assert (cut.problem, cut.needs_bytes) == ("truncated", len(legacy))


def test_safetensors_are_read_and_damage_seen() -> None:
    body = ARRAY.astype("<f4").tobytes() + b"\x80\x3f" * 2
    table = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [3, 64], "data_offsets": [0, 768]},
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [768, 772]},
    }
    head = json.dumps(table).encode()
    data = len(head).to_bytes(8, "little") + head + body
    found = decode(data)
    assert [(a.dtype, a.shape) for a in found.arrays] == [("float32", (3, 64)), ("bfloat16", (2,))]
    assert found.array is not None and np.array_equal(found.array, ARRAY.astype("<f4"))
    second = numbers(found.arrays[1])
    assert second is not None and second.tolist() == [1.0, 1.0]
    cut = decode(data[:-1])
    assert (cut.problem, cut.needs_bytes) == ("truncated", len(data))
    assert decode(data.replace(b"[3, 64]", b"[3, 65]")).problem == "corrupt"


@pytest.mark.parametrize("name", ["zlib", "gzip", "lzma", "bz2"])
def test_compressed_values_are_opened_under_a_cap(name: str) -> None:
    compress = importlib.import_module(name).compress
    data = compress(pickle.dumps(ARRAY))
    found = decode(data)
    assert found.codec.endswith("+pickle") and found.shape == (3, 64) and found.problem is None
    assert decode(data[:-10]).problem == "truncated"
    assert decode(compress(compress(compress(b"None")))).is_none
    bomb = decode(compress(bytes(100 << 20)))
    assert bomb.arrays == () and bomb.problem is None and "more than" in bomb.detail


def test_a_raw_buffer_that_begins_like_zlib_is_raw() -> None:
    assert decode(b"\x78\x9c" + bytes(range(200))).codec == "raw"


@pytest.mark.parametrize(
    ("value", "codec", "field"),
    [
        (b"", "empty", "is_empty"),
        (b"None", "text", "is_none"),
        (b" null\n", "text", "is_none"),
        (pickle.dumps(None), "pickle", "is_none"),
        (pickle.dumps(None, 0), "pickle", "is_none"),
        (pickle.dumps({}), "pickle", "is_empty"),
        (b"{}", "json", "is_empty"),
        (b'{"error": {"message": "boom"}}', "json", "error"),
        (b"Traceback (most recent call last):\n  File", "text", "error"),
        (pickle.dumps(ValueError("x")), "pickle", "error"),
    ],
)
def test_values_that_hold_nothing_or_an_error(value: bytes, codec: str, field: str) -> None:
    found = decode(value)
    assert found.codec == codec
    assert getattr(found, field)


@pytest.mark.parametrize("text", ["[INFO] started", "{name} said", "{'a'} of it", "I am fine.", "Nice.", "[1] Ref", "S."])
def test_text_that_begins_like_something_else_is_text(text: str) -> None:
    found = decode(text.encode())
    assert (found.codec, found.problem, found.texts) == ("text", None, (text,))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_cut_of_a_value_passes_for_whole(protocol: int) -> None:
    data = pickle.dumps({"a": ARRAY[:1, :16].astype("f2"), "t": "x" * 30, "l": [1.5, 2.5]}, protocol)
    passed = [n for n in range(40, len(data)) if decode(data[:n]).problem != "truncated"]
    assert passed == []
    body = json.dumps({"a": [1.5, -2e-9, True, None], "t": "ü" + "x" * 30}).encode()
    assert [n for n in range(1, len(body)) if decode(body[:n]).problem != "truncated"] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_that_would_touch_a_file_touches_none(protocol: int, tmp_path: Path) -> None:
    canary = Canary()
    canary.path = str(tmp_path / "touched")
    wrapped = pickle.dumps({"x": [pickle.dumps(canary, protocol), canary]}, protocol)
    for value in (pickle.dumps(canary, protocol), wrapped):
        found = decode(value)
        assert any(name.endswith(".open") for name in found.foreign)
    assert list(tmp_path.iterdir()) == []
    pickle.loads(pickle.dumps(canary, protocol)).close()
    assert (tmp_path / "touched").exists(), "the canary works"


def test_hostile_sizes_cost_nothing() -> None:
    huge = (1 << 62).to_bytes(8, "little")
    values = [
        b"\x80\x04\x8e" + huge + b"x", b"\x80\x04\x95" + huge, b"\x80\x04\x8b\xff\xff\xff\x7f",
        b"\x80\x05\x96" + huge, b"\x80\x04" + b"(" * 100_000, b"\x80\x04]" + b"h\x00a" * 50_000 + b".",
        b"\x80\x04N" + b"\x85" * 150_000 + b".", b"\x80\x04(" + b"N2" * 90_000 + b"t.",
        b"[" * 200_000, b'{"a":' * 100_000, b"cos\nsystem\n(" + b"I1\n" * 100_000,
        b"\x80\x04]" + b"\x94(h\x00h\x00e" * 30_000 + b".",
    ]  # fmt: skip
    spent = time.process_time()
    for value in values:
        decode(value)
    assert time.process_time() - spent < 10


def _samples() -> list[bytes]:
    array = ARRAY[:1, :8].astype("f2")
    values: list[Any] = [array, {"a": array, "b": ["text", None, 2.5]}, np.float32(1), Item(b"\x80\x04N.", 3)]
    pickles = [pickle.dumps(value, protocol) for value in values for protocol in PROTOCOLS]
    head = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    other = [len(head).to_bytes(8, "little") + head + bytes(8), zlib.compress(pickles[4]), json.dumps([0.5] * 9).encode()]
    return [*pickles, *other, *(path.read_bytes() for path in sorted(DATA.glob("torch_*")))]


SAMPLES = _samples()


@settings(max_examples=3000 if os.environ.get("LLMDIAG_SWEEP") == "full" else 800, deadline=1000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_values_never_break_the_decoder(data: st.DataObject) -> None:
    value = bytearray(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(value) - 1))
        match data.draw(st.sampled_from(["flip", "insert", "delete", "repeat", "cut"])):
            case "flip":
                value[at] = data.draw(st.integers(0, 255))
            case "insert":
                value[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "delete":
                del value[at : at + data.draw(st.integers(1, 9))]
            case "repeat":
                value[at:at] = value[: data.draw(st.integers(1, 64))]
            case "cut":
                del value[at:]
        if not value:
            break
    found = decode(bytes(value))
    assert DECODER_FAILED not in found.detail
    for array in found.arrays:
        values: npt.NDArray[Any] | None = numbers(array)
        assert values is None or values.size <= 64 * len(value) + 1


class NotedArray(np.ndarray):  # type: ignore[type-arg]
    """An array with something of its own in its state, as subclasses have."""

    note = ""

    def __reduce__(self) -> Any:
        rebuild, args, state = super().__reduce__()
        return rebuild, args, (*state, self.note)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_state_of_an_array_subclass_is_read_and_its_texts_are_seen(protocol: int) -> None:
    value = np.ones((2, 3), np.float32).view(NotedArray)
    value.note = "photo-skipped"
    found = decode(pickle.dumps(value, protocol))
    assert (found.problem, found.shape, found.dtype) == (None, (2, 3), "float32")
    assert "photo-skipped" in found.texts
