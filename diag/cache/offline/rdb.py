"""Walks an RDB file: every key of every database with its expiry and the place of its value, one after the other.

Redis versions 1 to 13 and Valkey 80 and 81; later ones are tried. Values stay in the file: an Entry says where.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from diag.cache.offline import rdb_types
from diag.cache.offline.lzf import Unpackable
from diag.cache.offline.wire import CUT, RAW, Buffer, Damaged, Stored, content, length, skip_string, string

HEADER = re.compile(rb"REDIS([0-9]{4})|VALKEY([0-9]{3})")
HEADER_BYTES = 9
CHECKSUM_SINCE = 5
KNOWN_REDIS, KNOWN_VALKEY = 13, 81
MAX_KEY_BYTES = 64 << 10
"""Longer ones are counted and passed over: nobody looks for them by name, and a hostile one would be all of memory."""
MAX_AUX = 64
MAX_DATABASE = 1 << 31

STRING = 0
META, SLOT, FUNCTION, OLD_FUNCTION, MODULE_AUX, IDLE, FREQUENCY, AUX, SIZES, EXPIRES_MS, EXPIRES_S, DATABASE, END = range(0xF3, 0x100)
"""META is Valkey's state of a slot import."""
I64, I32 = struct.Struct("<q"), struct.Struct("<i")


class Entry(NamedTuple):
    """One key as the file has it."""

    at: int
    """Byte offset of its record."""
    db: int
    key: bytes
    kind: str
    """string, list, set, zset, hash, stream, or the type of a module."""
    form: int
    """Of a string as wire.py numbers them; what is no string counts as RAW."""
    start: int
    """Byte offset of the value."""
    stored: int
    """Bytes of the value in the file."""
    bytes: int
    """Bytes of the string as the server had it; of anything else as in the file."""
    elements: int | None
    """Of what is no string; None: unknown."""
    expires_ms: int | None
    """Unix milliseconds; None: never."""
    idle_s: int | None
    """Seconds since it was used when the file was written; None: not kept."""
    code: int
    """Type of the value as the file numbers them."""

    @property
    def place(self) -> Stored:
        return Stored(self.form, self.start, self.stored, self.bytes)


