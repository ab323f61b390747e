"""Deflated members of an archive: unpacked when they are measured, never more than they announce, into a file without a name."""

import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from diag.tensors.dump import ReadError
from diag.tensors.files.regular import Regular, opened
from diag.tensors.files.zip_directory import DEFLATED, Member, data_at

SMALL_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
KEPT = 4
"""Unpacked members kept at hand, so that cutting a tensor into blocks does not unpack it for each of them."""


def beginning(file: Regular, member: Member, length: int) -> bytes:
    """The first bytes of a deflated member, at most `length`. ReadError: damaged."""
    start = data_at(file, member)
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(file.read(start, min(member.packed, length + 1_024)), length)[: member.size]
    except zlib.error as error:
        raise ReadError(f"cannot be unpacked: {error}; dump again") from error


def loader(path: Path, member: Member, start: int, length: int) -> Callable[[], memoryview]:
    """For `Tensor.load`: that range of the unpacked member. Raises ReadError when it is called, not before."""

    def load() -> memoryview:
        try:
            facts = path.stat()
        except OSError as error:
            raise ReadError(f"is gone: {error.strerror}") from error
        whole = _whole(path, member, facts.st_size, facts.st_mtime_ns)
        return memoryview(whole)[start : start + length]

    return load


def whole(path: Path, member: Member) -> memoryview:
    """All of a deflated member. ReadError: damaged, no room to unpack it."""
    return loader(path, member, 0, member.size)()


@lru_cache(maxsize=KEPT)
def _whole(path: Path, member: Member, size: int, mtime_ns: int) -> bytes | mmap.mmap:
    """`size` and `mtime_ns` make a file that changed another one."""
    with opened(path) as file:
        start = data_at(file, member)
        if member.method != DEFLATED:
            raise ReadError("is not deflated")
        if member.size <= SMALL_BYTES:
            out = bytearray()
            _unpack(file, member, start, out.extend)
            return bytes(out)
        return _into_file(file, member, start)


def _into_file(file: Regular, member: Member, start: int) -> mmap.mmap:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < member.size:
        raise ReadError(f"needs {member.size} bytes to be unpacked, {folder} has {free} free: set TMPDIR to a larger disk")
    try:
        with tempfile.TemporaryFile() as out:
            _unpack(file, member, start, out.write)
            out.flush()
            return mmap.mmap(out.fileno(), member.size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ReadError(f"cannot be unpacked into {folder}: {os.strerror(error.errno or 0)}; set TMPDIR to a larger disk") from error


def _unpack(file: Regular, member: Member, start: int, put: Callable[[bytes], object]) -> None:
    """Chunk by chunk; stops at the announced size. ReadError: shorter, longer, or another checksum than announced."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    at, done, crc = start, 0, 0
    pending = b""
    while not stream.eof:
        if not pending:
            pending = file.read(at, min(CHUNK_BYTES, start + member.packed - at))
            at += len(pending)
        if not pending:
            break
        try:
            piece = stream.decompress(pending, CHUNK_BYTES)
        except zlib.error as error:
            raise ReadError(f"cannot be unpacked: {error}; dump again") from error
        pending = stream.unconsumed_tail
        done += len(piece)
        if done > member.size:
            raise ReadError(f"unpacks to more than the {member.size} bytes it announces: not unpacked further")
        crc = zlib.crc32(piece, crc)
        put(piece)
    if done != member.size:
        raise ReadError(f"unpacks to {done} bytes and announces {member.size}; dump again")
    if crc != member.crc:
        raise ReadError("has another checksum than it announces: its content is damaged; dump again")
