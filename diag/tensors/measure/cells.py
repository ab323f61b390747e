"""All sums of one cell of a pair with numpy: a few ten thousand numbers that stay in the processor's cache, as runs of equal length.

Everything is formed in float64 from exact values. A cell with NaN or Inf takes the same way with a mask; float64 cells
with numbers near the ends of their range are scaled by a power of two first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from diag.tensors.measure import sums
from diag.tensors.measure.rows import Rows, row_sums
from diag.tensors.measure.runs import Floats, Mask, Scale, counts, dots, either, exponents, shifted
from diag.tensors.measure.sides import Side, filled, look, mask, measure, measure_codes
from diag.tensors.measure.widening import Cells, Kind, apart, distance

Read = Callable[[int, int], list[Cells]]
"""Numbers `start` to `stop` of each side, valid until it is called again."""

_HEAD = 512
_ALIKE = 1e-6
"""Part by which sizes must differ for single precision to tell them apart."""


@dataclass(frozen=True)
class Cell:
    """`runs` runs of `length` numbers from number `start` on; the first belongs to segment `segment`."""

    start: int
    runs: int
    length: int
    segment: int
    row: int = 0
    """Numbers a row; 0: no row sums wanted."""

    @property
    def size(self) -> int:
        return self.runs * self.length

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True)
class Both:
    """How the two sides of a pair are to be taken."""

    good: Kind
    bad: Kind
    good_origin: int = 0
    bad_origin: int = 0

    @property
    def alike(self) -> bool:
        return self.good == self.bad


class Room:
    """Arrays to work in: one set a thread, made once."""

    def __init__(self, size: int) -> None:
        self.good, self.bad, self.apart, self.spare = np.empty((4, size))
        self.mask = np.empty(size, np.bool_)
        self._segment, self._largest = -1, np.zeros(2)

    def largest_of(self, cell: Cell) -> Floats:
        """The largest absolute and relative difference this thread has seen in the segment a cell is a part of, 0 of a cell
        that is whole segments; less what single precision cannot tell, so that which thread saw what makes no difference."""
        return self._largest * (1 - _ALIKE) if cell.runs == 1 and cell.segment == self._segment else np.zeros(2)

    def remember(self, cell: Cell, largest: Floats) -> None:
        """What was found in a cell."""
        before = self._largest if cell.segment == self._segment else np.zeros(2)
        self._segment, self._largest = cell.segment, np.fmax(before, largest)


def measured(good: Cells, bad: Cells, both: Both, cell: Cell, room: Room) -> tuple[sums.Table, list[Rows]]:
    """A line per run, and the row sums. `good` and `bad` are the cell's numbers, flat."""
    if both.alike and same_bytes(good, bad):
        return _identical(good, both, cell, room)
    table = sums.empty(cell.runs)
    a, b = good.reshape(cell.runs, -1), bad.reshape(cell.runs, -1)
    if both.good.opaque or both.bad.opaque:
        _codes(a, b, table)
        return table, []
    x, y = filled(a, both.good, both.good_origin, room.good), filled(b, both.bad, both.bad_origin, room.bad)
    ends_x, ends_y = look(x), look(y)
    unequal = np.not_equal(x.x, y.x, out=room.mask[: cell.size].reshape(a.shape))
    if not (both.good.exact and both.bad.exact):
        unequal[...] = apart(good, both.good, bad, both.bad).reshape(a.shape)
    unlike = _unlike(x, y, unequal)
    table[:, sums.MISMATCH] = counts(unequal)
    table[:, sums.KINDS] = 0 if unlike is None else counts(unlike)
    table[:, sums.BITS] = different_bits(good, bad, table[:, sums.MISMATCH]) if both.alike else 1
    norms = [
        measure(x, table[:, : sums.BAD], ends_x, room.apart),
        measure(y, table[:, sums.BAD : sums.BAD + sums.BAD], ends_y, room.apart),
    ]
    return table, _pair(x, y, norms, unlike, table, cell, room)


def measured_one(cells: Cells, kind: Kind, origin: int, cell: Cell, room: Room) -> sums.Table:
    """A line per run, of which the good side's columns count."""
    table = sums.empty(cell.runs)
    _alone(cells, kind, origin, table, room)
    return table


def same_bytes(a: Cells, b: Cells) -> bool:
    """Bit by bit, eight bytes at a time where they come so. Most that differ do so at once."""
    if a[:_HEAD].tobytes() != b[:_HEAD].tobytes():
        return False
    wide = np.uint64 if a.nbytes % 8 == 0 and (a.ctypes.data | b.ctypes.data) % 8 == 0 else np.uint8
    return bool((a.view(wide) == b.view(wide)).all())


def different_bits(good: Cells, bad: Cells, unequal: Floats) -> Floats:
    """1 for runs with different bits. A look is needed only where all values are equal (-0.0, payloads of NaN)."""
    differ = (unequal > 0).astype(np.float64)
    a, b = good.reshape(len(unequal), -1), bad.reshape(len(unequal), -1)
    for run in np.flatnonzero(differ == 0):
        differ[run] = not same_bytes(a[run], b[run])
    return differ


def _identical(cells: Cells, both: Both, cell: Cell, room: Room) -> tuple[sums.Table, list[Rows]]:
    """Measured once, told of both."""
    table = sums.empty(cell.runs)
    found = _alone(cells, both.good, both.good_origin, table, room)
    table[:, sums.BAD : sums.BAD + sums.BAD] = table[:, : sums.BAD]
    table[:, sums.BAD + sums.MEAN] += both.good_origin - both.bad_origin
    if found is None:
        return table, []
    side, norm = found
    table[:, sums.BOTH] = table[:, sums.N]
    table[:, sums.NORM_GOOD] = table[:, sums.NORM_BAD] = shifted(norm, side.scale)
    table[:, sums.COSINE] = norm > 0
    return table, [row_sums(side.x, None, None, cell.start, cell.row)] if cell.row else []


