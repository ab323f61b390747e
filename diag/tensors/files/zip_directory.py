"""What a zip file holds and where: read from its own directory, one small record per member, nothing unpacked.

`zipfile` makes an object of about a kilobyte per member and does not tell where a member's bytes lie; a dump may have
a hundred thousand members, and is to be mapped, not copied.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from diag.tensors.dump import ReadError
from diag.tensors.files.regular import Regular

MAGIC = b"PK\x03\x04"
EMPTY_MAGIC = b"PK\x05\x06"
STORED, DEFLATED = 0, 8
MAX_DIRECTORY_BYTES = 64 << 20
MAX_MEMBERS = 1 << 19
MAX_NAME_BYTES = 4_096
MAX_RATIO = 1_032
"""Deflate reaches no more: a member that announces more lies."""

_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}


class Member(NamedTuple):
    """One entry of the directory. Sizes in bytes, `packed` as stored."""

    name: str
    method: int
    flags: int
    crc: int
    packed: int
    size: int
    header_at: int
    mode: int
    """Unix file mode; 0: not told."""


def directory(file: Regular) -> Iterator[Member]:
    """All members in the order of the directory. ReadError: no zip, cut, or more than the bounds allow."""
    count, length, start = _end(file)
    if length > MAX_DIRECTORY_BYTES or count > MAX_MEMBERS:
        raise ReadError(f"is a zip of {count} members with a directory of {length} bytes, more than is read ({MAX_MEMBERS}, {MAX_DIRECTORY_BYTES})")
    if start + length > file.size:
        raise ReadError("is a zip whose directory lies outside of the file: it is damaged")
    table = file.mapped(start, length)
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > length:
            raise ReadError(f"is a zip whose directory ends before its {count} members: it is damaged")
        (magic, _made, _needs, flags, method, _time, _date, crc, packed, size, names, extras, comments, _disk, _internal, external, header_at) = _ENTRY.unpack_from(table, at)
        if magic != b"PK\x01\x02" or names > MAX_NAME_BYTES:
            raise ReadError("is a zip with a damaged directory")
        at += _ENTRY.size
        name = str(table[at : at + names], "utf-8" if flags & 0x800 else "cp437", "replace")
        if 0xFFFFFFFF in (packed, size, header_at):
            packed, size, header_at = _wide(bytes(table[at + names : at + names + extras]), packed, size, header_at)
        at += names + extras + comments
        yield Member(name, method, flags, crc, packed, size, header_at, external >> 16)


def data_at(file: Regular, member: Member) -> int:
    """Where the bytes of a member begin: its own header decides. ReadError: encrypted, a link, damaged, cut."""
    if member.flags & 0x41:
        raise ReadError("is encrypted: unpack it with its password and compare the copy")
    if member.mode & 0o170000 == 0o120000:
        raise ReadError("is a link, not a file: nothing is followed")
    if ".." in member.name.replace("\\", "/").split("/") or member.name[:1] in ("/", "\\") or "\0" in member.name:
        raise ReadError("has a name that leads out of the archive")
    head = file.read(member.header_at, _LOCAL.size)
    if len(head) < _LOCAL.size:
        raise ReadError(f"begins at byte {member.header_at}, the file has {file.size}; it was cut short, dump again")
    magic, _needs, flags, method, _time, _date, _crc, _packed, _size, names, extras = _LOCAL.unpack(head)
    if magic != MAGIC or method != member.method or flags & 0x41:
        raise ReadError("has a header that contradicts the directory: the zip is damaged")
    start: int = member.header_at + _LOCAL.size + names + extras
    if start + member.packed > file.size:
        raise ReadError(f"needs {member.packed} bytes from byte {start}, the file has {file.size}; it was cut short, dump again")
    if member.method == STORED and member.packed != member.size:
        raise ReadError(f"is stored in {member.packed} bytes and announces {member.size}: the zip is damaged")
    if member.method == DEFLATED and member.size > member.packed * MAX_RATIO:
        raise ReadError(f"announces {member.size} bytes packed into {member.packed}, which deflate cannot do: a zip bomb, not unpacked")
    if member.method not in (STORED, DEFLATED):
        raise ReadError(f"is packed with {_METHODS.get(member.method, f'method {member.method}')}; only stored and deflated members are read: repack it")
    return start


def _end(file: Regular) -> tuple[int, int, int]:
    """(members, length of the directory, its start) from the record at the end of the file."""
    tail_at = max(file.size - _END.size - 0xFFFF, 0)
    tail = file.read(tail_at, file.size - tail_at)
    found = tail.rfind(EMPTY_MAGIC)
    while found >= 0 and (found + _END.size > len(tail) or found + _END.size + int.from_bytes(tail[found + 20 : found + 22], "little") != len(tail)):
        found = tail.rfind(EMPTY_MAGIC, 0, found)
    if found < 0:
        raise ReadError("is a zip without its directory, which comes last: the file was cut short or is still being written; dump again")
    _magic, disk, first_disk, _here, count, length, start, _comment = _END.unpack_from(tail, found)
    if 0xFFFF in (count, disk) or 0xFFFFFFFF in (length, start):
        return _end_64(file, tail_at + found)
    if disk or first_disk:
        raise ReadError("is one part of a zip in several parts: join them first")
    return count, length, start


def _end_64(file: Regular, end_at: int) -> tuple[int, int, int]:
    locator = file.read(max(end_at - _LOCATOR_64.size, 0), _LOCATOR_64.size)
    if len(locator) < _LOCATOR_64.size or locator[:4] != b"PK\x06\x07":
        raise ReadError("is a zip with a damaged directory: its 64 bit record is not announced")
    record = file.read(_LOCATOR_64.unpack(locator)[2], _END_64.size)
    if len(record) < _END_64.size or record[:4] != b"PK\x06\x06":
        raise ReadError("is a zip with a damaged directory: its 64 bit record is missing")
    *_, count, length, start = _END_64.unpack(record)
    return count, length, start


def _wide(extra: bytes, packed: int, size: int, header_at: int) -> tuple[int, int, int]:
    """The 64 bit sizes of a member, in the fixed order of those that did not fit."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + length]
            values = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            size, packed, header_at = (next(values, old) if old == 0xFFFFFFFF else old for old in (size, packed, header_at))
            return packed, size, header_at
        at += 4 + length
    return packed, size, header_at
