"""Which tensor of the good run belongs to which of the bad run: by name, rank, step and layer; what has no partner is told.

Steps are aligned by the token ids they worked on where both dumps hold them, else by number, else in order. Ranks of other
numbers (another card) are paired in order. Both are said in a note.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import overload

from diag.errors import BadInput
from diag.tensors.dump import Dump, Tensor
from diag.tensors.elements import itemsize
from diag.tensors.renaming import EXAMPLE, SAME_NAMES, Names, folder_of
from diag.tensors.shelf import Shelf
from diag.tensors.suffix import is_suffix, token_ids

SHOWN = 3
HOLDERS = frozenset({"uint16", "int16"})
"""What people keep bfloat16 in where numpy has no such type; torch had no uint16 for long."""
CODES = HOLDERS | {"uint8"}
"""What the bits of bfloat16 and float8 are kept in where a format does not know them."""
INDICES = frozenset({"token_ids", "positions", "block_table", "slot_mapping", "context_lens"})
Key = tuple[str, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same tensor of two runs. `step` and `rank` are those of the good run."""

    good: Tensor
    bad: Tensor


class Pairs(Sequence[Pair]):
    """Pairs of tensors of two dumps, by their numbers there: a pair is made when it is asked for."""

    def __init__(self, good: Sequence[Tensor], bad: Sequence[Tensor], numbers: Iterable[tuple[int, int]]) -> None:
        self._good, self._bad = good, bad
        self._numbers = array("q")
        for both in numbers:
            self._numbers.extend(both)

    def __len__(self) -> int:
        return len(self._numbers) // 2

    @overload
    def __getitem__(self, at: int) -> Pair: ...
    @overload
    def __getitem__(self, at: slice) -> list[Pair]: ...
    def __getitem__(self, at: int | slice) -> Pair | list[Pair]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(f"{at} of {len(self)}")
        return Pair(self._good[self._numbers[2 * number]], self._bad[self._numbers[2 * number + 1]])


@dataclass(frozen=True, slots=True)
class Lone:
    """A tensor that only one of the two dumps has."""

    side: str
    tensor: Tensor
    why: str


@dataclass(frozen=True)
class Pairing:
    """Pairs in execution order, tensors without a partner, and what was assumed."""

    pairs: Sequence[Pair]
    unpaired: Sequence[Lone]
    notes: tuple[str, ...] = ()


def pair(good: Dump, bad: Dump, names: Names = SAME_NAMES) -> Pairing:
    """Pair two dumps. BadInput: they have no tensor in common."""
    notes: list[str] = []
    names = names.between(good, bad)
    if {names.translated(tensor.name) for tensor in good.tensors}.isdisjoint(tensor.name for tensor in bad.tensors):
        good, bad, names = _without_folder(good, notes), _without_folder(bad, notes), replace(names, is_stripped=True)
    steps = _aligned_steps(good, bad, notes)
    ranks = _aligned_ranks(good, bad, notes)
    waiting = _waiting(bad)
    pairs: list[tuple[tuple[int, int, str], int, int]] = []
    unpaired = Shelf[Lone](Lone)
    orders = array("q", (tensor.order for tensor in good.tensors))
    for number in sorted(range(len(orders)), key=orders.__getitem__):
        tensor = good.tensors[number]
        rank, step = ranks.get(tensor.rank, tensor.rank), steps.get(tensor.step, tensor.step)
        partners = waiting.get((names.translated(tensor.name), rank, step, tensor.layer))
        if partners:
            pairs.append(((tensor.order, -1 if tensor.rank is None else tensor.rank, tensor.name), number, partners.pop()))
        else:
            unpaired.append(Lone("good", tensor, _why(tensor, waiting, names)))
    for found in waiting.values():
        unpaired.extend(Lone("bad", bad.tensors[number], "only the bad dump has it") for number in reversed(found))
    if not pairs and all(len(dump.tensors) == 1 and dump.tensors[0].file == dump.root for dump in (good, bad)):
        notes.append(f"{good.tensors[0].name} and {bad.tensors[0].name} are compared: each is the one tensor of the file that was given")
        return Pairing((Pair(good.tensors[0], bad.tensors[0]),), (), tuple(notes))
    if not pairs:
        raise _nothing_in_common(good, bad)
    pairs.sort(key=lambda item: item[0])
    return Pairing(Pairs(good.tensors, bad.tensors, ((number, partner) for _, number, partner in pairs)), unpaired, tuple(notes))