def _alone(cells: Cells, kind: Kind, origin: int, table: sums.Table, room: Room) -> tuple[Side, Floats] | None:
    """Fill the good side's columns; None of opaque codes."""
    shaped = cells.reshape(len(table), -1)
    if kind.opaque:
        measure_codes(shaped, table[:, : sums.BAD])
        return None
    side = filled(shaped, kind, origin, room.good)
    return side, measure(side, table[:, : sums.BAD], look(side), room.apart)


def _codes(a: Cells, b: Cells, table: sums.Table) -> None:
    """Bits only, where one side's type is not known; codes of different width are all different."""
    measure_codes(a, table[:, : sums.BAD])
    measure_codes(b, table[:, sums.BAD : sums.BAD + sums.BAD])
    same_width = a.itemsize == b.itemsize
    table[:, sums.MISMATCH] = counts(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")) if same_width else a.shape[1]
    table[:, sums.BITS] = table[:, sums.MISMATCH] > 0


def _unlike(x: Side, y: Side, unequal: Mask) -> Mask | None:
    """Where NaN or Inf stands against something else; None: all is finite. NaN equals NaN in `unequal` from here on."""
    if x.finite is None and y.finite is None:
        return None
    unequal &= ~(np.isnan(x.x) & np.isnan(y.x))
    return unequal & ~_finite(x, y)


def _finite(x: Side, y: Side) -> Mask:
    """Where both are."""
    if x.finite is None or y.finite is None:
        found = x.finite if y.finite is None else y.finite
        assert found is not None
        return found
    return x.finite & y.finite


def _pair(x: Side, y: Side, norms: list[Floats], unlike: Mask | None, table: sums.Table, cell: Cell, room: Room) -> list[Rows]:
    """Fill the pair's columns; the row sums where they are wanted."""
    table[:, sums.BOTH] = x.x.shape[1]
    finite = None if unlike is None else _finite(x, y)
    if finite is not None:
        for side in (x, y):
            mask(side, finite)
        table[:, sums.BOTH] = counts(finite)
        norms = [np.sqrt(dots(side.x, side.x)) for side in (x, y)]
    table[:, sums.NORM_GOOD], table[:, sums.NORM_BAD] = shifted(norms[0], x.scale), shifted(norms[1], y.scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = dots(x.x, y.x) / norms[0] / norms[1]
    table[:, sums.COSINE] = np.where(np.isfinite(cosine), cosine, 0.0)
    scale = either(x.scale, y.scale)
    d = _distances(x, y, scale, finite, room.apart[: cell.size].reshape(x.x.shape))
    good, apart = (x.x, d) if scale is None else _unscaled(x, y, finite)
    _largest(apart, table, sums.MAX_ABS, cell.start)
    _largest(_relative(good, apart, x.kind.tiny, room.spare[: cell.size].reshape(x.x.shape)), table, sums.MAX_REL, cell.start)
    rows = [row_sums(good, apart, unlike, cell.start, cell.row, sure=scale is not None)] if cell.row else []
    if np.float64 in (x.kind.number, y.kind.number):
        more = exponents(d.max(axis=1))
        shifted(d, None if more is None else -more, out=d)
        scale = more if scale is None else scale + (0 if more is None else more)
    table[:, sums.NORM_DIFFERENCE] = shifted(np.sqrt(dots(d, d)), scale)
    return rows


def _distances(x: Side, y: Side, scale: Scale | None, finite: Mask | None, into: Floats) -> Floats:
    """|a - b| / 2**scale, 0 where one is not finite. Brings the two sides to the common scale."""
    if not (x.kind.exact and y.kind.exact):
        distance(x.cells.reshape(-1), x.kind, y.cells.reshape(-1), y.kind, into.reshape(-1))
        shifted(into, None if scale is None else -scale, out=into)
        if finite is not None:
            np.copyto(into, 0.0, where=~finite)
        return into
    a, b = (side.x if scale is None else shifted(side.x, (0 if side.scale is None else side.scale) - scale) for side in (x, y))
    np.subtract(a, b, out=into)
    return np.abs(into, out=into)


def _unscaled(x: Side, y: Side, finite: Mask | None) -> tuple[Floats, Floats]:
    """|a| and |a - b| as they are, where the sides had to be scaled for their sums; 0 where one is not finite."""
    a, b = (filled(side.cells, side.kind, 0, np.empty(side.x.size)).x for side in (x, y))
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.abs(a), np.abs(a - b)
    if finite is not None:
        for values in found:
            np.copyto(values, 0.0, where=~finite)
    return found


def _relative(a: Floats, d: Floats, tiny: float, into: Floats) -> Floats:
    """|a - b| / max(|a|, tiny)."""
    base = np.maximum(np.abs(a, out=into), tiny, out=into)
    with np.errstate(over="ignore"):
        return np.divide(d, base, out=base)


def _largest(values: Floats, table: sums.Table, column: int, start: int) -> None:
    """The first largest of each run and its index, -1 where it is 0."""
    at = values.argmax(axis=1)
    runs = np.arange(len(values))
    table[:, column] = values[runs, at]
    table[:, column + 1] = np.where(table[:, column] > 0, start + runs * values.shape[1] + at, -1)
