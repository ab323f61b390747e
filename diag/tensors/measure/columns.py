"""The largest differences of a long run without a quotient for every number.

A run is looked at as a table of WIDTH columns. A column's largest difference over its smallest value is a bound for all
quotients in it, formed from WIDTH numbers; division rounds monotonously, so that no quotient is above the bound. Only
columns whose bound reaches the largest quotient in the most promising of them are divided.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Singles = npt.NDArray[np.float32]
Bits = npt.NDArray[Any]
Places = npt.NDArray[np.intp]

WIDTH = 4096
LONG = 64 * 1024
"""Shorter runs have too few numbers a column, and cost a round of calls each."""
PROMISING = 0.7
"""Bounds of this part of the largest: in half precision those of all columns that hold a number below the normal ones."""


def fit(length: int) -> bool:
    """Whether runs of this length are looked at by column."""
    return length >= LONG and length % WIDTH == 0


def smallest(bits: Bits) -> tuple[Bits, Bits, Bits]:
    """Of [runs, length] floats told by their unsigned bits: each run's least bits, its least bits read with a sign, and the
    smallest size of each column [runs, WIDTH], as bits without the sign. Numbers of one sign are in the order of their bits."""
    table = bits.reshape(len(bits), -1, WIDTH)
    least, least_signed = np.minimum.reduce(table, axis=1), np.minimum.reduce(table.view(f"i{bits.itemsize}"), axis=1)
    negative = least_signed < 0
    size_of_negative = least_signed.view(bits.dtype) ^ bits.dtype.type(1 << 8 * bits.itemsize - 1)
    sizes = np.where(negative, np.minimum(least, size_of_negative), least)
    return least.min(axis=1), least_signed.min(axis=1), sizes


def largest(apart: Singles, a: Singles, sizes: Singles, tiny: np.float32, seen: npt.NDArray[np.float64]) -> tuple[int, float, int, float]:
    """Of one run of `fit` length: index of the first largest size of a difference (`apart`), that size, index of the first
    largest |difference| / max(|a|, tiny), and that quotient. `sizes`: the smallest |a| of each column. What cannot be larger
    than the size and the quotient `seen` has the index -1, and such a quotient is told as its bound."""
    apart, a = apart.reshape(-1, WIDTH), a.reshape(-1, WIDTH)
    highest = _known(_sizes(apart))
    most, at = float(highest.max()), -1
    if most > seen[0]:
        columns = np.flatnonzero(highest == most)
        at, _ = _first_largest(np.abs(apart.take(columns, axis=1)), columns)
    bound = _known(np.divide(highest, np.fmax(sizes, tiny)))
    limit = float(bound.max())
    return at, most, *(_largest_of_promising(apart, a, bound, limit, tiny) if limit > seen[1] else (-1, limit))


def _largest_of_promising(apart: Singles, a: Singles, bound: Singles, limit: float, tiny: np.float32) -> tuple[int, float]:
    promising = bound >= PROMISING * limit
    at, quotient = _largest_quotient(apart, a, np.flatnonzero(promising), tiny)
    others = np.flatnonzero((bound >= quotient) & ~promising)
    if len(others):
        found, other = _largest_quotient(apart, a, others, tiny)
        if (other, -found) > (quotient, -at):
            return found, other
    return at, quotient


def _sizes(table: Singles) -> Singles:
    """The largest size in each column: read without a sign, the bits of the lowest number are the most; read with one, those
    of the highest. Twice as fast as to take the sign away first."""
    highest, lowest = np.maximum.reduce(table.view(np.int32), axis=0), np.maximum.reduce(table.view(np.uint32), axis=0)
    sizes: Singles = np.maximum(np.abs(highest.view(np.float32)), np.abs(lowest.view(np.float32)))
    return sizes


def _known(values: Singles) -> Singles:
    """0 for NaN, as a column of nothing else has: the figures of such a run are formed elsewhere, but an index it must have."""
    known: Singles = np.fmax(values, np.float32(0), out=values)
    return known


def _largest_quotient(apart: Singles, a: Singles, columns: Places, tiny: np.float32) -> tuple[int, float]:
    base = a.take(columns, axis=1)
    np.maximum(np.abs(base, out=base), tiny, out=base)
    return _first_largest(np.divide(np.abs(apart.take(columns, axis=1)), base, out=base), columns)


def _first_largest(some: Singles, columns: Places) -> tuple[int, float]:
    """Index in the run of the first largest number of a few columns, and that number."""
    row, column = divmod(int(some.argmax()), len(columns))
    return row * WIDTH + int(columns[column]), float(some[row, column])
