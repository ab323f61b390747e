"""What SGLang's dumper writes (DUMPER_ENABLE=1): one torch file a tensor, everything about it in its name.

    <dir>/<experiment>/step=0___rank=0___dump_index=12___name=hidden_states___recompute_status=disabled___layer_id=3.pt

Each holds {"value": tensor, "meta": {…}}. Older versions say forward_pass_id for step. The name of a tensor is `name`,
its layer and what further tags the model's code added; `dump_index` counts within a process and is the order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from diag.tensors.dump import Tensor, Unread
from diag.tensors.files import tensors_in
from diag.tensors.naming import layer_of, natural, operation_of, role_of

NAME = "SGLang dumper"
ORDER = 120

BETWEEN = "___"
VALUE = "value"
MAX_DIGITS = 15
_OTHER_RUN = frozenset({
    "step", "forward_pass_id", "rank", "dump_index", "name", "layer_id", "pp_rank", "tp_rank", "cp_rank", "ep_rank", "etp_rank", "world_rank",
})  # fmt: skip


def recognise(root: Path, files: Sequence[Path]) -> bool:
    return any(_is_ours(path) for path in files)


def _is_ours(path: Path) -> bool:
    return path.suffix == ".pt" and BETWEEN in path.name and {"name", "dump_index"} <= tags(path.name).keys()


def read(root: Path, files: Sequence[Path]) -> Iterator[Tensor | Unread]:
    """In order of steps, then of dump_index."""
    ours = [(path, tags(path.name)) for path in files if _is_ours(path)]
    mine = {path for path, _ in ours}
    for path in files:
        if path not in mine:
            yield Unread(str(path), "not part of a dump of SGLang's dumper")
    ours.sort(key=lambda item: (_step(item[1]) or 0, _number(item[1], "dump_index") or 0, natural(item[0].name)))
    for order, (path, told) in enumerate(ours):
        yield from _tensors(path, told, order)


def tags(file_name: str) -> dict[str, str]:
    """`a=1___name=x.pt` -> {"a": "1", "name": "x"}; pieces without `=` belong to the value before them."""
    found: dict[str, str] = {}
    last = ""
    for piece in file_name.removesuffix(".pt").split(BETWEEN):
        key, equals, value = piece.partition("=")
        if equals:
            last = key
            found[key] = value
        elif last:
            found[last] += BETWEEN + piece
    return found


def _tensors(path: Path, told: Mapping[str, str], order: int) -> Iterator[Tensor | Unread]:
    name = _name(told)
    held = 0
    for item in tensors_in(path):
        if isinstance(item, Unread):
            held += 1
            yield item
            continue
        key = item.key.removeprefix(VALUE).lstrip("./") if item.key != "meta" and not item.key.startswith("meta.") else None
        if key is None:
            continue  # e.g. a tensor among the tags; not what was dumped
        held += 1
        full = f"{name}.{key}" if key else name
        op, direction = operation_of(full)
        layer = _number(told, "layer_id")
        yield replace(
            item, name=full, step=_step(told), rank=_number(told, "rank"), order=order, op=op, direction=direction,
            layer=layer_of(told["name"]) if layer is None else layer, role=role_of(told["name"]) or role_of(full),
        )  # fmt: skip
    if not held:
        yield Unread(str(path), f"\"{VALUE}\" in it is no tensor")


def _name(told: Mapping[str, str]) -> str:
    name = told["name"]
    layer = _number(told, "layer_id")
    if layer is not None and layer_of(name) != layer:
        name = f"layers.{layer}.{name}"
    further = [
        f"{key}={value}" for key, value in sorted(told.items())
        if key not in _OTHER_RUN and (key, value) != ("recompute_status", "disabled")
    ]  # fmt: skip
    return f"{name}[{','.join(further)}]" if further else name


def _step(told: Mapping[str, str]) -> int | None:
    return _number(told, "step") if "step" in told else _number(told, "forward_pass_id")


def _number(told: Mapping[str, str], key: str) -> int | None:
    text = told.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None
