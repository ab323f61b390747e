"""numpy's .npz archives: stored members are ranges of the file, deflated ones are unpacked when they are measured."""

from collections.abc import Iterator
from pathlib import Path

from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.files import npy, zip_directory
from diag.tensors.files.extents import contiguous
from diag.tensors.files.inflated import beginning, loader
from diag.tensors.files.regular import Regular, opened
from diag.tensors.files.zip_directory import DEFLATED, Member, data_at

NAME = "npz"
ORDER = 20


def recognise(path: Path, head: bytes) -> bool:
    """`.npz`, or a zip whose first member is an .npy file."""
    if path.suffix == ".npz":
        return True
    if head[:4] != zip_directory.MAGIC:
        return False
    length = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + length].endswith(b".npy")


def read(path: Path) -> Iterator[Tensor | Unread]:
    with opened(path) as file:
        if file.read(0, 4) not in (zip_directory.MAGIC, zip_directory.EMPTY_MAGIC):
            raise ReadError("does not begin as a zip does: not an .npz file, or its head is damaged")
        seen: set[str] = set()
        for member in zip_directory.directory(file):
            if member.name.endswith("/"):
                continue
            key = member.name.removesuffix(".npy")
            source = f"{path}#{key}"
            if member.name in seen:
                yield Unread(source, "is there twice: which one is meant is not known; the first is compared")
                continue
            seen.add(member.name)
            if not member.name.endswith(".npy"):
                yield Unread(f"{path}#{member.name}", "is no .npy file")
                continue
            try:
                yield _tensor(path, file, member, key)
            except ReadError as error:
                yield Unread(source, str(error))


def _tensor(path: Path, file: Regular, member: Member, key: str) -> Tensor:
    start = data_at(file, member)
    first = _first(file, member, start, npy.FIRST_BYTES)
    end = npy.header_end(first, member.size)
    if end > len(first):
        first = _first(file, member, start, end)
    if end > len(first):
        raise ReadError(f"ends inside of its header: {end} bytes are announced; dump again")
    head = npy.parsed(first)
    length = contiguous(head.dtype, head.shape, member.size - head.data_at)
    if head.data_at + length != member.size:
        raise ReadError(f"announces {length} bytes of numbers and holds {member.size - head.data_at}: its header is damaged")
    if member.method == DEFLATED:
        return Tensor(
            key, head.dtype, head.shape, path, 0, npy.strides(head), head.big_endian, key,
            load=loader(path, member, head.data_at, length),
        )  # fmt: skip
    return Tensor(key, head.dtype, head.shape, path, start + head.data_at, npy.strides(head), head.big_endian, key)


def _first(file: Regular, member: Member, start: int, length: int) -> bytes:
    return beginning(file, member, length) if member.method == DEFLATED else file.read(start, min(length, member.size))
