"""The sums of a cell of 16- or 32-bit floats with numpy in single precision, summed up in double: for large pairs without numba.

Several times as fast as cells.py. Counts and ends are exact, sums are good to 1e-6 of their size; the largest differences
are exact values, of an element within 1e-6 of the largest. The difference of the norms, on which 1 - cosine hangs, is
formed from sums of the difference and keeps its digits. A block where single precision does not do (NaN, Inf, sizes whose
squares leave its range, cancellation) goes through cells.py.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diag.tensors.measure import sums
from diag.tensors.measure.cells import Both, Cell, Room, different_bits, measured, same_bytes
from diag.tensors.measure.rows import Rows, row_sums
from diag.tensors.measure.runs import Floats, Mask, counts, products
from diag.tensors.measure.widening import Cells, Kind

CELL = 1024 * 1024
"""Numbers whose blocks share the arithmetic on their sums."""
BLOCK = 256 * 1024
"""Numbers; fewer, and the calls of numpy weigh more than the memory they touch."""

_LARGE, _SMALL = 1e15, 1e-13
"""Outside, float32 squares overflow, or enough of them vanish to matter."""
_LARGEST_HALF = 65504.0
_CANCELS = 0.1
_FROM_HALF = np.float32(2.0**112)
_HALF_BITS = np.int32(0x8FFFE000 - (1 << 32))
_ZERO = np.float32(0)

Singles = npt.NDArray[np.float32]

# what one look at the numbers tells of a line: a run, or a block of a run longer than that
(
    LENGTH, START, LOW, HIGH, ZEROS, LOW_BAD, HIGH_BAD, ZEROS_BAD, TOTAL, SQUARES, TOTAL_APART, ALONG, APART,
    UNEQUAL, ABS_AT, ABS_GOOD, ABS_BAD, REL_AT, REL_GOOD, REL_BAD, REL, BITS, COLUMNS,
) = range(23)  # fmt: skip
"""ALONG: the difference times good. APART: its square. ABS_… and REL_…: where the largest is, and the two values there."""


def measured_single(good: Cells, bad: Cells, both: Both, cell: Cell, room: Room) -> tuple[sums.Table, list[Rows]]:
    """As `cells.measured`."""
    blocks = list(_blocks(cell))
    looks, rows = [], []
    with np.errstate(all="ignore"):
        for block in blocks:
            part = slice(block.start - cell.start, block.start - cell.start + block.size)
            look, row = _look(good[part], bad[part], both, block, room)
            looks.append(look)
            rows.append(row)
        table, wrong = _told(np.concatenate(looks), both)
    first = 0
    for number, block in enumerate(blocks):
        lines = slice(first, first + block.runs)
        if wrong[lines].any():
            part = slice(block.start - cell.start, block.start - cell.start + block.size)
            table[lines], rows[number] = measured(good[part], bad[part], both, block, room)
        first += block.runs
    if len(table) > cell.runs:
        table = np.concatenate([sums.total(run) for run in np.split(table, cell.runs)])
    return table, [row for found in rows for row in found]


def _blocks(cell: Cell) -> Iterator[Cell]:
    """The cell in blocks of whole runs, or its runs in blocks of their own."""
    if cell.length <= BLOCK:
        at_once = BLOCK // cell.length
        for first in range(0, cell.runs, at_once):
            yield replace(cell, start=cell.start + first * cell.length, runs=min(at_once, cell.runs - first))
        return
    step = BLOCK // cell.row * cell.row if 0 < cell.row <= BLOCK else BLOCK
    for begin in range(0, cell.size, cell.length):
        for start in range(0, cell.length, step):
            yield replace(cell, start=cell.start + begin + start, runs=1, length=min(step, cell.length - start))


def _look(good: Cells, bad: Cells, both: Both, block: Cell, room: Room) -> tuple[Floats, list[Rows]]:
    """The numbers of a block are read here and nowhere else."""
    found = np.zeros((COLUMNS, block.runs))
    found[LENGTH] = block.length
    found[START] = block.start + np.arange(block.runs) * block.length
    a = _singles(good, both.good, room.good).reshape(block.runs, -1)
    mask = room.mask[: a.size].reshape(a.shape)
    found[LOW] = a.min(axis=1)
    found[HIGH] = a.max(axis=1)
    found[ZEROS] = counts(np.equal(a, _ZERO, out=mask))
    if both.alike and same_bytes(good, bad):
        found[TOTAL : SQUARES + 1] = products(a, None)
        found[LOW_BAD : ZEROS_BAD + 1] = found[LOW : ZEROS + 1]
        return found.T, [row_sums(a, None, None, block.start, block.row)] if block.row else []
    b = _singles(bad, both.bad, room.bad).reshape(a.shape)
    found[LOW_BAD] = b.min(axis=1)
    found[HIGH_BAD] = b.max(axis=1)
    found[ZEROS_BAD] = counts(np.equal(b, _ZERO, out=mask))
    found[UNEQUAL] = counts(np.not_equal(a, b, out=mask))
    found[BITS] = different_bits(good, bad, found[UNEQUAL]) if both.alike else 1
    d = np.subtract(a, b, out=_room(room.apart, a))
    found[TOTAL : APART + 1] = products(a, d)
    rows = [row_sums(a, d, None, block.start, block.row)] if block.row else []
    np.abs(d, out=d)
    _largest(d, a, b, found[ABS_AT : ABS_BAD + 1])
    base = np.abs(a, out=_room(room.spare, a))
    bits = base.view(np.int32)  # of sizes these are in the same order, and numpy is six times as fast with them
    np.maximum(bits, np.float32(both.good.tiny).view(np.int32), out=bits)
    np.divide(d, base, out=base)
    found[REL] = _largest(base, a, b, found[REL_AT : REL_BAD + 1])
    return found.T, rows


def _largest(values: Singles, a: Singles, b: Singles, found: Floats) -> Singles:
    """Where each run's first largest is, and the two numbers there."""
    at = values.argmax(axis=1)
    runs = np.arange(len(values))
    found[0], found[1], found[2] = at, a[runs, at], b[runs, at]
    largest: Singles = values[runs, at]
    return largest


