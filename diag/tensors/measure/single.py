"""The sums of a cell of 16- or 32-bit floats with numpy in single precision, summed up in double: for large pairs without numba.

Several times as fast as cells.py. Counts and ends are exact, sums are good to 1e-6 of their size; the largest differences
are exact values, of an element within 1e-6 of the largest. The difference of the norms, on which 1 - cosine hangs, is
formed from sums of the difference and keeps its digits. A block where single precision does not do (NaN, Inf, sizes whose
squares leave its range, cancellation) goes through cells.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from diag.tensors.measure import columns, sums
from diag.tensors.measure.cells import Both, Cell, Read, Room, different_bits, measured, same_bytes
from diag.tensors.measure.rows import Rows, of_squares, row_sums
from diag.tensors.measure.runs import DOT, Floats, Mask, counts, products
from diag.tensors.measure.widening import Cells, Kind

BLOCKS = 8
"""Of a cell, which share the arithmetic on their sums."""
BLOCK = {2: 768 * 1024, 4: 512 * 1024}
"""Numbers, by the bytes of one; fewer, and threads wait for each other between the calls of numpy; more, and they leave the
third-level cache."""

_ROW = 256
"""Shorter rows have their sums formed apart: a call a row weighs more than the second look."""
_FEW = 64
"""One number of so many."""
_LARGE, _SMALL = 1e15, 1e-13
"""Outside, float32 squares overflow, or enough of them vanish to matter."""
_LARGEST_HALF = 65504.0
_CANCELS = 0.1
_TINY = {"float32": 0x00800000, "bfloat16": 0x0080, "float16": 0x0400}
"""Bits of the smallest normal number."""
_FROM_HALF = np.float32(2.0**112)
_HALF_BITS = np.int32(0x8FFFE000 - (1 << 32))
_ZERO = np.float32(0)

Singles = npt.NDArray[np.float32]

# what one look at the numbers tells of a line: a run, or a block of a run longer than that
(
    LENGTH, LEAST, MOST, LEAST_SIGNED, MOST_SIGNED, ZEROS, LEAST_BAD, MOST_BAD, LEAST_SIGNED_BAD, MOST_SIGNED_BAD, ZEROS_BAD,
    TOTAL, SQUARES, TOTAL_APART, ALONG, APART, UNEQUAL, BITS, ABS_AT, ABS_GOOD, ABS_BAD, REL_AT, REL_GOOD, REL_BAD, ABS, REL, COLUMNS,
) = range(27)  # fmt: skip
"""LEAST to MOST_SIGNED: ends of the bits, read without and with a sign. ALONG: the difference times good. APART: its square.
ABS and REL: the largest, as good as float32 tells. ABS_… and REL_…: where it is, and the bits of the two numbers there; an
index of -1: it is no larger than one that was seen before, and was not looked for."""


def measured_single(read: Read, both: Both, cell: Cell, room: Room) -> tuple[sums.Table, list[Rows]]:
    """As `cells.measured`, but a single run that is longer than a block has a line per block. Reads block by block."""
    blocks = list(_blocks(cell, block_of(both)))
    look = np.zeros((COLUMNS, sum(block.runs for block in blocks)))
    rows: list[list[Rows]] = []
    seen = room.largest_of(cell)
    first = 0
    with np.errstate(all="ignore"):
        for block in blocks:
            rows.append(_look(read(block.start, block.stop), both, block, room, seen, look[:, first : first + block.runs]))
            first += block.runs
        table, wrong = _told(look, both, cell.start)
    if wrong.any():
        first = 0
        for number, block in enumerate(blocks):
            lines = slice(first, first + block.runs)
            if wrong[lines].any():
                good, bad = read(block.start, block.stop)
                table[lines], rows[number] = measured(good, bad, both, block, room)
            first += block.runs
    room.remember(cell, table[:, [sums.MAX_ABS, sums.MAX_REL]].max(axis=0))
    if len(table) > cell.runs > 1:
        table = np.concatenate([sums.total(run) for run in np.split(table, cell.runs)])
    return table, [row for found in rows for row in found]


def block_of(both: Both) -> int:
    """At most so many numbers are looked at together."""
    return BLOCK[max(both.good.number.itemsize, both.bad.number.itemsize)]


def _blocks(cell: Cell, most: int) -> Iterator[Cell]:
    """The cell in blocks of whole runs, or its runs in blocks of their own."""
    if cell.length <= most:
        at_once = most // cell.length
        for first in range(0, cell.runs, at_once):
            yield replace(cell, start=cell.start + first * cell.length, runs=min(at_once, cell.runs - first))
        return
    step = most // cell.row * cell.row if 0 < cell.row <= most else most
    for begin in range(0, cell.size, cell.length):
        for start in range(0, cell.length, step):
            yield replace(cell, start=cell.start + begin + start, runs=1, length=min(step, cell.length - start))


def _look(pair: list[Cells], both: Both, block: Cell, room: Room, seen: Floats, found: Floats) -> list[Rows]:
    """The numbers of a block are looked at here and nowhere else. `seen`: see `Room.largest_of`."""
    shape = block.runs, block.length
    good, bad = (side.reshape(shape) for side in pair)
    found[LENGTH] = block.length
    a = _singles(good, both.good, room.good)
    mask = room.mask[: a.size].reshape(shape)
    alike = both.alike and same_bytes(good.reshape(-1), bad.reshape(-1))
    by_column = not alike and good.itemsize == 2 and columns.fit(block.length)  # looks at the bits twice more: of 32, not worth it
    sizes = _ends_by_column(good, found[LEAST : MOST_SIGNED + 1]) if by_column else None
    smallest = _ends(good, found[LEAST : MOST_SIGNED + 1], whole=alike) if sizes is None else int(sizes.min())
    if smallest == 0:
        found[ZEROS] = _zeros(good, room, mask)
    if alike:
        found[LEAST_BAD : ZEROS_BAD + 1] = found[LEAST : ZEROS + 1]
        found[TOTAL : SQUARES + 1], rows = _sums(a, None, block)
        return rows
    if _ends(bad, found[LEAST_BAD : MOST_SIGNED_BAD + 1], whole=True) == 0:
        found[ZEROS_BAD] = _zeros(bad, room, mask)
    d = _difference(a, bad, both.bad, room.apart)
    found[UNEQUAL] = block.length - counts(np.equal(d, _ZERO, out=mask))
    found[BITS] = 1 if not both.alike or found[UNEQUAL].all() else different_bits(good, bad, found[UNEQUAL])
    found[TOTAL : APART + 1], rows = _sums(a, d, block)
    if sizes is None:
        _largest_of_short(d, a, good, bad, both, smallest, room, found)
    else:
        _largest_by_column(d, a, good, bad, both, sizes, seen, found)
    return rows


def _difference(a: Singles, bad: Cells, kind: Kind, room: Floats) -> Singles:
    """Good less bad, which has no place of its own: it is widened where the difference will be."""
    return np.subtract(a, _singles(bad, kind, room), out=_room(room, a))


def _zeros(cells: Cells, room: Room, mask: Mask) -> Floats:
    """How many numbers of each run have no bit set but the sign."""
    return counts(np.equal(_sizes_doubled(cells, room.spare), 0, out=mask))


def _sizes_doubled(cells: Cells, room: Cells) -> Cells:
    """The bits, without the sign, shifted to the left."""
    bits = cells.view(f"u{cells.itemsize}")
    doubled: Cells = np.left_shift(bits, 1, out=room.view(bits.dtype)[: bits.size].reshape(bits.shape))
    return doubled


def _ends_by_column(cells: Cells, found: Floats) -> Cells:
    """Fill LEAST to MOST_SIGNED; returns the bits of the smallest size of each column."""
    bits = cells.view(f"u{cells.itemsize}")
    found[0], found[2], sizes = columns.smallest(bits)
    found[1], found[3] = np.maximum.reduce(bits, axis=1), np.maximum.reduce(cells.view(f"i{cells.itemsize}"), axis=1)
    return sizes


def _largest_by_column(d: Singles, a: Singles, good: Cells, bad: Cells, both: Both, sizes: Cells, seen: Floats, found: Floats) -> None:
    smallest = _singles(sizes, both.good, np.empty(sizes.size))
    at = [columns.largest(*run, np.float32(both.good.tiny), seen) for run in zip(d, a, smallest, strict=True)]
    found[ABS_AT], found[ABS], found[REL_AT], found[REL] = np.transpose(at)
    for line in (ABS_AT, REL_AT):
        _bits_there(good, bad, found[line : line + 3])


def _largest_of_short(d: Singles, a: Singles, good: Cells, bad: Cells, both: Both, smallest: int | None, room: Room, found: Floats) -> None:
    """`smallest`: as of `_ends`."""
    relative, smallest_normal = _room(room.spare, a), _TINY[both.good.dtype]
    absolute, quotients = found[ABS_AT : ABS_BAD + 1], found[REL_AT : REL_BAD + 1]
    found[ABS] = _largest(d, good, bad, absolute)
    if smallest is None or smallest >= smallest_normal:
        np.divide(d, a, out=relative)
        found[REL] = _largest(relative, good, bad, quotients)
        if smallest is None and not ((found[REL] < np.inf) & (_values(found[REL_GOOD], both.good, size=True) >= both.good.tiny)).all():
            smallest = 0  # or as good as: had there been one in a run, its quotient were the largest, or no number
            found[ZEROS] = _zeros(good, room, room.mask[: a.size].reshape(a.shape))
    if smallest is not None and smallest < smallest_normal:
        _relative(d, a, good, both.good, room.mask[: a.size].reshape(a.shape), relative)
        found[REL] = _largest(relative, good, bad, quotients)


def _ends(cells: Cells, found: Floats, *, whole: bool = False) -> int | None:
    """Fill LEAST to MOST_SIGNED; returns the bits of the smallest size. Numbers of one sign are in the order of their bits, and
    numpy is twice as fast with 16 of them. None, of 32 unless the `whole` is asked for: each run has numbers of both signs,
    which is all that was looked at."""
    bits, signed, sign = cells.view(f"u{cells.itemsize}"), cells.view(f"i{cells.itemsize}"), 1 << 8 * cells.itemsize - 1
    found[1], found[3] = np.maximum.reduce(bits, axis=1), np.maximum.reduce(signed, axis=1)
    if not whole and cells.itemsize == 4 and found[1].min() >= sign and found[3].min() >= 0:
        return None
    found[0], found[2] = np.minimum.reduce(bits, axis=1), np.minimum.reduce(signed, axis=1)
    positive, negative = (found[0, 0], found[2, 0]) if len(cells) == 1 else (found[0].min(), found[2].min())
    return int(min(positive, negative + sign))


def _lowest_and_highest(ends: Floats, kind: Kind) -> tuple[Floats, Floats]:
    """Of what `_ends` filled."""
    least, most, _, most_signed = ends
    sign = 1 << 8 * kind.number.itemsize - 1
    bits = np.stack([np.where(most < sign, least, most), np.where(least < sign, most_signed, least)]).astype(f"u{kind.number.itemsize}")
    if kind.dtype == "bfloat16":
        bits = np.left_shift(bits, 16, dtype=np.uint32)
    low, high = bits.view(f"f{bits.itemsize}").astype(np.float64)
    return low, high


def _sums(a: Singles, d: Singles | None, block: Cell) -> tuple[Floats, list[Rows]]:
    """TOTAL to SQUARES or APART, and the row sums, which are the same dot products where rows are long enough."""
    by_row = _ROW <= block.row <= 2 * DOT and not (block.start % block.row or block.length % block.row)
    totals, squares = products(a, d, block.row if by_row else 0)
    if by_row:
        return totals, [of_squares(a, d, squares, block.start, block.row)]
    return totals, [row_sums(a, d, None, block.start, block.row)] if block.row else []


def _relative(d: Singles, a: Singles, cells: Cells, kind: Kind, mask: Mask, out: Singles) -> None:
    """d / max(|a|, tiny), but for the sign: where few are smaller, they are divided again, as numpy's maximum is slow."""
    twice = _sizes_doubled(cells, out.reshape(-1))
    if np.count_nonzero(np.less(twice, twice.dtype.type(2 * _TINY[kind.dtype]), out=mask)) * _FEW < mask.size:
        few = np.flatnonzero(mask)
        np.divide(d, a, out=out)
        out.reshape(-1)[few] = d.take(few) / np.float32(kind.tiny)
        return
    base = np.abs(a, out=out)
    np.maximum(base, _all(kind.tiny, max(*BLOCK.values(), a.size))[: a.size].reshape(a.shape), out=base)
    np.divide(d, base, out=base)


