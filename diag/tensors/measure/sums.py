"""Partial results of runs of elements, and how two of them become one.

A table has a line per run and the columns below. Sums of squares are kept as their roots and joined by hypot, so
float64 values near 1e300 or 1e-300 neither overflow nor vanish; means and spreads are joined as Chan, Golub and
LeVeque (1983) do, so no digits cancel.
"""

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]
Column = npt.NDArray[np.float64]

# of one side; the bad side's columns follow the good side's
N, ZEROS, NAN, INF, LOW, HIGH, MEAN, SPREAD = range(8)
"""N: finite numbers. SPREAD: root of the sum of squared distances from the mean."""
GOOD, BAD = 0, 8
# of the pair, over numbers finite on both sides
(
    BOTH, NORM_GOOD, NORM_BAD, NORM_DIFFERENCE, COSINE, MAX_ABS, AT_ABS, MAX_REL, AT_REL,
    MISMATCH, KINDS, BITS,
) = range(16, 28)  # fmt: skip
"""BOTH: how many. COSINE: by the dot product. AT_…: index, -1 none. KINDS: NaN or Inf against another kind. BITS: 1 if some bits differ."""
WIDTH = 28
_EMPTY = np.zeros(WIDTH)
_EMPTY[[GOOD + LOW, BAD + LOW]] = np.inf
_EMPTY[[GOOD + HIGH, BAD + HIGH]] = -np.inf
_EMPTY[[AT_ABS, AT_REL]] = -1


def empty(lines: int) -> Table:
    """Of no elements at all: joined with another table, it changes nothing."""
    table = np.empty((lines, WIDTH))
    table[:] = _EMPTY
    return table


def joined(left: Table, right: Table) -> Table:
    """Line by line; elements of `left` come before those of `right`."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        both = left + right  # the counts; everything else is overwritten
        for side in (GOOD, BAD):
            _join_side(left[:, side : side + 8], right[:, side : side + 8], both[:, side : side + 8])
        _join_pair(left, right, both)
    return both


def total(table: Table) -> Table:
    """All lines as one, joined in halves: the same result whichever thread made a line, and the least rounding."""
    if not len(table):
        return empty(1)
    while len(table) > 1:
        odd = table[len(table) & ~1 :]
        table = np.concatenate([joined(table[: len(table) & ~1 : 2], table[1::2]), odd])
    return table


def _join_side(left: Table, right: Table, both: Table) -> None:
    n = np.maximum(both[:, N], 1)
    apart = right[:, MEAN] - left[:, MEAN]
    np.minimum(left[:, LOW], right[:, LOW], out=both[:, LOW])
    np.maximum(left[:, HIGH], right[:, HIGH], out=both[:, HIGH])
    both[:, MEAN] = np.where(left[:, N] == 0, right[:, MEAN], left[:, MEAN] + apart * (right[:, N] / n))
    between = np.where((left[:, N] == 0) | (right[:, N] == 0), 0.0, np.abs(apart) * np.sqrt(left[:, N] / n * right[:, N]))
    both[:, SPREAD] = np.hypot(np.hypot(left[:, SPREAD], right[:, SPREAD]), between)


def _join_pair(left: Table, right: Table, both: Table) -> None:
    for norm in (NORM_GOOD, NORM_BAD, NORM_DIFFERENCE):
        both[:, norm] = np.hypot(left[:, norm], right[:, norm])
    both[:, COSINE] = _share(left, both) * left[:, COSINE] + _share(right, both) * right[:, COSINE]
    for largest, at in ((MAX_ABS, AT_ABS), (MAX_REL, AT_REL)):
        later = right[:, largest] > left[:, largest]
        both[:, largest] = np.where(later, right[:, largest], left[:, largest])
        both[:, at] = np.where(later, right[:, at], left[:, at])
    both[:, BITS] = np.maximum(left[:, BITS], right[:, BITS])


def _share(part: Table, whole: Table) -> Column:
    """|a part| |b part| / (|a| |b|), without forming a product that could overflow."""
    share = (part[:, NORM_GOOD] / whole[:, NORM_GOOD]) * (part[:, NORM_BAD] / whole[:, NORM_BAD])
    return np.where(np.isfinite(share), share, 0.0)
