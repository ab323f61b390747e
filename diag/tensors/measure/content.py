"""A tensor's cells: as one mapped array, or range by range in logical order, from a file, a view with strides or unpacked bytes.

Plain ranges are read into pages of their own rather than mapped: a file that is cut short meanwhile is then an error,
where a mapping ends the process with SIGBUS. The pages come from mmap because the kernel copies into malloc's memory,
which begins 16 bytes into a page, at a quarter of the speed.
"""

import math
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.tensors.dump import ReadError, Tensor
from diag.tensors.elements import code_dtype, itemsize, numpy_dtype

Cells = npt.NDArray[Any]

REPEATS_AT_MOST = 4096
"""Elements a view with stride 0 may show for each one in the file: more is no tensor but a trap."""


def content(tensor: Tensor) -> Cells:
    """The tensor in logical order, its own shape, read-only, nothing copied: a view over the mapped file.

    Of numpy's type, or of unsigned integers (the codes) where numpy has none; in the byte order of the file.
    ReadError: the file is shorter than the tensor, or holds no content. A file that is cut short later ends the process
    when the view is used: `measure_pair` and `digests` do not have this trait for tensors without strides.
    """
    with Source(tensor) as source:
        return source.array()


def cell_type(tensor: Tensor) -> np.dtype[Any]:
    """What its cells are in the file: numpy's type or codes, byte order included."""
    kind = numpy_dtype(tensor.dtype)
    return (code_dtype(tensor.dtype) if kind is None else kind).newbyteorder(">" if tensor.big_endian else "<")


class Pages:
    """Memory to read into, as large as asked for at least once; one a thread and side."""

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None

    def view(self, size: int) -> memoryview:
        if self._pages is None or len(self._pages) < size:
            self._pages = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        return memoryview(self._pages)[:size]


class Source:
    """An open tensor. Ranges may be read from several threads at once."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.size = math.prod(tensor.shape)
        self.cells = cell_type(tensor)
        self.native = self.cells.newbyteorder("=")
        self._fd = -1
        self._bytes: memoryview | None = None
        self._array: Cells | None = None
        if tensor.offset < 0:
            raise ReadError(f"{tensor.source} holds figures of {tensor.name}, not its content")
        if self.size == 0:
            self._array = np.empty(tensor.shape, self.cells)
        elif tensor.load is not None:
            self._bytes = tensor.load().cast("B")
            self._check(len(self._bytes), "unpacks to")
        else:
            self._open()
        if self._array is None and (self._bytes is not None or tensor.strides is not None):
            self._array = self._view(self._bytes)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def array(self) -> Cells:
        """See `content`."""
        array = self._view(None) if self._array is None else self._array
        array.flags.writeable = False
        return array

    def read(self, start: int, stop: int, pages: Pages) -> Cells:
        """Cells `start` to `stop` of the flattened tensor: native byte order, aligned; valid until `pages` are used again."""
        if self._array is None:
            cells = self._read_file(start, stop, pages)
        elif self._array.flags.c_contiguous:
            cells = self._array.reshape(-1)[start:stop]
        else:
            cells = np.frombuffer(pages.view((stop - start) * self.cells.itemsize), self.cells)
            _gather(self._array, start, stop, cells)
        return np.require(cells, self.native, "A")  # copies only what is swapped or askew

    def _open(self) -> None:
        try:
            self._fd = os.open(self.tensor.file, os.O_RDONLY | os.O_CLOEXEC)
            self._check(os.fstat(self._fd).st_size, "has")
        except OSError as error:
            raise ReadError(f"{self.tensor.source}: {error.strerror}") from error
        except ReadError:
            self.close()
            raise

    def _reach(self) -> tuple[int, int]:
        """First and last cell it touches, counted from `offset`."""
        strides = self.tensor.strides
        if strides is None:
            return 0, self.size - 1
        if len(strides) != len(self.tensor.shape):
            raise ReadError(f"{self.tensor.source}: {len(strides)} strides for {len(self.tensor.shape)} axes")
        ends = [(axis - 1) * step for axis, step in zip(self.tensor.shape, strides, strict=True)]
        return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)

    def _check(self, there: int, verb: str) -> None:
        tensor, (first, last) = self.tensor, self._reach()
        size = itemsize(tensor.dtype)
        wanted = tensor.offset + (last + 1) * size
        if wanted > there:
            raise ReadError(f"{tensor.source} {verb} {there} bytes, {tensor.name} needs {wanted}: cut short or still being written; copy the dump again")
        if tensor.offset + first * size < 0 or self.size > REPEATS_AT_MOST * (last - first + 1):
            raise ReadError(f"{tensor.source}: shape {tensor.shape[:8]} and strides do not fit what is stored")

    def _view(self, data: memoryview | None) -> Cells:
        """Over unpacked bytes, or over the mapped file."""
        first, last = self._reach()
        begin = self.tensor.offset + first * self.cells.itemsize
        if data is None:
            whole = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            length = begin - whole + (last - first + 1) * self.cells.itemsize
            data, begin = memoryview(mmap.mmap(self._fd, length, access=mmap.ACCESS_READ, offset=whole)), begin - whole
        strides = None if self.tensor.strides is None else tuple(step * self.cells.itemsize for step in self.tensor.strides)
        return np.ndarray(self.tensor.shape, self.cells, data, begin - first * self.cells.itemsize, strides)

    def _read_file(self, start: int, stop: int, pages: Pages) -> Cells:
        begin = self.tensor.offset + start * self.cells.itemsize
        lead, wanted = begin % mmap.PAGESIZE, (stop - start) * self.cells.itemsize  # file and memory at the same place of a page
        room = pages.view(lead + wanted)[lead:]
        done = 0
        while done < wanted:
            count = os.preadv(self._fd, [room[done:]], begin + done)
            if count == 0:
                raise ReadError(f"{self.tensor.source} was cut short while it was read; copy the dump again")
            done += count
        return np.frombuffer(room, self.cells)


def _gather(view: Cells, start: int, stop: int, into: Cells) -> None:
    """Copy a range of the flattened view: whole indices of the first axis at once, their first and last part by the same rule."""
    if view.ndim == 1:
        into[:] = view[start:stop]
        return
    inner = math.prod(view.shape[1:])
    first, last = -(-start // inner), stop // inner
    if first > last:  # inside one index
        _gather(view[last], start - last * inner, stop - last * inner, into)
        return
    head, body = first * inner - start, (last - first) * inner
    if head:
        _gather(view[first - 1], inner - head, inner, into[:head])
    if body:
        into[head : head + body].reshape(-1, *view.shape[1:])[...] = view[first:last]
    if stop > last * inner:
        _gather(view[last], 0, stop - last * inner, into[head + body :])
