"""numpy's files: written by numpy itself, and damaged in the ways disks and interrupted dumps do."""

import hashlib
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from diag.tensors.dump import ReadError
from diag.tensors.files import npy, npz
from tests.tensors.reading import cells, logical_bytes, read, refusal

DATA = Path(__file__).parent / "data" / "numpy"
EXPECTED = json.loads((DATA / "expected.json").read_text())["arrays"]
LOST = json.loads((DATA / "lost.json").read_text())["files"][""]


def known(name: str) -> np.ndarray:
    """What numpy of the sample's author says is in it."""
    told = EXPECTED[name]
    values = np.array(told["values"])
    if told["dtype"].startswith("complex"):
        values = values[0] + 1j * values[1]
    return values.astype(told["dtype"]).reshape(told["shape"])


def written(header: str, content: bytes = b"") -> bytes:
    """A file with that between the braces of its header."""
    return b"\x93NUMPY\x01\x00" + (len(header) + 2).to_bytes(2, "little") + f"{{{header}}}".encode() + content


@pytest.mark.parametrize("name", EXPECTED)
def test_npy_as_numpy_writes_it(name: str) -> None:
    (tensor,) = read(DATA / f"{name}.npy")[0].values()
    assert (tensor.name, tensor.key, tensor.dtype, tensor.shape) == (name, "", EXPECTED[name]["dtype"], tuple(EXPECTED[name]["shape"]))
    assert tensor.big_endian == EXPECTED[name]["big_endian"]
    np.testing.assert_array_equal(cells(tensor), known(name))


@pytest.mark.parametrize("archive", ["stored.npz", "deflated.npz"])
def test_npz_as_numpy_writes_it(archive: str) -> None:
    tensors, unread = read(DATA / archive)
    assert set(tensors) == set(EXPECTED)
    assert not unread
    for name, tensor in tensors.items():
        assert (tensor.name, tensor.dtype, tensor.shape) == (name, EXPECTED[name]["dtype"], tuple(EXPECTED[name]["shape"]))
        assert (tensor.load is None) == (archive == "stored.npz"), f"{name}: stored members are ranges of the file, others are not"
        np.testing.assert_array_equal(cells(tensor), known(name))


def test_fortran_order_costs_no_copy() -> None:
    (tensor,) = read(DATA / "fortran.npy")[0].values()
    assert tensor.strides == (1, 3)


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", "opaque2"), ("float8_e4m3fn", "opaque1"), ("float8_e5m2", "float8_e5m2")])
def test_types_that_numpy_loses(name: str, dtype: str) -> None:
    """numpy writes V2 and V1 for what ml_dtypes adds, but f1 for float8_e5m2 and for nothing else."""
    (tensor,) = read(DATA / f"{name}.npy")[0].values()
    assert tensor.dtype == dtype
    assert hashlib.sha256(logical_bytes(tensor)).hexdigest() == LOST[name]["sha256"]


@pytest.mark.parametrize("name", ["version_2", "version_3"])
def test_later_versions(name: str) -> None:
    (tensor,) = read(DATA / f"{name}.npy")[0].values()
    np.testing.assert_array_equal(cells(tensor), known("float32"))


def test_several_arrays_in_one_file() -> None:
    tensors, unread = read(DATA / "appended.npy")
    assert [(tensor.name, key) for key, tensor in tensors.items()] == [("appended", ""), ("appended#1", "1")]
    assert not unread
    np.testing.assert_array_equal(cells(tensors["1"]), known("uint8"))


def test_other_writers_headers(tmp_path: Path) -> None:
    """Spacing, quotes, order and commas as C++, Rust and Julia libraries and Python 2 write them."""
    for number, header in enumerate([
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}",
        '{"descr":"<f4","fortran_order":False,"shape":(2,3,)}',
        "{'shape': (2L, 3L), 'fortran_order': False, 'descr': '<f4', }",
        "{ 'descr' : '<f4' , 'shape' : (2,3) , 'fortran_order' : False }",
    ]):  # fmt: skip
        path = tmp_path / f"{number}.npy"
        values = np.arange(6, dtype=np.float32)
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + values.tobytes())
        (tensor,) = read(path)[0].values()
        np.testing.assert_array_equal(cells(tensor), values.reshape(2, 3))


def test_objects_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {canary}",)

    path = tmp_path / "evil.npy"
    np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)
    assert "Python objects" in refusal(path)
    assert "nothing was executed" in refusal(path)
    np.savez(tmp_path / "evil.npz", fine=np.zeros(2), evil=np.array([Evil()], dtype=object))
    tensors, unread = read(tmp_path / "evil.npz")
    assert set(tensors) == {"fine"}
    assert "Python objects" in unread["evil"]
    assert not canary.exists()
    pickle.loads(pickle.dumps(Evil()))
    assert canary.exists(), "the canary would not have shown an execution"


@pytest.mark.parametrize(("array", "reason"), [
    (np.array(["a"]), "texts"), (np.array([b"a"]), "texts"), (np.array(["2025-01-01"], "M8[D]"), "dates"), (np.zeros(2, "V3"), "'|V3'"),
    (np.zeros(2, [("a", "<f4"), ("b", "<i2")]), "structured"), (np.zeros(2, np.longdouble), "'<f16'"),
])  # fmt: skip
def test_no_numbers(tmp_path: Path, array: np.ndarray, reason: str) -> None:
    np.save(tmp_path / "a.npy", array)
    assert reason in refusal(tmp_path / "a.npy")


def test_shorter_and_longer_than_announced(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 8), np.float32))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert "needs 128 bytes, 28 are stored" in refusal(path)
    path.write_bytes(whole[:60])
    assert "128 bytes are announced, 60 are stored" in refusal(path)
    path.write_bytes(whole[:7])
    assert "7 bytes are stored" in refusal(path)
    path.write_bytes(whole + b"extra")
    tensors, unread = read(path)
    assert set(tensors) == {""}
    assert "5 bytes behind" in unread[""]


