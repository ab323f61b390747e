"""Tensors as they lie in files: strides, byte order, offsets that are not aligned, unpacked content, files cut short; digests; memory."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from diag.tensors.dump import ReadError, Tensor
from diag.tensors.measure import content, digests, measure_one, measure_pair
from diag.tensors.measure.widening import kind_of
from tests.tensors.measured import PRECISION, WAYS, check, go, slowly, stored

VIEWS = {
    "transposed": lambda a: a.transpose(2, 0, 1),
    "fortran": lambda a: np.asfortranarray(a),
    "sliced": lambda a: a[:, 1::2, 3:],
    "backwards": lambda a: a[::-1, :, ::-3],
    "repeated": lambda a: np.broadcast_to(a[:1], (7, *a.shape[1:])),
    "one column": lambda a: a[:, :, 5],
}


@pytest.fixture
def cells() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(9, 40, 60)).astype(np.float32)


def described(folder: Path, name: str, view: np.ndarray[Any, Any], whole: np.ndarray[Any, Any], **more: Any) -> Tensor:
    """A numpy view as a tensor over the file of its base."""
    size = whole.itemsize
    first = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    tensor = stored(folder, name, whole.ravel(order="K"), whole.dtype.name, shape=view.shape, strides=tuple(step // size for step in view.strides), **more)
    return replace(tensor, offset=tensor.offset + first)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", VIEWS)
def test_views_are_read_in_logical_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: np.ndarray[Any, Any], way: str, kind: str) -> None:
    go(way, monkeypatch)
    base = np.asfortranarray(cells) if kind == "fortran" else cells
    view = base if kind == "fortran" else VIEWS[kind](base)
    tensor = described(tmp_path, "view", view, base)
    assert np.array_equal(content(tensor), view)
    plain = np.ascontiguousarray(view) * np.float32(1.001)
    found = measure_pair(tensor, stored(tmp_path, "plain", plain), segment_elements=5000, row_elements=100)
    x, y = view.reshape(-1).astype(float), plain.reshape(-1).astype(float)
    check(found.whole, slowly(x, y, kind_of("float32").tiny), PRECISION[way])
    for part in found.segments:
        begin = part.index * 5000
        check(part, slowly(x[begin : begin + 5000], y[begin : begin + 5000], kind_of("float32").tiny, begin), PRECISION[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "complex64"])
def test_byte_order_and_odd_offsets_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str) -> None:
    go(way, monkeypatch)
    native = np.random.default_rng(1).normal(size=20_000).astype(np.float32)
    cells = (native.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else (native * 100).astype(dtype)
    little = stored(tmp_path, "little", cells, dtype, lead=13)
    big = stored(tmp_path, "big", cells.astype(cells.dtype.newbyteorder(">")), dtype, lead=7, big_endian=True)
    found = measure_pair(little, big, segment_elements=4000)
    assert found.whole.difference.equal_bits and found.whole.good == found.whole.bad
    aligned = stored(tmp_path, "aligned", cells, dtype)
    assert found == measure_pair(aligned, aligned, segment_elements=4000) or list(found.segments) == list(measure_pair(aligned, aligned, segment_elements=4000).segments)
    assert digests(little, 1000) == digests(big, 1000) == digests(aligned, 1000)
    assert np.array_equal(content(big), cells) and content(big).dtype.byteorder == ">"


def test_unpacked_content(tmp_path: Path, cells: np.ndarray[Any, Any]) -> None:
    packed = Tensor("z", "float32", cells.shape, tmp_path / "nowhere.npz", load=lambda: memoryview(cells.tobytes()))
    assert measure_pair(packed, stored(tmp_path, "a", cells)).whole.difference.equal_bits
    turned = replace(packed, shape=cells.shape[::-1], strides=(1, 60, 2400))
    assert np.array_equal(content(turned), cells.T)
    assert not content(turned).flags.writeable
    with pytest.raises(ReadError, match="unpacks to 10 bytes"):
        measure_one(replace(packed, load=lambda: memoryview(bytes(10))))


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (10_001,)},
        {"offset": 1},
        {"strides": (2,)},
        {"strides": (-1,)},
        {"shape": (100, 100), "strides": (100,)},
        {"shape": (1 << 40,), "strides": (0,)},
        {"offset": -1},
        {"file": Path("/nowhere/at/all")},
    ],
)
def test_what_does_not_fit_its_file_is_an_error_of_the_dump(tmp_path: Path, wrong: dict[str, Any]) -> None:
    good = stored(tmp_path, "a", np.zeros(10_000, np.float32))
    for measure in (content, measure_one, lambda tensor: digests(tensor, 10), lambda tensor: measure_pair(tensor, tensor)):
        with pytest.raises(ReadError):
            measure(replace(good, **wrong))


def test_a_file_cut_short_while_it_is_read(tmp_path: Path) -> None:
    size = 3_000_000
    good, bad = (stored(tmp_path, name, np.ones(size, np.float32)) for name in "ab")

    def cut() -> memoryview:
        with bad.file.open("r+b") as file:
            file.truncate(size)
        return memoryview(np.ones(size, np.float32)).cast("B")

    late = replace(good, load=cut)  # opened after bad: the cut comes between its check and its reading
    with pytest.raises(ReadError, match="cut short while"):
        measure_pair(bad, late)


@pytest.mark.parametrize("unit", [1, 7, 1000, 300_000, 1 << 22])
def test_digests(tmp_path: Path, unit: int) -> None:
    cells = np.random.default_rng(1).integers(0, 255, (600, 1000)).astype(np.uint8)
    if unit < 100:
        cells = cells[:10]
    told = [xxhash.xxh3_128_digest(cells.reshape(-1)[begin : begin + unit].tobytes()) for begin in range(0, cells.size, unit)]
    assert digests(stored(tmp_path, "a", cells), unit) == told
    view = described(tmp_path, "turned", cells.T, cells)
    turned = np.ascontiguousarray(cells.T).reshape(-1)
    assert digests(view, unit) == [xxhash.xxh3_128_digest(turned[begin : begin + unit].tobytes()) for begin in range(0, cells.size, unit)]


def test_digests_of_units_of_many_megabytes(tmp_path: Path) -> None:
    cells = np.random.default_rng(1).normal(size=700_000)
    assert digests(stored(tmp_path, "a", cells), 400_000) == [xxhash.xxh3_128_digest(part.tobytes()) for part in (cells[:400_000], cells[400_000:])]


MEMORY = """
import sys
from pathlib import Path
from diag.tensors.dump import Tensor
from diag.tensors.measure import measure_pair, ways, Segment
numbers, dtype, fused, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "fused", Path(sys.argv[4])
ways.SINGLE_FROM, ways.FUSED_FROM = 0, 0 if fused else 1 << 60
def pair(count):
    return [Tensor(name, dtype, (count,), folder / name) for name in "ab"]
