"""Figures of tensors and of pairs of them, in one pass and with the same memory for any size.

    measure_pair   a pair: whole, by segments (KV blocks), by rows (tokens)
    measure_one    one tensor
    digests        a digest of every run of elements: equal content has equal digests
    content        the elements as a mapped array
    warm_up        load what the largest pairs need, and say that it takes seconds

    figures.py     what is told
    content.py     cells from the file
    widening.py    what cells of each element type stand for
    cells.py, sides.py, rows.py, runs.py     the sums of one cell, with numpy
    single.py      the same of 16- and 32-bit floats in single precision, for large pairs
    columns.py     their largest differences, where runs are long
    loops.py       and again, compiled by numba where it is installed
    ways.py        which of them a pair takes
    sums.py        two results become one
    streaming.py   cells, threads, order
    telling.py     sums become figures
"""

import math
from contextlib import ExitStack
from dataclasses import replace

from diag.tensors.dump import Tensor
from diag.tensors.measure import streaming, sums
from diag.tensors.measure.cells import Both, measured_one
from diag.tensors.measure.content import Pages, Source, content
from diag.tensors.measure.digesting import digests
from diag.tensors.measure.figures import Difference, Figures, Measured, Segment
from diag.tensors.measure.rows import MAX_ROWS
from diag.tensors.measure.streaming import MAX_SEGMENTS, Plan
from diag.tensors.measure.telling import Segments, figures, segment
from diag.tensors.measure.ways import COMPILED, warm_up, way
from diag.tensors.measure.widening import Kind, kind_of

__all__ = ["COMPILED", "Difference", "Figures", "MAX_ROWS", "MAX_SEGMENTS", "Measured", "Segment", "content", "digests", "measure_one", "measure_pair", "warm_up"]


def measure_pair(
    good: Tensor, bad: Tensor, *, segment_elements: int | None = None, row_elements: int | None = None, valid_elements: int | None = None
) -> Measured:
    """All figures of a pair of equal shape, read once.

    Segments and rows are runs of so many elements in logical C order; the last may be shorter. Elements from number
    `valid_elements` on are padding: in no figure, and segments wholly behind it are not listed.
    ValueError: shapes differ, or more than MAX_SEGMENTS segments. ReadError: a file is shorter than its tensor.
    """
    if good.shape != bad.shape:
        raise ValueError(f"{good.name} has shape {good.shape}, the other {bad.shape}")
    kinds = kind_of(good.dtype), kind_of(bad.dtype)
    parts = max(kind.parts for kind in kinds)
    size = math.prod(good.shape)
    valid = size if valid_elements is None else min(max(valid_elements, 0), size)
    plan = _plan(valid, segment_elements, row_elements, parts)
    count = -(-valid // row_elements) if row_elements else 0
    with ExitStack() as stack:
        sources = [(stack.enter_context(Source(tensor)), kind) for tensor, kind in zip((good, bad), kinds, strict=True)]
        both = Both(*kinds, *(_origin(source, kind) for source, kind in sources))
        cell, room, batch, measured = way(both, plan.total)
        plan = replace(plan, cell=cell, room=room, batch=batch)
        table, rows = streaming.run(sources, plan, count if plan.row else 0, lambda read, cell, room: measured(read, both, cell, room))
    whole = segment(sums.total(table)[0], 0, both, parts)
    segments = Segments(table if segment_elements else table[:0], both, parts)
    return Measured(whole, segments, rows.relative())


def measure_one(tensor: Tensor, *, segment_elements: int | None = None) -> tuple[Figures, tuple[Figures, ...]]:
    """The figures of one tensor, and of each segment where they are asked for. Errors as of `measure_pair`."""
    kind = kind_of(tensor.dtype)
    plan = _plan(math.prod(tensor.shape), segment_elements, None, kind.parts)
    with Source(tensor) as source:
        origin = _origin(source, kind)
        table, _ = streaming.run([(source, kind)], plan, 0, lambda read, cell, room: (measured_one(read(cell.start, cell.stop)[0], kind, origin, cell, room), []))
    whole = figures(sums.total(table)[0].tolist(), sums.GOOD, kind, origin)
    return whole, tuple(figures(line.tolist(), sums.GOOD, kind, origin) for line in table) if segment_elements else ()


def _plan(valid: int, segment_elements: int | None, row_elements: int | None, parts: int) -> Plan:
    for name, value in (("segment_elements", segment_elements), ("row_elements", row_elements)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, must be at least 1")
    segment = segment_elements or max(valid, 1)
    row = row_elements if row_elements and -(-valid // row_elements) <= MAX_ROWS else 0
    plan = Plan(valid * parts, segment * parts, row * parts, parts)
    if plan.segments > MAX_SEGMENTS:
        raise ValueError(f"{valid} elements make {plan.segments} segments of {segment}, at most {MAX_SEGMENTS} are measured")
    return plan


def _origin(source: Source, kind: Kind) -> int:
    """What 64-bit integers are counted from, so that float64 keeps their spread: the first of them."""
    return 0 if kind.exact or not source.size else int(source.read(0, 1, Pages())[0])
