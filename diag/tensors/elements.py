"""Element types by name: bytes per cell, numpy's own type where it has one, and what other programs call them.

A name is numpy's ("float16"), the framework's where numpy has none ("bfloat16", "float8_e4m3fn"), or says that the
type was lost ("opaque2"). Types smaller than a byte are described by their bytes: `stored("int4", (4, 8))` is
("int4_x2", (4, 4)), as torch has it for float4, so a shape times `itemsize` is always the number of bytes.
"""

import math
from types import MappingProxyType
from typing import Any

import numpy as np

from diag.decode import dtypes

_NUMPY = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_WIDENED = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
# compared bit by bit: nobody here turns them into numbers
_CODES = MappingProxyType({
    "opaque1": 1, "opaque2": 2, "float8_e8m0fnu": 1, "hifloat8": 1, "complex32": 4,
    "int4_x2": 1, "uint4_x2": 1, "uint1_x8": 1, "float4_e2m1fn_x2": 1, "float4_e1m2fn_x2": 1,
    "float6_e2m3fn_bytes": 1, "float6_e3m2fn_bytes": 1,
})  # fmt: skip
_PACKED = MappingProxyType({  # name -> (bits, its bytes' name)
    "int4": (4, "int4_x2"), "uint4": (4, "uint4_x2"), "uint1": (1, "uint1_x8"),
    "float4_e2m1fn": (4, "float4_e2m1fn_x2"), "float4_e1m2fn": (4, "float4_e1m2fn_x2"),
    "float6_e2m3fn": (6, "float6_e2m3fn_bytes"), "float6_e3m2fn": (6, "float6_e3m2fn_bytes"),
})  # fmt: skip
_ALIASES = MappingProxyType({
    "bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32", "f32": "float32", "fp64": "float64", "f64": "float64",
    "fp8_e4m3": "float8_e4m3fn", "f8_e4m3": "float8_e4m3fn", "float8_e4m3": "float8_e4m3fn", "fp8_e4m3fn": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2", "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz", "f8_e5m2fnuz": "float8_e5m2fnuz",
    "fp8_e8m0": "float8_e8m0fnu", "f8_e8m0": "float8_e8m0fnu", "float8_e8m0": "float8_e8m0fnu",
    "i16": "int16", "i32": "int32", "i64": "int64", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "c64": "complex64", "c128": "complex128", "chalf": "complex32", "complexhalf": "complex32", "bool_": "bool", "boolean": "bool",
    "fp4_e2m1": "float4_e2m1fn", "fp4_e1m2": "float4_e1m2fn",
    "fp6_e2m3": "float6_e2m3fn", "f6_e2m3": "float6_e2m3fn", "fp6_e3m2": "float6_e3m2fn", "f6_e3m2": "float6_e3m2fn",
})  # fmt: skip
_KIND_BYTES = frozenset(f"{kind}{width}" for kind, widths in {"b": "1", "i": "1248", "u": "1248", "f": "248"}.items() for width in widths) | {"c8", "c16"}

NAMES = (*_NUMPY, *_WIDENED, *_CODES)
"""Every type a Tensor may have."""
_SIZES = MappingProxyType({name: _CODES[name] if name in _CODES else dtypes.itemsize(name) for name in NAMES})
_TYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _NUMPY}
_UNSIGNED: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def itemsize(name: str) -> int:
    """Bytes of one cell. KeyError: no type of a Tensor (see `stored` for those smaller than a byte)."""
    return _SIZES[name]


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """numpy's own type in this machine's byte order; None: it has none, the cells are codes (`code_dtype`)."""
    return _TYPES.get(name)


def code_dtype(name: str) -> np.dtype[Any]:
    """The unsigned integer as wide as one cell: how types that numpy lacks are held. KeyError: no type of a Tensor, or too wide."""
    return _UNSIGNED[_SIZES[name]]


def is_opaque(name: str) -> bool:
    """Cells that are compared bit by bit and never as numbers: packed, lost or exotic types."""
    return name in _CODES


def stored(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Type and shape as they lie in the file, for a Tensor: unchanged unless the type is smaller than a byte.

    The last axis then counts bytes; where it does not fill whole bytes, the shape is flat. KeyError: unknown type.
    """
    if name not in _PACKED:
        _ = _SIZES[name]
        return name, shape
    bits, packed = _PACKED[name]
    if shape and shape[-1] * bits % 8 == 0:
        return packed, (*shape[:-1], shape[-1] * bits // 8)
    return packed, (math.ceil(math.prod(shape) * bits / 8),)


def named(text: str) -> str | None:
    """What another program calls a type ("torch.half", "BF16", "<f4", "Float32") as our name; None: no type we know.

    Types smaller than a byte have their own names ("int4"): give them to `stored`. Byte order is not part of a name.
    "i8", "u8" and "f4" mean bytes to some and bits to others: none, unless numpy's sign is in front ("<i8").
    """
    short = text.strip().removeprefix("torch.").removeprefix("numpy.").removeprefix("np.").removeprefix("ml_dtypes.")
    if short[:1] and short[0] in "<>|=":  # numpy's letters: "<u4" are numbers, "<U4" is text
        return np.dtype(short[1:]).name if short[1:] in _KIND_BYTES else None
    short = short.lower()
    short = dtypes.framework_name(short) or _ALIASES.get(short, short)
    return short if short in _SIZES or short in _PACKED else None
