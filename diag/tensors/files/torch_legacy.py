"""What torch.save wrote before 1.6 (five pickles, then the storages), and plain pickles: described, mapped, never loaded.

    \\x80\\x02\\x8a\\nl\\xfc\\x9cF\\xf9 j\\xa8P\\x19.\\x80\\x02M\\xe9\\x03. …
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from diag.decode.dtypes import BadArray
from diag.decode.pickle_arrays import TORCH_MAGIC, legacy_pickles, persistent
from diag.decode.pickle_machine import MAX_MEMO, MAX_OPS, Machine
from diag.decode.pickle_nodes import Corrupt, Truncated, Unsupported
from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.files.regular import Regular, opened
from diag.tensors.files.torch_objects import Found
from diag.tensors.files.torch_storages import Reference, Storage, legacy_storages, reference

NAME = "torch-legacy"
ORDER = 40

SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
MOST_OPS = 4_000_000
BYTES_PER_OP = 4
"""A tensor of the smallest kind takes some 160 bytes and 35 operations."""


def recognise(path: Path, head: bytes) -> bool:
    return path.suffix in SUFFIXES or (head[:1] == b"\x80" and head[2 : 2 + len(MAGIC)] == MAGIC)


def read(path: Path) -> Iterator[Tensor | Unread]:
    with opened(path) as file:
        found = _found(path, file)
        empty = True
        for item in found.tensors():
            empty = False
            yield item
        if empty:
            yield Unread(str(path), "is a pickle without any tensor; not executed")
        if found.end_at != file.size:
            yield Unread(str(path), f"holds {file.size - found.end_at} bytes behind its end; not looked at")


def _found(path: Path, file: Regular) -> Found:
    data = file.mapped(0, file.size)
    max_ops = min(MAX_OPS + file.size // BYTES_PER_OP, MOST_OPS)
    max_memo = MAX_MEMO + max_ops // 4
    machine = Machine(data, max_ops=max_ops, max_memo=max_memo)
    try:
        root = machine.run()
    except (Truncated, Corrupt, Unsupported) as error:
        raise ReadError(f"is no file that torch.save or pickle writes, or cut short: its pickle {error}") from error
    if root != TORCH_MAGIC:
        return Found(path, root, machine.globals, partial(_storage, {}), _found, machine.at)
    try:
        root, keys, names, at = legacy_pickles(data, max_ops=max_ops, max_memo=max_memo)
    except BadArray as error:
        raise ReadError(f"is a file of torch.save that cannot be read: {error}; dump again") from error
    storages, end_at = legacy_storages(data, [reference(node) for node in persistent(root, max_ops)], keys, at)
    return Found(path, root, names, partial(_storage, storages), _found, end_at)


def _storage(storages: dict[str, Storage], held: Reference) -> Storage:
    storage = storages.get(held.key)
    if storage is None or storage.dtype != held.dtype or storage.size_bytes != held.size_bytes:
        raise ReadError(f"has no storage {held.key[:32]!r} of {held.size_bytes} bytes in its file; dump again")
    return storage