@cache
def _all(value: float, size: int) -> Singles:
    """numpy's maximum is four times as fast against an array as against a number."""
    return np.full(size, value, np.float32)


def _largest(values: Singles, good: Cells, bad: Cells, found: Floats) -> Singles:
    """Where each run's first largest size is, and the bits of the two numbers there. Nothing is written, as np.abs would have to."""
    runs, most, least = np.arange(len(values)), values.argmax(axis=1), values.argmin(axis=1)
    above, below = np.abs(values[runs, most]), np.abs(values[runs, least])
    found[0] = np.where((below > above) | ((below == above) & (least < most)), least, most)
    _bits_there(good, bad, found)
    largest: Singles = np.maximum(above, below)
    return largest


def _bits_there(good: Cells, bad: Cells, found: Floats) -> None:
    """The bits of the two numbers of each run at the index in the first line, as the other two lines."""
    flat = found[0].astype(np.intp) + np.arange(0, good.size, good.shape[1])
    found[1], found[2] = (side.view(f"u{side.itemsize}").take(flat) for side in (good, bad))


def _values(bits: Floats, kind: Kind, *, size: bool = False) -> Floats:
    """A few numbers, exactly, of their bits; of the `size` alone."""
    cells = bits.astype(f"u{kind.number.itemsize}")
    if kind.dtype == "bfloat16":
        cells = np.left_shift(cells, 16, dtype=np.uint32)
    found = cells.view(f"f{cells.itemsize}").astype(np.float64)  # of many halves numpy is slow, of few the way around it
    return np.abs(found) if size else found


