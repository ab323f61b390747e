"""What msprobe's ATB probe writes under MindIE:

    atb_dump_data/data/<device>_<pid>/<round>/5_Prefill_layer/0_Attention/before/intensor0.bin
                                                                          after/outtensor0.bin, op_param.json
                                              statistic.csv          figures of every tensor, also where no content was kept
                  info/layer|model/<device>_<pid>/*.json             which operation passes which tensor to which

Any folder from atb_dump_data down to one layer may be given. A tensor is named 5_Prefill_layer/0_Attention/input.0; the
device is its rank, the round its step. Files with `data=` hold no bytes: they mean a tensor of the same layer.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from diag.tensors.dump import Direction, ReadError, Role, Tensor, Unread
from diag.tensors.files.atb_bin import Record, described, last_record
from diag.tensors.layouts import atb_figures, atb_order, atb_roles
from diag.tensors.naming import natural

NAME = "ATB"
ORDER = 110

STATISTICS = "statistic.csv"
MAX_ALIASES = 16

_FILE = re.compile(r"(in|out)tensor([0-9]{1,6})\.bin", re.IGNORECASE)
_OPERATION = re.compile(r"([0-9]{1,9})_(?![0-9]+$)(.+)")
_ROUND = re.compile(r"[0-9]{1,9}")
_DEVICE = re.compile(r"(-?[0-9]{1,6})_[0-9]{1,10}")
_ALIAS = re.compile(r"([0-9]{1,9}(?:_[0-9]{1,9})*)_(in|out)tensor([0-9]{1,6})\.bin")
_FOLDER = {"input": "before", "output": "after"}


class Key(NamedTuple):
    """One tensor of one round: ids and names of its operation from the layer down, which side, which of them."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    direction: Direction
    number: int

    @property
    def op(self) -> str:
        return "/".join(f"{one}_{name}" for one, name in zip(self.ids, self.names, strict=True))

    @property
    def slot(self) -> tuple[tuple[int, ...], Direction, int]:
        """As aliases name it."""
        return self.ids, self.direction, self.number


@dataclass
class Round:
    """All that one device dumped in one round."""

    device: str = ""
    rank: int | None = None
    step: int | None = None
    files: dict[Key, Path] = field(default_factory=dict)
    statistics: Path | None = None


def recognise(root: Path, files: Sequence[Path]) -> bool:
    return any(_place(path) is not None for path in files if path.suffix == ".bin") or any(
        path.name == STATISTICS and atb_figures.recognise(path) for path in files
    )


def read(root: Path, files: Sequence[Path]) -> Iterator[Tensor | Unread]:
    """By device, then round, then execution order."""
    rounds: dict[Path, Round] = {}
    graphs = atb_order.graph_files(files)
    graph_paths = {path for paths in graphs.values() for path in paths}
    for path in files:
        place = _place(path) if path.suffix == ".bin" else None
        if place is not None:
            folder, key = place
            rounds.setdefault(folder, _round(folder)).files[key] = path
        elif path.name == STATISTICS:
            rounds.setdefault(path.parent, _round(path.parent)).statistics = path
        elif path not in graph_paths and path.name != "op_param.json":
            yield Unread(str(path), "not part of an ATB dump")
    order: Counter[int | None] = Counter()
    graph: dict[str, tuple[atb_order.Positions, atb_order.Names]] = {}
    for folder in sorted(rounds, key=lambda path: natural(str(path))):
        held = rounds[folder]
        if held.device not in graph:
            places, names_, unread = atb_order.positions(graphs.get(held.device, []))
            graph[held.device] = (places, names_)
            yield from unread
        for item in _tensors(held, *graph[held.device]):
            if isinstance(item, Tensor):
                item = replace(item, order=order[held.rank])
                order[held.rank] += 1
            yield item


def _place(path: Path) -> tuple[Path, Key] | None:
    """Folder of the round and which tensor; None: not where ATB puts tensors."""
    found = _FILE.fullmatch(path.name)
    if found is None:
        return None
    direction: Direction = "input" if found[1].lower() == "in" else "output"
    folder = path.parent
    if folder.name != _FOLDER[direction]:
        return None
    ids: list[int] = []
    names: list[str] = []
    for above in folder.absolute().parents:
        operation = _OPERATION.fullmatch(above.name)
        if operation is None:
            break
        ids.insert(0, int(operation[1]))
        names.insert(0, operation[2])
    return (above, Key(tuple(ids), tuple(names), direction, int(found[2]))) if ids else None


