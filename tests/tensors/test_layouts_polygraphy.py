"""RunResults as Polygraphy saves them (tests/oracle/polygraphy_files.py): described without decoding, decoded exactly."""

import base64
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.files import format_of, head_of, polygraphy
from diag.tensors.opening import open_dump
from tests.tensors.bytes_of import bytes_of

DATA = Path(__file__).parent / "data" / "polygraphy"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())


def values(tensor: Tensor) -> list[float]:
    return np.frombuffer(bytes_of(tensor), tensor.dtype).astype(np.float64).tolist()


@pytest.mark.parametrize("name", ["one.json", "two.json"])
def test_every_output_of_every_iteration(name: str) -> None:
    dump = open_dump(DATA / name, settle_s=0)
    assert dump.unread == (), dump.unread
    found = {f"{tensor.name}@{tensor.step}": tensor for tensor in dump.tensors}
    assert found.keys() == EXPECTED[name].keys()
    for key, facts in EXPECTED[name].items():
        tensor = found[key]
        assert (tensor.dtype, list(tensor.shape)) == (facts["dtype"], facts["shape"]), key
        np.testing.assert_array_equal(values(tensor), facts["values"], err_msg=key)
    assert {tensor.role for tensor in dump.tensors if tensor.name.endswith("k_cache")} == {"k"}


def test_it_is_recognised_by_its_words() -> None:
    path = DATA / "one.json"
    kind = format_of(path, head_of(path))
    assert kind is not None
    assert kind.NAME == "Polygraphy"
    assert not polygraphy.recognise(path, b'{"lst": 1}')


def document(array: str, **more: Any) -> str:
    return json.dumps({"lst": [["r", [{"outputs": {"x": {"values": {"array": array, "polygraphy_class": "ndarray"}}}}]]], **more})


def test_describing_and_loading_stay_small(tmp_path: Path) -> None:
    size = 32 << 20
    head = b"\x93NUMPY\x01\x00v\x00" + f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size // 4},), }}".ljust(117).encode() + b"\n"
    path = tmp_path / "big.json"
    path.write_text(document(base64.b64encode(head + bytes(size)).decode()))
    tracemalloc.start()
    try:
        (tensor,) = polygraphy.read(path)
        described = tracemalloc.get_traced_memory()[1]
        assert isinstance(tensor, Tensor)
        assert tensor.load is not None
        content = tensor.load()
        loaded = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(content) == size
    assert described < 1 << 20, described
    assert loaded < size + (8 << 20), loaded


@pytest.mark.parametrize(("text", "says"), [
    ('{"lst": [["r", [{"outputs": {"x": {"array": "k05V', "ends inside of a string"),
    ('{"lst": [["r"', "damaged or cut short"),
    ('{"outputs": 3}', "no list of runners"),
    ('{"lst": ' + "[" * 200_000, "nested too deep"),
])  # fmt: skip
def test_a_broken_document_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ReadError, match=says):
        list(polygraphy.read(path))


@pytest.mark.parametrize(("array", "says"), [
    ("QUJD" * 60, "does not begin as numpy's files do"),
    (base64.b64encode(b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(118) + bytes(4)).decode()[:-1], "it was cut"),
    (base64.b64encode(b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(118) + bytes(4)).decode(), "needs 8 bytes, 4 are stored"),
    ("\x00blob:0:99999999", "inside of its header|does not begin|damaged base64|cut"),
    ("\x00blob:5:100", "does not begin|damaged base64|inside of its header"),
    ("short", "no array of numpy's form"),
    ("*" * 400, "damaged base64"),
])  # fmt: skip
def test_a_broken_array_is_an_unread_of_its_own(tmp_path: Path, array: str, says: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(document(array))
    (item,) = polygraphy.read(path)
    assert isinstance(item, Unread)
    assert any(one in item.reason for one in says.split("|")), item.reason
    assert item.source == f"{path}#r/0/x"


def test_a_file_that_changed_gives_no_wrong_bytes(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    text = (DATA / "one.json").read_text()
    path.write_text(text)
    tensor = next(item for item in polygraphy.read(path) if isinstance(item, Tensor) and item.name == "k_cache")
    path.write_text(text[:600])
    assert tensor.load is not None
    with pytest.raises(ReadError):
        tensor.load()