def _told(of: Floats, both: Both, start: int) -> tuple[sums.Table, Mask]:
    """The lines of a table, and which of them single precision cannot tell."""
    table = sums.empty(of.shape[1])
    squares_bad = of[SQUARES] - 2 * of[ALONG] + of[APART]
    wrong = _side(table[:, : sums.BAD], of[LENGTH], of[LEAST : MOST_SIGNED + 1], of[TOTAL], of[SQUARES], both.good)
    wrong |= _side(table[:, sums.BAD : 2 * sums.BAD], of[LENGTH], of[LEAST_BAD : MOST_SIGNED_BAD + 1], of[TOTAL] - of[TOTAL_APART], squares_bad, both.bad)
    table[:, sums.ZEROS], table[:, sums.BAD + sums.ZEROS] = of[ZEROS], of[ZEROS_BAD]
    table[:, sums.BOTH], table[:, sums.MISMATCH], table[:, sums.BITS] = of[LENGTH], of[UNEQUAL], of[BITS]
    table[:, sums.NORM_GOOD], table[:, sums.NORM_BAD], table[:, sums.NORM_DIFFERENCE] = np.sqrt(of[SQUARES]), np.sqrt(squares_bad), np.sqrt(of[APART])
    cosine = (of[SQUARES] - of[ALONG]) / np.sqrt(of[SQUARES] * squares_bad)
    table[:, sums.COSINE] = np.where(np.isfinite(cosine), cosine, 0.0)
    largest = np.abs(_values(of[ABS_GOOD], both.good) - _values(of[ABS_BAD], both.bad))
    base = _values(of[REL_GOOD], both.good)
    relative = np.abs(base - _values(of[REL_BAD], both.bad)) / np.maximum(np.abs(base), both.good.tiny)
    begins = start + np.cumsum(of[LENGTH]) - of[LENGTH]
    for size, at, largest_at, index in ((largest, of[ABS_AT], sums.MAX_ABS, sums.AT_ABS), (relative, of[REL_AT], sums.MAX_REL, sums.AT_REL)):
        known = (size > 0) & (at >= 0)
        table[:, largest_at], table[:, index] = np.where(known, size, 0.0), np.where(known, begins + at, -1)
    wrong |= (squares_bad < _CANCELS * of[SQUARES]) | ((of[ABS] < _SMALL) & (of[UNEQUAL] > 0)) | ~np.isfinite(of[REL])
    return table, wrong


