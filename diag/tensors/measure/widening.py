"""What cells stand for: every element type widened to float64, exactly, but 64-bit integers, which come with their own rules."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.decode.dtypes import widen
from diag.tensors.elements import is_opaque, itemsize, numpy_dtype

Cells = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_TINY = {"bfloat16": 2.0**-126, "float8_e4m3fn": 2.0**-6, "float8_e5m2": 2.0**-14, "float8_e4m3fnuz": 2.0**-7, "float8_e5m2fnuz": 2.0**-15}
_F16_INFINITE = 0x7C00


@dataclass(frozen=True)
class Kind:
    """An element type as numbers."""

    dtype: str
    parts: int
    """Numbers per element: 2 for complex."""
    number: np.dtype[Any]
    """What one number's cell is, in this machine's byte order."""
    opaque: bool
    exact: bool
    """float64 holds every value."""
    floating: bool
    """May hold NaN or Inf."""
    tiny: float
    """Smallest normal number; 1 for integers."""


@cache
def kind_of(dtype: str) -> Kind:
    """KeyError: no type of a Tensor."""
    found = numpy_dtype(dtype)
    parts = 2 if found is not None and found.kind == "c" else 1
    if found is None or dtype in ("bool", "float16"):
        number = np.dtype(f"u{itemsize(dtype)}")
    else:
        number = np.dtype(f"f{found.itemsize // 2}") if parts == 2 else found
    floating = dtype in _TINY or (found is not None and found.kind in "fc")
    tiny = _TINY.get(dtype, 1.0)
    if found is not None and floating:
        tiny = float(np.finfo(found).tiny)
    return Kind(dtype, parts, number, is_opaque(dtype), dtype not in ("int64", "uint64"), floating, tiny)


def numbers(cells: Cells, kind: Kind) -> Cells:
    """Native cells of elements as cells of numbers: a view, with both parts of complex ones and codes where numpy is slow or lax."""
    return cells.view(kind.number)


def widened(cells: Cells, kind: Kind, into: Floats) -> Floats:
    """Cells of numbers as float64 in `into` (of the same length). 64-bit integers are rounded."""
    if kind.dtype == "bool":
        np.not_equal(cells, 0, out=into, casting="unsafe")
    elif kind.dtype == "bfloat16":
        np.copyto(into, np.left_shift(cells, 16, dtype=np.uint32).view(np.float32))
    elif kind.dtype == "float16":
        _half(cells, into)
    elif kind.number.kind == "u" and kind.floating:
        np.take(_table(kind.dtype), cells, out=into, mode="clip")
    else:
        np.copyto(into, cells, casting="same_kind" if kind.exact else "unsafe")
    return into


def _half(cells: Cells, into: Floats) -> None:
    """By shifting the bits into a float32 whose exponent is 112 too small: exact, subnormal numbers included, and eight times
    as fast as numpy's own conversion, which Inf and NaN need."""
    sizes = np.bitwise_and(cells, 0x7FFF)
    if len(cells) and int(sizes.max()) >= _F16_INFINITE:
        np.copyto(into, cells.view(np.float16))
        return
    bits = sizes.astype(np.uint32)
    bits <<= np.uint32(13)
    signs = np.bitwise_and(cells, 0x8000).astype(np.uint32)
    signs <<= np.uint32(16)
    bits |= signs
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)
    np.copyto(into, values)


@cache
def _table(dtype: str) -> Floats:
    """The values of all 256 codes."""
    values = widen(bytes(range(256)), dtype)
    if values is None:
        raise KeyError(dtype)
    return values.astype(np.float64)


def apart(a: Cells, kind_a: Kind, b: Cells, kind_b: Kind) -> npt.NDArray[np.bool_]:
    """Where two arrays of numbers differ in value, when at least one is of 64-bit integers: exactly, beyond 2**53 too."""
    if kind_a.floating or kind_b.floating:
        integers, floats = (b, _wide(a, kind_a)) if kind_a.floating else (a, _wide(b, kind_b))
        lowest, beyond = (-(2.0**63), 2.0**63) if integers.dtype.kind == "i" else (0.0, 2.0**64)
        fits = (floats >= lowest) & (floats < beyond) & (np.floor(floats) == floats)
        same: npt.NDArray[np.bool_] = fits & (np.where(fits, floats, 0).astype(integers.dtype) == integers)
        return ~same
    return np.not_equal(_integers(a, kind_a), _integers(b, kind_b))


def distance(a: Cells, kind_a: Kind, b: Cells, kind_b: Kind, into: Floats) -> Floats:
    """|a - b| of arrays of numbers of which at least one is of 64-bit integers: formed exactly, then rounded to float64."""
    if kind_a.floating or kind_b.floating or (kind_a.number.kind != kind_b.number.kind and min(a.min(), b.min()) < 0):
        return np.abs(np.subtract(_wide(a, kind_a), _wide(b, kind_b), out=into), out=into)
    x, y = _integers(a, kind_a), _integers(b, kind_b)
    above, x, y = x > y, x.astype(np.uint64), y.astype(np.uint64)  # modulo 2**64, where the difference is exact
    np.copyto(into, np.where(above, x - y, y - x), casting="unsafe")
    return into


def from_origin(cells: Cells, origin: int, into: Floats) -> Floats | None:
    """64-bit integers less `origin`, exact below 2**53; None: too far from it for 64 bits."""
    if abs(int(cells.max()) - origin) >> 63 or abs(int(cells.min()) - origin) >> 63:
        return None
    less = (cells.view(np.uint64) - np.uint64(origin % 2**64)).view(np.int64)
    np.copyto(into, less, casting="unsafe")
    return into


def _wide(cells: Cells, kind: Kind) -> Floats:
    return widened(cells, kind, np.empty(cells.shape))


def _integers(cells: Cells, kind: Kind) -> Cells:
    return cells != 0 if kind.dtype == "bool" else cells
