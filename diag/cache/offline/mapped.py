"""A file in memory without being in memory: mapped, read once from begin to end, pages given back behind the reader."""

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anycrc

from diag.cache.offline.wire import Buffer
from diag.errors import BadInput
from diag.loose import shown

STEP_BYTES = 16 << 20
_CRC = anycrc.Model("CRC64-REDIS")


def crc64(data: bytes) -> int:
    """As the servers put it behind files and dumps."""
    return int(_CRC.calc(data))


@dataclass
class Mapped:
    """One open file. Its size is that at opening: what is appended meanwhile is not seen."""

    path: Path
    buf: Buffer = field(repr=False)
    size: int
    modified_s: float
    """Unix seconds."""
    checked: bool = True
    """Take what is passed into the checksum."""
    _crc: int = 0
    _done: int = 0

    @property
    def name(self) -> str:
        """As it may be printed."""
        return shown(self.path)

    def passed(self, at: int) -> None:
        """Everything before `at` was read: it goes into the checksum, and its pages out of memory, a step at a time."""
        if at - self._done >= STEP_BYTES:
            self._take(at - at % mmap.PAGESIZE)

    def crc64(self, at: int) -> int:
        """Of the first `at` bytes, whether `passed` has seen them or not. Only where they are `checked`."""
        self._take(at)
        return self._crc

    def again(self) -> None:
        """The reader starts anew."""
        self._crc = self._done = 0

    def _take(self, at: int) -> None:
        while self._done < at:
            start = self._done
            self._done = min(at, start - start % mmap.PAGESIZE + STEP_BYTES)
            if self.checked:
                with memoryview(self.buf) as view, view[start : self._done] as piece:
                    self._crc = _CRC.calc(piece, self._crc)
            if isinstance(self.buf, mmap.mmap):
                first = start - start % mmap.PAGESIZE
                self.buf.madvise(mmap.MADV_DONTNEED, first, self._done - first)


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[Mapped]:
    """Open a regular file, or a link to one. Raises BadInput for all else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            facts = os.fstat(stream.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise BadInput(f"{shown(path)} is no regular file", hint="give an RDB file, an append-only file, or the folder of one")
            buf: Buffer = b""
            if facts.st_size:
                buf = mmap.mmap(stream.fileno(), facts.st_size, access=mmap.ACCESS_READ)
                buf.madvise(mmap.MADV_SEQUENTIAL)
    except OSError as error:
        raise BadInput(f"cannot read {shown(path)}: {error.strerror}", hint="check its permissions") from error
    try:
        yield Mapped(path, buf, facts.st_size, facts.st_mtime)
    finally:
        if isinstance(buf, mmap.mmap):
            with contextlib.suppress(BufferError):  # somebody still holds a value: the map goes with the last one
                buf.close()
