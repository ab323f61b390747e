"""What figures mean: the bands without and with a control run, rows, integers, codes."""

import math

import numpy as np
import pytest

from diag.tensors.measure import Difference, Figures
from diag.tensors.verdicts import CLOSE, DIFFERENT, NOISE_CAP, SUSPICIOUS, Judged, Limits, judge


def figures(count: int = 1000, zeros: int = 0, nan: int = 0, low: float | None = -3.0, norm: float | None = 30.0) -> Figures:
    return Figures(count, zeros, nan, 0, low, 3.0, 0.0, 1.0, norm)


def difference(rel: float | None, mismatch: int = 1000, nan: int = 0, cosine: float | None = 0.99, max_abs: float = 0.1) -> Difference:
    return Difference(False, mismatch == 0, cosine, None, rel, max_abs, 0, 0.1, 0, mismatch, nan)


def judged(dtype: str, rel: float | None, noise: float | None = None, said: dict[str, float] | None = None, rows: list[float] | None = None) -> Judged:
    return judge(dtype, figures(), figures(), difference(rel), None if rows is None else np.array(rows), Limits(said or {}), noise)


@pytest.mark.parametrize("dtype", sorted(CLOSE))
def test_three_bands_without_a_control_run(dtype: str) -> None:
    assert judged(dtype, CLOSE[dtype]) == Judged("close")
    assert judged(dtype, DIFFERENT).verdict == "different"
    between = judged(dtype, (CLOSE[dtype] + DIFFERENT) / 2)
    assert (between.verdict, between.doubt) == ("close", SUSPICIOUS), "never called a difference by itself"
    assert "control" in (between.detail or "")


def test_a_control_run_decides_and_leaves_no_doubt() -> None:
    assert judged("bfloat16", 0.1, noise=0.03) == Judged("close")
    assert judged("bfloat16", 0.1, noise=0.02).verdict == "different"
    assert judged("bfloat16", CLOSE["bfloat16"], noise=0.0).verdict == "close", "an exact repetition says nothing of other batch sizes"
    exact = judged("float32", 1e-3, noise=0.0)
    assert (exact.verdict, exact.doubt) == ("close", SUSPICIOUS)
    assert "in another batch" in (exact.detail or "")
    assert judged("bfloat16", 0.7, noise=0.29).verdict == "different", f"no noise excuses more than {NOISE_CAP}"


def test_what_a_person_says_is_close_is_the_only_band() -> None:
    assert judged("float32", 1e-3, said={"float32": 1e-2}) == Judged("close")
    assert judged("float32", 2e-2, said={"float32": 1e-2}).verdict == "different"
    assert judged("float32", 2e-2, said={"*": 1e-1}) == Judged("close")


def test_one_row_decides() -> None:
    found = judged("float16", 1e-2, rows=[0.01, 0.02, 1.4, 0.01])
    assert (found.verdict, found.rows_differ, found.rows_of, found.first_row) == ("different", 1, 4, 2)
    assert found.detail == "1 of 4 rows hold other content: 2"
    assert judged("float16", 1e-2, rows=[0.01, 0.02, 0.02]).rows_differ == 0
    assert judged("float16", 1e-2, rows=[0.01, math.inf]).verdict == "different", "a row that is zero in the good run"
    assert judged("float16", 1e-2, rows=[0.01, math.nan]).verdict == "different"


def test_nan_comes_before_all_figures() -> None:
    """NaN > limit is False: figures that are NaN, or missing, must not pass."""
    found = judge("float32", figures(), figures(nan=3), difference(None, nan=3), None)
    assert (found.verdict, found.detail) == ("nan", "3 NaN of 1000 elements in the bad run, 0 in the other; 3 where the other has numbers")
    assert judge("float32", figures(nan=2), figures(), difference(1e-9, nan=2), None).verdict == "nan"


def test_zero_against_content() -> None:
    assert judge("float32", figures(), figures(zeros=1000, low=0.0, norm=0.0), difference(1.0, cosine=None), None).verdict == "zero"
    found = judge("float32", figures(zeros=1000, norm=0.0), figures(), difference(math.inf, cosine=None), None)
    assert (found.verdict, found.detail) == ("different", "all zero in the good run")


def test_integers_are_equal_or_not() -> None:
    assert judge("int64", figures(), figures(), difference(1e-9, mismatch=1), None).verdict == "different"
    codes = difference(1e-9, mismatch=40, max_abs=1.0)
    assert judge("int8", figures(), figures(), codes, None).verdict == "close"
    assert judge("int32", figures(), figures(), codes, None).verdict == "different"
    assert judge("int8", figures(), figures(), difference(1e-9, mismatch=60, max_abs=1.0), None).verdict == "different"
    assert judge("int8", figures(), figures(), difference(1e-9, mismatch=40, max_abs=2.0), None).verdict == "different"


def test_same_bits_same_values() -> None:
    same = Difference(True, True, 1.0, 0.0, 0.0, 0.0, None, 0.0, None, 0, 0)
    assert judge("float32", figures(), figures(), same, np.zeros(4)) == Judged("same", rows_differ=0, rows_of=4)
    values = Difference(False, True, 1.0, 0.0, 0.0, 0.0, None, 0.0, None, 0, 0)
    found = judge("float32", figures(), figures(), values, None)
    assert found.verdict == "same"
    assert "bits are not" in (found.detail or "")


def test_words_for_scale_and_sign() -> None:
    scaled = judge("float32", figures(norm=30.0), figures(norm=60.0), difference(1.0, cosine=1.0), None)
    assert scaled.detail == "the good run's content times 2"
    assert judge("float32", figures(), figures(), difference(2.0, cosine=-1.0), None).detail == "the good run's content with the sign changed"


@pytest.mark.parametrize(("count", "factor", "doubt"), [(4096, 1.01, SUSPICIOUS), (4096, 1.002, None), (100, 1.01, None)])
def test_a_close_tensor_times_a_factor_leaves_a_doubt(count: int, factor: float, doubt: str | None) -> None:
    """Rounding of many elements does not change their norm; of few it may."""
    found = judge("bfloat16", figures(count), figures(count, norm=30.0 * factor), difference(factor - 1, mismatch=count, cosine=1.0), None)
    assert (found.verdict, found.doubt) == ("close", doubt)
    assert (f"times {factor:.4g}" in (found.detail or "")) == (doubt is not None)