@dataclass
class Rdb:
    """One walk over one file, or over the RDB at the begin of an append-only file."""

    buf: Buffer
    size: int
    valkey: bool
    """By its first bytes: Valkey 8 and older write files of Redis."""
    version: int
    at: int = HEADER_BYTES
    """Where the first key is looked for; at the end, what is behind the file's."""
    aux: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    """Its end mark was read, `at` is behind it and behind the checksum."""
    checksum: int | None = None
    """As stored; None: there is none, or it was switched off."""
    long_keys: int = 0

    @property
    def product(self) -> str:
        return "valkey" if self.valkey or "valkey-ver" in self.aux else "redis"

    @property
    def server_version(self) -> str | None:
        """Of the server that wrote it, in its own words."""
        return self.aux.get("valkey-ver" if self.product == "valkey" else "redis-ver") or self.aux.get("redis-ver")

    @property
    def written_s(self) -> int | None:
        """Unix seconds when writing began."""
        told = self.aux.get("ctime", "")
        return int(told) if told.isdecimal() and len(told) < 12 else None

    @property
    def newer(self) -> bool:
        """Written in a version that this walk was not made for."""
        return self.version > (KNOWN_VALKEY if self.valkey else KNOWN_REDIS)

    def read_aux(self) -> None:
        """Only what the file says of itself before its first key. Raises Damaged."""
        try:
            while self.at < self.size and self.buf[self.at] == AUX:
                self.at = self._aux(self.at + 1)
        except CUT:
            raise Damaged(self.size, "the file ends in the middle of a record") from None

    def entries(self) -> Iterator[Entry]:
        """Every key in the file's order. Raises Damaged where the file cannot be read on."""
        try:
            yield from self._entries()
        except CUT:
            raise Damaged(self.size, "the file ends in the middle of a record") from None

    def _entries(self) -> Iterator[Entry]:
        # The one loop that is run for each key: the usual record (a string of less than 16 KB with a short name) is read
        # in it, and its Entry is made without the Python function that a NamedTuple has for it.
        buf, size, at, new, integer = self.buf, self.size, self.at, tuple.__new__, I64.unpack_from
        db, expires, idle = 0, None, None
        record = at
        key: bytes | None
        while True:
            code = buf[at]
            if code == STRING:
                first = buf[at + 1]
                if first < 0x40:
                    start = at + 2 + first
                    key = buf[at + 2 : start]
                else:
                    key, start = self._key(at + 1)
                first = buf[start]
                form = RAW
                if first < 0x40:
                    start += 1
                    stored = count = first
                elif first < 0x80:
                    stored = count = (first & 63) << 8 | buf[start + 1]
                    start += 2
                else:
                    form, start, stored, count = string(buf, start, size)
                at = start + stored
                if at > size:
                    raise Damaged(start, f"a string of {stored} bytes where {size - start} are left")
                if key is not None:
                    yield new(Entry, (record, db, key, "string", form, start, stored, count, None, expires, idle, code))
                expires = idle = None
                record = at
            elif code == EXPIRES_MS:
                expires = integer(buf, at + 1)[0]
                at += 9
            elif code == IDLE:
                idle, at = length(buf, at + 1)
            elif code < META:
                key, start = self._key(at + 1)
                value = rdb_types.skip(buf, start, size, code, valkey=self.valkey)
                at = value.after
                if key is not None:
                    yield Entry(record, db, key, value.kind, RAW, start, at - start, at - start, value.elements, expires, idle, code)
                expires = idle = None
                record = at
            elif code == EXPIRES_S:
                expires = I32.unpack_from(buf, at + 1)[0] * 1000
                at += 5
            elif code == DATABASE:
                db, at = length(buf, at + 1)
                if db >= MAX_DATABASE:
                    raise Damaged(record, f"database {db}: there are none so high")
                record = at
            elif code == END:
                self._end(at + 1)
                return
            else:
                at = self._opcode(code, at + 1)
                record = record if code in (FREQUENCY, META) else at  # those stand before a key and belong to it

    def _key(self, at: int) -> tuple[bytes | None, int]:
        """A key of any form and the offset after it; None for one that is too long, which is only counted."""
        place = string(self.buf, at, self.size)
        if place.bytes > MAX_KEY_BYTES:
            self.long_keys += 1
            return None, place.after
        try:
            return bytes(content(self.buf, place)), place.after
        except Unpackable as error:
            raise Damaged(at, f"a compressed key: {error}") from None

    def _opcode(self, code: int, at: int) -> int:
        """What stands between keys and is no database, expiry or end; returns the offset after it."""
        buf, size = self.buf, self.size
        if code == AUX:
            return self._aux(at)
        if code == SIZES:
            return length(buf, length(buf, at)[1])[1]
        if code == FREQUENCY:
            return at + 1
        if code == SLOT:
            return length(buf, length(buf, length(buf, at)[1])[1])[1]
        if code == FUNCTION:
            return skip_string(buf, at, size)
        if code == MODULE_AUX:
            _, at = length(buf, at)  # which module; when it wrote this is a value like the others
            return rdb_types.skip_module(buf, at, size)
        if code == META:
            return self._slot_import(at) if self.valkey else self._key_meta(at)
        raise Damaged(at - 1, "functions of a release candidate of Redis 7.0, whose format was never described")

    def _aux(self, at: int) -> int:
        name = string(self.buf, at, self.size)
        value = string(self.buf, name.after, self.size)
        if len(self.aux) < MAX_AUX and name.bytes <= 64 and value.bytes <= 256:
            try:
                texts = [bytes(content(self.buf, place)).decode("utf-8", "replace") for place in (name, value)]
            except Unpackable as error:
                raise Damaged(at, f"what the file says of itself: {error}") from None
            self.aux[texts[0]] = texts[1]
        return value.after

    def _slot_import(self, at: int) -> int:
        at = skip_string(self.buf, at, self.size)
        ranges, at = length(self.buf, at)
        for _ in range(ranges):
            _, at = length(self.buf, length(self.buf, at)[1])
        return at

    def _key_meta(self, at: int) -> int:
        """Redis 8.6: what modules note beside the next key."""
        classes, at = length(self.buf, at)
        for _ in range(classes):
            at = rdb_types.skip_module(self.buf, at + 4, self.size)
        return at

    def _end(self, at: int) -> None:
        if self.version >= CHECKSUM_SINCE:
            stored = self.buf[at : at + 8]
            if len(stored) < 8:
                raise Damaged(self.size, "the file ends in its checksum")
            self.checksum = int.from_bytes(stored, "little") or None
            at += 8
        self.at = at
        self.ended = True


def open_rdb(buf: Buffer, size: int) -> Rdb | None:
    """A walk over the file; None: these bytes do not begin as an RDB file does."""
    found = HEADER.match(buf[:HEADER_BYTES])
    if found is None:
        return None
    return Rdb(buf, size, found[2] is not None, int(found[2] or found[1]))
