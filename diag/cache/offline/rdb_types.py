"""Values that are no strings: passed over by their structure, their elements counted. Nothing in them is decoded."""

import struct
from collections.abc import Callable
from typing import NamedTuple

from diag.cache.offline.lzf import Unpackable
from diag.cache.offline.wire import Buffer, Damaged, Stored, content, length, skip_string, string

MODULE_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
MODULE_END, MODULE_STRING = 0, 5
LAST_COMMON = 21
"""Types above it mean other things in Redis and in Valkey."""
UNKNOWN_COUNT = 0xFFFF
"""A listpack or ziplist that stopped counting."""


class Skipped(NamedTuple):
    """One value that was passed over."""

    after: int
    kind: str
    """As TYPE says it: hash, list, stream …, or the name of a module's type."""
    elements: int | None
    """None: only decoding would tell."""


Skip = Callable[[Buffer, int, int], tuple[int, int | None]]
Header = Callable[[bytes], int | None]


def skip(buf: Buffer, at: int, size: int, code: int, *, valkey: bool) -> Skipped:
    """Pass over the value of type `code` at `at`. Raises Damaged for an unknown type and for bytes that do not fit it, CUT."""
    if code == 7:
        return _module(buf, at, size)
    found = VALKEY.get(code) if valkey and code > LAST_COMMON else TYPES.get(code)
    if found is None:
        raise Damaged(at - 1, f"a value of type {code}, which this llmdiag does not know")
    kind, walk = found
    after, count = walk(buf, at, size)
    if after > size:
        raise Damaged(at, f"a {kind} that goes on after the end of the file")
    return Skipped(after, kind, count)


def skip_module(buf: Buffer, at: int, size: int) -> int:
    """Pass over what a module wrote, up to its end mark."""
    while True:
        code, at = length(buf, at)
        if code == MODULE_END:
            return at
        if code in (1, 2):
            _, at = length(buf, at)
        elif code in (3, 4):
            at += 4 * (code - 2)
        elif code == MODULE_STRING:
            at = skip_string(buf, at, size)
        else:
            raise Damaged(at, f"{code} where a module's value should be")


def module_name(number: int) -> str:
    """The nine letters that a module's type has as its name; ten bits more are its version."""
    return "".join(MODULE_LETTERS[number >> shift & 63] for shift in range(58, 9, -6))


def _module(buf: Buffer, at: int, size: int) -> Skipped:
    number, at = length(buf, at)
    return Skipped(skip_module(buf, at, size), module_name(number), None)


def _strings(each: int = 1, before: int = 0, behind: int = 0, *, ttl: bool = False) -> Skip:
    """A count, then so many groups of `each` strings, fixed bytes before all and behind each group."""

    def walk(buf: Buffer, at: int, size: int) -> tuple[int, int]:
        count, at = length(buf, at + before)
        for _ in range(count):
            if ttl:
                _, at = length(buf, at)
            for _ in range(each):
                at = skip_string(buf, at, size)
            at += behind
        return at, count

    return walk


def _old_zset(buf: Buffer, at: int, size: int) -> tuple[int, int]:
    """Scores as text behind their length; 253 to 255 are NaN and the infinities."""
    count, at = length(buf, at)
    for _ in range(count):
        at = skip_string(buf, at, size)
        digits = buf[at]
        at += 1 if digits > 252 else 1 + digits
    return at, count


def _blob(header: Header, each: int = 1, before: int = 0) -> Skip:
    """One string that holds all; its first bytes tell the count."""

    def walk(buf: Buffer, at: int, size: int) -> tuple[int, int | None]:
        place = string(buf, at + before, size)
        count = _count(buf, place, header)
        return place.after, None if count is None else count // each

    return walk


def _count(buf: Buffer, place: Stored, header: Header) -> int | None:
    try:
        return header(bytes(content(buf, place, 16)))
    except (Unpackable, IndexError, struct.error):
        return None


def _listpack(head: bytes) -> int | None:
    count = int(struct.unpack_from("<H", head, 4)[0])
    return None if count == UNKNOWN_COUNT else count


def _ziplist(head: bytes) -> int | None:
    count = int(struct.unpack_from("<H", head, 8)[0])
    return None if count == UNKNOWN_COUNT else count


