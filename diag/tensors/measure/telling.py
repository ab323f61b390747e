"""Lines of sums as the figures people read."""

import math
from collections.abc import Sequence
from typing import overload

import numpy as np

from diag.tensors.measure import sums
from diag.tensors.measure.cells import Both
from diag.tensors.measure.figures import Difference, Figures, Segment
from diag.tensors.measure.widening import Kind

_FAR = 2.0
"""Norms further apart than this: the formula by differences has no digits to gain, and loses some."""


class Segments(Sequence[Segment]):
    """The segments of a pair, made from their lines when asked for."""

    def __init__(self, table: sums.Table, both: Both, parts: int) -> None:
        self._table, self._both, self._parts = table, both, parts

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | Sequence[Segment]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return segment(self._table[at], at, self._both, self._parts)


def segment(line: sums.Table, index: int, both: Both, parts: int) -> Segment:
    """One line of a table."""
    values = line.tolist()
    good = figures(values, sums.GOOD, both.good, both.good_origin)
    bad = figures(values, sums.BAD, both.bad, both.bad_origin)
    return Segment(index, good, bad, _difference(values, both, parts))


def figures(values: Sequence[float], side: int, kind: Kind, origin: int) -> Figures:
    """One side of a line; its columns begin at `side`."""
    n, zeros, nan, inf, low, high, mean, spread = values[side : side + sums.BAD]
    count = int(n + nan + inf)
    if kind.opaque or n == 0:
        return Figures(count, int(zeros), int(nan), int(inf), None, None, None, None, None)
    mean = float(mean + origin) if origin == 0 else float(origin + _whole(mean)) + (mean - _whole(mean))
    return Figures(count, int(zeros), int(nan), int(inf), low, high, mean, spread / math.sqrt(n), math.hypot(spread, math.sqrt(n) * mean))


def _difference(values: Sequence[float], both: Both, parts: int) -> Difference:
    bits, mismatch = bool(values[sums.BITS]) or not both.alike, int(values[sums.MISMATCH])
    if not values[sums.BOTH]:
        return Difference(not bits, mismatch == 0, None, None, None, None, None, None, None, mismatch, int(values[sums.KINDS]))
    good, bad, apart = values[sums.NORM_GOOD], values[sums.NORM_BAD], values[sums.NORM_DIFFERENCE]
    one_minus = _one_minus_cosine(good, bad, apart, values[sums.COSINE])
    return Difference(
        equal_bits=not bits,
        equal_values=mismatch == 0,
        cosine=None if one_minus is None else 1.0 - one_minus,
        one_minus_cosine=one_minus,
        rel_l2=0.0 if apart == 0 else math.inf if good == 0 else apart / good,
        max_abs=values[sums.MAX_ABS],
        max_abs_index=_index(values[sums.AT_ABS], parts),
        max_rel=values[sums.MAX_REL],
        max_rel_index=_index(values[sums.AT_REL], parts),
        mismatch=mismatch,
        nan_mismatch=int(values[sums.KINDS]),
    )


def _one_minus_cosine(good: float, bad: float, apart: float, cosine: float) -> float | None:
    """Norms of both and of the difference; the cosine by dot product where they are of different size."""
    if apart == 0:
        return 0.0
    if good == 0 or bad == 0:
        return None
    if max(good, bad) > _FAR * min(good, bad):
        return min(max(1.0 - cosine, 0.0), 2.0)
    ratio, gap = bad / good, apart / good
    return min(max((gap * gap - (1.0 - ratio) * (1.0 - ratio)) / (2.0 * ratio), 0.0), 2.0)


def _index(at: float, parts: int) -> int | None:
    return None if at < 0 else int(at) // parts


def _whole(value: float) -> int:
    return int(np.rint(value))
