"""What `polygraphy run --save-outputs` writes: one JSON document with whole .npy files in base64.

    {"lst": [["onnxrt-runner-N0-11/30/26-13:27:00", [{"outputs": {"logits": {"values": {"array": "k05VTVBZ…",
      "polygraphy_class": "ndarray"}, "polygraphy_class": "LazyArray"}}, "runtime": 0.1}]]], "polygraphy_class": "RunResults"}

The long strings are skipped where they lie and decoded when the tensor is measured, so describing a file of gigabytes
takes megabytes. A runner's time stamp is no part of a name; runners are named apart only where there are several.
"""

import base64
import binascii
import json
import mmap
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diag.tensors.documents import parsed_json
from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.files import npy
from diag.tensors.files.extents import contiguous
from diag.tensors.files.regular import opened

NAME = "Polygraphy"
ORDER = 60

LONG_BYTES = 96
"""Shorter strings stay in the outline: no base64 .npy is so short (its header alone is 128 bytes)."""
MAX_OUTLINE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MARK = "\x00blob:"
_RUNNER_TIME = re.compile(r"-N[0-9]+-[0-9/]+-[0-9:]+$")
_CLASSES = (b'"polygraphy_class"', b'"lst"')


class Blob(NamedTuple):
    """A long string: its bytes in the file, quotes not included."""

    start: int
    length: int


def recognise(path: Path, head: bytes) -> bool:
    return head[:64].lstrip()[:1] == b"{" and any(mark in head for mark in _CLASSES) and b'"outputs"' in head


def read(path: Path) -> Iterator[Tensor | Unread]:
    """One tensor per runner, iteration and output; the iteration is its step. Raises ReadError: no such document."""
    document = _document(path)
    runners = document.get("lst") if isinstance(document, dict) else None
    if not isinstance(runners, list):
        raise ReadError("is no RunResults document of Polygraphy: it has no list of runners")
    for runner in runners:
        if not (isinstance(runner, list) and len(runner) == 2 and isinstance(runner[0], str) and isinstance(runner[1], list)):
            yield Unread(str(path), "a runner that is not [name, iterations]")
            continue
        prefix = f"{_RUNNER_TIME.sub('', runner[0])}/" if len(runners) > 1 else ""
        for step, iteration in enumerate(runner[1]):
            outputs = iteration.get("outputs") if isinstance(iteration, dict) else None
            for output, value in outputs.items() if isinstance(outputs, dict) else ():
                yield _tensor(path, f"{prefix}{output}", f"{runner[0]}/{step}/{output}", step, value)


def _tensor(path: Path, name: str, key: str, step: int, value: Any) -> Tensor | Unread:
    blob = _blob(value)
    try:
        if blob is None:
            raise ReadError("holds no array of numpy's form")
        head, at = _head(path, blob)
        length = contiguous(head.dtype, head.shape, _decoded_bytes(path, blob) - at)
    except ReadError as error:
        return Unread(f"{path}#{key}", str(error))
    load = partial(_load, path, blob, at, length)
    return Tensor(name, head.dtype, head.shape, path, strides=npy.strides(head), big_endian=head.big_endian, key=key, step=step, load=load)


def _blob(value: Any) -> Blob | None:
    """{"array": …}, or {"values": {"array": …}} as LazyArray has it."""
    if isinstance(value, dict) and isinstance(value.get("values"), dict):
        value = value["values"]
    text = value.get("array") if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.startswith(_MARK):
        return None
    start, _, length = text.removeprefix(_MARK).partition(":")
    return Blob(int(start), int(length)) if start.isdecimal() and length.isdecimal() and len(text) < 64 else None


def _head(path: Path, blob: Blob) -> tuple[npy.Head, int]:
    """The .npy header in a blob and where in the decoded bytes the data begins."""
    first = _decode(path, blob.start, min(blob.length, 32))
    end = npy.header_end(first, blob.length)
    head = npy.parsed(_decode(path, blob.start, min(blob.length, -(-end // 3) * 4))[:end])
    return head, head.data_at


def _decoded_bytes(path: Path, blob: Blob) -> int:
    if blob.length % 4:
        raise ReadError("holds base64 whose length is no multiple of four: it was cut")
    return blob.length // 4 * 3 - (4 - len(_ends(path, blob).rstrip(b"=")))


def _ends(path: Path, blob: Blob) -> bytes:
    with opened(path) as file:
        return file.read(blob.start + blob.length - 4, 4)


def _decode(path: Path, start: int, length: int) -> bytes:
    with opened(path) as file:
        return _plain(file.read(start, length - length % 4))


def _plain(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ReadError(f"holds damaged base64: {error}") from error


def _load(path: Path, blob: Blob, skip: int, length: int) -> memoryview:
    """Exactly `length` bytes after the .npy header: that much memory and one chunk. Raises ReadError: changed, damaged."""
    content = bytearray(length)
    filled = -skip
    with opened(path) as file:
        for at in range(blob.start, blob.start + blob.length, CHUNK_BYTES):
            piece = _plain(file.read(at, min(CHUNK_BYTES, blob.start + blob.length - at)))
            if filled < 0:
                filled, piece = min(filled + len(piece), 0), piece[-filled:]
            piece = piece[: length - filled]
            content[filled : filled + len(piece)] = piece
            filled += len(piece)
    if filled != length or len(content) != length:
        raise ReadError(f"gives {filled:,} bytes where {length:,} were announced; was it written again?")
    return memoryview(content).toreadonly()


def _document(path: Path) -> Any:
    with opened(path) as file, mmap.mmap(file.descriptor, file.size, access=mmap.ACCESS_READ) as text:
        return parsed_json(_outline(text, file.size))


def _outline(text: mmap.mmap, size: int) -> bytes:
    """The document with a mark in place of each long string. Raises ReadError."""
    outline = bytearray()
    at = 0
    while True:
        quote = text.find(b'"', at)
        outline += text[at : quote if quote >= 0 else size]
        if quote < 0:
            return bytes(outline)
        closed = _STRING_REST.match(text, quote + 1)
        if closed is None:
            raise ReadError("ends inside of a string: it was cut short, or is still being written")
        at = closed.end()
        length = at - quote - 2
        outline += text[quote:at] if length < LONG_BYTES else json.dumps(f"{_MARK}{quote + 1}:{length}").encode()
        if len(outline) > MAX_OUTLINE_BYTES:
            raise ReadError(f"has more than {MAX_OUTLINE_BYTES >> 20} MiB that are no arrays: no RunResults document")