def _told(look: Floats, both: Both) -> tuple[sums.Table, Mask]:
    """The lines of a table, and which of them single precision cannot tell."""
    table = sums.empty(len(look))
    of = look.T
    squares_bad = of[SQUARES] - 2 * of[ALONG] + of[APART]
    wrong = _side(table[:, : sums.BAD], of[LENGTH], of[LOW], of[HIGH], of[TOTAL], of[SQUARES], both.good)
    wrong |= _side(table[:, sums.BAD : 2 * sums.BAD], of[LENGTH], of[LOW_BAD], of[HIGH_BAD], of[TOTAL] - of[TOTAL_APART], squares_bad, both.bad)
    table[:, sums.ZEROS], table[:, sums.BAD + sums.ZEROS] = of[ZEROS], of[ZEROS_BAD]
    table[:, sums.BOTH], table[:, sums.MISMATCH], table[:, sums.BITS] = of[LENGTH], of[UNEQUAL], of[BITS]
    table[:, sums.NORM_GOOD], table[:, sums.NORM_BAD], table[:, sums.NORM_DIFFERENCE] = np.sqrt(of[SQUARES]), np.sqrt(squares_bad), np.sqrt(of[APART])
    cosine = (of[SQUARES] - of[ALONG]) / np.sqrt(of[SQUARES] * squares_bad)
    table[:, sums.COSINE] = np.where(np.isfinite(cosine), cosine, 0.0)
    largest = np.abs(of[ABS_GOOD] - of[ABS_BAD])
    relative = np.abs(of[REL_GOOD] - of[REL_BAD]) / np.maximum(np.abs(of[REL_GOOD]), both.good.tiny)
    table[:, sums.MAX_ABS], table[:, sums.MAX_REL] = largest, relative
    table[:, sums.AT_ABS] = np.where(largest > 0, of[START] + of[ABS_AT], -1)
    table[:, sums.AT_REL] = np.where(relative > 0, of[START] + of[REL_AT], -1)
    wrong |= (squares_bad < _CANCELS * of[SQUARES]) | ((largest < _SMALL) & (of[UNEQUAL] > 0)) | ~np.isfinite(of[REL])
    return table, wrong


def _side(line: sums.Table, n: Floats, low: Floats, high: Floats, total: Floats, squares: Floats, kind: Kind) -> Mask:
    """Fill one side's columns; which lines cannot be told."""
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
    out = room.view(np.float32)[: cells.size]
    bits = out.view(np.int32)
    np.copyto(bits, cells.view(np.int16))  # the sign spreads to the left
    if kind.dtype == "bfloat16":
        np.left_shift(bits, 16, out=bits)
        return out
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _HALF_BITS, out=bits)  # and stays in its place alone
    return np.multiply(out, _FROM_HALF, out=out)


def _room(room: Floats, like: Singles) -> Singles:
    return room.view(np.float32)[: like.size].reshape(like.shape)