def _intset(head: bytes) -> int:
    return int(struct.unpack_from("<I", head, 4)[0])


def _zipmap(head: bytes) -> int | None:
    return head[0] if head[0] < 254 else None


def _quicklist(buf: Buffer, at: int, size: int) -> tuple[int, int | None]:
    nodes, at = length(buf, at)
    total: int | None = 0
    for _ in range(nodes):
        place = string(buf, at, size)
        total = _sum(total, _count(buf, place, _ziplist))
        at = place.after
    return at, total


def _quicklist_2(buf: Buffer, at: int, size: int) -> tuple[int, int | None]:
    """Each node is one large element, or a listpack of small ones."""
    nodes, at = length(buf, at)
    total: int | None = 0
    for _ in range(nodes):
        container, at = length(buf, at)
        if container not in (1, 2):
            raise Damaged(at, f"{container} where the kind of a list node should be")
        place = string(buf, at, size)
        total = _sum(total, 1 if container == 1 else _count(buf, place, _listpack))
        at = place.after
    return at, total


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _stream(version: int) -> Skip:
    """Version 1 to 5: as types 15, 19, 21, 26 and 27 store it."""

    def walk(buf: Buffer, at: int, size: int) -> tuple[int, int]:
        nodes, at = length(buf, at)
        for _ in range(nodes):
            at = skip_string(buf, skip_string(buf, at, size), size)
        count, at = length(buf, at)
        at = _lengths(buf, at, 2 if version < 2 else 7)  # last id; first id, highest deleted id, entries ever added
        groups, at = length(buf, at)
        for _ in range(groups):
            at = _group(buf, at, size, version)
        return (at if version < 4 else _producers(buf, at, size)), count

    return walk


def _group(buf: Buffer, at: int, size: int, version: int) -> int:
    at = _lengths(buf, skip_string(buf, at, size), 2 if version < 2 else 3)  # last id, entries read
    pending, at = length(buf, at)
    for _ in range(pending):
        _, at = length(buf, at + 24)  # id, time of delivery
    consumers, at = length(buf, at)
    for _ in range(consumers):
        at = skip_string(buf, at, size) + (8 if version < 3 else 16)  # when seen, when active
        mine, at = length(buf, at)
        at += 16 * mine
    if version >= 5:
        refused, at = length(buf, at)
        at += 16 * refused
    return at


def _producers(buf: Buffer, at: int, size: int) -> int:
    """Redis 8.6: ids by which producers may repeat themselves."""
    at = _lengths(buf, at, 2)
    producers, at = length(buf, at)
    for _ in range(producers):
        entries, at = length(buf, skip_string(buf, at, size))
        for _ in range(entries):
            at = _lengths(buf, skip_string(buf, at, size), 2)
    return _lengths(buf, at, 2)


def _lengths(buf: Buffer, at: int, count: int) -> int:
    for _ in range(count):
        _, at = length(buf, at)
    return at


TYPES: dict[int, tuple[str, Skip]] = {
    1: ("list", _strings()),
    2: ("set", _strings()),
    3: ("zset", _old_zset),
    4: ("hash", _strings(2)),
    5: ("zset", _strings(behind=8)),
    9: ("hash", _blob(_zipmap)),
    10: ("list", _blob(_ziplist)),
    11: ("set", _blob(_intset)),
    12: ("zset", _blob(_ziplist, 2)),
    13: ("hash", _blob(_ziplist, 2)),
    14: ("list", _quicklist),
    15: ("stream", _stream(1)),
    16: ("hash", _blob(_listpack, 2)),
    17: ("zset", _blob(_listpack, 2)),
    18: ("list", _quicklist_2),
    19: ("stream", _stream(2)),
    20: ("set", _blob(_listpack)),
    21: ("stream", _stream(3)),
    22: ("hash", _strings(2, ttl=True)),
    23: ("hash", _blob(_listpack, 3)),
    24: ("hash", _strings(2, 8, ttl=True)),
    25: ("hash", _blob(_listpack, 3, 8)),
    26: ("stream", _stream(4)),
    27: ("stream", _stream(5)),
}
"""What Redis stores; 22 and 23 only release candidates of 7.4 did."""
VALKEY: dict[int, tuple[str, Skip]] = {22: ("hash", _strings(2, behind=8))}
"""What only Valkey stores."""
