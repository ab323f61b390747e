"""The small change of the RDB format: lengths, strings, and what is wrong with them, by byte offset."""

import mmap
import struct
from typing import NamedTuple

from diag.cache.offline.lzf import unpack

Buffer = mmap.mmap | bytes
"""A file: an index gives a number, a slice a copy. Only what a memoryview of it shows is not copied."""

RAW, INT8, INT16, INT32, LZF = range(5)
INTEGERS = {0xC0: (INT8, struct.Struct("<b")), 0xC1: (INT16, struct.Struct("<h")), 0xC2: (INT32, struct.Struct("<i"))}
PACKED = 0xC3
U32, U64 = struct.Struct(">I"), struct.Struct(">Q")
CUT = (IndexError, struct.error)
"""What reading past the end raises."""


class Damaged(Exception):
    """The bytes at offset `at` are not what the format has there. What was read before them stands."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(f"byte {at}: {why}")
        self.at = at
        self.why = why


class Stored(NamedTuple):
    """Where a string lies in a file, not its bytes."""

    form: int
    """RAW, one of the integers, or LZF."""
    start: int
    stored: int
    """Bytes in the file."""
    bytes: int
    """Bytes of the string itself, as the file announces them."""

    @property
    def after(self) -> int:
        return self.start + self.stored


def length(buf: Buffer, at: int) -> tuple[int, int]:
    """A length and the offset after it. Raises Damaged, CUT."""
    first = buf[at]
    if first < 0x40:
        return first, at + 1
    if first < 0x80:
        return (first & 63) << 8 | buf[at + 1], at + 2
    if first == 0x80:
        return U32.unpack_from(buf, at + 1)[0], at + 5
    if first == 0x81:
        return U64.unpack_from(buf, at + 1)[0], at + 9
    raise Damaged(at, f"0x{first:02x} where a length should be")


def string(buf: Buffer, at: int, size: int) -> Stored:
    """The string at `at` of a file of `size` bytes. Raises Damaged, CUT."""
    first = buf[at]
    if first < 0xC0:
        count, start = length(buf, at)
        if count > size - start:
            raise Damaged(at, f"a string of {count} bytes where {size - start} are left")
        return Stored(RAW, start, count, count)
    if first in INTEGERS:
        form, packing = INTEGERS[first]
        return Stored(form, at + 1, packing.size, len(str(packing.unpack_from(buf, at + 1)[0])))
    if first != PACKED:
        raise Damaged(at, f"0x{first:02x} where a string should be")
    packed, start = length(buf, at + 1)
    count, start = length(buf, start)
    if packed > size - start:
        raise Damaged(at, f"a compressed string of {packed} bytes where {size - start} are left")
    return Stored(LZF, start, packed, count)


def skip_string(buf: Buffer, at: int, size: int) -> int:
    """The offset after the string. Raises Damaged, CUT."""
    first = buf[at]
    if first < 0x40 and at + 1 + first <= size:
        return at + 1 + first
    return string(buf, at, size).after


def content(buf: Buffer, place: Stored, most: int | None = None) -> bytes | memoryview:
    """The string's bytes, or the first `most` of them; not copied where the file has them as they are. Raises Unpackable."""
    if place.form == RAW:
        return memoryview(buf)[place.start : place.start + (place.stored if most is None else min(place.stored, most))]
    if place.form == LZF:
        return unpack(buf[place.start : place.after], place.bytes, most)
    number = int.from_bytes(buf[place.start : place.after], "little", signed=True)
    return str(number).encode()[:most]
