"""What NVIDIA's LLM runtimes write.

TensorRT-LLM, `tensorrt_llm._torch.debug` hooks: one torch file a tensor, numbers counting calls within their parent.

    rank0/1.DecoderModel-3.DecoderLayer-1.Attention-input.hidden_states.pt

  The first number goes on counting over passes (3.DecoderModel is the second pass where 2.LMHead ran between), so it is
  no part of the name; the pass is counted. "output.hidden_states" is an argument once more, as the call left it.

TensorRT-Edge-LLM, EDGELLM_DUMP_LOGITS_KVCACHE_*: one safetensors file a request.

    edgellm_dump.safetensors    round_0.logits, round_0.layer_3.kv [batch, 2, heads, max. length, head size],
                                round_0.context_lengths, round_0.generated_token_ids

  Beyond context_lengths a row of kv is whatever lay in memory.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from diag.tensors.dump import Direction, Tensor, Unread
from diag.tensors.files import tensors_in
from diag.tensors.naming import bare, layer_of, natural, rank_of, role_of, step_of

NAME = "TensorRT-LLM"
ORDER = 140

_HOOK = re.compile(r"((?:[0-9]{1,9}\.[^/.-]+-)+)(input|output)\.([^/]+)\.pt")
_CALL = re.compile(r"([0-9]{1,9})\.([^/.-]+)-")
_EDGE = re.compile(r"edgellm_dump(?:_[0-9]+)?\.safetensors")

Calls = tuple[tuple[int, str], ...]


def recognise(root: Path, files: Sequence[Path]) -> bool:
    return any(_EDGE.fullmatch(path.name) or _hook(path) is not None for path in files)


def read(root: Path, files: Sequence[Path]) -> Iterator[Tensor | Unread]:
    hooks: dict[Path, list[tuple[Calls, Direction, str, Path]]] = {}
    for path in files:
        hook = _hook(path)
        if _EDGE.fullmatch(path.name):
            yield from _edge(path)
        elif hook is not None:
            hooks.setdefault(path.parent, []).append((*hook, path))
        else:
            yield Unread(str(path), "not part of a dump of TensorRT-LLM")
    for folder, held in hooks.items():
        yield from _hooked(rank_of(folder.absolute().name), held)


def _hook(path: Path) -> tuple[Calls, Direction, str] | None:
    found = _HOOK.fullmatch(path.name)
    if found is None:
        return None
    calls = tuple((int(number), name) for number, name in _CALL.findall(found[1]))
    return calls, "input" if found[2] == "input" else "output", found[3]


def _hooked(rank: int | None, held: list[tuple[Calls, Direction, str, Path]]) -> Iterator[Tensor | Unread]:
    passes: dict[str, list[int]] = {}
    for number, top in sorted({calls[0] for calls, *_ in held}):
        passes.setdefault(top, []).append(number)
    layers = _layers(calls for calls, *_ in held)
    held.sort(key=lambda item: (_time(item[0], item[1]), natural(item[2])))
    for order, (calls, direction, parameter, path) in enumerate(held):
        number, top = calls[0]
        op = "-".join((top, *(f"{one}.{name}" for one, name in calls[1:])))
        name = f"{op}-{direction}.{parameter}"
        for item in tensors_in(path):
            yield replace(
                item, name=f"{name}.{item.key}" if item.key else name, rank=rank, step=passes[top].index(number), order=order,
                op=op, direction=direction, layer=layers.get(calls), role=role_of(parameter),
            ) if isinstance(item, Tensor) else item  # fmt: skip


def _time(calls: Calls, direction: Direction) -> tuple[float, ...]:
    """Inputs before what is called inside, outputs after."""
    return (*(float(number) for number, _ in calls), -1.0 if direction == "input" else float("inf"))


def _layers(all_calls: Iterable[Calls]) -> dict[Calls, int]:
    """Number of the layer around each call, from 0: its place among the calls of that name within their parent."""
    known = set(all_calls)
    numbers: dict[tuple[Calls, str], set[int]] = {}
    cut: dict[Calls, int] = {}
    for calls in known:
        at = next((at for at, (_, name) in enumerate(calls) if name.lower().endswith("layer")), None)
        if at is not None:
            cut[calls] = at
            numbers.setdefault((calls[:at], calls[at][1]), set()).add(calls[at][0])
    places = {parent: {number: place for place, number in enumerate(sorted(some))} for parent, some in numbers.items()}
    return {calls: places[calls[:at], calls[at][1]][calls[at][0]] for calls, at in cut.items()}


def _edge(path: Path) -> Iterator[Tensor | Unread]:
    order = 0
    for item in sorted(tensors_in(path), key=_edge_order):
        if isinstance(item, Tensor):
            key = item.key or item.name
            op, _, last = bare(key).rpartition(".")
            role = "token_ids" if last == "generated_token_ids" else role_of(key)
            item = replace(item, name=bare(key), step=step_of(key), layer=layer_of(key), role=role, op=op, order=order, direction="output")
            order += 1
        yield item


def _edge_order(item: Tensor | Unread) -> tuple[int, int, str]:
    """Layers of a round first, then its logits, as they are computed."""
    if isinstance(item, Unread):
        return -1, -1, item.source
    key = item.key or item.name
    step, layer = step_of(key), layer_of(key)
    return (-1 if step is None else step, 1 << 30 if layer is None else layer, key)
