"""The figures of one side of a cell."""

from dataclasses import dataclass

import numpy as np

from diag.tensors.measure import sums
from diag.tensors.measure.runs import Floats, Mask, Scale, counts, dots, exponents, shifted
from diag.tensors.measure.widening import Cells, Kind, from_origin, widened

_CANCELS = 1e-3
"""A sum of squared distances below this part of the sum of squares has lost digits: it is formed again around the mean."""


@dataclass
class Side:
    """One side of a cell, [runs, length]."""

    cells: Cells
    kind: Kind
    origin: int
    """What 64-bit integers are counted from; 0 for others."""
    x: Floats
    """The numbers; once measured: NaN and Inf are 0, divided by 2**scale."""
    finite: Mask | None = None
    """None: all."""
    scale: Scale | None = None


def filled(cells: Cells, kind: Kind, origin: int, into: Floats) -> Side:
    """The numbers of [runs, length] cells; `into` is as large at least."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        x = widened(cells.reshape(-1), kind, into[: cells.size]).reshape(cells.shape)
    return Side(cells, kind, origin, x)


def look(side: Side) -> tuple[Floats, Floats]:
    """Smallest and largest finite number of each run (inf and -inf where there is none); notes what is finite."""
    low, high = side.x.min(axis=1), side.x.max(axis=1)
    if side.kind.floating and not (np.isfinite(low) & np.isfinite(high)).all():
        side.finite = np.isfinite(side.x)
        low, high = side.x.min(axis=1, where=side.finite, initial=np.inf), side.x.max(axis=1, where=side.finite, initial=-np.inf)
    return low, high


def measure(side: Side, line: sums.Table, ends: tuple[Floats, Floats], spare: Floats) -> Floats:
    """Fill the side's columns; returns the norms, divided by 2**scale. Two arrays of the cell's size are worked in."""
    low, high = ends
    length = side.x.shape[1]
    line[:, sums.LOW], line[:, sums.HIGH] = ends
    if (low <= 0).any() and (high >= 0).any():
        line[:, sums.ZEROS] = counts(np.equal(side.x, 0.0))
    if side.finite is None:
        line[:, sums.N] = length
    else:
        line[:, sums.N] = counts(side.finite)
        line[:, sums.NAN] = counts(np.isnan(side.x))
        line[:, sums.INF] = length - line[:, sums.N] - line[:, sums.NAN]
        np.copyto(side.x, 0.0, where=~side.finite)
    _scale(side)
    squares = dots(side.x, side.x)
    offsets = None if side.kind.exact else from_origin(side.cells.reshape(-1), side.origin, np.empty(side.x.size))
    if offsets is None:
        mean, spread = _moments(side.x, squares, line[:, sums.N], low < high, side.finite, spare)
        line[:, sums.MEAN] = shifted(mean, side.scale) - side.origin
    else:
        offsets = offsets.reshape(side.x.shape)
        line[:, sums.MEAN], spread = _moments(offsets, dots(offsets, offsets), line[:, sums.N], np.ptp(offsets, axis=1) > 0, None, spare)
    line[:, sums.SPREAD] = shifted(spread, side.scale)
    return np.sqrt(squares)


def mask(side: Side, finite: Mask) -> None:
    """Leave only what is finite on both sides; the scale is then that of what is left."""
    if side.scale is not None:
        side.x = filled(side.cells, side.kind, 0, side.x.reshape(-1)).x
    np.copyto(side.x, 0.0, where=~finite)
    _scale(side)


def _scale(side: Side) -> None:
    """Bring float64 numbers whose squares would overflow or vanish near 1."""
    if side.kind.number == np.float64:
        side.scale = exponents(np.maximum(side.x.max(axis=1), -side.x.min(axis=1)))
        shifted(side.x, None if side.scale is None else -side.scale, out=side.x)


def measure_codes(cells: Cells, line: sums.Table) -> None:
    """Of codes that are no numbers: how many, and how many are all bits 0."""
    line[:, sums.N] = cells.shape[1]
    line[:, sums.ZEROS] = counts(np.equal(cells, 0))


def _moments(x: Floats, squares: Floats, n: Floats, varied: Mask, finite: Mask | None, spare: Floats) -> tuple[Floats, Floats]:
    """Mean, and root of the sum of squared distances from it."""
    n = np.maximum(n, 1)
    mean = x.sum(axis=1) / n
    spread = squares - n * mean * mean
    if ((spread < _CANCELS * squares) & varied).any():
        t = np.subtract(x, mean[:, None], out=spare[: x.size].reshape(x.shape))
        if finite is not None:
            np.copyto(t, 0.0, where=~finite)
        rest = t.sum(axis=1)  # what rounding left of the mean
        spread = dots(t, t) - rest * rest / n
        mean = mean + rest / n
    return np.where(varied, mean, x[:, 0]) if finite is None else mean, np.sqrt(np.where(varied, np.maximum(spread, 0.0), 0.0))
