"""Digests of runs of elements: blocks and token rows with equal content are found by them."""

import numpy as np
import xxhash

from diag.tensors.dump import Tensor
from diag.tensors.measure.content import Pages, Source

_AT_ONCE = 1 << 20
"""Bytes."""


def digests(tensor: Tensor, unit_elements: int) -> list[bytes]:
    """xxh3_128 (16 bytes) of every run of `unit_elements` in logical C order; the last may be shorter. Of little-endian cells, whatever the file has.

    Equal content of different element types has different digests by chance only where the bytes differ: compare types too.
    ReadError: the file is shorter than the tensor.
    """
    if unit_elements < 1:
        raise ValueError(f"a unit of {unit_elements} elements")
    found: list[bytes] = []
    pages = Pages()
    with Source(tensor) as source:
        most = max(_AT_ONCE // source.cells.itemsize, 1)
        if unit_elements <= most:
            step = most // unit_elements * unit_elements
            for start in range(0, source.size, step):
                cells = source.read(start, min(start + step, source.size), pages).view(np.uint8)
                width = unit_elements * source.cells.itemsize
                found += [xxhash.xxh3_128_digest(cells[begin : begin + width].data) for begin in range(0, len(cells), width)]
            return found
        for start in range(0, source.size, unit_elements):
            digest = xxhash.xxh3_128()
            stop = min(start + unit_elements, source.size)
            for begin in range(start, stop, most):
                digest.update(source.read(begin, min(begin + most, stop), pages).view(np.uint8).data)
            found.append(digest.digest())
    return found