def test_damaged_heads(tmp_path: Path) -> None:
    good = (DATA / "float32.npy").read_bytes()
    for damage, reason in [
        (good.replace(b"\x93NUMPY\x01", b"\x93NUMPY\x07"), "version 7.0"), (b"text" + good, "does not begin"),
        (good.replace(b"'descr'", b"'dexcr'"), "cannot be understood"), (good.replace(b"(3, 5)", b"(-3, 5)"), "cannot be understood"),
        (good.replace(b"'shape'", b"'descr'"), "cannot be understood"), (good.replace(b"False", b"None "), "cannot be understood"),
        (written("'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 33 + ")"), "33 axes"),
        (written("'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,)"), "impossible shape"),
        (written("'descr': '<f4', 'fortran_order': False, 'shape': (1,,)"), "impossible shape"),
        (written("'descr': '<f4', 'fortran_order': False"), "without shape"), (written("'descr': True, 'fortran_order': False, 'shape': ()"), "without descr"),
        (written(" " * 65_000 + "'descr'"), "cannot be understood"), (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "announces a header of"),
        (b"\x93NUMPY\x03\x00\x04\x00\x00\x00{\xff\xff}", "no text"),
    ]:  # fmt: skip
        path = tmp_path / "a.npy"
        path.write_bytes(damage)
        assert reason in refusal(path), damage[:80]


def test_sparse_terabyte(tmp_path: Path) -> None:
    """A huge file is described at once; one that announces more than it has is refused at once."""
    path = tmp_path / "huge.npy"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (274877906944,), }\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert f"needs {1 << 40} bytes, 0 are stored" in refusal(path)
    try:
        os.truncate(path, path.stat().st_size + (1 << 40))
    except OSError:
        pytest.skip("this file system has no sparse files of a terabyte")
    (tensor,) = read(path)[0].values()
    assert tensor.shape == (1 << 38,)


def test_not_even_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "empty.npy").touch()
    os.mkfifo(tmp_path / "pipe.npy")
    for name, reason in [("folder", "is a folder"), ("empty", "0 bytes"), ("pipe", "no regular file"), ("none", "is gone")]:
        for module, suffix in ((npy, "npy"), (npz, "npy")):
            with pytest.raises(ReadError, match=reason):
                list(module.read(tmp_path / f"{name}.{suffix}"))


def test_npz_members_that_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "odd.npz"
    good = (DATA / "float32.npy").read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.npy", good)
        archive.writestr("../outside.npy", good)
        archive.writestr("readme.txt", "text")
        link = zipfile.ZipInfo("link.npy")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("packed.npy", good, zipfile.ZIP_BZIP2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr("good.npy", good)
        archive.writestr("short.npy", good[:-4])
        archive.writestr("folder/", b"")
    tensors, unread = read(path)
    assert set(tensors) == {"good"}
    np.testing.assert_array_equal(cells(tensors["good"]), known("float32"))
    reasons = {"../outside": "leads out", "readme.txt": "no .npy file", "link": "a link", "packed": "bzip2", "good": "twice", "short": "56 are stored"}
    assert set(unread) == set(reasons)
    for key, reason in reasons.items():
        assert reason in unread[key], unread[key]


def test_npz_encrypted(tmp_path: Path) -> None:
    data = bytearray((DATA / "stored.npz").read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    tensors, unread = read(path)
    assert len(tensors) == len(EXPECTED) - 1
    assert ["encrypted" in reason for reason in unread.values()] == [True]


def test_npz_bombs(tmp_path: Path) -> None:
    """A member that announces what deflate cannot reach is not unpacked, nor one that unpacks to more than it announces."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros((1 << 20,), np.float32))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    honest = int.from_bytes(data[at + 24 : at + 28], "little")
    for announced, reason in [(0xFFFFFF00, "zip bomb"), (honest - 4, f"{honest - 132} are stored"), (honest + 4, "its header is damaged")]:
        data[at + 24 : at + 28] = announced.to_bytes(4, "little")
        path.write_bytes(data)
        assert reason in read(path)[1]["a"]
    short = written("'descr': '<f4', 'fortran_order': False, 'shape': (2,)", bytes(8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", short + bytes(1 << 20))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = len(short).to_bytes(4, "little")
    path.write_bytes(data)
    tensor = read(path)[0]["a"]
    assert tensor.load is not None
    with pytest.raises(ReadError, match="unpacks to more"):
        tensor.load()


def test_npz_large_member_is_unpacked_to_disk_once(tmp_path: Path) -> None:
    values = np.arange(1 << 19, dtype=np.float64)
    path = tmp_path / "large.npz"
    np.savez_compressed(path, a=values)
    (tensor,) = read(path)[0].values()
    assert tensor.load is not None
    first, second = tensor.load(), tensor.load()
    assert first.obj is second.obj, "it was unpacked twice"
    np.testing.assert_array_equal(np.frombuffer(first, np.float64), values)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 16] ^= 0xFF  # the checksum
    path.write_bytes(data)
    (tensor,) = read(path)[0].values()
    assert tensor.load is not None
    with pytest.raises(ReadError, match="checksum"):
        tensor.load()
    path.unlink()
    with pytest.raises(ReadError, match="is gone"):
        tensor.load()


def test_npz_cut_short(tmp_path: Path) -> None:
    data = (DATA / "stored.npz").read_bytes()
    path = tmp_path / "a.npz"
    path.write_bytes(data[:-30])
    assert "directory" in refusal(path)
    path.write_bytes(b"no zip at all")
    assert "not an .npz file" in refusal(path)
