"""All sums of one cell of 16- or 32-bit floats in one loop, compiled by numba. Imported only where numba is and the pair is large.

The compiler may reorder sums (that is what makes them fast) but must honour NaN and subnormal numbers: the flags below
leave "nnan", "ninf" and "fast" out, but for the four minima and maxima, which are thrown away where a sum shows NaN or Inf.
"""

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import config, float32, njit, uint16
from numba.extending import intrinsic

from diag.tensors.measure import sums

FLOAT32, FLOAT16, BFLOAT16 = range(3)
BLOCK = 2048
"""Numbers whose sums are formed around their first one, then joined: as floats of both sides they fit the first-level cache."""

_FEATURES: str | None = vars(config)["CPU_FEATURES"]
"""NUMBA_CPU_FEATURES; None: this processor's own."""
if platform.machine() in ("x86_64", "AMD64") and not (binding.get_host_cpu_features().get("f16c") if _FEATURES is None else "+f16c" in _FEATURES):
    raise ImportError("this processor does not convert 16-bit floats: compiling that would end the process")

_FLAGS = {"reassoc", "contract", "nsz"}
_ONE, _NONE = np.float32(1), np.float32(0)
# not sums.X: a compiled loop is kept in a file, and reads only what is here
_WIDTH_OF_SIDE = sums.BAD
(N, ZEROS, LOW, HIGH, MEAN, SPREAD) = (sums.N, sums.ZEROS, sums.LOW, sums.HIGH, sums.MEAN, sums.SPREAD)
(BOTH, NORM_GOOD, NORM_BAD, NORM_DIFFERENCE, COSINE) = (sums.BOTH, sums.NORM_GOOD, sums.NORM_BAD, sums.NORM_DIFFERENCE, sums.COSINE)
(MAX_ABS, AT_ABS, MAX_REL, AT_REL, MISMATCH) = (sums.MAX_ABS, sums.AT_ABS, sums.MAX_REL, sums.AT_REL, sums.MISMATCH)


