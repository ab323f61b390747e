"""Small hashes in RDB files -> their fields: as strings one by one, as a listpack (Redis 7) or as a ziplist (before)."""

import hashlib
import struct
from collections.abc import Iterator

from diag.cache.offline.lzf import Unpackable
from diag.cache.offline.mapped import crc64
from diag.cache.offline.wire import CUT, Buffer, Damaged, content, length, string

MAX_FIELDS = 64
MAX_BYTES = 1 << 20
PLAIN, ZIPLIST, LISTPACK, WITH_TTL, LISTPACK_TTL = 4, 13, 16, 24, 25
VALKEY_TTL = 22
LISTPACK_INTEGERS = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}
ZIPLIST_INTEGERS = {0xC0: 2, 0xD0: 4, 0xE0: 8, 0xF0: 3, 0xFE: 1}


def fields_of(buf: Buffer, code: int, start: int, end: int, *, valkey: bool) -> dict[bytes, bytes] | None:
    """The fields of the hash of type `code` in these bytes; None: it has many, is long, or cannot be read."""
    if end - start > MAX_BYTES:
        return None
    try:
        words = list(_words(buf, code, start, end, valkey))
    except (Damaged, Unpackable, *CUT):
        return None
    if not words or len(words) % 2 or len(words) > 2 * MAX_FIELDS:
        return None
    return dict(zip(words[::2], words[1::2], strict=True))


def dump_digest(buf: Buffer, code: int, start: int, end: int, version: int) -> str:
    """SHA-256 of what DUMP said of this value when the file was written."""
    payload = bytes([code]) + buf[start:end] + struct.pack("<H", version)
    return hashlib.sha256(payload + struct.pack("<Q", crc64(payload))).hexdigest()


def _words(buf: Buffer, code: int, at: int, end: int, valkey: bool) -> Iterator[bytes]:
    """Fields and values in turn."""
    if code in (LISTPACK, ZIPLIST, LISTPACK_TTL):
        place = string(buf, at + (8 if code == LISTPACK_TTL else 0), end)
        if place.bytes > MAX_BYTES:
            raise Damaged(at, "too long")
        words = _ziplist(bytes(content(buf, place))) if code == ZIPLIST else _listpack(bytes(content(buf, place)))
        yield from (word for number, word in enumerate(words) if code != LISTPACK_TTL or number % 3 != 2)
        return
    own_ttl = code == VALKEY_TTL and valkey
    if code not in (PLAIN, WITH_TTL) and not own_ttl:
        raise Damaged(at, "a type that is not read here")
    count, at = length(buf, at + (8 if code == WITH_TTL else 0))
    if count > MAX_FIELDS:
        raise Damaged(at, "too many")
    for _ in range(count):
        if code == WITH_TTL:
            _, at = length(buf, at)
        for _ in range(2):
            place = string(buf, at, end)
            if place.bytes > MAX_BYTES:
                raise Damaged(at, "too long")
            yield bytes(content(buf, place))
            at = place.after
        at += 8 if own_ttl else 0


def _listpack(data: bytes) -> Iterator[bytes]:
    at = 6
    while (first := data[at]) != 0xFF:
        start, size = at + 1, 0
        if first < 0x80:
            yield b"%d" % first
        elif first < 0xC0:
            size = first & 0x3F
            yield _piece(data, start, size)
        elif first < 0xE0:
            size = 1
            number = (first & 0x1F) << 8 | data[start]
            yield b"%d" % (number if number < 1 << 12 else number - (1 << 13))
        elif first in LISTPACK_INTEGERS:
            size = LISTPACK_INTEGERS[first]
            yield _integer(data, start, size)
        elif first < 0xF0:
            start, size = at + 2, (first & 0x0F) << 8 | data[start]
            yield _piece(data, start, size)
        elif first == 0xF0:
            start, size = at + 5, int(struct.unpack_from("<I", data, start)[0])
            yield _piece(data, start, size)
        else:
            raise Damaged(at, "no listpack")
        taken = start + size - at
        at += taken + (1 if taken < 128 else 2 if taken < 16384 else 3 if taken < 2097152 else 4)


def _ziplist(data: bytes) -> Iterator[bytes]:
    at = 10
    while data[at] != 0xFF:
        at += 5 if data[at] == 0xFE else 1  # how long the one before was
        first = data[at]
        if first < 0xC0:
            start = at + (1, 2, 5)[first >> 6]
            size = first if first < 0x40 else (first & 0x3F) << 8 | data[at + 1] if first < 0x80 else int(struct.unpack_from(">I", data, at + 1)[0])
            yield _piece(data, start, size)
            at = start + size
        elif first in ZIPLIST_INTEGERS:
            size = ZIPLIST_INTEGERS[first]
            yield _integer(data, at + 1, size)
            at += 1 + size
        elif 0xF1 <= first <= 0xFD:
            yield b"%d" % ((first & 0x0F) - 1)
            at += 1
        else:
            raise Damaged(at, "no ziplist")


def _piece(data: bytes, start: int, size: int) -> bytes:
    if start + size > len(data):
        raise Damaged(start, "longer than what is around it")
    return data[start : start + size]


def _integer(data: bytes, start: int, size: int) -> bytes:
    return b"%d" % int.from_bytes(_piece(data, start, size), "little", signed=True)
