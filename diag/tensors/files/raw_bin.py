"""Numbers without a header, described by a JSON file beside them; anything named .bin that no other format claims.

    hidden.bin + hidden.json or hidden.bin.json:
    {"dtype": "bfloat16", "shape": [16, 4096], "order": "C", "byteorder": "little", "offset": 0}
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.elements import itemsize, named, stored
from diag.tensors.files.extents import check_shape, contiguous, row_major, spelled
from diag.tensors.files.regular import opened

NAME = "raw"
ORDER = 90

SUFFIXES = (".bin", ".raw")
MAX_SIDECAR_BYTES = 1 << 16
EXAMPLE = '{"dtype": "float32", "shape": [2, 3]}'


class Sidecar(msgspec.Struct):
    """What the JSON file may say; other keys are the writer's own."""

    dtype: str
    shape: tuple[int, ...]
    order: Literal["C", "F"] = "C"
    byteorder: Literal["little", "big"] = "little"
    offset: int = 0
    """Bytes before the first element."""


_SIDECAR = msgspec.json.Decoder(Sidecar)


def recognise(path: Path, head: bytes) -> bool:
    return path.suffix in SUFFIXES


def read(path: Path) -> Iterator[Tensor | Unread]:
    with opened(path) as file:
        size = file.size
    told = _told(path)
    dtype = named(told.dtype)
    if dtype is None:
        raise ReadError(f"has an unknown dtype {told.dtype[:40]!r} in its JSON file: write numpy's or torch's name")
    if told.offset < 0 or told.offset > size:
        raise ReadError(f"has an offset of {told.offset} bytes in its JSON file and {size} bytes of content")
    check_shape(told.shape)
    dtype, shape = stored(dtype, told.shape)
    length = contiguous(dtype, shape, size - told.offset)
    strides = tuple(reversed(row_major(tuple(reversed(shape))))) if told.order == "F" and sum(axis > 1 for axis in shape) > 1 else None
    if length != size - told.offset:
        raise ReadError(f"holds {size - told.offset} bytes, {told.dtype} {spelled(told.shape)} as its JSON file says needs {length}: one of the two is wrong")
    yield Tensor(path.stem, dtype, shape, path, told.offset, strides, told.byteorder == "big" and itemsize(dtype) > 1)


def sidecars(path: Path) -> tuple[Path, Path]:
    """Where the description of a raw file may lie; the first that exists counts."""
    return path.with_name(f"{path.name}.json"), path.with_suffix(".json")


def _told(path: Path) -> Sidecar:
    for beside in sidecars(path):
        if beside.is_file():
            try:
                with opened(beside) as file:
                    if file.size > MAX_SIDECAR_BYTES:
                        raise ReadError(f"has {file.size} bytes, more than {MAX_SIDECAR_BYTES}")
                    return _SIDECAR.decode(file.read(0, file.size))
            except (msgspec.DecodeError, UnicodeDecodeError, ReadError) as error:
                raise ReadError(f"is described by {beside.name}, which cannot be read: {error}; it looks like {EXAMPLE}") from error
    raise ReadError(f"has no header and no description beside it: write {path.name}.json like {EXAMPLE}")
