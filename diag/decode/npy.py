"""numpy's .npy files.

    \\x93NUMPY\\x01\\x00v\\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1, 512), }   …\\n
"""

import re

import numpy as np

from diag.decode.decoded import Array, Buffer, Decoded
from diag.decode.dtypes import BadArray, build

NAME = "npy"
ORDER = 5
MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000
VERSIONS = ((1, 0), (2, 0), (3, 0))
HEADER = re.compile(r"\{[ -~]*\} *\n?")

DESCR = re.compile(r"'descr':\s*'([<>|=]?[a-zA-Z]\d*)'")
ORDERING = re.compile(r"'fortran_order':\s*(True|False)")
SHAPE = re.compile(r"'shape':\s*\(([\d,\sL]*)\)")


def sniff(data: Buffer) -> bool:
    return data[:6] == MAGIC


def decode(data: Buffer) -> Decoded:
    if len(data) > 7 and (data[6], data[7]) not in VERSIONS:
        return Decoded(NAME, problem="corrupt", detail=f"npy of version {data[6]}.{data[7]}")
    start = 10 if len(data) > 6 and data[6] == 1 else 12
    if len(data) < start:
        return _truncated(start)
    length = int.from_bytes(data[8:start], "little")
    if length > MAX_HEADER:
        return Decoded(NAME, problem="corrupt", detail=f"npy header of {length} bytes")
    if len(data) < start + length:
        return _truncated(start + length)
    header = str(data[start : start + length], "latin-1")
    descr, order, shape = DESCR.search(header), ORDERING.search(header), SHAPE.search(header)
    if order is None or shape is None:
        return Decoded(NAME, problem="corrupt", detail="npy header without shape or order")
    if HEADER.fullmatch(header) is None:
        return Decoded(NAME, problem="corrupt", detail="npy header with bytes that are no text")
    plain = descr is not None and descr[1].lstrip("<>|=")[:1] in "biufc"
    try:
        axes = tuple(int(axis.strip().rstrip("L")) for axis in shape[1].split(",") if axis.strip())
        dtype = np.dtype(descr[1]) if descr is not None and plain else None
    except (ValueError, TypeError) as error:
        return Decoded(NAME, problem="corrupt", detail=f"npy header: {error}")
    if dtype is None:
        return Decoded(NAME, arrays=(Array("object" if descr and "O" in descr[1] else "other", axes),))
    content = memoryview(data)[start + length :]
    return _array(dtype, axes, content, start + length, fortran=order[1] == "True")


def _array(dtype: "np.dtype[np.generic]", axes: tuple[int, ...], content: memoryview, header: int, *, fortran: bool) -> Decoded:
    wanted = dtype.itemsize
    for axis in axes:
        wanted *= axis
    try:
        array = build(dtype, axes, content[:wanted], fortran=fortran, partial=True)
    except BadArray as error:
        return Decoded(NAME, problem="corrupt", detail=f"npy: {error}")
    if wanted > len(content):
        return Decoded(
            NAME, arrays=(array,), problem="truncated", needs_bytes=header + wanted,
            detail=f"npy announces {wanted} bytes of data, {len(content)} are stored",
        )  # fmt: skip
    return Decoded(NAME, arrays=(array,), is_empty=wanted == 0, trailing_bytes=len(content) - wanted)


def _truncated(needs: int) -> Decoded:
    return Decoded(NAME, problem="truncated", detail="npy ends inside of its header", needs_bytes=needs)
