"""Any folder of tensor files, or one file: the path is the name, natural order is the execution order.

    layers.9.k_cache.npy, layers.10.k_cache.npy     layers.9.k_cache, layers.10.k_cache
    rank0/kv.safetensors                            kv/<key> of rank 0
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from diag.tensors.dump import Tensor, Unread
from diag.tensors.files import tensors_in
from diag.tensors.naming import bare, layer_of, natural_text, operation_of, rank_of, role_of, step_of
from diag.tensors.shelf import Shelf

NAME = "files"
ORDER = 900

SUFFIXES = frozenset({".npy", ".npz", ".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".json", ".raw", ".dat"})


def recognise(root: Path, files: Sequence[Path]) -> bool:
    """Everything that no other layout claimed."""
    return True


def read(root: Path, files: Sequence[Path]) -> Iterator[Tensor | Unread]:
    """Names are relative paths without suffix, plus the key where a file holds several tensors."""
    names: list[str] = []
    found = Shelf[Tensor](Tensor)
    for path in files:
        first = len(found)
        for item in tensors_in(path):
            if isinstance(item, Tensor):
                found.append(item)
            else:
                yield item
        single = len(found) - first == 1
        names.extend(_full_name(root, path, found[number], single=single) for number in range(first, len(found)))
    for order, number in enumerate(sorted(range(len(names)), key=lambda number: natural_text(names[number]))):
        yield placed(found[number], names[number], order)


def placed(tensor: Tensor, full: str, order: int) -> Tensor:
    """A tensor with all that its full name tells; what its file told already stays."""
    op, direction = operation_of(full)
    return replace(
        tensor, name=bare(full) or tensor.name, order=order, op=bare(op), direction=direction, layer=layer_of(full), role=role_of(full),
        rank=rank_of(full) if tensor.rank is None else tensor.rank, step=step_of(full) if tensor.step is None else tensor.step,
    )  # fmt: skip


def _full_name(root: Path, path: Path, tensor: Tensor, *, single: bool) -> str:
    if path == root:
        return tensor.name
    relative = path.relative_to(root)
    stem = str(relative.with_suffix("") if relative.suffix.lower() in SUFFIXES else relative)
    return stem if single else f"{stem}/{tensor.name}"
