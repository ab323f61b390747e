"""LMCache's description of a KV chunk, stored beside the chunk: native 32-bit integers.

    length, format, then per group: element type, four sizes (0 where there is none)        28 bytes for one group
"""

import struct

from diag.decode.decoded import Buffer, Decoded
from diag.decode.dtypes import itemsize

NAME = "lmcache-metadata"
ORDER = 8

MAX_GROUPS = 16
FORMATS = ("undefined", "KV_2LTD", "KV_T2D", "KV_2TD", "binary", "binary-buffer", "KV_MLA", "EC_TD", "HS_TD")
TYPES = (None, "float16", "float16", "bfloat16", "float32", "float64", "uint8", "float8_e4m3fn", "float8_e5m2")
ENCODER = 7
RAW_FORMATS = (1, 2, 3, 6, 7, 8)


def sniff(data: Buffer) -> bool:
    """The size of one to MAX_GROUPS groups, and numbers that only such a description has."""
    if len(data) < 28 or (len(data) - 8) % 20 or len(data) > 8 + 20 * MAX_GROUPS:
        return False
    length, form, *groups = struct.unpack(f"={len(data) // 4}i", data)
    if not 0 <= form < len(FORMATS) or length < 0 or not any((length, form, *groups)):
        return False
    codes = groups[::5]
    sizes = [size for at, size in enumerate(groups) if at % 5]
    return all(0 <= code < len(TYPES) for code in codes) and all(0 <= size < 1 << 28 for size in sizes)


def decode(data: Buffer) -> Decoded:
    length, form, *groups = struct.unpack(f"={len(data) // 4}i", data)
    shapes = [tuple(size for size in groups[at + 1 : at + 5] if size) for at in range(0, len(groups), 5)]
    names = [TYPES[code] for code in groups[::5]]
    needed = sum(_bytes(name, shape) for name, shape in zip(names, shapes, strict=True) if name is not None)
    wrong = form in RAW_FORMATS and None not in names and needed != length
    return Decoded(
        NAME,
        keys=(FORMATS[form], str(names[0]), "x".join(map(str, shapes[0]))),
        announces_bytes=length,
        is_empty=length == 0,
        problem="corrupt" if wrong and length else None,
        detail=f"its shapes need {needed} bytes, its length says {length}" if wrong else "",
    )


def _bytes(name: str, shape: tuple[int, ...]) -> int:
    count = itemsize(name) if shape else 0
    for axis in shape:
        count *= axis
    return count
