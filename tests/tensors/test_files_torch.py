"""torch.save's files, both formats, read without torch: the samples are torch's own, and so are the digests."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from diag.tensors.dump import ReadError
from diag.tensors.files import torch_legacy, torch_zip
from tests.tensors.reading import cells, logical_bytes, read, refusal

DATA = Path(__file__).parent / "data" / "torch"
TOLD = json.loads((DATA / "expected.json").read_text())
EXPECTED, UNREAD = TOLD["files"], TOLD["unread"]


@pytest.mark.parametrize("name", EXPECTED)
def test_as_torch_writes_it(name: str) -> None:
    tensors, unread = read(DATA / name)
    assert set(tensors) == set(EXPECTED[name])
    assert set(unread) == set(UNREAD.get(name, []))
    for key, told in EXPECTED[name].items():
        tensor = tensors[key]
        assert (tensor.name, tensor.dtype, list(tensor.shape)) == (key or Path(name).stem, told["dtype"], told["shape"]), key
        assert hashlib.sha256(logical_bytes(tensor)).hexdigest() == told["sha256"], key


def test_content_stays_in_the_file() -> None:
    """Stored members and old files are ranges; only what is deflated or part of a pickle is loaded."""
    for name in EXPECTED:
        for key, tensor in read(DATA / name)[0].items():
            inside = name.startswith(("pickled", "types_deflated")) or key == "array"
            assert (tensor.load is not None) == inside, f"{name}#{key}"


def test_views_are_strides() -> None:
    tensors, _unread = read(DATA / "views.pt")
    assert tensors["transposed"].strides == (1, 40, 120)
    assert tensors["stepped"].strides == (120, 80, 3)
    assert tensors["expanded"].strides == (1, 0)
    assert tensors["slice"].strides == (40, 1)
    assert tensors["whole"].strides is None
    assert tensors["tail"].offset == tensors["whole"].offset + 120


def test_what_the_writer_notes() -> None:
    found = torch_zip.notes(DATA / "sglang.pt")
    assert found == {"meta.step": 3, "meta.rank": 1, "meta.name": "hidden", "meta.layer_id": 2, "meta.scale": 0.5}


def test_unusual_tensors_are_named() -> None:
    _tensors, unread = read(DATA / "unusual.pt")
    assert "conjugated" in unread["turned"]
    assert "sparse" in unread["sparse"]


def repacked(source: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The same archive with other members; None leaves one out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            content = change(info.filename, old.read(info))
            if content is not None:
                new.writestr(info.filename, content)
    return target


def test_big_endian(tmp_path: Path) -> None:
    """As a machine of the other byte order writes it: the storages swapped, and the archive says so."""

    def swapped(name: str, content: bytes) -> bytes:
        if name.endswith("byteorder"):
            return b"big"
        return np.frombuffer(content, "<f4").byteswap().tobytes() if "/data/" in name else content

    (tensor,) = read(repacked(DATA / "alone.pt", tmp_path / "alone.pt", swapped))[0].values()
    assert tensor.big_endian
    np.testing.assert_array_equal(cells(tensor), cells(read(DATA / "alone.pt")[0][""]))


def test_before_torch_told_its_byte_order(tmp_path: Path) -> None:
    old = repacked(DATA / "alone.pt", tmp_path / "alone.pt", lambda name, content: None if name.endswith(("byteorder", "alignment")) else content)
    assert logical_bytes(read(old)[0][""]) == logical_bytes(read(DATA / "alone.pt")[0][""])


@pytest.mark.parametrize(("change", "reason"), [
    (lambda name, content: content[:-4] if "/data/" in name else content, "announces a storage of 60 bytes, 56 are stored"),
    (lambda name, content: None if "/data/" in name else content, "no storage '0'"),
    (lambda name, content: None if name.endswith(".pkl") else content, "0 data.pkl"),
    (lambda name, content: content[:-9] if name.endswith(".pkl") else content, "ends at byte"),
    (lambda name, content: b"middle" if name.endswith("byteorder") else content, "byte order"),
    (lambda name, content: content.replace(b"FloatStorage", b"ForgeStorage"), "torch.ForgeStorage"),
    (lambda name, content: content.replace(b"K\x03K\x05\x86", b"K\x03K\x09\x86"), "of a storage of 60"),
    (lambda name, content: content.replace(b"K\x03K\x05\x86", b"J\xff\xff\xff\xffK\x05\x86"), "impossible shape"),
    (lambda name, content: content.replace(b"K\x05K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86"), "impossible layout"),
])  # fmt: skip
def test_archives_that_lie(tmp_path: Path, change: Callable[[str, bytes], bytes | None], reason: str) -> None:
    assert reason in refusal(repacked(DATA / "alone.pt", tmp_path / "a.pt", change))


def test_cut_short(tmp_path: Path) -> None:
    for name in ("alone.pt", "views_legacy.pt", "pickled_4.pkl"):
        whole = (DATA / name).read_bytes()
        path = tmp_path / name
        for length in (1, 30, len(whole) // 2, len(whole) - 3):
            path.write_bytes(whole[:length])
            assert refusal(path), f"{name} of {length} bytes was read"


def test_longer_than_it_says(tmp_path: Path) -> None:
    for name in ("views_legacy.pt", "pickled_4.pkl"):
        path = tmp_path / name
        path.write_bytes((DATA / name).read_bytes() + b"12345")
        tensors, unread = read(path)
        assert set(tensors) == set(EXPECTED[name])
        assert "5 bytes behind" in unread[""]


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("protocol", range(6))
def test_canary_pickle(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Evil(canary), protocol))
    assert "holds posix.system, which no tensor needs; not executed" in refusal(path)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["alone.pt", "sglang.pt"])
def test_canary_beside_tensors(tmp_path: Path, name: str) -> None:
    """In torch's archive, in front of what torch wrote: named, not executed; the tensors are read all the same."""
    canary = tmp_path / "canary"
    evil = pickle.dumps(Evil(canary), 2)[2:-1]

    def planted(member: str, content: bytes) -> bytes:
        return content[:2] + b"]" + evil + b"a0" + content[2:] if member.endswith(".pkl") else content

    tensors, unread = read(repacked(DATA / name, tmp_path / "evil.pt", planted))
    assert set(tensors) == set(EXPECTED[name])
    assert list(unread.values()) == ["holds posix.system, which no tensor needs; not executed"]
    assert not canary.exists()
    pickle.loads(pickle.dumps(Evil(canary)))
    assert canary.exists(), "the canary would not have shown an execution"


