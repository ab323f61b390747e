"""A file of a dump, opened so that nothing but a regular file is ever read, and read only in ranges of known length."""

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from diag.tensors.dump import ReadError

SMALL_BYTES = 1 << 18


class Regular(NamedTuple):
    """An open file and its length in bytes when it was opened."""

    descriptor: int
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """That range, or what the file has of it. ReadError: the disk fails."""
        try:
            return os.pread(self.descriptor, min(length, max(self.size - offset, 0)), offset)
        except OSError as error:
            raise ReadError(f"cannot be read at byte {offset}: {error.strerror}") from error

    def mapped(self, offset: int, length: int) -> memoryview:
        """That range as a view that costs next to no memory of its own. ReadError: the file is shorter."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ReadError(f"ends at byte {self.size}, {offset + length} are needed; dump again")
        if length <= SMALL_BYTES:  # quicker than a mapping, and safe from whoever shortens the file meanwhile
            content = self.read(offset, length)
            if len(content) < length:
                raise ReadError("became shorter while it was read; is it still being written?")
            return memoryview(content)
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            pages = mmap.mmap(self.descriptor, offset + length - start, access=mmap.ACCESS_READ, offset=start)
        except (OSError, ValueError) as error:  # it became shorter since it was opened
            raise ReadError(f"cannot be mapped: {error}; is it still being written?") from error
        return memoryview(pages)[offset - start :]


@contextmanager
def opened(path: Path) -> Iterator[Regular]:
    """The file, open for reading. ReadError: missing, forbidden, empty, a folder, a pipe, a device."""
    try:
        # O_NONBLOCK: a pipe by that name must not block for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ReadError(_why(error)) from error
    except ValueError as error:
        raise ReadError("has a name no file can have") from error
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise ReadError("is a folder, not a file: name the file in it, or open the folder as a dump")
        if not stat.S_ISREG(facts.st_mode):
            raise ReadError("is no regular file (a pipe, a socket or a device): copy its content into a file")
        if facts.st_size == 0:
            raise ReadError("is empty (0 bytes): the dump was cut short or is still being written; wait, or dump again")
        yield Regular(descriptor, facts.st_size)
    finally:
        os.close(descriptor)


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "is gone: it was there when the folder was listed; is the dump still being written?"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be read by this user: run as its owner, or copy it"
    return f"cannot be opened: {error.strerror}"
