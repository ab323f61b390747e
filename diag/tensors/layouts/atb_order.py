"""In which order the operations of an ATB dump ran, and which layer of the model each belongs to.

Ids in folder names (5_Prefill_layer/0_Attention) count operations within their parent; the JSON under info/ lists the
same operations with the tensors they exchange and is asked where it is there.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from diag.tensors.documents import read_json
from diag.tensors.dump import ReadError, Unread

MAX_DEPTH = 40
MAX_GRAPH_BYTES = 32 << 20
_LAYER = re.compile(r"layer$", re.IGNORECASE)
_LAST_ID = re.compile(r"_([0-9]{1,9})$")

Ids = tuple[int, ...]
Positions = dict[Ids, int]
"""Ids of an operation -> its place among its parent's."""
Names = dict[int, str]
"""Top operations by id ("Prefill_layer")."""


def graph_files(files: Iterable[Path]) -> dict[str, list[Path]]:
    """`info/layer|model/<device>_<pid>/*.json` by device folder."""
    found: dict[str, list[Path]] = {}
    for path in files:
        parts = path.parts[-4:]
        if path.suffix == ".json" and len(parts) == 4 and parts[0] == "info" and parts[1] in ("layer", "model"):
            found.setdefault(parts[2], []).append(path)
    return found


def positions(files: Sequence[Path]) -> tuple[Positions, Names, list[Unread]]:
    """Places of all operations that the JSON of one device tells of, names of the top ones; files that are no such JSON."""
    places: Positions = {}
    names: Names = {}
    unread: list[Unread] = []
    for path in files:
        try:
            graph = read_json(path, max_bytes=MAX_GRAPH_BYTES)
        except ReadError as error:
            unread.append(Unread(str(path), f"{error}; operations are ordered by their ids instead"))
            continue
        if not isinstance(graph, dict):
            continue
        if path.parts[-3] == "model":
            places.update(_places(graph, (), 0))
            names.update(_named(graph.get("nodes")))
        else:
            for one, name in _named([graph]):
                names[one] = name
                places.update(_places(graph, (one,), 0))
    return places, names, unread


def _named(nodes: Any) -> Iterator[tuple[int, str]]:
    for node in nodes if isinstance(nodes, list) else ():
        own = _LAST_ID.search(_text(node.get("opName"))) if isinstance(node, dict) else None
        if own is not None:
            yield int(own[1]), own.string[: own.start()]


def _places(node: Mapping[str, Any], ids: Ids, depth: int) -> Iterator[tuple[Ids, int]]:
    nodes = node.get("nodes")
    if depth > MAX_DEPTH or not isinstance(nodes, list):
        return
    children = [child for child in nodes if isinstance(child, dict)]
    prefix = "".join(f"_{one}" for one in ids)
    for place, child in enumerate(_run_order(children, _tensors(node, "inTensors"))):
        own = re.search(rf"{prefix}_([0-9]{{1,9}})$", _text(child.get("opName")))
        if own is not None:
            child_ids = (*ids, int(own[1]))
            yield child_ids, place
            yield from _places(child, child_ids, depth + 1)


def _run_order(nodes: Sequence[Mapping[str, Any]], given: Set[str]) -> list[Mapping[str, Any]]:
    """As listed, but nobody before the only one that writes what it reads; `given` tensors need no writer."""
    writers: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in _tensors(node, "outTensors") - given:
            writers.setdefault(name, []).append(at)
    waits = [{writers[name][0] for name in _tensors(node, "inTensors") if len(writers.get(name, ())) == 1} - {at} for at, node in enumerate(nodes)]
    if all(before < at for at, some in enumerate(waits) for before in some):
        return list(nodes)
    waiting: dict[int, list[int]] = {}
    for at, some in enumerate(waits):
        for before in some:
            waiting.setdefault(before, []).append(at)
    left = [len(some) for some in waits]
    ready = [at for at, some in enumerate(waits) if not some]
    ordered: dict[int, None] = {}
    while ready:
        at = heappop(ready)
        ordered[at] = None
        for later in waiting.get(at, ()):
            left[later] -= 1
            if left[later] == 0:
                heappush(ready, later)
    return [nodes[at] for at in (*ordered, *(at for at in range(len(nodes)) if at not in ordered))]  # a cycle: as listed


def _tensors(node: Mapping[str, Any], key: str) -> set[str]:
    names = node.get(key)
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def sort_key(ids: Ids, direction: str | None, index: int, places: Positions) -> tuple[float, ...]:
    """Inputs of an operation before its children, its outputs after them."""
    path = tuple(float(places.get(ids[: at + 1], one)) for at, one in enumerate(ids))
    return (*path, -1.0 if direction == "input" else float("inf"), float(index))


def layers(operations: Mapping[int, str]) -> dict[int, int]:
    """Top operations by id -> number of the layer of the model, counted from 0 within each kind ("Prefill_layer").

    Counted only where the first layer is known: what runs before it was dumped, or is in the model's JSON, too. Else
    the layer has its operation's id as its number, which is then never 0 by mistake.
    """
    kinds: dict[str, list[int]] = {}
    for one, name in sorted(operations.items()):
        if _LAYER.search(name):
            kinds.setdefault(name, []).append(one)
    numbers = {}
    for name, ids in kinds.items():
        first = ids[0]
        starts = first == 0 or operations.get(first - 1, name) != name
        numbers.update({one: one - first if starts else one for one in ids})
    return numbers
