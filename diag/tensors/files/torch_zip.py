"""What torch.save writes since 1.6: a zip of a pickle and one member per storage. Stored members stay where they are.

    PK\\x03\\x04 … archive/data.pkl, archive/byteorder, archive/data/0, archive/data/1, archive/version
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from diag.decode.pickle_machine import MAX_MEMO, MAX_OPS, Machine
from diag.decode.pickle_nodes import Corrupt, Truncated, Unsupported
from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.files import zip_directory
from diag.tensors.files.inflated import loader, whole
from diag.tensors.files.regular import Regular, opened
from diag.tensors.files.torch_objects import Found
from diag.tensors.files.torch_storages import Reference, Storage
from diag.tensors.files.zip_directory import DEFLATED, Member, data_at

NAME = "torch"
ORDER = 21

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
MAX_INFLATED_PICKLE_BYTES = 32 << 20
MOST_OPS = 5_000_000
OPS_PER_MEMBER = 64
BYTES_PER_OP = 4
"""A tensor takes some 35 operations, 10 remembered objects and 160 bytes; a pickle that needs far more of them is none of torch's."""


def recognise(path: Path, head: bytes) -> bool:
    if head[:4] != zip_directory.MAGIC:
        return False
    length = int.from_bytes(head[26:28], "little")
    return path.suffix in SUFFIXES or head[30 : 30 + length].endswith(b"data.pkl")


def read(path: Path) -> Iterator[Tensor | Unread]:
    with opened(path) as file:
        yield from _found(path, file).tensors()


def notes(path: Path) -> dict[str, str | int | float | bool]:
    """Plain values beside the tensors, by dotted key: SGLang's `meta.rank`, `meta.step`. At most 1,000. ReadError."""
    with opened(path) as file:
        found = _found(path, file)
        for _tensor in found.tensors():
            pass
    return found.notes


def _found(path: Path, file: Regular) -> Found:
    members = {member.name: member for member in zip_directory.directory(file)}
    folder = _folder(members)
    big_endian = _byte_order(path, file, members.get(f"{folder}byteorder"))
    pickled = members[f"{folder}data.pkl"]
    budget = MAX_OPS + OPS_PER_MEMBER * len(members) + pickled.packed // BYTES_PER_OP
    machine = Machine(
        _content(path, file, pickled, MAX_INFLATED_PICKLE_BYTES),
        max_ops=min(budget, MOST_OPS), max_memo=min(MAX_MEMO + budget // 4, MOST_OPS // 4),
    )  # fmt: skip
    try:
        root = machine.run()
    except (Truncated, Corrupt, Unsupported) as error:
        raise ReadError(f"has a pickle that {'' if isinstance(error, (Truncated, Corrupt)) else 'is not read: it needs '}{error}; dump again") from error
    return Found(path, root, machine.globals, partial(_storage, path, file, members, folder, big_endian), _found)


def _folder(members: dict[str, Member]) -> str:
    pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ReadError(f"is a zip with {len(pickles)} data.pkl in it, torch writes one: not a file of torch.save")
    return pickles[0].removesuffix("data.pkl")


def _byte_order(path: Path, file: Regular, member: Member | None) -> bool:
    """Is the content big-endian? torch before 2.1 did not say: little."""
    if member is None:
        return False
    said = bytes(_content(path, file, member, 64)[:64]).strip()
    if said not in (b"little", b"big"):
        raise ReadError(f"says its byte order is {said[:16]!r}: its content is damaged")
    return said == b"big"


def _content(path: Path, file: Regular, member: Member, most: int) -> memoryview:
    start = data_at(file, member)
    if member.method != DEFLATED:
        return file.mapped(start, member.size)
    if member.size > most:
        raise ReadError(f"has a packed {member.name[-40:]} of {member.size} bytes, more than {most}: repack it without compression")
    return whole(path, member)


def _storage(path: Path, file: Regular, members: dict[str, Member], folder: str, big_endian: bool, held: Reference) -> Storage:
    member = members.get(f"{folder}data/{held.key}")
    if member is None:
        raise ReadError(f"has no storage {held.key[:32]!r} in its file; dump again")
    start = data_at(file, member)
    if member.size != held.size_bytes:
        raise ReadError(f"announces a storage of {held.size_bytes} bytes, {member.size} are stored; dump again")
    if member.method != DEFLATED:
        return Storage(held.dtype, member.size, start, None, big_endian)
    load: Callable[[int, int], Callable[[], memoryview]] = partial(loader, path, member)
    return Storage(held.dtype, member.size, 0, load, big_endian)