def _round(folder: Path) -> Round:
    folder = folder.absolute()
    if _ROUND.fullmatch(folder.name) is None:
        return Round()
    device = _DEVICE.fullmatch(folder.parent.name)
    rank = int(device[1]) if device is not None else -1
    return Round(folder.parent.name, rank if rank >= 0 else None, int(folder.name))


def _tensors(held: Round, places: atb_order.Positions, graph_names: atb_order.Names) -> Iterator[Tensor | Unread]:
    records: dict[Key, Record] = {}
    unread: dict[Key, str] = {}
    for key, path in held.files.items():
        try:
            record, others = last_record(path)
        except ReadError as error:
            unread[key] = str(error)
            continue
        yield from others
        if record is not None:
            records[key] = record
    found: dict[Key, Tensor] = {}
    slots = {key.slot: key for key in records}
    for key, record in records.items():
        try:
            owner = _owner(key, records, slots)
            found[key] = described(held.files[key], record, (held.files[owner], records[owner]))
        except ReadError as error:
            unread[key] = str(error)
    if held.statistics is not None:
        yield from _figures_only(held, held.statistics, found)
    for key, reason in unread.items():
        yield Unread(str(held.files[key]), reason)
    yield from _named(held, found, places, graph_names)


def _figures_only(held: Round, path: Path, found: dict[Key, Tensor]) -> Iterator[Unread]:
    """Adds what only statistic.csv tells of; tells what even that has no figures of."""
    rows, others = atb_figures.read(path)
    yield from others
    for row in rows:
        key = Key(row.ids, row.names, row.direction, row.number)
        if key in held.files:
            continue
        if row.tensor.summary:
            found[key] = row.tensor
        if row.has_file or not row.tensor.summary:
            kept = "only its figures can be compared" if row.tensor.summary else "and no figures were kept"
            yield Unread(row.tensor.source, f"its .bin is missing, {kept}")


def _owner(key: Key, records: Mapping[Key, Record], slots: Mapping[tuple[tuple[int, ...], Direction, int], Key]) -> Key:
    """Whose bytes a tensor means, through `data=`. Raises ReadError."""
    at = key
    for _ in range(MAX_ALIASES):
        alias = records[at].alias
        if not alias:
            return at
        found = _ALIAS.fullmatch(alias)
        if found is None:
            raise ReadError(f"its content was not dumped (it names {alias[:80]}, as a probe that filters kernels does); the operation around it has it")
        owner = slots.get((tuple(int(one) for one in found[1].split("_")), "input" if found[2] == "in" else "output", int(found[3])))
        if owner is None or owner.ids[0] != key.ids[0]:
            raise ReadError(f"its content should be in {alias[:80]} of the same layer, which is not there or cannot be read; dump the whole layer")
        at = owner
    raise ReadError("its content is passed on in a circle of aliases; dump again")


def _named(held: Round, found: Mapping[Key, Tensor], places: atb_order.Positions, graph_names: atb_order.Names) -> Iterator[Tensor]:
    tops = graph_names | {key.ids[0]: key.names[0] for key in (*held.files, *found)}
    numbers = atb_order.layers(tops)
    roles = _roles(found)
    for key in sorted(found, key=lambda key: (atb_order.sort_key(key.ids, key.direction, key.number, places), key.names)):
        yield replace(
            found[key], name=f"{key.op}/{key.direction}.{key.number}", rank=held.rank, step=held.step, layer=numbers.get(key.ids[0]),
            op=key.op, direction=key.direction, role=roles.get(key),
        )  # fmt: skip


def _roles(found: Mapping[Key, Tensor]) -> dict[Key, Role]:
    by_operation: dict[str, list[Key]] = {}
    for key in found:
        by_operation.setdefault(key.op, []).append(key)
    roles: dict[Key, Role] = {}
    for keys in by_operation.values():
        told = atb_roles.roles(keys[0].names[-1], (((key.direction, key.number), found[key]) for key in keys))
        roles.update({key: told[key.direction, key.number] for key in keys if (key.direction, key.number) in told})
    return roles
