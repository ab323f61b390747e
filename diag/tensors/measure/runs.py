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

_DOT = 4096
"""Longer dot products are cut: OpenBLAS starts threads of its own from 10,000 numbers on, and they fight with ours."""
_LARGE, _SMALL = 2.0**500, 2.0**-400
"""Outside, squares overflow, or enough of them vanish to matter."""


def dots(x: Numbers, y: Numbers) -> Floats:
    """Dot product of each run, as float64: of float32 numbers in rows of their own precision."""
    length = x.shape[1]
    if length <= 2 * _DOT:
        found: Floats = np.matmul(x[:, None, :], y[:, :, None])[:, 0, 0].astype(np.float64, copy=False)
        return found
    whole = length // _DOT * _DOT
    found = np.empty(len(x))
    for run, (a, b) in enumerate(zip(x, y, strict=True)):
        parts = np.matmul(a[:whole].reshape(-1, 1, _DOT), b[:whole].reshape(-1, _DOT, 1))
        found[run] = parts.sum(dtype=np.float64) + np.dot(a[whole:], b[whole:])
    return found


def products(x: Numbers, d: Numbers | None) -> Floats:
    """Of each run [sum x, x·x] or, with `d`, [sum x, x·x, sum d, d·x, d·d]: five dot products, the fastest sums there are."""
    pairs = ((x, None), (x, x)) if d is None else ((x, None), (x, x), (d, None), (d, x), (d, d))
    length = x.shape[1]
    found = np.empty((len(pairs), len(x)))
    if length <= 2 * _DOT:
        for line, (a, b) in zip(found, pairs, strict=True):
            line[:] = np.matmul(a[:, None, :], _ones(a.dtype)[:length] if b is None else b[:, :, None])[:, 0, 0]
        return found
    whole = length // _DOT * _DOT
    parts = np.empty((len(pairs), whole // _DOT, 1, 1), x.dtype)
    for run in range(len(x)):
        for part, (a, b) in zip(parts, pairs, strict=True):
            np.matmul(a[run, :whole].reshape(-1, 1, _DOT), _ones(a.dtype)[:_DOT] if b is None else b[run, :whole].reshape(-1, _DOT, 1), out=part)
        np.add.reduce(parts, axis=(1, 2, 3), dtype=np.float64, out=found[:, run])
        if whole < length:
            found[:, run] += [float(np.dot(a[run, whole:], _ones(a.dtype)[: length - whole, 0] if b is None else b[run, whole:])) for a, b in pairs]
    return found


@cache
def _ones(kind: np.dtype[Any]) -> Numbers:
    return np.ones((2 * _DOT, 1), kind)


def counts(mask: Mask) -> Floats:
    """How many are true in each run."""
    found = np.zeros(len(mask))
    if len(mask) == 1:
        found[0] = np.count_nonzero(mask)
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
