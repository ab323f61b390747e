"""safetensors: a JSON table of contents, then the bytes of all tensors.

    \\x48\\x00\\x00\\x00\\x00\\x00\\x00\\x00{"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}…
"""

import json
from typing import Any

from diag.decode.decoded import Array, Buffer, Decoded
from diag.decode.dtypes import BadArray, build

NAME = "safetensors"
ORDER = 7

MAX_HEADER = 16 << 20
MAX_TENSORS = 4096
TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def sniff(data: Buffer) -> bool:
    return data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") <= MAX_HEADER


def decode(data: Buffer) -> Decoded:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length:
        return Decoded(NAME, problem="truncated", detail="safetensors ends inside of its header", needs_bytes=8 + length)
    try:
        header = json.loads(str(data[8 : 8 + length], "utf-8"))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"][:MAX_TENSORS]
        needs = 8 + length + max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
        if needs > len(data):
            return Decoded(NAME, problem="truncated", detail=f"safetensors of {needs} bytes", needs_bytes=needs)
        body = memoryview(data)[8 + length :]
        arrays = [_tensor(entry, body) for entry in tensors]
    except BadArray as error:
        return Decoded(NAME, problem="corrupt", detail=f"safetensors: {error}")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        return Decoded(NAME, problem="corrupt", detail=f"safetensors header: {type(error).__name__}")
    return Decoded(
        NAME,
        arrays=tuple(sorted(arrays, key=lambda array: array.size, reverse=True)),
        keys=tuple(str(name) for name in list(header)[:64]),
        trailing_bytes=len(data) - needs,
    )


def _tensor(entry: dict[str, Any], body: memoryview) -> Array:
    start, stop = entry["data_offsets"]
    shape = tuple(int(axis) for axis in entry["shape"])
    if not 0 <= start <= stop <= len(body):
        raise BadArray(f"a tensor at {start} to {stop} of {len(body)} bytes")
    return build(TYPES[entry["dtype"]], shape, body[start:stop])
