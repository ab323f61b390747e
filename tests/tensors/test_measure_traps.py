"""Where naive code is wrong: overflow, cancellation, zero vectors, NaN and Inf, subnormal numbers, integers, mixed and unknown types."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag.tensors.compare import compare
from diag.tensors.measure import Difference, Measured, measure_one, measure_pair, ways
from diag.tensors.measure.widening import kind_of
from diag.tensors.opening import open_dump
from tests.tensors.measured import PRECISION, WAYS, check, go, slowly, stored, values
from tests.tensors.world import settled

SPECIAL = {
    "float32": [0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x1E000000],
    "float16": [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC01, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01],
    "bfloat16": [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF81, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81],
    "float64": [0, 1 << 63, 0x3FF0000000000000, 0xC008000000000001, 0x5FF0000000000000, 0x1FF0000000000001, 0x7FEFFFFFFFFFFFFF >> 1, 0x7FF0000000000000, 0xFFF0000000000000,
                0x7FF8000000000000, 0x7FF0000000000001],
}


def pair(folder: Path, a: Any, b: Any, dtype: str = "", **more: Any) -> Measured:
    return measure_pair(stored(folder, "a", np.asarray(a), dtype), stored(folder, "b", np.asarray(b), dtype), **more)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_special_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str, data: st.DataObject) -> None:
    go(way, monkeypatch)
    code = np.dtype({"float32": "u4", "float64": "u8"}.get(dtype, "u2"))
    codes = st.lists(st.sampled_from(SPECIAL[dtype]) | st.integers(0, 2 ** (8 * code.itemsize) - 1), min_size=1, max_size=40)
    if dtype == "float64":
        codes = st.lists(st.sampled_from(SPECIAL[dtype]), min_size=1, max_size=40)
    a = np.array(data.draw(codes), code)
    b = np.array([data.draw(st.sampled_from([value, *SPECIAL[dtype]])) for value in a], code)
    segment, row = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 50))
    native = np.dtype(dtype) if dtype in ("float32", "float64") else code
    tensors = stored(tmp_path, "a", a, dtype), stored(tmp_path, "b", b, dtype)
    found = measure_pair(*tensors, segment_elements=segment, row_elements=row)
    with np.errstate(all="ignore"):
        x, y = (values(side.view(np.float16 if dtype == "float16" else native), dtype) for side in (a, b))
        check(found.whole, slowly(x, y, kind_of(dtype).tiny), PRECISION[way])
        for part in found.segments:
            begin = part.index * segment
            check(part, slowly(x[begin : begin + segment], y[begin : begin + segment], kind_of(dtype).tiny, begin), PRECISION[way])
        for number, relative in enumerate(found.rows):
            slow = slowly(x[number * row : number * row + row], y[number * row : number * row + row], 1.0).pair
            told = math.inf if slow["nan_mismatch"] else slow.get("rel_l2", 0.0)
            assert relative == pytest.approx(told, rel=4e-6), f"row {number}"
    assert found.whole.difference.equal_bits == (a.tobytes() == b.tobytes())


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_neither_overflows_in_sums_nor_in_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    go(way, monkeypatch)
    a = np.full(100_000, 60_000, np.float16)
    found = pair(tmp_path, a, -a).whole
    exact = float(a[0])
    assert found.good.norm == pytest.approx(exact * math.sqrt(a.size), rel=1e-6)
    assert (found.difference.max_abs, found.difference.cosine, found.difference.one_minus_cosine) == (2 * exact, pytest.approx(-1), pytest.approx(2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("mean", "std"), [(1000.0, 0.01), (1.0, 1e-4), (-3e5, 1.0)])
def test_a_spread_far_below_the_mean_keeps_its_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, mean: float, std: float) -> None:
    go(way, monkeypatch)
    a = np.random.default_rng(1).normal(mean, std, 50_000).astype(np.float32)
    b = np.random.default_rng(2).normal(mean, std, 50_000).astype(np.float32)
    found = pair(tmp_path, a, b).whole
    check(found, slowly(a.astype(float), b.astype(float), kind_of("float32").tiny), PRECISION[way] * 10)
    assert found.good.std == pytest.approx(a.astype(np.longdouble).std(), rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_an_outlier_does_not_hide_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    go(way, monkeypatch)
    noise = np.random.default_rng(1)
    a, b = noise.normal(size=(2, 30_000)).astype(np.float32)
    for at in (0, 17_000):
        a[at] = b[at] = 1e6
    found = pair(tmp_path, a, b, row_elements=1000)
    check(found.whole, slowly(a.astype(float), b.astype(float), kind_of("float32").tiny), PRECISION[way])
    assert found.whole.difference.cosine > 0.999999 and np.median(found.rows) > 1, "rows must tell what the cosine hides"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("factor", [2.0, 1 + 2.0**-20, 1e-6, 1e6, -1.0])
def test_cosine_of_scaled_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, factor: float) -> None:
    go(way, monkeypatch)
    a = np.random.default_rng(1).normal(size=20_000).astype(np.float32)
    b = (a.astype(float) * factor).astype(np.float32)
    found = pair(tmp_path, a, b).whole.difference
    assert found.one_minus_cosine == pytest.approx(0.0 if factor > 0 else 2.0, abs=1e-6 if way == "single" else 1e-13)
    assert found.rel_l2 == pytest.approx(abs(factor - 1), rel=0.05)


def test_one_minus_cosine_far_below_the_last_digit_of_one(tmp_path: Path) -> None:
    a = np.random.default_rng(1).normal(size=20_000)
    b = a + 1e-10 * np.random.default_rng(2).normal(size=20_000)
    found = pair(tmp_path, a, b).whole.difference
    assert found.cosine == 1.0
    told = slowly(a, b, kind_of("float64").tiny).pair["one_minus_cosine"]
    assert found.one_minus_cosine == pytest.approx(told, rel=1e-4), "5e-21 is not 0"


@pytest.mark.parametrize("way", WAYS)
def test_zero_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    go(way, monkeypatch)
    zero, minus, one = np.zeros(9000, np.float32), -np.zeros(9000, np.float32), np.ones(9000, np.float32)
    same = pair(tmp_path, zero, zero).whole.difference
    assert same == Difference(True, True, 1.0, 0.0, 0.0, 0.0, None, 0.0, None, 0, 0)
    signed = pair(tmp_path, zero, minus).whole.difference
    assert (signed.equal_bits, signed.equal_values, signed.cosine, signed.mismatch) == (False, True, 1.0, 0)
    blank = pair(tmp_path, one, zero).whole
    assert (blank.difference.cosine, blank.difference.one_minus_cosine, blank.difference.rel_l2, blank.bad.zeros) == (None, None, 1.0, 9000)
    grown = pair(tmp_path, zero, one).whole.difference
    assert (grown.cosine, grown.rel_l2, grown.max_rel) == (None, math.inf, 1.0 / kind_of("float32").tiny)


@pytest.mark.parametrize("way", WAYS)
def test_nan_and_inf_are_counted_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    go(way, monkeypatch)
    a = np.random.default_rng(1).normal(size=30_000).astype(np.float32)
    b = a.copy()
    a[5], b[5] = np.nan, np.nan
    a[6], b[6] = np.inf, np.inf
    a[7], b[7] = np.inf, -np.inf
    b[20_000], b[20_001] = np.nan, 7
    found = pair(tmp_path, a, b, row_elements=1000)
    check(found.whole, slowly(a.astype(float), b.astype(float), kind_of("float32").tiny), PRECISION[way])
    assert (found.whole.difference.mismatch, found.whole.difference.nan_mismatch, found.whole.difference.max_abs_index) == (3, 2, 20_001)
    assert list(np.flatnonzero(np.isinf(found.rows))) == [0, 20]
    nothing = np.full(5000, np.nan, np.float32)
    alone = pair(tmp_path, nothing, a[:5000]).whole
    assert (alone.good.mean, alone.good.nan, alone.difference.rel_l2, alone.difference.nan_mismatch) == (None, 5000, None, 4999)


@pytest.mark.parametrize("way", WAYS)
def test_subnormal_numbers_are_not_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    go(way, monkeypatch)
    for dtype, code in (("float32", np.uint32), ("bfloat16", np.uint16), ("float16", np.uint16)):
        codes = np.random.default_rng(1).integers(1, 100, (2, 20_000)).astype(code)
        native = np.float32 if dtype == "float32" else code
        x, y = (values(side.view(np.float16) if dtype == "float16" else side.view(native), dtype) for side in codes)
        found = pair(tmp_path, codes[0].view(native), codes[1].view(native), dtype).whole
        assert found.good.zeros == 0 and found.good.norm > 0
        check(found, slowly(x, y, kind_of(dtype).tiny), PRECISION[way])


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e300, 1e-310])
def test_double_precision_near_the_ends_of_its_range(tmp_path: Path, scale: float) -> None:
    a, b = np.random.default_rng(1).uniform(0.5, 1, (2, 70_000))
    b[100] = a[100] * 1e-5
    a[40_000:] *= scale
    b[40_000:] *= scale
    found = pair(tmp_path, a, b, segment_elements=40_000, row_elements=10_000)
    slow = slowly(a[40_000:], b[40_000:], kind_of("float64").tiny, 40_000)
    check(found.segments[1], slow, 1e-12 if scale > 1e-300 else 1e-4)
    check(found.segments[0], slowly(a[:40_000], b[:40_000], kind_of("float64").tiny), 1e-12)
    assert found.rows[5] == pytest.approx(slowly(a[50_000:60_000], b[50_000:60_000], 1.0).pair["rel_l2"], rel=1e-4)


def test_narrow_integers_do_not_wrap(tmp_path: Path) -> None:
    low = pair(tmp_path, np.array([-128, 127, 3], np.int8), np.array([127, -128, 3], np.int8)).whole
    assert (low.difference.max_abs, low.difference.max_abs_index, low.difference.mismatch, low.good.min) == (255, 0, 2, -128)
    byte = pair(tmp_path, np.array([3, 5], np.uint8), np.array([5, 3], np.uint8)).whole.difference
    assert (byte.max_abs, byte.max_rel) == (2, 2 / 3)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_beyond_the_digits_of_a_double(tmp_path: Path, dtype: str) -> None:
    a = np.array([2**53 + 1, 2**62, 5], dtype)
    found = pair(tmp_path, a, a - np.array([1, 0, 0], dtype)).whole.difference
    assert (found.mismatch, found.equal_values, found.max_abs, found.max_abs_index) == (1, False, 1, 0)
    limits = np.iinfo(dtype)
    far = pair(tmp_path, np.array([limits.min, 0], dtype), np.array([limits.max, 0], dtype)).whole.difference
    assert far.max_abs == float(limits.max - limits.min)
    stamps = 1_700_000_000_000_000_000 + np.random.default_rng(1).integers(-300, 300, 100_000).astype(dtype)
    figures, _ = measure_one(stored(tmp_path, "stamps", stamps))
    offsets = (stamps - np.array(1_700_000_000_000_000_000, dtype)).view(np.int64).astype(float)
    assert figures.std == pytest.approx(offsets.std(), rel=1e-9)


def test_types_are_widened_not_rounded(tmp_path: Path) -> None:
    a = np.array([1.0, 2.5, 2.0**53, -1.0])
    for dtype, told in (("float32", [1.0, 2.5, 2.0**53, -1.0]), ("float16", [1.0, 2.5, math.inf, -1.0]), ("int64", [1, 2, 2**53 + 1, -1]), ("bool", [True, True, True, True])):
        with np.errstate(over="ignore"):
            other = np.array(told).astype(dtype)
        found = measure_pair(stored(tmp_path, "a", a), stored(tmp_path, "b", other)).whole.difference
        differ = sum(x != y for x, y in zip(a.tolist(), other.tolist(), strict=True))
        assert (found.mismatch, found.equal_bits, found.equal_values) == (differ, False, differ == 0), dtype
    mixed = measure_pair(stored(tmp_path, "a", np.array([-1, 2**63 - 1])), stored(tmp_path, "b", np.array([2**64 - 1, 2**63 - 1], np.uint64)))
    assert (mixed.whole.difference.mismatch, mixed.whole.difference.max_abs) == (1, 2.0**64)
    short = np.array([0x3F80, 0x4049], np.uint16)
    wide = measure_pair(stored(tmp_path, "a", short, "bfloat16"), stored(tmp_path, "b", np.array([1.0, 3.140625], np.float32)))
    assert wide.whole.difference.equal_values and not wide.whole.difference.equal_bits


def test_complex_numbers_are_pairs(tmp_path: Path) -> None:
    a = np.array([1 + 2j, 3 - 4j, 0j])
    found = pair(tmp_path, a, a + np.array([0, 0, 0.5j]), segment_elements=2)
    assert (found.whole.good.count, found.whole.good.zeros, found.whole.good.norm) == (6, 2, pytest.approx(math.sqrt(30)))
    assert (found.whole.difference.max_abs_index, found.segments[1].difference.mismatch) == (2, 1)
    real = measure_pair(stored(tmp_path, "a", a), stored(tmp_path, "b", np.array([1.0, 3.0, 0.0])))
    assert real.whole.difference.mismatch == 2


def test_opaque_codes_are_compared_bit_by_bit(tmp_path: Path) -> None:
    a = np.array([0, 0x7F81, 3], np.uint16)
    found = pair(tmp_path, a, np.array([0, 0x7F81, 4], np.uint16), "opaque2", row_elements=1)
    assert (found.whole.good.count, found.whole.good.zeros, found.whole.good.mean, found.whole.good.norm) == (3, 1, None, None)
    assert found.whole.difference == Difference(False, False, None, None, None, None, None, None, None, 1, 0)
    known = measure_pair(stored(tmp_path, "a", a, "opaque2"), stored(tmp_path, "b", a, "bfloat16")).whole.difference
    assert (known.mismatch, known.equal_values) == (0, True)
    assert measure_pair(stored(tmp_path, "a", a, "opaque2"), stored(tmp_path, "b", a.astype(np.uint8), "opaque1")).whole.difference.mismatch == 3


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_tensors(tmp_path: Path, shape: tuple[int, ...]) -> None:
    found = pair(tmp_path, np.empty(shape, np.float32), np.empty(shape, np.float32), segment_elements=4, row_elements=2)
    assert found.whole.difference == Difference(True, True, None, None, None, None, None, None, None, 0, 0)
    assert (found.whole.good.count, found.whole.good.min, len(found.segments), len(found.rows)) == (0, None, 0, 0)


def test_a_tensor_without_axes(tmp_path: Path) -> None:
    found = pair(tmp_path, np.array(2.0), np.array(3.0)).whole
    assert (found.good.mean, found.good.std, found.difference.rel_l2, found.difference.max_abs_index) == (2.0, 0.0, 0.5, 0)


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    a, b = stored(tmp_path, "a", np.zeros((3, 1))), stored(tmp_path, "b", np.zeros((1, 3)))
    with pytest.raises(ValueError, match="shape"):
        measure_pair(a, b)
    for wrong in ({"segment_elements": 0}, {"row_elements": -1}):
        with pytest.raises(ValueError, match="at least 1"):
            measure_pair(a, a, **wrong)
    many = stored(tmp_path, "many", np.zeros(1 << 18, np.uint8))
    with pytest.raises(ValueError, match="segments"):
        measure_pair(many, many, segment_elements=1)


def test_the_compiled_loops_are_announced_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    said: list[str] = []
    ways.warm_up(1, said.append)
    assert said == [], "nothing large was to come"
    ways._fused.cache_clear()
    ways.warm_up(ways.FUSED_FROM, said.append)
    ways.warm_up(ways.FUSED_FROM, said.append)
    assert len(said) == 1


def test_a_comparison_says_that_it_loads_the_compiled_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "layers.0.hidden.npy", np.arange(4096, dtype=np.float32))
        settled(tmp_path / name)
    said: list[str] = []
    for smallest, times in ((4097, 0), (4096, 1)):
        monkeypatch.setattr(ways, "FUSED_FROM", smallest)
        ways._fused.cache_clear()
        found = compare(*(open_dump(tmp_path / name) for name in ("good", "bad")), progress=lambda what, share: said.append(what))
        assert (found.verdict, sum("compiled loops" in what for what in said)) == ("same", times), said


LOOPS = """
from diag.tensors.measure import measure_pair, ways
from diag.tensors.dump import Tensor
from pathlib import Path
import sys
ways.SINGLE_FROM = ways.FUSED_FROM = 0
tensor = Tensor("a", "float16", (4096,), Path(sys.argv[1]))
print(measure_pair(tensor, tensor).whole.good.mean, ways._fused() is not None)
"""


@pytest.mark.parametrize("trouble", ["processor", "numba", "nowhere to write"])
def test_without_what_the_compiled_loops_need_numpy_does_it(tmp_path: Path, trouble: str) -> None:
    pytest.importorskip("numba")
    stored(tmp_path, "a", np.full(4096, 2.5, np.float16))
    environment = dict(os.environ)
    if trouble == "processor":
        environment |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path)}
    elif trouble == "numba":
        (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.0 or less')")
        environment["PYTHONPATH"] = f"{tmp_path}:{Path(__file__).parents[2]}"
    else:
        environment |= {"NUMBA_CACHE_DIR": "/proc/nowhere"}
    done = subprocess.run([sys.executable, "-c", LOOPS, str(tmp_path / "a")], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2.5", str(trouble == "nowhere to write")]


@pytest.mark.parametrize(("code", "kind"), [(0x7FC0, "nan"), (0x7F80, "inf")])
@pytest.mark.parametrize("spoiled", ["good", "bad"])
def test_long_runs_of_nothing_but_nan_or_inf(spoiled: str, code: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole columns without a number, where the largest difference is looked for by column."""
    go("single", monkeypatch)
    sound = np.full(16384, 0x3F80, np.uint16)
    sides = {"good": sound, "bad": sound.copy()}
    sides[spoiled] = np.full(16384, code, np.uint16)
    found = measure_pair(*(stored(tmp_path, name, cells, "bfloat16") for name, cells in sides.items())).whole
    assert getattr(getattr(found, spoiled), kind) == 16384
    assert getattr(found, "bad" if spoiled == "good" else "good").count == 16384


