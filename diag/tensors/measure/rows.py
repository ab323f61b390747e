"""Row sums: which token rows of a pair differ, which the cosine of a whole block hides."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.tensors.measure.runs import Floats, Mask, Numbers, dots

MAX_ROWS = 1 << 20
"""With more rows none are kept: they take 16 bytes each."""

_VAGUE = 1e-13
"""A norm below this has lost squares, if it is one of float32 numbers summed as such."""


@dataclass(frozen=True)
class Rows:
    """Of the rows a cell touches, in order: norms, and where NaN or Inf stands against something else."""

    first: int
    good: Floats
    apart: Floats
    unlike: Mask | None
    """None: nowhere."""


class Ledger:
    """All rows of a pair. A row that several cells touch is their joint norm."""

    def __init__(self, count: int) -> None:
        self._good, self._apart = np.zeros((2, count))

    def enter(self, rows: Rows) -> None:
        span = slice(rows.first, rows.first + len(rows.good))
        apart = rows.apart if rows.unlike is None else np.where(rows.unlike, np.inf, rows.apart)
        for known, more in ((self._good[span], rows.good), (self._apart[span], apart)):
            first, last = known[0], known[-1]  # no other of them was touched before
            known[:] = more
            known[0] = np.hypot(first, more[0])
            known[-1] = np.hypot(last, more[-1])

    def relative(self) -> Floats:
        """|a - b| / |a|; 0 where both are 0, inf where only a is or where NaN or Inf stands against something else."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found: Floats = self._apart / self._good
        return np.where(self._apart == 0, 0.0, found)


def row_sums(x: Numbers, d: Numbers | None, unlike: Mask | None, start: int, row: int, *, sure: bool = False) -> Rows:
    """Of a cell [runs, length] that begins at number `start`; `d` None: no difference anywhere, and the norms do not matter
    beyond being 0 or not. `sure`: slowly, where squares overflow or vanish."""
    good = _norms(x, start, row, sure)
    apart = np.zeros(len(good)) if d is None else _norms(d, start, row, sure)
    flags = None if unlike is None else np.logical_or.reduceat(unlike.reshape(-1), _begins(unlike.size, start, row))
    return Rows(start // row, good, apart, flags)


def of_squares(x: Numbers, d: Numbers | None, squares: list[Numbers], start: int, row: int) -> Rows:
    """As `row_sums`, of whole rows whose sums of squares are there already."""
    good = _roots(x.reshape(-1, row), squares[0])
    return Rows(start // row, good, np.zeros(len(good)) if d is None else _roots(d.reshape(-1, row), squares[1]), None)


def _norms(x: Numbers, start: int, row: int, sure: bool) -> Floats:
    """Root of the sum of squares of each row."""
    if sure:
        return np.array([_norm(part) for part in np.split(x.reshape(-1), _begins(x.size, start, row)[1:])])
    if start % row == 0 and x.shape[1] % row == 0:
        rows = x.reshape(-1, row)
        return _roots(rows, dots(rows, rows))
    return np.sqrt(np.add.reduceat(np.square(x, dtype=np.float64).reshape(-1), _begins(x.size, start, row)))


def _roots(rows: Numbers, squares: Numbers) -> Floats:
    """Of the rows' sums of squares; formed again where they are too small to have kept all of them."""
    roots = np.sqrt(squares, dtype=np.float64)
    if rows.dtype == np.float32 and np.minimum.reduce(roots) < _VAGUE:
        vague = roots < _VAGUE
        wide = rows[vague].astype(np.float64)
        roots[vague] = np.sqrt(dots(wide, wide))
    return roots


def _norm(x: Floats) -> float:
    largest = float(np.abs(x).max())
    return largest * float(np.linalg.norm(x / largest)) if 0 < largest < np.inf else largest


def _begins(size: int, start: int, row: int) -> npt.NDArray[np.intp]:
    """Where the rows begin within a cell; the first may have begun before."""
    return np.unique(np.append(np.arange(-start % row, size, row, dtype=np.intp), 0))