def anonymous_kb():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])
measure_pair(*pair(1000))  # imports, and numba where it is asked for
import threading
peak, before, done = [0], anonymous_kb(), threading.Event()
def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous_kb())
watcher = threading.Thread(target=watch)
watcher.start()
found = measure_pair(*pair(numbers), segment_elements=16384, row_elements=1024)
peak[0] = max(peak[0], anonymous_kb())
done.set()
watcher.join()
print(peak[0] - before, found.whole.difference.mismatch, len(found.segments), len(found.rows))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """256 MB a side."""
    folder, size = tmp_path_factory.mktemp("large"), 1 << 26
    noise = np.random.default_rng(1).normal(size=1 << 20).astype(np.float32)
    for name in "ab":
        with (folder / name).open("wb") as file:
            for part in range(size >> 20):
                noise[0] = part if name == "a" else -part - 1
                noise.tofile(file)
    yield folder, size
    for name in "ab":
        (folder / name).unlink()


@pytest.mark.parametrize("way", ["double", "single", "fused"])
def test_memory_does_not_grow_with_the_tensor(large: tuple[Path, int], way: str) -> None:
    if way == "fused":
        pytest.importorskip("numba")
    folder, size = large
    numbers, dtype = (size // 2, "float64") if way == "double" else (size, "float32")
    done = subprocess.run([sys.executable, "-c", MEMORY, str(numbers), dtype, way, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown_kb, mismatch, segments, rows = map(int, done.stdout.split())
    assert grown_kb < 100_000, f"{grown_kb} KB for a pair of {size * 4 >> 20} MB"
    assert (mismatch, segments, rows) == (64, numbers // 16384, numbers // 1024)
