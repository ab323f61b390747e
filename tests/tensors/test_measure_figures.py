"""Figures of pairs against numpy in extended precision: every way, element types, sizes around the edges of cells."""

from pathlib import Path

import numpy as np
import pytest

from diag.tensors.measure import measure_one, measure_pair
from diag.tensors.measure import streaming as ways_streaming
from diag.tensors.measure.widening import kind_of
from tests.tensors.measured import PRECISION, WAYS, check, go, slowly, stored, values

FLOATS = ["float32", "float16", "bfloat16"]
OTHERS = ["float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "bool", "complex64", "complex128"]
SIZES = [1, 2, 63, 2047, 2049, 4095, 4096, 4097, 8193, 40_003]


def cells_of(dtype: str, size: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Numbers of a type with some zeros, as its native cells."""
    noise = np.random.default_rng(seed)
    if dtype == "bfloat16":
        return (cells_of("float32", size, seed, scale).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.startswith("float8"):
        return noise.integers(0, 0x78, size).astype(np.uint8) | (noise.integers(0, 2, size) * 0x80).astype(np.uint8)
    if dtype.startswith("complex"):
        return (noise.normal(size=size) + 1j * noise.normal(size=size)).astype(dtype)
    if dtype == "bool":
        return noise.random(size) < 0.5
    if dtype.startswith("float"):
        found = (noise.normal(size=size) * scale).astype(dtype)
        found[noise.random(size) < 0.01] = 0
        return found
    limits = np.iinfo(dtype)
    return noise.integers(limits.min, limits.max, size, dtype, endpoint=True)


def near(cells: np.ndarray, dtype: str, seed: int) -> np.ndarray:
    """The same with a hundredth of its numbers replaced."""
    other = cells.copy()
    where = np.random.default_rng(seed).random(len(cells)) < 0.01
    other[where] = cells_of(dtype, len(cells), seed + 1)[where]
    return other


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
def test_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str, size: int) -> None:
    go(way, monkeypatch)
    a = cells_of(dtype, size, size)
    for b in (near(a, dtype, 7), cells_of(dtype, size, 5, 30.0), a.copy()):
        found = measure_pair(stored(tmp_path, "a", a, dtype), stored(tmp_path, "b", b, dtype))
        check(found.whole, slowly(values(a, dtype), values(b, dtype), kind_of(dtype).tiny), PRECISION[way])
        assert found.whole.difference.equal_bits == (a.tobytes() == b.tobytes())


SIGNS = {
    "all below zero": lambda x, chance: -np.abs(x) - np.float32(0.001),
    "all above zero": lambda x, chance: np.abs(x) + np.float32(0.001),
    "half of it zero": lambda x, chance: np.where(chance < 0.5, 0, x),
    "zeros of both signs": lambda x, chance: np.where(chance < 0.2, 0, np.where(chance < 0.4, np.float32(-0.0), x)),
    "few zeros": lambda x, chance: np.where(chance < 0.001, np.float32(-0.0), x),
    "few below the normal ones": lambda x, chance: np.where(chance < 0.001, x * np.float32(1e-6), x),
    "most below the normal ones": lambda x, chance: np.where(chance < 0.9, x * np.float32(1e-6), x),
}


def as_type(x: np.ndarray, dtype: str) -> np.ndarray:
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else x.astype(dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", SIGNS)
def test_signs_and_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str, kind: str) -> None:
    go(way, monkeypatch)
    noise, size = np.random.default_rng(3), 20_001
    x, more = noise.normal(size=(2, size)).astype(np.float32)
    sides = [as_type(SIGNS[kind](part, noise.random(size)), dtype) for part in (x, x + np.float32(0.01) * more)]
    found = measure_pair(*(stored(tmp_path, name, cells, dtype) for name, cells in zip("ab", sides, strict=True)), segment_elements=3000)
    a, b = (values(cells, dtype) for cells in sides)
    check(found.whole, slowly(a, b, kind_of(dtype).tiny), PRECISION[way])
    for part in found.segments:
        begin = part.index * 3000
        check(part, slowly(a[begin : begin + 3000], b[begin : begin + 3000], kind_of(dtype).tiny, begin), PRECISION[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("good", "bad"), [("float32", "bfloat16"), ("bfloat16", "float16"), ("float16", "float32")])
def test_two_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, good: str, bad: str) -> None:
    go(way, monkeypatch)
    x = np.random.default_rng(4).normal(size=20_001).astype(np.float32)
    x[::100], x[50::100] = 0, 0.5
    a, b = as_type(x, good), as_type(np.where(x == 0, np.float32(-0.0), x), bad)
    found = measure_pair(stored(tmp_path, "a", a, good), stored(tmp_path, "b", b, bad), row_elements=500).whole
    check(found, slowly(values(a, good), values(b, bad), kind_of(good).tiny), PRECISION[way])
    assert not found.difference.equal_bits and 0 < found.difference.mismatch < len(x) - 400


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_pair_that_is_alike_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str) -> None:
    go(way, monkeypatch)
    a = cells_of(dtype, 48_000, 5)
    b = a.copy()
    b[17_000:19_000] = cells_of(dtype, 2000, 6)
    a[40_000] = 0
    b[40_000] = as_type(np.float32([-0.0]), dtype)[0]
    found = measure_pair(stored(tmp_path, "a", a, dtype), stored(tmp_path, "b", b, dtype), segment_elements=8000, row_elements=1000)
    x, y = values(a, dtype), values(b, dtype)
    check(found.whole, slowly(x, y, kind_of(dtype).tiny), PRECISION[way])
    assert [part.difference.equal_bits for part in found.segments] == [True, True, False, True, True, False]
    assert [part.difference.equal_values for part in found.segments] == [True, True, False, True, True, True]
    assert [part.good == part.bad for part in found.segments] == [True, True, False, True, True, True]
    assert list(np.flatnonzero(found.rows)) == [17, 18]
    check(found.segments[2], slowly(x[16_000:24_000], y[16_000:24_000], kind_of(dtype).tiny, 16_000), PRECISION[way])


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("size", [1, 4097, 20_001])
def test_other_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, size: int) -> None:
    go("double", monkeypatch)
    a = cells_of(dtype, size, size)
    for b in (near(a, dtype, 7), a.copy()):
        found = measure_pair(stored(tmp_path, "a", a, dtype), stored(tmp_path, "b", b, dtype)).whole
        slow = slowly(values(a, dtype), values(b, dtype), kind_of(dtype).tiny)
        for name in ("max_abs_index", "max_rel_index"):
            if dtype.startswith("complex") and slow.pair[name] is not None:
                slow.pair[name] //= 2
        check(found, slow, 1e-12)
        assert found.difference.equal_bits == (a.tobytes() == b.tobytes())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("segment", "row"), [(1000, 100), (1024, 128), (10_000, 1000), (30_000, 30_000), (777, 111), (1000, 64), (20_000, 6000), (640, 10)])
def test_segments_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, segment: int, row: int) -> None:
    go(way, monkeypatch)
    a = cells_of("float32", 50_021, 1)
    b = near(a, "float32", 2)
    b[20_000:23_000] = a[20_000:23_000]
    valid = 45_017
    found = measure_pair(stored(tmp_path, "a", a), stored(tmp_path, "b", b), segment_elements=segment, row_elements=row, valid_elements=valid)
    x, y = a[:valid].astype(float), b[:valid].astype(float)
    tiny = kind_of("float32").tiny
    check(found.whole, slowly(x, y, tiny), PRECISION[way])
    assert [part.index for part in found.segments] == list(range(-(-valid // segment)))
    for part in found.segments:
        begin = part.index * segment
        check(part, slowly(x[begin : begin + segment], y[begin : begin + segment], tiny, begin), PRECISION[way])
    begins = range(0, valid, row)
    rows = [slowly(x[begin : begin + row], y[begin : begin + row], tiny).pair["rel_l2"] for begin in begins]
    assert found.rows == pytest.approx(np.array(rows), rel=4 * PRECISION[way])


@pytest.mark.parametrize("way", WAYS)
def test_threads_give_the_same_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    go(way, monkeypatch)
    a = cells_of("float32", 900_001, 1)
    pair = stored(tmp_path, "a", a), stored(tmp_path, "b", near(a, "float32", 2))
    many = measure_pair(*pair, segment_elements=300_000, row_elements=1000)
    monkeypatch.setattr(ways_streaming, "_THREADS_AT_MOST", 1)
    one = measure_pair(*pair, segment_elements=300_000, row_elements=1000)
    assert (many.whole, list(many.segments)) == (one.whole, list(one.segments))
    assert np.array_equal(many.rows, one.rows)
    check(many.whole, slowly(*(values(np.fromfile(side.file, np.float32), "float32") for side in pair), kind_of("float32").tiny), PRECISION[way])


def test_one_tensor_has_the_figures_of_a_side(tmp_path: Path) -> None:
    a = cells_of("float32", 100_000, 3)
    tensor = stored(tmp_path, "a", a)
    pair = measure_pair(tensor, tensor, segment_elements=30_000)
    whole, segments = measure_one(tensor, segment_elements=30_000)
    assert whole == pair.whole.good == pair.whole.bad
    assert segments == tuple(part.good for part in pair.segments)
    assert measure_one(tensor)[1] == ()
