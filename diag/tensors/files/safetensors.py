"""safetensors: a JSON table of contents, then the bytes of all tensors; the table alone is read.

    \\x48\\x00\\x00\\x00\\x00\\x00\\x00\\x00{"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}…

The owner's package refuses files whose tensors overlap, leave gaps or end elsewhere than the file, and so does this.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.elements import itemsize, stored
from diag.tensors.files.extents import check_shape, spelled
from diag.tensors.files.regular import Regular, opened

NAME = "safetensors"
ORDER = 30

MAX_HEADER_BYTES = 32 << 20
"""Some 300,000 tensors; the format itself allows 100 MB."""
METADATA = "__metadata__"
TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64", "C128": "complex128",
}  # fmt: skip


class Entry(msgspec.Struct):
    """One line of the table."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(Entry)
_METADATA = msgspec.json.Decoder(dict[str, str])


def recognise(path: Path, head: bytes) -> bool:
    return path.suffix == ".safetensors" or (head[8:10] in (b'{"', b"{}", b"{ ") and 2 <= int.from_bytes(head[:8], "little") <= MAX_HEADER_BYTES)


def read(path: Path) -> Iterator[Tensor | Unread]:
    with opened(path) as file:
        text = _header(file)
        entries = _entries(text)
        start = 8 + len(text)
        _check_offsets([entry.data_offsets for entry in entries.values()], file.size - start)
    for name, entry in entries.items():
        try:
            dtype, shape = _fitting(entry)
        except ReadError as error:
            yield Unread(f"{path}#{name}", str(error))
            continue
        yield Tensor(name, dtype, shape, path, start + entry.data_offsets[0], key=name)


def metadata(path: Path) -> dict[str, str]:
    """What the writer noted beside the tensors; often nothing. ReadError."""
    with opened(path) as file:
        raw = _decoded(_TABLE, _header(file)).get(METADATA)
    return {} if raw is None else _decoded(_METADATA, raw)


def _header(file: Regular) -> bytes:
    first = file.read(0, 8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or 8 + length > file.size:
        raise ReadError(f"announces a header of {length} bytes, the file has {file.size}: cut short or no safetensors; dump again")
    if length > MAX_HEADER_BYTES:
        raise ReadError(f"has a header of {length} bytes, more than {MAX_HEADER_BYTES}: split the dump into several files")
    text = file.read(8, length)
    if len(text) < length or text[:1] != b"{":
        raise ReadError("has a header that is no JSON object: damaged, or no safetensors")
    return text


def _entries(text: bytes) -> dict[str, Entry]:
    """The table without the writer's notes. msgspec checks the form first, so that what is checked next is small."""
    table = _decoded(_TABLE, text)
    notes = table.pop(METADATA, None)
    if notes is not None:
        _decoded(_METADATA, notes)
    entries = {name: _decoded(_ENTRY, raw, name) for name, raw in table.items()}
    try:
        json.loads(text, object_pairs_hook=_only_once)
    except (ValueError, RecursionError) as error:
        raise ReadError(f"has a damaged header: {str(error)[:200]}") from error
    return entries


def _decoded(decoder: "msgspec.json.Decoder[Any]", text: bytes | msgspec.Raw, name: str = "") -> Any:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        where = f", at tensor {name[:80]!r}" if name else ""
        raise ReadError(f"has a damaged header{where}: {str(error)[:200]}") from error


def _only_once(pairs: list[tuple[str, object]]) -> None:
    """Which of two equal keys is meant cannot be known."""
    if len({key for key, _value in pairs}) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _value in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice[:80]!r} is there twice")


def _check_offsets(offsets: list[tuple[int, int]], stored_bytes: int) -> None:
    """Tensors lie one behind the other and end with the file."""
    at = 0
    for begin, end in sorted(offsets):
        if begin != at or end < begin:
            raise ReadError(f"has a tensor at bytes {begin} to {end} of its content where {at} was due: overlapping, or damaged")
        at = end
    if at > stored_bytes:
        raise ReadError(f"announces {at} bytes of content, {stored_bytes} are stored: cut short or still being written; dump again")
    if at < stored_bytes:
        raise ReadError(f"announces {at} bytes of content, {stored_bytes} are stored: something was written behind its end")


def _fitting(entry: Entry) -> tuple[str, tuple[int, ...]]:
    """Type and shape as they lie in the file. ReadError: unknown type, or they need other bytes than they have."""
    if entry.dtype not in TYPES:
        raise ReadError(f"has elements of type {entry.dtype[:40]!r}, which is not read")
    check_shape(entry.shape)
    dtype, shape = stored(TYPES[entry.dtype], entry.shape)
    needs, holds = math.prod(shape) * itemsize(dtype), entry.data_offsets[1] - entry.data_offsets[0]
    if needs != holds:
        raise ReadError(f"{entry.dtype} {spelled(entry.shape)} needs {needs} bytes, its offsets give {holds}: the header is damaged")
    return dtype, shape
