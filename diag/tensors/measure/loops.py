"""All sums of one cell of 16- or 32-bit floats in one loop, compiled by numba. Imported only where numba is and the pair is large.

The compiler may reorder sums (that is what makes them fast) but must honour subnormal numbers: the flags below leave "fast"
out, and "nnan" but for the two maxima, which are formed only of blocks whose bits show neither NaN nor Inf.
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
"""Numbers whose sums are formed around their first one, then joined."""
WIDE = 4096
"""Numbers whose bits are looked at together: as floats of both sides they fit the first-level cache."""

_FEATURES: str | None = vars(config)["CPU_FEATURES"]
"""NUMBA_CPU_FEATURES; None: this processor's own."""
if platform.machine() in ("x86_64", "AMD64") and not (binding.get_host_cpu_features().get("f16c") if _FEATURES is None else "+f16c" in _FEATURES):
    raise ImportError("this processor does not convert 16-bit floats: compiling that would end the process")

_FLAGS = {"reassoc", "contract", "nsz"}
# not sums.X: a compiled loop is kept in a file, and reads only what is here
_WIDTH_OF_SIDE = sums.BAD
(N, ZEROS, LOW, HIGH, MEAN, SPREAD) = (sums.N, sums.ZEROS, sums.LOW, sums.HIGH, sums.MEAN, sums.SPREAD)
(BOTH, NORM_GOOD, NORM_BAD, NORM_DIFFERENCE, COSINE) = (sums.BOTH, sums.NORM_GOOD, sums.NORM_BAD, sums.NORM_DIFFERENCE, sums.COSINE)
(MAX_ABS, AT_ABS, MAX_REL, AT_REL) = (sums.MAX_ABS, sums.AT_ABS, sums.MAX_REL, sums.AT_REL)
(MISMATCH, BITS) = (sums.MISMATCH, sums.BITS)


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