def _waiting(bad: Dump) -> dict[Key, list[int]]:
    """Numbers of the tensors of a dump, the last one first where several have one key."""
    waiting: dict[Key, list[int]] = {}
    orders = array("q")
    for number, tensor in enumerate(bad.tensors):
        orders.append(tensor.order)
        waiting.setdefault((tensor.name, tensor.rank, tensor.step, tensor.layer), []).append(number)
    for found in waiting.values():
        if len(found) > 1:
            found.sort(key=orders.__getitem__, reverse=True)
    return waiting


def _without_folder(dump: Dump, notes: list[str]) -> Dump:
    """Without the first part of all names, where that is the same: the file that holds them all, in one of two formats."""
    folder = folder_of(dump)
    if not folder:
        return dump
    notes.append(f"names in {dump.name} are taken without {folder}, which all of them begin with")
    return replace(dump, tensors=Shelf(Tensor, (replace(tensor, name=tensor.name.removeprefix(folder)) for tensor in dump.tensors)))


def _why(tensor: Tensor, waiting: Mapping[Key, Sequence[int]], names: Names) -> str:
    new = names.translated(tensor.name)
    return "only the good dump has it" if new == tensor.name else f"only the good dump has it: there is no {new} in the bad one"


def _nothing_in_common(good: Dump, bad: Dump) -> BadInput:
    if not good.tensors or not bad.tensors:
        empty = good if not good.tensors else bad
        reasons = sorted({item.reason for item in empty.unread})
        why = f": {reasons[0]}" if reasons else ""
        return BadInput(f"{empty.root}: there is no tensor in it that can be read{why}", hint="give the folder of a dump, or one of its files")
    example = [", ".join(sorted({tensor.name for tensor in dump.tensors})[:SHOWN]) for dump in (good, bad)]
    return BadInput(
        f"{good.root} and {bad.root} have no tensor in common: {example[0]} … against {example[1]} …",
        hint=f"dump both runs with the same tool, or say what was renamed with --map FILE (lines such as {EXAMPLE})",
    )


def _aligned_ranks(good: Dump, bad: Dump, notes: list[str]) -> dict[int | None, int | None]:
    """Rank of the good run -> rank of the bad run, where the numbers differ."""
    ours, theirs = ({tensor.rank for tensor in dump.tensors} for dump in (good, bad))
    if ours & theirs or len(ours) != len(theirs):
        return {}
    order = dict(zip(_sorted(ours), _sorted(theirs), strict=True))
    notes.append(f"ranks {_listed(order)} of the good run are compared with ranks {_listed(order.values())} of the bad run, in this order")
    return order


def _aligned_steps(good: Dump, bad: Dump, notes: list[str]) -> dict[int | None, int | None]:
    """Step of the good run -> step of the bad run, where the numbers differ. A step that has no partner maps to itself, or to none."""
    ours, theirs = ({tensor.step for tensor in dump.tensors} for dump in (good, bad))
    marks = _tokens(good), _tokens(bad)
    if marks[0].keys() >= ours and marks[1].keys() >= theirs:
        return _by_content(marks[0], marks[1], notes)
    if ours <= theirs or theirs <= ours:
        return {}
    order = dict(zip(_sorted(ours), _sorted(theirs), strict=False))
    notes.append(f"steps {_listed(order)} of the good run are compared with steps {_listed(order.values())} of the bad run, in order")
    return order | {step: _NOWHERE for step in ours - order.keys()}


_NOWHERE = -(1 << 62)
"""A step that no dump has."""