def test_tensors_inside_of_strange_objects(tmp_path: Path) -> None:
    """A dump of an application's own class: the class is named, its tensors are compared."""
    tensor = pickle.loads(pickle.dumps({"array": np.arange(6, dtype=np.float32)}))["array"]
    path = tmp_path / "object.pkl"
    text = pickle.dumps({"batch": Holder(tensor)})
    path.write_bytes(text)
    tensors, unread = read(path)
    assert set(tensors) == {"batch.held"}
    np.testing.assert_array_equal(cells(tensors["batch.held"]), tensor)
    assert "Holder" in unread["batch"]


class Holder:
    """Somebody's class."""

    def __init__(self, held: np.ndarray) -> None:
        self.held = held


def test_arrays_in_pickles(tmp_path: Path) -> None:
    values = {"big": np.arange(4, dtype=">i4"), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "text": np.array(["a"]), "number": np.float32(2.5)}
    for protocol in (2, 4, 5):
        path = tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps(values, protocol))
        tensors, unread = read(path)
        assert set(tensors) == {"big", "fortran"}
        assert set(unread) == {"text"}
        for key, tensor in tensors.items():
            np.testing.assert_array_equal(cells(tensor), values[key])


def test_one_object_under_two_names(tmp_path: Path) -> None:
    """Nothing is left out in silence, and a pickle that repeats itself a billion times costs nothing."""
    inner = {"x": np.arange(3)}
    value: object = {"a": inner, "b": inner}
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(value))
    tensors, unread = read(path)
    assert set(tensors) == {"a.x"}
    assert unread == {"b": "is the same object as a, which is compared"}
    laughs: list[object] = [np.arange(3)]
    for _ in range(50):
        laughs = [laughs, laughs]
    path.write_bytes(pickle.dumps(laughs))
    tensors, unread = read(path)
    assert len(tensors) == 1
    assert len(unread) == 50
    loop: list[object] = [np.arange(3)]
    loop.append(loop)
    path.write_bytes(pickle.dumps(loop))
    assert set(read(path)[0]) == {"0"}


