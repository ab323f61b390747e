"""What numpy lacks, for arrays [runs, length] of float64 or float32: one answer a run."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Scale = npt.NDArray[np.int_]
"""A power of two a run."""

DOT = 4096
"""Longer dot products are cut: OpenBLAS starts threads of its own from 10,000 numbers on, and they fight with ours."""
_COUNT = 1024
"""Longer runs are counted one by one, which is fifty times as fast as all at once."""
_LARGE, _SMALL = 2.0**500, 2.0**-400
"""Outside, squares overflow, or enough of them vanish to matter."""


def dots(x: Numbers, y: Numbers) -> Floats:
    """Dot product of each run, as float64: of float32 numbers in rows of their own precision."""
    length = x.shape[1]
    if length <= 2 * DOT:
        found: Floats = np.matmul(x[:, None, :], y[:, :, None])[:, 0, 0].astype(np.float64, copy=False)
        return found
    whole = length // DOT * DOT
    found = np.empty(len(x))
    for run, (a, b) in enumerate(zip(x, y, strict=True)):
        parts = np.matmul(a[:whole].reshape(-1, 1, DOT), b[:whole].reshape(-1, DOT, 1))
        found[run] = parts.sum(dtype=np.float64) + np.dot(a[whole:], b[whole:])
    return found


def products(x: Numbers, d: Numbers | None, width: int = 0) -> tuple[Floats, list[Numbers]]:
    """Of each run [sum x, x·x] or, with `d`, [sum x, x·x, sum d, d·x, d·d]: dot products, the fastest sums there are, of rows
    of `width` numbers (of which runs are whole ones; 0: any). And the dot product of each row of x, and of d."""
    runs, length = x.shape
    width = width or (length if length <= 2 * DOT else DOT)
    whole = length // width * width
    ones = _ones(x.dtype)
    parts = np.empty((2 if d is None else 5, runs, whole // width, 1, 1), x.dtype)
    a = x[:, :whole].reshape(runs, -1, 1, width)
    np.matmul(a, ones[:width], out=parts[0])
    np.matmul(a, a.swapaxes(2, 3), out=parts[1])
    if d is not None:
        b = d[:, :whole].reshape(runs, -1, 1, width)
        np.matmul(b, ones[:width], out=parts[2])
        np.matmul(b, a.swapaxes(2, 3), out=parts[3])
        np.matmul(b, b.swapaxes(2, 3), out=parts[4])
    found: Floats = np.add.reduce(parts, axis=(2, 3, 4), dtype=np.float64)
    if whole < length:
        found += products(x[:, whole:], None if d is None else d[:, whole:])[0]
    return found, [parts[1].reshape(-1), *([] if d is None else [parts[4].reshape(-1)])]


@cache
def _ones(kind: np.dtype[Any]) -> Numbers:
    return np.ones((2 * DOT, 1), kind)


def counts(mask: Mask) -> Floats:
    """How many are true in each run."""
    found = np.zeros(len(mask))
    if len(mask) == 1:
        found[0] = np.count_nonzero(mask)
    elif mask.shape[1] >= _COUNT:
        found[:] = [np.count_nonzero(run) for run in mask]
    elif mask.any():
        np.add.reduce(mask, axis=1, dtype=np.float64, out=found)
    return found


def exponents(largest: Floats) -> Scale | None:
    """Power of two of the largest size of each run, where squares would overflow or vanish; None: nowhere."""
    beyond = (largest > _LARGE) | ((largest < _SMALL) & (largest > 0))
    return np.where(beyond, np.frexp(largest)[1], 0).astype(np.int_) if beyond.any() else None


def shifted(values: Floats, scale: Scale | None, out: Floats | None = None) -> Floats:
    """values * 2**scale of their run; values are [runs] or [runs, length]."""
    if scale is None:
        return values
    with np.errstate(over="ignore", under="ignore"):
        found: Floats = np.ldexp(values, scale if values.ndim == 1 else scale[:, None], out=out)
    return found


def either(a: Scale | None, b: Scale | None) -> Any:
    """The larger power of each run."""
    return None if a is None and b is None else np.maximum(0 if a is None else a, 0 if b is None else b)
