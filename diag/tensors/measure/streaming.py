"""A tensor or a pair, cell by cell through a few threads with memory of fixed size; results are joined in the order of the cells."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from diag.tensors.measure import sums
from diag.tensors.measure.cells import Cell, Read, Room
from diag.tensors.measure.content import Pages, Source
from diag.tensors.measure.rows import Ledger, Rows
from diag.tensors.measure.widening import Cells, Kind, numbers

CELL = 32 * 1024
"""Numbers; as float64 a few arrays of them fit a processor's second-level cache."""
MAX_SEGMENTS = 1 << 17
"""More would not be blocks of anything, and take more than 30 MB."""
_THREADS_AT_MOST = 2
"""They read as fast as memory gives; each needs up to 40 MB."""
BATCH = 8
_PENDING = 256

Measure = Callable[[Read, Cell, Room], tuple[sums.Table, list[Rows]]]


@dataclass(frozen=True)
class Plan:
    """How numbers are cut. All in numbers, of which a complex element has two (`parts`)."""

    total: int
    segment: int
    row: int
    parts: int
    cell: int = CELL
    room: int = CELL
    """At most so many in a cell, and so many worked with at once."""
    batch: int = BATCH
    """Cells a thread takes at once."""

    @property
    def segments(self) -> int:
        return -(-self.total // self.segment) if self.total else 0

    def cells(self) -> Iterator[Cell]:
        """In order; a cell is several whole segments, or a part of one."""
        whole, tail = divmod(self.total, self.segment)
        if self.segment <= self.cell:
            at_once = self.cell // self.segment
            for first in range(0, whole, at_once):
                yield Cell(first * self.segment, min(at_once, whole - first), self.segment, first, self.row)
        else:
            for index in range(whole):
                yield from self._split(index, self.segment)
        if tail:
            yield from self._split(whole, tail)

    def _split(self, index: int, length: int) -> Iterator[Cell]:
        unit = self.row if 0 < self.row <= self.cell else 64
        start, step = index * self.segment, self.cell // unit * unit
        for begin in range(0, length, step):
            yield Cell(start + begin, 1, min(step, length - begin), index, self.row)


class _Desk:
    """What a thread works with."""

    def __init__(self, size: int, sides: int) -> None:
        self.room = Room(size)  # untouched memory costs nothing
        self.pages = [Pages() for _ in range(sides)]


class _Book:
    """A line per segment, filled in the order of the cells."""

    def __init__(self, plan: Plan, rows: int) -> None:
        self.table = sums.empty(plan.segments)
        self.rows = Ledger(rows)
        self._segment = plan.segment
        self._open = -1
        self._pending: list[sums.Table] = []

    def enter(self, cell: Cell, table: sums.Table, rows: list[Rows]) -> None:
        for some in rows:
            self.rows.enter(some)
        if cell.length == self._segment and len(table) == cell.runs:
            self.table[cell.segment : cell.segment + cell.runs] = table
            return
        if cell.segment != self._open or len(self._pending) >= _PENDING:
            self.close()
        self._open = cell.segment
        self._pending.append(table)

    def close(self) -> None:
        if self._pending:
            line = slice(self._open, self._open + 1)
            self.table[line] = sums.joined(self.table[line], sums.total(np.concatenate(self._pending)))
            self._pending = []


def run(sources: Sequence[tuple[Source, Kind]], plan: Plan, rows: int, measure: Measure) -> tuple[sums.Table, Ledger]:
    """A line per segment, and `rows` row sums. ReadError: a file was cut short."""
    book = _Book(plan, rows)
    desks: list[_Desk] = []

    def work(cells: Sequence[Cell]) -> list[tuple[Cell, sums.Table, list[Rows]]]:
        desk = desks.pop() if desks else _Desk(min(plan.room, plan.total), len(sources))
        try:
            return [(cell, *measure(partial(_read, sources, plan.parts, desk.pages), cell, desk.room)) for cell in cells]
        finally:
            desks.append(desk)

    for found in _in_order(work, plan):
        for cell, table, sums_of_rows in found:
            book.enter(cell, table, sums_of_rows)
    book.close()
    return book.table, book.rows


def _in_order(work: Callable[[Sequence[Cell]], list[tuple[Cell, sums.Table, list[Rows]]]], plan: Plan) -> Iterator[list[tuple[Cell, sums.Table, list[Rows]]]]:
    """Few cells at once here; many in threads, never more results waiting than threads need."""
    cells = plan.cells()
    threads = min(_THREADS_AT_MOST, _processors())
    if plan.total <= 2 * plan.batch * plan.cell or threads == 1:
        while batch := list(islice(cells, plan.batch)):
            yield work(batch)
        return
    waiting: deque[Future[list[tuple[Cell, sums.Table, list[Rows]]]]] = deque()
    with ThreadPoolExecutor(threads, "measure") as pool:
        try:
            while batch := list(islice(cells, plan.batch)):
                waiting.append(pool.submit(work, batch))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _read(sources: Sequence[tuple[Source, Kind]], parts: int, pages: Sequence[Pages], start: int, stop: int) -> list[Cells]:
    """The numbers of each side; a real one beside a complex one gets zeros as its imaginary part."""
    found = []
    for (source, kind), own in zip(sources, pages, strict=True):
        cells = numbers(source.read(start // parts, stop // parts, own), kind)
        if kind.parts < parts:
            cells = np.stack([cells, np.zeros_like(cells)], axis=1).reshape(-1)
        found.append(cells)
    return found


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