def test_a_view_that_repeats_itself_for_ever(tmp_path: Path) -> None:
    def endless(name: str, content: bytes) -> bytes:
        return content.replace(b"K\x03K\x05\x86", b"\x8a\x05\x00\x00\x00\x00\x10K\x05\x86").replace(b"K\x05K\x01\x86", b"K\x00K\x01\x86")

    assert "repeats 60 stored bytes" in refusal(repacked(DATA / "alone.pt", tmp_path / "a.pt", endless))


def test_deep_and_endless_pickles(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    deep: object = np.arange(3)
    for _ in range(200):
        deep = [deep]
    path.write_bytes(pickle.dumps(deep))
    assert "deeper than 60 levels" in refusal(path)
    path.write_bytes(b"\x80\x02" + b"}" * 1_000_000 + b".")
    assert "operations" in refusal(path)
    path.write_bytes(b"\x80\x02(K\x01l.")
    assert "without any tensor" in refusal(path)


def test_many_views_of_one_storage(tmp_path: Path) -> None:
    """As a flattened model has them: far more tensors than storages."""

    def many(name: str, content: bytes) -> bytes:
        if not name.endswith(".pkl"):
            return content
        return content[:2] + b"}(" + b"".join(b"X\x04\x00\x00\x00%04d" % number + content[2:-1] for number in range(9_000)) + b"u."

    tensors, unread = read(repacked(DATA / "alone.pt", tmp_path / "a.pt", many))
    assert len(tensors) == 9_000
    assert not unread
    assert logical_bytes(tensors["8999"]) == logical_bytes(read(DATA / "alone.pt")[0][""])


def test_not_even_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "empty.pt").touch()
    for module in (torch_zip, torch_legacy):
        for name, reason in [("folder.pt", "is a folder"), ("empty.pt", "0 bytes"), ("gone.pt", "is gone")]:
            with pytest.raises(ReadError, match=reason):
                list(module.read(tmp_path / name))
    (tmp_path / "text.pt").write_text("no tensor at all")
    assert "no file that torch.save or pickle writes" in refusal(tmp_path / "text.pt")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("a.txt", "text")
    assert "0 data.pkl" in refusal(tmp_path / "other.pt")


def test_changed_between_reading_and_measuring(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"a": np.arange(3)}))
    (tensor,) = read(path)[0].values()
    path.write_bytes(pickle.dumps({"b": np.arange(3)}))
    assert tensor.load is not None
    with pytest.raises(ReadError, match="no longer there"):
        tensor.load()


def test_no_torch_is_imported() -> None:
    program = "import sys, pathlib; from diag.tensors.files import formats; [list(f.read(pathlib.Path(p))) for f in formats() if f.NAME == 'torch' for p in sys.argv[1:]]; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program, str(DATA / "types.pt")], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "False\n"


def test_members_of_64_bit_archives(tmp_path: Path) -> None:
    """zipfile writes 64 bit records when it does not know the size beforehand."""
    out = BytesIO()
    with zipfile.ZipFile(DATA / "alone.pt") as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            with new.open(zipfile.ZipInfo(info.filename), "w", force_zip64=True) as member:
                member.write(old.read(info))
    path = tmp_path / "a.pt"
    path.write_bytes(out.getvalue())
    assert logical_bytes(read(path)[0][""]) == logical_bytes(read(DATA / "alone.pt")[0][""])