@pytest.mark.parametrize("spoiled", [None, 0x7C00, 0x7E00], ids=["sound", "inf", "nan"])
@pytest.mark.parametrize("absolute", range(6))
@pytest.mark.parametrize("relative", range(6))
def test_the_largest_differences_lie_in_any_two_cells(absolute: int, relative: int, spoiled: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has seen a larger one does not look for them; those of a cell that it takes again count then."""
    go("single", monkeypatch)
    noise = np.random.default_rng(4)
    good = (1 + noise.random(49_152)).astype(np.float16)
    bad = (good * np.where(noise.random(good.size) < 0.5, 1.01, 1.0)).astype(np.float16)
    for first, size, apart in ((8192 * absolute + 5000, 512, 64), (8192 * relative + 5100, 2**-10, 2**-10)):
        for at in (first, first + 1000):  # the first of two counts
            good[at], bad[at] = size, size + apart
    if spoiled is not None:
        bad.view(np.uint16)[100] = spoiled
    found = measure_pair(*(stored(tmp_path, name, cells, "float16") for name, cells in (("a", good), ("b", bad)))).whole.difference
    assert (found.max_abs, found.max_abs_index) == (64, 8192 * absolute + 5000)
    assert (found.max_rel, found.max_rel_index) == (1, 8192 * relative + 5100)
