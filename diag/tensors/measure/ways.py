"""Which way the cells of a pair go: double precision, single precision, or loops compiled by numba."""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from diag.tensors.measure import single, streaming, sums
from diag.tensors.measure.cells import Both, Cell, Read, Room, measured
from diag.tensors.measure.rows import Rows
from diag.tensors.measure.widening import Cells

SINGLE_FROM = 4 << 20
"""Numbers a side (16 MiB of float32): below, nobody waits for double precision."""
FUSED_FROM = 64 << 20
"""Numbers a side (256 MiB of float32): below, numpy is done before numba is imported. By the pair alone, so that equal pairs
have equal figures whatever was measured before them."""
CELL = 512 * 1024
"""A call of the compiled loops is worth more numbers than one of numpy; with fewer, threads wait for each other between the calls."""

Way = Callable[[Read, Both, Cell, Room], tuple[sums.Table, list[Rows]]]

_KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
COMPILED = frozenset(_KINDS)
"""Element types there are compiled loops for."""
_NO_FLOATS, _NO_CODES, _NO_ROWS = np.empty(0, np.float32), np.empty(0, np.uint16), np.empty(0)


def way(both: Both, total: int) -> tuple[int, int, int, Way]:
    """Numbers a cell, numbers a thread needs room for, cells a thread takes at once, and the function for each cell, for a pair of `total` numbers a side."""
    if total < SINGLE_FROM or both.good.dtype not in _KINDS or both.bad.dtype not in _KINDS:
        return streaming.CELL, streaming.CELL, streaming.BATCH, _measured
    fused = _fused() if total >= FUSED_FROM and available() else None
    if fused is None:
        block = single.block_of(both)
        return single.BLOCKS * block, block, 1, single.measured_single
    return CELL, CELL, streaming.BATCH, fused


def _measured(read: Read, both: Both, cell: Cell, room: Room) -> tuple[sums.Table, list[Rows]]:
    good, bad = read(cell.start, cell.stop)
    return measured(good, bad, both, cell, room)


@cache
def available() -> bool:
    """Whether numba is installed; it is not imported for the answer."""
    return importlib.util.find_spec("numba") is not None


def warm_up(total: int, say: Callable[[str], None]) -> None:
    """Load the loops before a pair of `total` numbers a side needs them, and `say` that first: it takes seconds where they are
    not compiled yet. Says nothing where they are not needed, not installed or there already."""
    if total >= FUSED_FROM and available() and not _fused.cache_info().currsize:
        say("loading the compiled loops over tensors (compiled once for this machine)")
        _fused()


@cache
def _fused() -> Way | None:
    """None: the numba that is installed does not go with this numpy or this processor."""
    try:
        from diag.tensors.measure.loops import cell_sums  # half a second, and some more where nothing is compiled yet
    except ImportError:
        return None

    def measured_fused(read: Read, both: Both, cell: Cell, room: Room) -> tuple[sums.Table, list[Rows]]:
        good, bad = read(cell.start, cell.stop)
        table = sums.empty(cell.runs)
        touched = (cell.start + cell.size - 1) // cell.row - cell.start // cell.row + 1 if cell.row else 0
        row_good, row_apart = np.zeros((2, touched)) if touched else (_NO_ROWS, _NO_ROWS)
        sides = (*_side(good, both.good.dtype), *_side(bad, both.bad.dtype))
        if not cell_sums(*sides, cell.start, cell.length, cell.row, both.good.tiny, table, row_good, row_apart):
            return measured(good, bad, both, cell, room)  # NaN or Inf among them
        rows = [Rows(cell.start // cell.row, np.sqrt(row_good), np.sqrt(row_apart), None)] if cell.row else []
        return table, rows

    return measured_fused


def _side(cells: Cells, dtype: str) -> tuple[Any, Any, int]:
    kind = _KINDS[dtype]
    return (cells, _NO_CODES, kind) if kind == 0 else (_NO_FLOATS, cells, kind)