def _by_content(ours: Mapping[int | None, bytes], theirs: Mapping[int | None, bytes], notes: list[str]) -> dict[int | None, int | None]:
    """Equal token ids are the same step; between two such, and after the last, steps go in order: their ids differ because the runs do."""
    left, right = _sorted(ours), _sorted(theirs)
    matcher = SequenceMatcher(None, [ours[step] for step in left], [theirs[step] for step in right], autojunk=False)
    order: dict[int | None, int | None] = {}
    unlike: list[int | None] = []
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        order |= dict(zip(left[a0:a1], right[b0:b1], strict=False))
        if kind == "replace":
            unlike += [a for a, b in zip(left[a0:a1], right[b0:b1], strict=False) if not is_suffix(ours[a], theirs[b])]
    moved = {a: b for a, b in order.items() if a != b}
    if moved:
        notes.append(f"steps {_listed(moved)} of the good run are compared with steps {_listed(moved.values())} of the bad run: they worked on the same tokens")
    if unlike:
        notes.append(f"the two runs worked on different tokens in step {_listed(unlike)}: what differs there may come from that")
    return order | {step: _NOWHERE for step in ours.keys() - order.keys()}


def _tokens(dump: Dump) -> dict[int | None, bytes]:
    """The token ids of each step that has some, over all ranks (those that all have count once)."""
    found: dict[int | None, dict[bytes, None]] = defaultdict(dict)
    for (_, step), ids in sorted(token_ids(dump).items(), key=lambda item: str(item[0])):
        found[step][ids] = None
    return {step: b"".join(ids) for step, ids in found.items()}


def _sorted(numbers: Iterable[int | None]) -> list[int | None]:
    return sorted(numbers, key=lambda number: -1 if number is None else number)


def _listed(numbers: Iterable[int | None]) -> str:
    texts = ["-" if number is None else str(number) for number in numbers]
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")


def with_types(dump: Dump, types: Mapping[str, str]) -> Dump:
    """The dump with element types that a person said (`"*"`: of all) put in where they fit (see `unused_types`).

    They fit where the file lost the type (opaque1, opaque2), where unsigned integers of the same width hold its bits, and, for a
    tensor that was named, at any type of the same width. Indices (token ids, block tables) stay what they are unless named.
    """
    if not types:
        return dump
    return replace(dump, tensors=Shelf(Tensor, (_with_type(tensor, types) for tensor in dump.tensors)))


def _with_type(tensor: Tensor, types: Mapping[str, str]) -> Tensor:
    said = types.get(tensor.name, types.get("*"))
    return replace(tensor, dtype=said) if said is not None and _fits(tensor, said, named=tensor.name in types) else tensor


def _fits(tensor: Tensor, said: str, *, named: bool) -> bool:
    bits = named or tensor.dtype.startswith("opaque") or (tensor.role not in INDICES and tensor.dtype in CODES)
    return bits and tensor.dtype != said and tensor.offset >= 0 and itemsize(tensor.dtype) == itemsize(said)


def unused_types(dumps: Sequence[Dump], types: Mapping[str, str]) -> list[str]:
    """What a person said of types and nothing came of, and why. `dumps`: as they were opened."""
    found = []
    for name, said in types.items():
        own: set[str] = set()
        used = False
        for tensor in (tensor for dump in dumps for tensor in dump.tensors if name in ("*", tensor.name)):
            own.add(tensor.dtype)
            used |= _fits(tensor, said, named=name != "*") and types.get(tensor.name, said) == said
        if used or (own == {said} and said in HOLDERS):  # they are not guessed then
            continue
        of = "" if name == "*" else f"{name}="
        held = ", ".join(sorted(own))
        if not own:
            why = f"no tensor is called {name}"
        elif own == {said}:
            why = "that is the type in the files"
        else:
            why = f"the files hold {held}: types of their own, or of another width" if name == "*" else f"its file says {held}, of another width"
        found.append(f"--dtype {of}{said} is not used: {why}")
    return found
