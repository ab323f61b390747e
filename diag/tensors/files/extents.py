"""Does a tensor of this type, shape and strides fit into the bytes that are stored for it, and where in them does it lie?"""

import math
from typing import NamedTuple

from diag.tensors.dump import ReadError
from diag.tensors.elements import itemsize

MAX_AXES = 32
"""numpy before 2.0 knows no more."""
MAX_AXIS = 1 << 40
MAX_REPEATED = 1 << 28
"""Elements of a broadcast view (stride 0) that is far larger than its storage; an expanded attention mask is below."""
REPEATS = 64


class Extent(NamedTuple):
    """Where a tensor lies in its storage."""

    start_bytes: int
    span_bytes: int
    """From its first to behind its last element."""
    strides: tuple[int, ...] | None
    """In elements; None: C order, no gaps."""


def spelled(shape: tuple[int, ...]) -> str:
    """A shape for a message: "2x3", "scalar"."""
    return "x".join(map(str, shape[:MAX_AXES])) if shape else "scalar"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of C order without gaps."""
    strides: list[int] = []
    step = 1
    for axis in reversed(shape):
        strides.append(step)
        step *= axis
    return tuple(reversed(strides))


def contiguous(dtype: str, shape: tuple[int, ...], stored_bytes: int) -> int:
    """Bytes of a tensor without gaps. ReadError: impossible shape, or more than are stored."""
    check_shape(shape)
    needs = math.prod(shape) * itemsize(dtype)
    if needs > stored_bytes:
        raise ReadError(f"{dtype} {spelled(shape)} needs {needs} bytes, {stored_bytes} are stored; the file was cut short, dump again")
    return needs


def check_shape(shape: tuple[int, ...]) -> None:
    """ReadError: no tensor has that shape."""
    if len(shape) > MAX_AXES:
        raise ReadError(f"{len(shape)} axes, more than {MAX_AXES}")
    if any(axis < 0 or axis > MAX_AXIS for axis in shape):
        raise ReadError(f"impossible shape {spelled(shape)[:80]}")


def extent(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, stored_bytes: int) -> Extent:
    """A view of a storage; strides and offset in elements. ReadError: it leaves the storage, or repeats it beyond measure."""
    check_shape(shape)
    if len(strides) != len(shape) or offset < 0 or any(step < 0 or step > MAX_AXIS for step in strides):
        raise ReadError(f"impossible layout: shape {spelled(shape)}, strides {strides[:MAX_AXES]}, offset {offset}"[:200])
    size = itemsize(dtype)
    if 0 in shape:
        return Extent(0, 0, None)
    span = 1 + sum((axis - 1) * step for axis, step in zip(shape, strides, strict=True))
    if (offset + span) * size > stored_bytes:
        raise ReadError(f"{dtype} {spelled(shape)} ends at byte {(offset + span) * size} of a storage of {stored_bytes}; the file was cut short, dump again")
    count = math.prod(shape)
    if count > MAX_REPEATED and count * size > REPEATS * stored_bytes:
        raise ReadError(f"{dtype} {spelled(shape)} repeats {stored_bytes} stored bytes too often; save a contiguous copy")
    plain = all(axis == 1 or step == usual for axis, step, usual in zip(shape, strides, row_major(shape), strict=True))
    return Extent(offset * size, span * size, None if plain else strides)