def _compiled(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile now, and keep the result beside this file, or in the user's cache folder where that is not writable, or in
    NUMBA_CACHE_DIR; where none of them is, compile in every process. Never in a shared folder: it is code."""

    def compile_(function: Callable[..., Any]) -> Any:
        try:
            return njit(signature, nogil=True, error_model="numpy", cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            return njit(signature, nogil=True, error_model="numpy", **options)(function)

    return compile_


def _without_nan(name: str) -> Any:
    """llvm's minnum or maxnum of two floats that are no NaN: one instruction for many numbers, where Python's min is a branch."""

    @intrinsic
    def extreme(context: Any, x: Any, y: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = arguments[0].type
            function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(function, arguments, fastmath=("nnan", "nsz"))

        return x(x, x), code

    return extreme


_smaller, _larger = _without_nan("llvm.minnum"), _without_nan("llvm.maxnum")


@njit(fastmath=_FLAGS, error_model="numpy", nogil=True)
def _pair_block(a: Any, b: Any, tiny: float, out: Any) -> None:
    """Sums of a pair, each side's around its first number."""
    s, t = np.float64(a[0]), np.float64(b[0])
    s1 = s2 = t1 = t2 = dd = ab = largest = relative = 0.0
    for i in range(a.size):
        x, y = np.float64(a[i]), np.float64(b[i])
        u, v, d = x - s, y - t, x - y
        s1 += u
        s2 += u * u
        t1 += v
        t2 += v * v
        dd += d * d
        ab += x * y
        d = abs(d)
        largest = _larger(largest, d)
        relative = _larger(relative, d / _larger(abs(x), tiny))
    out[0], out[1], out[2], out[3] = s1, s2, t1, t2
    out[4], out[5], out[6], out[7] = dd, ab, largest, relative


@njit(fastmath=_FLAGS, error_model="numpy", nogil=True)
def _pair_ends(a: Any, b: Any, out: Any) -> None:
    """Ends and counts of a pair."""
    low_a = high_a = a[0]
    low_b = high_b = b[0]
    zeros_a = zeros_b = unequal = _NONE  # float32 counts to 2**24
    for i in range(a.size):
        x, y = a[i], b[i]
        low_a, high_a = _smaller(low_a, x), _larger(high_a, x)
        low_b, high_b = _smaller(low_b, y), _larger(high_b, y)
        zeros_a += _ONE if x == _NONE else _NONE
        zeros_b += _ONE if y == _NONE else _NONE
        unequal += _ONE if x != y else _NONE
    out[8], out[9], out[10], out[11] = low_a, high_a, low_b, high_b
    out[12], out[13], out[14] = zeros_a, zeros_b, unequal


@njit(fastmath=_FLAGS, error_model="numpy", nogil=True)
def _one_block(a: Any, out: Any) -> None:
    """The good side's share of both."""
    s = np.float64(a[0])
    s1 = s2 = 0.0
    for i in range(a.size):
        u = np.float64(a[i]) - s
        s1 += u
        s2 += u * u
    low = high = a[0]
    zeros = _NONE
    for i in range(a.size):
        x = a[i]
        low, high = _smaller(low, x), _larger(high, x)
        zeros += _ONE if x == _NONE else _NONE
    out[0], out[1], out[8], out[9], out[12] = s1, s2, low, high, zeros


@njit(error_model="numpy", nogil=True)
def _bfloat16(codes: Any, out: Any) -> None:
    bits = out.view(np.uint32)
    for i in range(codes.size):
        bits[i] = np.uint32(codes[i]) << np.uint32(16)


def _half(context: Any, code: Any) -> Any:
    def convert(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return float32(uint16), convert


_from_half: Any = intrinsic(_half)
"""The processor's own conversion: exact, subnormal numbers and NaN included."""


@njit(error_model="numpy", nogil=True)
def _float16(codes: Any, out: Any) -> None:
    for i in range(codes.size):
        out[i] = _from_half(codes[i])


@njit(error_model="numpy", nogil=True)
def _floats(floats: Any, codes: Any, kind: int, begin: int, end: int, room: Any) -> Any:
    """Numbers `begin` to `end` as float32: where they are, or in `room`."""
    if kind == FLOAT32:
        return floats[begin:end]
    out = room[: end - begin]
    if kind == FLOAT16:
        _float16(codes[begin:end], out)
    else:
        _bfloat16(codes[begin:end], out)
    return out


@njit(error_model="numpy", nogil=True)
def _first(a: Any, b: Any, tiny: float, value: float) -> int:
    """Index of the first difference of that size; `tiny` above 0: relative to |a|."""
    for i in range(a.size):
        x = np.float64(a[i])
        d = abs(x - np.float64(b[i]))
        if tiny > 0:
            d /= max(abs(x), tiny)
        if d == value:
            return i
    return -1


@njit(error_model="numpy", nogil=True)
def _join(line: Any, side: int, n: int, first: float, s1: float, s2: float) -> float:
    """Add a block's sums around its first number to a side's columns; SPREAD is squared meanwhile. Returns its sum of squares."""
    mean = first + s1 / n
    spread = max(s2 - s1 * (s1 / n), 0.0)
    before = line[side + N]
    both = before + n
    apart = mean - line[side + MEAN]
    line[side + MEAN] += apart * (n / both)
    line[side + SPREAD] += spread + apart * apart * (before / both) * n
    line[side + N] = both
    return spread + n * mean * mean


@_compiled("boolean(float32[::1], uint16[::1], intp, float32[::1], uint16[::1], intp, boolean, intp, intp, intp, float64, float64[:, ::1], float64[::1], float64[::1])")
def cell_sums(
    good: Any, good_codes: Any, good_kind: int, bad: Any, bad_codes: Any, bad_kind: int, same: bool, start: int, length: int, row: int, tiny: float,
    table: Any, row_good: Any, row_apart: Any,
) -> bool:
    """Fill a line per run of `length` numbers, and the squares of the rows' norms from row `start // row` on (`row` 0: none).

    A side is float32 numbers or 16-bit codes, by its kind. `same`: the sides are the same bits. False: NaN or Inf among
    them, nothing filled is of use. BITS and KINDS are left.
    """
    out = np.zeros(16)
    room_a, room_b = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for run in range(table.shape[0]):
        line = table[run]
        begin, stop = run * length, (run + 1) * length
        good_squares = bad_squares = squares = products = 0.0
        at_abs = at_rel = begin
        while begin < stop:
            end = min(begin + BLOCK, stop)
            if row > 0:
                end = min(end, (start + begin) // row * row + row - start)
            n = end - begin
            a = _floats(good, good_codes, good_kind, begin, end, room_a)
            if same:
                _one_block(a, out)
            else:
                b = _floats(bad, bad_codes, bad_kind, begin, end, room_b)
                _pair_block(a, b, tiny, out)
                _pair_ends(a, b, out)
            if not (np.isfinite(out[0]) and np.isfinite(out[2])):
                return False
            block_squares = _join(line, 0, n, np.float64(a[0]), out[0], out[1])
            good_squares += block_squares
            line[ZEROS] += out[12]
            line[LOW], line[HIGH] = min(line[LOW], out[8]), max(line[HIGH], out[9])
            if not same:
                bad_squares += _join(line, _WIDTH_OF_SIDE, n, np.float64(b[0]), out[2], out[3])
                line[_WIDTH_OF_SIDE + ZEROS] += out[13]
                line[_WIDTH_OF_SIDE + LOW] = min(line[_WIDTH_OF_SIDE + LOW], out[10])
                line[_WIDTH_OF_SIDE + HIGH] = max(line[_WIDTH_OF_SIDE + HIGH], out[11])
                line[MISMATCH] += out[14]
                squares += out[4]
                products += out[5]
                if out[6] > line[MAX_ABS]:
                    line[MAX_ABS], at_abs = out[6], begin
                if out[7] > line[MAX_REL]:
                    line[MAX_REL], at_rel = out[7], begin
            if row > 0:
                place = (start + begin) // row - start // row
                row_good[place] += block_squares
                row_apart[place] += out[4]
            begin = end
        line[SPREAD] = np.sqrt(line[SPREAD])
        line[BOTH] = length
        line[NORM_GOOD] = np.sqrt(good_squares)
        if same:
            line[_WIDTH_OF_SIDE : 2 * _WIDTH_OF_SIDE] = line[:_WIDTH_OF_SIDE]
            line[NORM_BAD] = line[NORM_GOOD]
            line[COSINE] = 1.0 if good_squares > 0 else 0.0
            continue
        line[_WIDTH_OF_SIDE + SPREAD] = np.sqrt(line[_WIDTH_OF_SIDE + SPREAD])
        line[NORM_BAD], line[NORM_DIFFERENCE] = np.sqrt(bad_squares), np.sqrt(squares)
        norms = line[NORM_GOOD] * line[NORM_BAD]
        line[COSINE] = products / norms if norms > 0 else 0.0
        for largest, at, block, smallest in ((MAX_ABS, AT_ABS, at_abs, 0.0), (MAX_REL, AT_REL, at_rel, tiny)):
            if line[largest] > 0:
                end = min(block + BLOCK, stop)
                a = _floats(good, good_codes, good_kind, block, end, room_a)
                b = _floats(bad, bad_codes, bad_kind, block, end, room_b)
                line[at] = start + block + _first(a, b, smallest, line[largest])
    return True
