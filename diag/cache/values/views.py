"""Bytes without a format, seen as numbers of each float type: which type makes sense, and how many are NaN or Inf in it.

A raw buffer does not say what it holds. Its siblings do: the narrowest type in which nearly all of them look like
numbers of a network, of both signs and of ordinary size, is what the service wrote.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.decode import Buffer
from diag.decode.dtypes import widen

TYPES = ("float16", "bfloat16", "float32", "float64")
"""Narrowest first. bfloat16 before float32: the upper halves of float32 alone never make sense as bfloat16."""
MAX_BYTES = 4 << 20
"""Of a longer buffer, its head."""
MIN_COUNT = 16
ORDINARY = 0.98
BOTH_SIGNS = 0.05
# exponent field of 2^-14 to 2^9, and the mask, by type: bits of the mantissa, bits of the exponent
LAYOUT = {"float16": (10, 5), "bfloat16": (7, 8), "float32": (23, 8), "float64": (52, 11)}
CELLS: dict[str, npt.DTypeLike] = {"float16": "<u2", "bfloat16": "<u2", "float32": "<u4", "float64": "<u8"}


@dataclass(frozen=True, slots=True)
class View:
    """A buffer as numbers of one type."""

    dtype: str
    plausible: bool
    """Ordinary numbers of both signs."""
    bad: int
    """NaN and Inf."""
    size: float | None = None
    """Logarithm of the root of the mean square, where that makes sense."""


def views(data: Buffer) -> tuple[View, ...]:
    """Every float type whose size divides the buffer's. Too few numbers say nothing."""
    head = memoryview(data)[:MAX_BYTES]
    found = []
    for dtype in TYPES:
        width = np.dtype(CELLS[dtype]).itemsize
        if len(data) % width == 0 and len(data) >= width * MIN_COUNT:
            found.append(_view(dtype, np.frombuffer(head, CELLS[dtype], count=len(head) // width)))
    return tuple(found)


def _view(dtype: str, cells: npt.NDArray[Any]) -> View:
    mantissa, width = LAYOUT[dtype]
    top = (1 << width) - 1
    bias = top >> 1
    exponents = (cells >> np.array(mantissa, cells.dtype)) & np.array(top, cells.dtype)
    magnitude = exponents[(cells << np.array(1, cells.dtype)) != 0]
    bad = int(np.count_nonzero(exponents == top))
    ordinary = np.count_nonzero((magnitude >= bias - 14) & (magnitude <= bias + 9))
    negative = np.count_nonzero(cells >> np.array(mantissa + width, cells.dtype))
    share = negative / max(magnitude.size, 1)
    sensible = magnitude.size > 0 and ordinary + bad >= ORDINARY * magnitude.size and bad < 0.5 * cells.size
    plausible = bool(sensible and BOTH_SIGNS <= share <= 1 - BOTH_SIGNS)
    return View(dtype, plausible, bad, _size(dtype, cells) if plausible and bad == 0 else None)


def _size(dtype: str, cells: npt.NDArray[Any]) -> float | None:
    values = widen(cells.tobytes(), dtype) if dtype == "bfloat16" else cells.view(dtype)
    wide = np.asarray(values, np.float64)
    square = float(np.dot(wide, wide)) / wide.size
    return 0.5 * math.log(square) if 0 < square < math.inf else None


def repeats(data: Buffer) -> bool:
    """One element of 1, 2, 4 or 8 bytes, over and over."""
    if len(data) < 8 * MIN_COUNT:
        return False
    whole = bytes(data)
    return any(len(whole) % width == 0 and whole[:64] == whole[:width] * (64 // width) and whole == whole[:width] * (len(whole) // width) for width in (1, 2, 4, 8))
