"""The .bin files of Ascend's ATB probe: lines of text, then the bytes of one tensor.

    $Version=1.0
    $Object.Count=1
    $Object.Length=33554432
    format=2
    dtype=27
    dims=512,128,8,128
    $Object.data=0,33554432
    $End=1
    <33,554,432 bytes, little-endian, last axis fastest>

The writer appends: a file that was dumped twice holds two such records, of which the last whole one counts. A record with
`data=5_0_intensor2.bin` has no bytes of its own; they are in that file of the same layer, which the `atb` layout finds.
Older probes write neither `$Version` nor `$Object.*`: the bytes then reach to the end of the file.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.tensors import elements
from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.files.regular import Regular, opened

NAME = "ATB"
ORDER = 30

HEAD_BYTES = 4096
END = b"$End=1\n"
MAX_RECORDS = 10_000
MAX_AXES = 32
MAX_NUMBER = 1 << 48

_DTYPES = {
    0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16", 8: "uint32", 9: "int64", 10: "uint64",
    11: "float64", 12: "bool", 16: "complex64", 17: "complex128", 27: "bfloat16", 29: "int4", 30: "uint1", 33: "complex32",
    34: "hifloat8", 35: "float8_e5m2", 36: "float8_e4m3fn", 37: "float8_e8m0", 38: "fp6_e3m2", 39: "fp6_e2m3", 40: "fp4_e2m1", 41: "fp4_e1m2",
}  # fmt: skip
# the other formats (ND, NCHW, NHWC, HWCN, …) say what the axes mean, not where the bytes lie
_TILED = {
    3: "NC1HWC0", 4: "FRACTAL_Z", 12: "NC1HWC0_C04", 29: "FRACTAL_NZ", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D", 50: "FRACTAL_NZ_C0_16", 51: "FRACTAL_NZ_C0_32",
}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One dump of one tensor: where its bytes are, or whose they are."""

    start: int
    """First byte of its text."""
    offset: int
    """First byte of its content."""
    length: int
    """Bytes of content; 0 with an alias."""
    dtype: str
    dims: tuple[int, ...]
    tiled: str
    alias: str = ""
    """"<ids of the operation>_<intensor|outtensor><k>.bin" of the same layer."""

    @property
    def needs(self) -> int:
        """Bytes that type and dims ask for."""
        name, shape = elements.stored(self.dtype, self.dims)
        return math.prod(shape) * elements.itemsize(name)


def recognise(path: Path, head: bytes) -> bool:
    """Begins like a header; one that is cut short is ours too, so that it can be named."""
    if head.startswith(b"$Version="):
        return True
    text = head[: head.find(END)] if END in head else b""
    return b"dtype=" in text and b"dims=" in text


def read(path: Path) -> Iterator[Tensor | Unread]:
    """The tensor of one file. An alias is an Unread here: only its folder knows whose bytes it means."""
    record, unread = last_record(path)
    yield from unread
    if record is not None and record.alias:
        yield Unread(str(path), f"holds no bytes of its own: they are in {record.alias} of the same layer; give the folder atb_dump_data")
    elif record is not None:
        yield described(path, record)


def described(path: Path, record: Record, content: tuple[Path, Record] | None = None) -> Tensor:
    """The Tensor of a record, its bytes in `content` where it is an alias. Raises ReadError when they do not fit it."""
    file, owner = content or (path, record)
    if record.needs == owner.length:
        dtype, shape = elements.stored(record.dtype, record.dims)
    elif record.tiled and owner.length % elements.itemsize(elements.stored(record.dtype, ())[0]) == 0:
        # tiles are padded: what lies there is compared, its places have no meaning outside the tiling
        dtype, shape = elements.stored(record.dtype, ())[0], (owner.length // elements.itemsize(elements.stored(record.dtype, ())[0]),)
    else:
        raise ReadError(f"its dims {list(record.dims)} of {record.dtype} make {record.needs:,} bytes, it holds {owner.length:,}; dump it again")
    return Tensor(path.stem, dtype, shape, file, owner.offset, tiled=record.tiled)


def last_record(path: Path) -> tuple[Record | None, list[Unread]]:
    """The last whole record of a file, and what else is in it. Raises ReadError: no header, unknown type, shorter than it says."""
    with opened(path) as file:
        return _last(path, file)


def _last(path: Path, file: Regular) -> tuple[Record | None, list[Unread]]:
    whole: Record | None = None
    count, at, size = 0, 0, file.size
    tail = ""
    while at < size:
        head = file.read(at, HEAD_BYTES)
        if count and not recognise(path, head):
            tail = f"{size - at:,} bytes after the tensor belong to nothing"
            break
        try:
            record = _record(head, at, size)
        except ReadError as error:
            if whole is None:
                raise
            tail = f"a later record is unusable: {error}"
            break
        whole, at, count = record, record.offset + record.length, count + 1
        if count > MAX_RECORDS:
            raise ReadError(f"holds more than {MAX_RECORDS:,} records; dump into an empty folder")
    unread = []
    if count > 1:
        unread.append(Unread(f"{path}#0", f"{count - 1} earlier dump{'s' if count > 2 else ''} of the same tensor in this file, not compared (dumped twice into one folder); the last whole one is"))
    if tail:
        unread.append(Unread(f"{path}#{count}", tail))
    return whole, unread


def _record(head: bytes, start: int, size: int) -> Record:
    """One header. Raises ReadError, also when the file ends before its content does."""
    end = head.find(END)
    if end < 0:
        raise ReadError("its header has no end within 4 KiB; dump it again")
    values = _values(head[:end])
    offset = start + end + len(END)
    dtype = _DTYPES.get(_number(values, "dtype", -1))
    if dtype is None or (dtype := elements.named(dtype)) is None:
        raise ReadError(f"element type {values.get('dtype', 'missing')} is none that can be compared")
    record = Record(start, offset, 0, dtype, _dims(values.get("dims", "")), _TILED.get(_number(values, "format", 2), ""), values.get("data", ""))
    if record.needs > MAX_NUMBER:
        raise ReadError(f"dims {values['dims'][:64]} make more bytes than any file has")
    if record.alias:
        return record
    # without $Object.*, as older probes write, the type and the dims say how much there is
    length = _number(values, "$Object.Length", record.needs)
    if length > size - offset:
        raise ReadError(f"shorter than its header says: {length:,} bytes announced, {size - offset:,} are there; dump it again")
    return Record(start, offset, length, record.dtype, record.dims, record.tiled)


def _values(text: bytes) -> dict[str, str]:
    lines = (line.partition("=") for line in text.decode("latin-1").split("\n"))
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def _number(values: dict[str, str], name: str, default: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        raise ReadError(f"{name}={text[:32]} is no number")
    return int(text)


def _dims(text: str) -> tuple[int, ...]:
    pieces = [piece for piece in text.split(",") if piece]
    if len(pieces) > MAX_AXES:
        raise ReadError(f"{len(pieces)} axes")
    dims = tuple(_number({"dims": piece}, "dims", 0) for piece in pieces)
    if any(axis < 0 for axis in dims):
        raise ReadError(f"dims={text[:64]} has a negative axis")
    return dims