def _side(line: sums.Table, n: Floats, ends: Floats, total: Floats, squares: Floats, kind: Kind) -> Mask:
    """Fill one side's columns; which lines cannot be told."""
    low, high = _lowest_and_highest(ends, kind)
    size = np.maximum(-low, high)
    spread = squares - total * (total / n)
    varied = low < high
    line[:, sums.N], line[:, sums.LOW], line[:, sums.HIGH] = n, low, high
    line[:, sums.MEAN], line[:, sums.SPREAD] = np.where(varied, total / n, low), np.sqrt(np.where(varied, spread, 0.0))
    fits = (size <= (_LARGEST_HALF if kind.dtype == "float16" else _LARGE)) & ((size >= _SMALL) | (size == 0))
    wrong: Mask = ~fits | (varied & (spread < _CANCELS * squares))
    return wrong


def _singles(cells: Cells, kind: Kind, room: Floats) -> Singles:
    """The numbers as float32. Inf and NaN of float16 come out as 65536 and more."""
    if kind.dtype == "float32":
        return cells
    out = _room(room, cells)
    bits = out.view(np.int32)
    np.copyto(bits, cells.view(np.int16))  # the sign spreads to the left
    if kind.dtype == "bfloat16":
        np.left_shift(bits, 16, out=bits)
        return out
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _HALF_BITS, out=bits)  # and stays in its place alone
    return np.multiply(out, _FROM_HALF, out=out)


def _room(room: Floats, like: Cells) -> Singles:
    return room.view(np.float32)[: like.size].reshape(like.shape)
