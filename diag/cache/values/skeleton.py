"""The bytes around an array: learnt from one value read by the symbolic machine, compared with all the others.

A pickled (or .npy, or safetensors) array is a head, the elements, and a tail::

    \\x80\\x04\\x95… numpy.core.multiarray … K\\x01M\\x00\\x02\\x86\\x94 … B\\x00\\x04\\x00\\x00 | elements | \\x94t\\x94b.

Where head, tail and length of two values are equal, a reader does the same with both: they differ in their elements
only. So the second one need not be read again. Whatever has other bytes around it is read by the symbolic machine,
and so is a value that a reader could look at in another place than its elements (see `learn`).
"""

import hashlib
import pickletools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.cache.values.facts import Facts, facts_of, measure
from diag.decode import codecs, decode

MAX_HEAD = 16 << 10
SURE = frozenset({"npy", "torch", "pickle", "safetensors", "compressed", "lmcache-metadata"})
"""Codecs that know a value by its first bytes alone; or (lmcache) by conditions on each word that zeros fulfil."""
READ_AS = frozenset({"pickle", "npy", "safetensors"})
SNIFFED = 16
"""How many the first bytes are."""

OPERATIONS = frozenset({
    "PROTO", "FRAME", "SHORT_BINUNICODE", "BINUNICODE", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STACK_GLOBAL", "GLOBAL", "BININT",
    "BININT1", "BININT2", "LONG1", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
    "BYTEARRAY8", "REDUCE", "MARK", "BUILD", "NONE", "NEWTRUE", "NEWFALSE", "BINGET", "LONG_BINGET", "STOP", "EMPTY_DICT", "SETITEM",
    "SETITEMS", "BINFLOAT",
})  # fmt: skip
BYTES = {"SHORT_BINBYTES": 2, "BINBYTES": 5, "BINBYTES8": 9, "BYTEARRAY8": 9}
"""Where the bytes begin behind the operation."""
PUTS = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT"})
GETS = frozenset({"BINGET", "LONG_BINGET"})


@dataclass(frozen=True, eq=False)
class Skeleton:
    """What is around the elements of one array, and what a reader knows of the value without them."""

    head: bytes
    tail: bytes
    length: int
    """Of the whole value."""
    stop: int
    """Where the elements end."""
    dtype: np.dtype[Any]
    count: int
    facts: Facts
    """Of the value it was learnt from; its numbers and its digest are those of that value."""

    def fits(self, value: memoryview) -> bool:
        """Is this the same around its elements? The head was compared already."""
        return len(value) == self.length and value[self.stop :] == self.tail

    def elements(self, value: memoryview) -> npt.NDArray[Any]:
        """All elements, flat, in the order they are stored."""
        return np.frombuffer(value, self.dtype, self.count, len(self.head))

    def bits(self, value: memoryview) -> npt.NDArray[np.uint16]:
        """The same where they are float16, as bits."""
        return np.frombuffer(value, np.uint16, self.count, len(self.head))

    def varies(self, value: memoryview) -> bool:
        """Are three of its elements not all the same bytes?"""
        start, width = len(self.head), self.dtype.itemsize
        first, middle = value[start : start + width], start + (self.count >> 1) * width
        return first != value[self.stop - width : self.stop] or first != value[middle : middle + width]

    def facts_of(self, value: bytes) -> Facts:
        """What `facts.facts_of` says of a value that fits."""
        sha256 = hashlib.sha256(value).hexdigest()
        return replace(self.facts, stats=measure(self.elements(memoryview(value))), sha256=sha256)


def learn(value: bytes) -> Skeleton | None:
    """The skeleton of a value, or None if its reader may look at more of its elements than their number."""
    decoded = decode(value)
    array = decoded.main
    plain = decoded.problem is None and not decoded.nested and not decoded.detail and decoded.wrapper is None and decoded.codec in READ_AS
    if array is None or array.values is None or not plain or len(decoded.arrays) != 1 or array.values.size < 2:
        return None
    found = _place(array.values, value)
    if found is None or not SNIFFED <= found[0] <= MAX_HEAD:
        return None
    start, stop = found
    if not _known_without(value, start, stop):
        return None
    if decoded.codec == "pickle" and not _once(value, start, stop):
        return None
    dtype = array.values.dtype
    return Skeleton(value[:start], value[stop:], len(value), stop, dtype, array.values.size, facts_of(value))


def _known_without(value: bytes, start: int, stop: int) -> bool:
    """Does every codec that is asked, down to the right one, answer the same whatever the elements are?"""
    blank = value[:start] + bytes(stop - start) + value[stop:]
    for codec in codecs():
        if codec.NAME not in SURE:
            return False
        if codec.sniff(value) or codec.sniff(blank):
            return codec.sniff(value) and codec.sniff(blank)
    return False


def _place(values: npt.NDArray[Any], value: bytes) -> tuple[int, int] | None:
    """Where in the value the elements lie, if they lie there in one piece."""
    if not values.flags.c_contiguous:
        return None
    base = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
    start = int(values.__array_interface__["data"][0]) - int(base)
    return (start, start + values.nbytes) if start >= 0 and start + values.nbytes <= len(value) else None


def _once(value: bytes, start: int, stop: int) -> bool:
    """Does this pickle use those bytes in one place only? Names of operations decide, nothing is executed."""
    mine: set[int] = set()
    memo = pushed = 0
    fresh = False
    for operation, argument, at in pickletools.genops(value):
        name = operation.name
        if name not in OPERATIONS or (name in GETS and argument in mine):
            return False
        if name in PUTS:
            if name != "MEMOIZE" and argument != memo:
                return False
            if fresh:
                mine.add(memo)
            memo += 1
            continue
        here = name in BYTES and at is not None and at + BYTES[name] == start
        fresh = here and isinstance(argument, (bytes, bytearray)) and len(argument) == stop - start
        pushed += fresh
    return pushed == 1
