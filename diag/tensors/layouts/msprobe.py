"""What msprobe's PrecisionDebugger writes for PyTorch and MindSpore, here as vLLM on Ascend has it:

    <dump>/step0/rank0/dump.json                     operation -> its inputs and outputs, in the order they ended
                       construct.json                operation -> the module it ran in
                       stack.json, dump_error_info.log
                       dump_tensor_data/Module.layers.0.mlp.MLP.forward.0.output.0.pt   (task "tensor")
                       debug.json                    instead of dump.json: what `debugger.save` was given

A tensor is named like its file without suffix, also where the task was "statistics" and only figures were kept. The
field "md5" is a CRC-32 of bytes in the order of that machine's memory: not used.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from diag.tensors.documents import read_json
from diag.tensors.dump import Direction, ReadError, Tensor, Unread
from diag.tensors.elements import named, stored
from diag.tensors.files import head_of, tensors_in
from diag.tensors.naming import layer_of, natural, rank_of, role_of, step_of

NAME = "msprobe"
ORDER = 100

DOCUMENTS = frozenset({"dump.json", "debug.json"})
BESIDE = frozenset({"stack.json", "construct.json", "dump_error_info.log"})
DATA = "dump_tensor_data"
MAX_DEPTH = 40
MAX_PARENTS = 100

# in dump.json -> in names of files, and which way the tensor went
_GROUPS: dict[str, tuple[str, Direction]] = {
    "input_args": ("input", "input"), "input": ("input", "input"), "input_kwargs": ("kwargs", "input"),
    "parameters": ("parameters", "input"), "output": ("output", "output"),
}  # fmt: skip
_FIGURES = ("Max", "Min", "Mean", "Norm")


def recognise(root: Path, files: Sequence[Path]) -> bool:
    return any(path.name in DOCUMENTS and _is_ours(path) for path in files)


def _is_ours(document: Path) -> bool:
    try:
        head = head_of(document)
    except ReadError:
        return False
    return b'"task"' in head and b'"dump_data_dir"' in head


def read(root: Path, files: Sequence[Path]) -> Iterator[Tensor | Unread]:
    """Raises ReadError: a dump.json that is no JSON of msprobe (without it nobody knows the order)."""
    documents = [path for path in files if path.name in DOCUMENTS]
    content: dict[Path, dict[str, Path]] = {path.parent: {} for path in documents}
    for path in files:
        if path.parent.name == DATA and path.parent.parent in content:
            content[path.parent.parent][path.name] = path
        elif path.name not in DOCUMENTS and path.name not in BESIDE:
            yield Unread(str(path), "not part of an msprobe dump")
    order: Counter[int | None] = Counter()
    for folder, rank in _ranks(content).items():
        for item in _folder(folder, [path for path in documents if path.parent == folder], content[folder]):
            if isinstance(item, Tensor):
                item = replace(item, rank=rank, order=order[rank])
                order[rank] += 1
            yield item


def _ranks(folders: Iterable[Path]) -> dict[Path, int | None]:
    """Folders in order of steps. Several `proc<pid>` of one step are numbered as they were started: their names tell no rank."""
    ordered = sorted(folders, key=lambda path: natural(str(path)))
    ranks = {folder: rank_of(folder.absolute().name) for folder in ordered}
    unnamed: dict[Path, list[Path]] = {}
    for folder in ordered:
        if ranks[folder] is None:
            unnamed.setdefault(folder.parent, []).append(folder)
    for group in unnamed.values():
        if len(group) > 1:
            ranks.update(zip(group, count(), strict=False))
    return ranks


def _folder(folder: Path, documents: Sequence[Path], files: Mapping[str, Path]) -> Iterator[Tensor | Unread]:
    step = step_of("/".join(folder.absolute().parts[-2:]))
    parents = _parents(folder)
    mentioned: set[str] = set()
    for document in documents:
        for op, entry in _operations(document).items():
            for name, direction, fact in _facts(op, entry):
                for item in _tensors(document, name, fact, files, mentioned):
                    if isinstance(item, Tensor):
                        item = replace(item, step=step, op=op, direction=direction, layer=_layer(item.name, op, parents), role=role_of(item.name))
                    yield item
    for name in sorted(files.keys() - mentioned, key=natural):
        yield Unread(str(files[name]), f"not mentioned in {documents[0].name}: nobody knows when it was written")


def _operations(document: Path) -> dict[str, Any]:
    try:
        read_ = read_json(document)
    except ReadError as error:
        raise ReadError(f"{document} {error}") from error
    data = read_.get("data") if isinstance(read_, dict) else None
    if not isinstance(data, dict):
        raise ReadError(f"{document} has no \"data\": not written by msprobe, or cut short")
    return data


def _parents(folder: Path) -> dict[str, str]:
    """operation -> module, from construct.json; {} where there is none that can be read (level L1 writes an empty one)."""
    try:
        found = read_json(folder / "construct.json")
    except ReadError:
        return {}
    return {child: parent for child, parent in found.items() if isinstance(parent, str)} if isinstance(found, dict) else {}


def _layer(name: str, op: str, parents: Mapping[str, str]) -> int | None:
    """From the name, else from the module the operation ran in (`Functional.linear.7` tells no layer)."""
    layer = layer_of(name)
    for _ in range(MAX_PARENTS):
        if layer is not None or op not in parents:
            break
        op = parents[op]
        layer = layer_of(op)
    return layer


def _facts(op: str, entry: Any) -> Iterator[tuple[str, Direction | None, dict[str, Any]]]:
    """(name, direction, what dump.json tells) of every tensor of an operation, inputs first."""
    if not isinstance(entry, dict) or _is_tensor(entry):
        for place, fact in _walk(entry, (), 0):
            yield ".".join((op, *place)), None, fact
        return
    grads = ".parameters_grad." in op or op.endswith(".parameters_grad")
    for group, value in sorted(entry.items(), key=lambda item: _GROUPS.get(item[0], ("", "input"))[1]):
        other: tuple[str, Direction | None] = (group, "output" if grads else None)
        label, direction = _GROUPS.get(group, other)
        for place, fact in _walk(value, (), 0):
            # msprobe keeps gradients of parameters in lists of one and numbers none of them
            yield ".".join((op, label, *(() if grads else place))), direction, fact


def _walk(value: Any, place: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if depth > MAX_DEPTH:
        return
    if _is_tensor(value):
        yield place, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(inner, (*place, str(key)), depth + 1)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("dtype"), str) and isinstance(value.get("shape"), list)


def _tensors(document: Path, name: str, fact: dict[str, Any], files: Mapping[str, Path], mentioned: set[str]) -> Iterator[Tensor | Unread]:
    file_name = fact.get("data_name")
    if isinstance(file_name, str) and file_name.endswith((".pt", ".npy")):
        name = file_name.rpartition(".")[0]
        mentioned.add(file_name)
        if file_name not in files:  # looked up by name, so a path in it leads nowhere
            yield Unread(f"{document}#{name}", f"its file {file_name[:200]} is missing in {DATA}")
            return
        for item in tensors_in(files[file_name]):
            yield replace(item, name=f"{name}.{item.key}" if item.key else name) if isinstance(item, Tensor) else item
        return
    yield _summarised(document, name, fact)


def _summarised(document: Path, name: str, fact: dict[str, Any]) -> Tensor | Unread:
    """A tensor without content: its figures, or its emptiness."""
    shape = fact["shape"]
    dtype = named(fact["dtype"])
    if dtype is None or not all(type(axis) is int and axis >= 0 for axis in shape):
        return Unread(f"{document}#{name}", f"{fact['dtype'][:40]} of shape {str(shape)[:80]} is no tensor that can be compared")
    dtype, shape = stored(dtype, tuple(shape))
    if 0 in shape:
        return Tensor(name, dtype, shape, document, key=name)
    summary = tuple((figure.lower(), value) for figure in _FIGURES if (value := _figure(fact.get(figure))) is not None)
    if not summary:
        return Unread(f"{document}#{name}", "neither content nor figures were kept, at most a checksum")
    return Tensor(name, dtype, shape, document, -1, key=name, summary=summary)


def _figure(value: Any) -> float | None:
    """NaN stays: it is a figure, and a telling one."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None
