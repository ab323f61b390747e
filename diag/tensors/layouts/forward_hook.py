"""What SGLang writes with --debug-tensor-dump-output-folder: one torch file per forward pass, the output of every module.

    TP0_PP0_Rank0_pid4711/Pass00000.pt      {"model.layers.0.self_attn.o_proj": tensor, …,
                                             "model.forward_batch_info.input_ids": tensor, …}

Keys are in the order in which modules ended. A pass is written when "model" ends, so its own output and what runs after
it (the logits) stand at the front of the next file; they are given back to the pass they belong to.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from diag.tensors.dump import Tensor, Unread
from diag.tensors.files import tensors_in
from diag.tensors.naming import layer_of, natural, role_of

NAME = "SGLang forward hook"
ORDER = 130

_FOLDER = re.compile(r"TP[0-9]{1,6}_PP[0-9]{1,6}_Rank([0-9]{1,6})_pid[0-9]+")
_PASS = re.compile(r"Pass([0-9]{1,9})\.pt")
MODEL = "model"


def recognise(root: Path, files: Sequence[Path]) -> bool:
    return any(_place(path) is not None for path in files)


def _place(path: Path) -> tuple[int, int] | None:
    """(rank, pass)."""
    folder, name = _FOLDER.fullmatch(path.absolute().parent.name), _PASS.fullmatch(path.name)
    return (int(folder[1]), int(name[1])) if folder is not None and name is not None else None


def read(root: Path, files: Sequence[Path]) -> Iterator[Tensor | Unread]:
    """Pass by pass, in the order of the keys."""
    order: dict[int, int] = {}
    for path in sorted(files, key=lambda path: natural(str(path))):
        place = _place(path)
        if place is None:
            yield Unread(str(path), "not part of a dump of SGLang's forward hook")
            continue
        rank, number = place
        items = list(tensors_in(path))
        late = _late([item.key for item in items if isinstance(item, Tensor)]) if number > 0 else frozenset()
        for item in items:
            if isinstance(item, Tensor):
                order[rank] = order.get(rank, -1) + 1
                item = _placed(item, rank, number - 1 if item.key in late else number, order[rank])
            yield item


def _late(keys: Sequence[str]) -> frozenset[str]:
    """Keys of the pass before: "model" and what follows until the first module inside of it."""
    inside = next((at for at, key in enumerate(keys) if _is_inside(key)), len(keys))
    return frozenset(keys[:inside]) if keys and keys[0].split(".")[0] == MODEL else frozenset()


def _is_inside(key: str) -> bool:
    """`model.norm`, not `model` nor `model.0`, the first of several outputs of the model itself."""
    return key.startswith(f"{MODEL}.") and not key.removeprefix(f"{MODEL}.").isdigit()


def _placed(item: Tensor, rank: int, step: int, order: int) -> Tensor:
    name = item.key or item.name
    op = re.sub(r"\.[0-9]+$", "", name) if not name.rpartition(".")[0].endswith(("layers", "experts")) else name
    return replace(
        item, name=name, rank=rank, step=step, order=order, layer=layer_of(name), role=role_of(name), op=op,
        direction="input" if ".forward_batch_info." in name else "output",
    )  # fmt: skip
