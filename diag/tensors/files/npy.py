"""numpy's .npy files, versions 1 to 3; object arrays are refused by name, bfloat16 and float8_e4m3 are opaque (numpy lost them).

    \\x93NUMPY\\x01\\x00v\\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1, 512), }   …\\n
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.elements import itemsize, named
from diag.tensors.files.extents import contiguous, row_major
from diag.tensors.files.regular import Regular, opened

NAME = "npy"
ORDER = 10

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 1 << 16
MAX_ARRAYS = 100_000
"""numpy.save may append to a file; so many arrays in one are read."""
FIRST_BYTES = 4_096

_ITEM = re.compile(
    r"""\s*(?P<q>['"])(?P<key>descr|fortran_order|shape)(?P=q)\s*:\s*"""
    r"""(?:(?P<d>['"])(?P<descr>[^'"\\]{1,40})(?P=d)|(?P<bool>True|False)|\((?P<shape>[\d,\sL]*)\)|(?P<fields>[\[(].*))\s*,?\s*""",
    re.DOTALL,
)
_AXES = re.compile(r"\s*(?:\d{1,19}L?\s*,\s*)*(?:\d{1,19}L?\s*)?")
_OPAQUE = re.compile(r"[<>|=]?V([12])")
_REFUSED = {
    "O": "holds Python objects, which only unpickling could load; nothing was executed. Save it as numbers",
    "U": "holds texts, no numbers", "S": "holds texts, no numbers", "a": "holds texts, no numbers",
    "M": "holds dates, no numbers", "m": "holds time spans, no numbers",
}  # fmt: skip


class Refused(ReadError):
    """An array that is well described but holds no numbers of a type we know."""


class Head(NamedTuple):
    """What the header of one array says."""

    dtype: str
    big_endian: bool
    shape: tuple[int, ...]
    fortran: bool
    data_at: int
    """Bytes from the array's magic to its first element."""


def recognise(path: Path, head: bytes) -> bool:
    return head[:6] == MAGIC or path.suffix == ".npy"


def read(path: Path) -> Iterator[Tensor | Unread]:
    with opened(path) as file:
        yield from _arrays(path, file)


def _arrays(path: Path, file: Regular) -> Iterator[Tensor | Unread]:
    at = 0
    for number in range(MAX_ARRAYS):
        source, name = (f"{path}#{number}", f"{path.stem}#{number}") if number else (str(path), path.stem)
        try:
            head = head_of(file, at, file.size - at)
            length = contiguous(head.dtype, head.shape, file.size - at - head.data_at)
        except ReadError as error:
            yield Unread(source, str(error))
            return
        yield Tensor(
            name, head.dtype, head.shape, path, at + head.data_at,
            strides(head), head.big_endian, str(number) if number else "",
        )  # fmt: skip
        at += head.data_at + length
        if at == file.size:
            return
        if file.read(at, len(MAGIC)) != MAGIC:
            yield Unread(str(path), f"holds {file.size - at} bytes behind its array that the header does not announce; not looked at")
            return
    yield Unread(str(path), f"holds more than {MAX_ARRAYS} arrays; the rest was not looked at")


def head_of(file: Regular, at: int, room: int) -> Head:
    """The header of the array at that byte, which may take `room` bytes. ReadError, Refused."""
    first = file.read(at, min(FIRST_BYTES, room))
    end = header_end(first, room)
    return parsed(first if end <= len(first) else file.read(at, end))


def header_end(first: bytes, room: int) -> int:
    """Length of magic and header in bytes, from the first twelve. ReadError: no .npy, cut, or absurdly long."""
    if first[: len(MAGIC)] != MAGIC:
        raise ReadError("does not begin as numpy's files do: not an .npy file, or its head is damaged")
    if len(first) < 10:
        raise ReadError(f"ends inside of its header: {room} bytes are stored; dump again")
    if (first[6], first[7]) not in ((1, 0), (2, 0), (3, 0)):
        raise ReadError(f"is .npy of version {first[6]}.{first[7]}; 1.0, 2.0 and 3.0 are known")
    start = 10 if first[6] == 1 else 12
    end = start + int.from_bytes(first[8:start], "little")
    if end - start > MAX_HEADER_BYTES:
        raise ReadError(f"announces a header of {end - start} bytes, more than {MAX_HEADER_BYTES}: its head is damaged")
    if end > room:
        raise ReadError(f"ends inside of its header: {end} bytes are announced, {room} are stored; dump again")
    return end


def parsed(head: bytes) -> Head:
    """What a whole header says; never evaluated, only matched. ReadError: damaged. Refused: no numbers."""
    start = 10 if head[6] == 1 else 12
    end = start + int.from_bytes(head[8:start], "little")
    try:
        text = head[start:end].decode("utf-8" if head[6] == 3 else "latin-1").strip()
    except UnicodeDecodeError as error:
        raise ReadError("has a header that is no text: its head is damaged") from error
    items = _items(text)
    descr = items["descr"]["descr"]
    dtype = _dtype(descr)
    shape = tuple(int(axis.rstrip("L ")) for axis in re.findall(r"\d+L?", items["shape"]["shape"]))
    return Head(dtype, descr[0] == ">" and itemsize(dtype) > 1, shape, items["fortran_order"]["bool"] == "True", end)


def strides(head: Head) -> tuple[int, ...] | None:
    """In elements; None: C order."""
    if not head.fortran or sum(axis > 1 for axis in head.shape) < 2:
        return None
    return tuple(reversed(row_major(tuple(reversed(head.shape)))))


def _items(text: str) -> dict[str, re.Match[str]]:
    if text[:1] != "{" or text[-1:] != "}":
        raise ReadError("has a header that is no dictionary: its head is damaged")
    items: dict[str, re.Match[str]] = {}
    at = 1
    while at < len(text) - 1:
        item = _ITEM.match(text, at, len(text) - 1)
        if item is None or item["key"] in items:
            raise ReadError(f"has a header that cannot be understood: {text[at : at + 40]!r}")
        if item["fields"] is not None:
            if item["key"] != "descr":
                raise ReadError(f"has a header that cannot be understood: {text[at : at + 40]!r}")
            raise Refused("holds records of several fields (a structured array); save each field as an array of its own")
        items[item["key"]] = item
        at = item.end()
    wanted = {"descr": "descr", "fortran_order": "bool", "shape": "shape"}
    for key, group in wanted.items():
        if key not in items or items[key][group] is None:
            raise ReadError(f"has a header without {key}: its head is damaged")
    if _AXES.fullmatch(items["shape"]["shape"]) is None:
        raise ReadError(f"has an impossible shape: ({items['shape']['shape'][:80]})")
    return items


def _dtype(descr: str) -> str:
    opaque = _OPAQUE.fullmatch(descr)
    if opaque is not None:
        return f"opaque{opaque[1]}"
    if descr == "?":
        return "bool"
    if descr.lstrip("<|=") == "f1":  # what numpy makes of ml_dtypes' float8_e5m2, and of no other type; it cannot load it itself
        return "float8_e5m2"
    found = named(descr if descr[0] in "<>|=" else f"={descr}")
    if found is None:
        kind = descr.lstrip("<>|=")[:1]
        raise Refused(_REFUSED.get(kind, f"holds elements of type {descr!r}, which is not read; save it as float32 or float64"))
    return found
