"""Element types by name: how many bytes, numpy's own where it has one, widening where it has not."""

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.decode.decoded import Array, Buffer

MAX_AXES = 32
MAX_AXIS = 1 << 40

_WITHOUT_NUMPY = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1}
_TORCH = {
    "float": "float32", "half": "float16", "double": "float64", "long": "int64", "int": "int32", "short": "int16",
    "char": "int8", "byte": "uint8", "cfloat": "complex64", "cdouble": "complex128",
    "complexfloat": "complex64", "complexdouble": "complex128",
}  # fmt: skip
_NUMPY = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
})  # fmt: skip


class BadArray(ValueError):
    """Shape, type and bytes of an array do not fit together."""


def framework_name(name: str) -> str | None:
    """torch's spelling ("half", "torch.bfloat16") -> numpy's name, or None if it is no element type."""
    short = name.removeprefix("torch.").lower()
    short = _TORCH.get(short, short)
    return short if short in _NUMPY or short in _WITHOUT_NUMPY else None


def itemsize(name: str) -> int:
    """Bytes of one element. KeyError: unknown type."""
    return _WITHOUT_NUMPY[name] if name in _WITHOUT_NUMPY else np.dtype(name).itemsize


def build(
    dtype: str | np.dtype[Any], shape: tuple[int, ...], data: Buffer, *, fortran: bool = False, partial: bool = False
) -> Array:
    """An array over `data`, copied nowhere. BadArray if type, shape and bytes do not fit.

    `partial`: only the head of the data is at hand; `values` is then flat and shorter than `shape` says.
    """
    if len(shape) > MAX_AXES or any(axis < 0 or axis > MAX_AXIS for axis in shape):
        raise BadArray(f"impossible shape {shape[:8]}")
    name = dtype if isinstance(dtype, str) else dtype.name
    size = itemsize(name) if isinstance(dtype, str) else dtype.itemsize
    wanted = math.prod(shape) * size
    if wanted != len(data) and not (partial and wanted > len(data)):
        raise BadArray(f"{name} {'x'.join(map(str, shape))} needs {wanted} bytes, {len(data)} are stored")
    if name in _WITHOUT_NUMPY:
        return Array(name, shape, None, data)
    kind = np.dtype(name) if isinstance(dtype, str) else dtype
    if partial and wanted > len(data):
        return Array(name, shape, np.frombuffer(data, kind, count=len(data) // size) if len(data) >= size else None)
    if wanted == 0:
        return Array(name, shape, np.empty(shape, kind) if max(shape, default=0) < 1 << 31 else None)
    flat = np.frombuffer(data, kind)
    return Array(name, shape, flat.reshape(shape, order="F" if fortran else "C"))


def strided(name: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, storage: Buffer) -> Array:
    """A tensor over its storage; shape, strides and offset in elements. BadArray if it leaves the storage."""
    if len(shape) != len(strides) or len(shape) > MAX_AXES or min((*shape, *strides, offset), default=0) < 0:
        raise BadArray(f"impossible tensor layout {shape[:8]} / {strides[:8]}")
    size = itemsize(name)
    last = offset + sum((axis - 1) * step for axis, step in zip(shape, strides, strict=True))
    if 0 in shape:
        return build(name, shape, b"")
    if (last + 1) * size > len(storage):
        raise BadArray(f"tensor ends at byte {(last + 1) * size}, its storage has {len(storage)}")
    if math.prod(shape) * size > len(storage) * 64:
        raise BadArray("tensor repeats its storage too often")
    cells = np.frombuffer(storage, {1: np.uint8, 2: np.uint16}[size] if name in _WITHOUT_NUMPY else np.dtype(name))
    view = np.lib.stride_tricks.as_strided(
        cells[offset:], shape, tuple(step * size for step in strides), writeable=False
    )
    if name in _WITHOUT_NUMPY:
        return Array(name, shape, None, np.ascontiguousarray(view).tobytes())
    return Array(name, shape, view)


def widen(data: Buffer, name: str) -> npt.NDArray[np.float32] | None:
    """bfloat16 and the float8 types as float32 (exact). None: another type."""
    if name == "bfloat16":
        bits = np.frombuffer(data, "<u2", count=len(data) // 2).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    if name in _WITHOUT_NUMPY:
        wide: npt.NDArray[np.float32] = _float8_table(name)[np.frombuffer(data, np.uint8)]
        return wide
    return None


@cache
def _float8_table(name: str) -> npt.NDArray[np.float32]:
    """All 256 values of a float8 type, by the definitions of the OCP and Graphcore papers."""
    mantissa_bits = 3 if "e4m3" in name else 2
    unsigned_zero = name.endswith("fnuz")
    bias = (7 if mantissa_bits == 3 else 15) + unsigned_zero
    return np.array([_float8(code, mantissa_bits, bias, name) for code in range(256)], np.float32)


def _float8(code: int, mantissa_bits: int, bias: int, name: str) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if name.endswith("fnuz"):
        if code == 0x80:
            return math.nan
    elif name == "float8_e4m3fn":
        if code & 0x7F == 0x7F:
            return math.nan
    elif exponent == 31:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