def _extreme(name: str, flags: tuple[str, ...]) -> Any:
    """llvm's minimum or maximum of two numbers: one instruction for many of them, where Python's min is a branch."""

    @intrinsic
    def extreme(context: Any, x: Any, y: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = arguments[0].type
            function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(function, arguments, fastmath=flags)

        return x(x, x), code

    return extreme


_larger = _extreme("llvm.maxnum", ("nnan", "nsz"))
"""Of floats that are no NaN."""
_least, _most, _least_signed, _most_signed = (_extreme(f"llvm.{name}", ()) for name in ("umin", "umax", "smin", "smax"))


def _bitwise(told: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """A step from (so far, x, y) to the next, all of one unsigned type: numba itself would widen them to 64 bits."""

    @intrinsic
    def step(context: Any, so_far: Any, x: Any, y: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return told(builder, *arguments)

        return so_far(so_far, so_far, so_far), code

    return step


_differing = _bitwise(lambda to, so_far, x, y: to.or_(so_far, to.xor(x, y)))
_unlike = _bitwise(lambda to, so_far, x, y: to.add(so_far, to.zext(to.icmp_unsigned("!=", x, y), so_far.type)))
_zero = _bitwise(lambda to, so_far, x, sign: to.add(so_far, to.zext(to.icmp_unsigned("==", to.or_(x, sign), sign), so_far.type)))
"""Counts numbers of which no bit but the sign is set."""


def _half(context: Any, code: Any) -> Any:
    def convert(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return float32(uint16), convert


def _upper_half(context: Any, code: Any) -> Any:
    def convert(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(wide.type, 16)), ir.FloatType())

    return float32(uint16), convert


_from_half: Any = intrinsic(_half)
"""The processor's own conversion: exact, subnormal numbers and NaN included."""
_from_upper_half: Any = intrinsic(_upper_half)
"""A bfloat16 is the upper half of a float32."""


@njit(error_model="numpy", nogil=True)
def _same_bits(x: Any, y: Any) -> bool:
    differ = x.dtype.type(0)
    for i in range(min(x.size, 64)):
        differ = _differing(differ, x[i], y[i])
    if differ:
        return False
    for i in range(x.size):
        differ = _differing(differ, x[i], y[i])
    return not differ


@njit(error_model="numpy", nogil=True)
def _count_unlike(x: Any, y: Any) -> Any:
    """By their bits; no more than 2**16 - 1."""
    count = x.dtype.type(0)
    for i in range(x.size):
        count = _unlike(count, x[i], y[i])
    return np.int64(count)


@njit(error_model="numpy", nogil=True)
def _count_zeros(x: Any, sign: int) -> Any:
    count, signs = x.dtype.type(0), x.dtype.type(sign)
    for i in range(x.size):
        count = _zero(count, x[i], signs)
    return np.int64(count)


@njit(error_model="numpy", nogil=True)
def _ends(x: Any, sign: int) -> Any:
    """The lowest and the highest number and how many are 0. A number is told as its bits without the sign, negative if that is
    set: they are in the order of the numbers."""
    least = most = least_signed = most_signed = x[0]
    for i in range(x.size):
        v = x[i]
        least, most = _least(least, v), _most(most, v)
        least_signed, most_signed = _least_signed(least_signed, v), _most_signed(most_signed, v)
    low = np.int64(least) if most < sign else sign - np.int64(most)
    high = np.int64(most_signed) if most_signed < sign else sign - np.int64(least)
    zeros = _count_zeros(x, sign) if least == 0 or least_signed == sign else 0
    return low, high, zeros


@njit(error_model="numpy", nogil=True)
def _value(end: int, kind: int, room: Any) -> float:
    """The number that `_ends` told."""
    sign = 0x80000000 if kind == FLOAT32 else 0x8000
    code = end if end >= 0 else sign - end
    if kind == FLOAT16:
        return np.float64(_from_half(np.uint16(code)))
    room.view(np.uint32)[0] = code if kind == FLOAT32 else code << 16
    return np.float64(room[0])


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
def _one_block(a: Any, out: Any) -> None:
    """The good side's share of it."""
    s = np.float64(a[0])
    s1 = s2 = 0.0
    for i in range(a.size):
        u = np.float64(a[i]) - s
        s1 += u
        s2 += u * u
    out[0], out[1] = s1, s2


@njit(error_model="numpy", nogil=True)
def _bfloat16(codes: Any, out: Any) -> None:
    for i in range(codes.size):
        out[i] = _from_upper_half(codes[i])


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


@njit(error_model="numpy", nogil=True)
def _ends_of(bits: Any, codes: Any, kind: int, begin: int, end: int) -> Any:
    return _ends(bits[begin:end], 0x80000000) if kind == FLOAT32 else _ends(codes[begin:end], 0x8000)


@njit(error_model="numpy", nogil=True)
def _unequal(a: Any, b: Any) -> int:
    count = 0
    for i in range(a.size):
        count += a[i] != b[i]
    return count


@njit(error_model="numpy", nogil=True)
def _infinity(kind: int) -> int:
    return 0x7C00 if kind == FLOAT16 else 0x7F80 if kind == BFLOAT16 else 0x7F800000


@_compiled("boolean(float32[::1], uint16[::1], intp, float32[::1], uint16[::1], intp, intp, intp, intp, float64, float64[:, ::1], float64[::1], float64[::1])")
def cell_sums(
    good: Any, good_codes: Any, good_kind: int, bad: Any, bad_codes: Any, bad_kind: int, start: int, length: int, row: int, tiny: float,
    table: Any, row_good: Any, row_apart: Any,
) -> bool:
    """Fill a line per run of `length` numbers, and the squares of the rows' norms from row `start // row` on (`row` 0: none).

    A side is float32 numbers or 16-bit codes, by its kind. False: NaN or Inf among them, nothing filled is of use. KINDS is left.
    """
    out = np.zeros(8)
    room_a, room_b = np.empty(WIDE, np.float32), np.empty(WIDE, np.float32)
    good_bits, bad_bits = good.view(np.uint32), bad.view(np.uint32)
    good_infinity, bad_infinity = _infinity(good_kind), _infinity(bad_kind)
    for run in range(table.shape[0]):
        line = table[run]
        begin, stop = run * length, (run + 1) * length
        low_good, high_good, _ = _ends_of(good_bits, good_codes, good_kind, begin, begin + 1)
        low_bad, high_bad, _ = _ends_of(bad_bits, bad_codes, bad_kind, begin, begin + 1)
        good_squares = bad_squares = squares = products = 0.0
        at_abs = at_rel = begin
        all_same = good_kind == bad_kind
        while begin < stop:
            end = min(begin + WIDE, stop)
            same = good_kind == bad_kind
            if same and good_kind == FLOAT32:
                same = _same_bits(good_bits[begin:end], bad_bits[begin:end])
            elif same:
                same = _same_bits(good_codes[begin:end], bad_codes[begin:end])
            low, high, zeros = _ends_of(good_bits, good_codes, good_kind, begin, end)
            if max(high, -low) >= good_infinity:
                return False
            line[ZEROS] += zeros
            low_good, high_good = min(low_good, low), max(high_good, high)
            whole_a = whole_b = _floats(good, good_codes, good_kind, begin, end, room_a)
            if not same:
                all_same = False
                zeros_good = zeros
                low, high, zeros = _ends_of(bad_bits, bad_codes, bad_kind, begin, end)
                if max(high, -low) >= bad_infinity:
                    return False
                whole_b = _floats(bad, bad_codes, bad_kind, begin, end, room_b)
                if good_kind == bad_kind and good_kind != FLOAT32 and not (zeros and zeros_good):  # no 0.0 meets a -0.0
                    line[MISMATCH] += _count_unlike(good_codes[begin:end], bad_codes[begin:end])
                else:
                    line[MISMATCH] += _unequal(whole_a, whole_b)
            line[_WIDTH_OF_SIDE + ZEROS] += zeros
            low_bad, high_bad = min(low_bad, low), max(high_bad, high)
            at = begin
            while at < end:
                upto = min(at + BLOCK, end)
                if row > 0:
                    upto = min(upto, (start + at) // row * row + row - start)
                n = upto - at
                a = whole_a[at - begin : upto - begin]
                if same:
                    _one_block(a, out)
                    block_squares = _join(line, 0, n, np.float64(a[0]), out[0], out[1])
                    bad_squares += _join(line, _WIDTH_OF_SIDE, n, np.float64(a[0]), out[0], out[1])
                    products += block_squares
                else:
                    b = whole_b[at - begin : upto - begin]
                    _pair_block(a, b, tiny, out)
                    block_squares = _join(line, 0, n, np.float64(a[0]), out[0], out[1])
                    bad_squares += _join(line, _WIDTH_OF_SIDE, n, np.float64(b[0]), out[2], out[3])
                    squares += out[4]
                    products += out[5]
                    if out[6] > line[MAX_ABS]:
                        line[MAX_ABS], at_abs = out[6], at
                    if out[7] > line[MAX_REL]:
                        line[MAX_REL], at_rel = out[7], at
                good_squares += block_squares
                if row > 0:
                    place = (start + at) // row - start // row
                    row_good[place] += block_squares
                    row_apart[place] += 0.0 if same else out[4]
                at = upto
            begin = end
        for side, kind, lowest, highest in ((0, good_kind, low_good, high_good), (_WIDTH_OF_SIDE, bad_kind, low_bad, high_bad)):
            line[side + LOW], line[side + HIGH] = _value(lowest, kind, room_a), _value(highest, kind, room_a)
            line[side + SPREAD] = np.sqrt(line[side + SPREAD])
        line[BOTH] = length
        line[BITS] = 0.0 if all_same else 1.0
        line[NORM_GOOD], line[NORM_BAD], line[NORM_DIFFERENCE] = np.sqrt(good_squares), np.sqrt(bad_squares), np.sqrt(squares)
        norms = line[NORM_GOOD] * line[NORM_BAD]
        line[COSINE] = products / norms if norms > 0 else 0.0
        if all_same:
            line[COSINE] = 1.0 if norms > 0 else 0.0
        for largest, found, block, smallest in ((MAX_ABS, AT_ABS, at_abs, 0.0), (MAX_REL, AT_REL, at_rel, tiny)):
            if line[largest] > 0:
                end = min(block + BLOCK, stop)
                a = _floats(good, good_codes, good_kind, block, end, room_a)
                b = _floats(bad, bad_codes, bad_kind, block, end, room_b)
                line[found] = start + block + _first(a, b, smallest, line[largest])
    return True
