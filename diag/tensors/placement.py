"""Where the tokens of a step's requests are, as the dump itself tells: block tables, context lengths, slots, positions."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from diag.tensors.dump import Dump, Role, Tensor
from diag.tensors.measure import content

PLACE_ROLES: tuple[Role, ...] = ("block_table", "context_lens", "slot_mapping", "positions")
MAX_ENTRIES = 1 << 22
"""A block table with more is not one."""


@dataclass(frozen=True)
class Request:
    """One row of the batch: its physical block ids in the order of its tokens, and how many tokens it has."""

    table: tuple[int, ...] | None = None
    length: int | None = None

    def blocks(self, size: int) -> tuple[int, ...]:
        """The used part of the table. Zeros at its end fill it up, unless the length says that block 0 is the last one."""
        table = self.table or ()
        return _without_zeros(table) if self.length is None else table[: -(-self.length // size)]

    def fits(self, size: int) -> bool:
        """Are blocks of so many tokens, as many as the table names, enough for its tokens?"""
        if self.table is None or self.length is None:
            return True
        used = len(_without_zeros(self.table))
        return size * min(used + 1, len(self.table)) >= self.length


@dataclass(frozen=True)
class Placement:
    """What is known of one step on one rank; nothing is a value, too."""

    requests: tuple[Request, ...] = ()
    written: frozenset[int] = frozenset()
    """Slots (block id * block size + offset) that the step itself fills."""
    positions: tuple[int, int] | None = None
    """First position of the tokens computed in this step and how many there are; None: not known, or several requests."""

    @property
    def has_table(self) -> bool:
        return any(request.table is not None for request in self.requests)

    @property
    def tokens(self) -> int | None:
        """Tokens of all requests together."""
        lengths = [request.length for request in self.requests]
        known = [length for length in lengths if length is not None]
        return sum(known) if known and len(known) == len(lengths) else None


NOWHERE = Placement()


@dataclass
class Placements:
    """Those of a whole dump, read once each."""

    dump: Dump
    _by_step: dict[tuple[Role, int | None], list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    _known: dict[tuple[str, ...], Placement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tensor in self.dump.tensors:
            if tensor.role in PLACE_ROLES and tensor.offset >= 0:
                self._by_step[(tensor.role, tensor.step)].append(tensor)

    def of(self, tensor: Tensor) -> Placement:
        """What holds for this tensor: said for its own layer and rank if possible, else for its step."""
        if not self._by_step:
            return NOWHERE
        found = {role: self._nearest(role, tensor) for role in PLACE_ROLES}
        key = tuple("" if item is None else f"{item.source}#{item.offset}" for item in found.values())
        if key not in self._known:
            self._known[key] = _read(found["block_table"], found["context_lens"], found["slot_mapping"], found["positions"])
        return self._known[key]

    def _nearest(self, role: Role, tensor: Tensor) -> Tensor | None:
        candidates = self._by_step.get((role, tensor.step)) or self._by_step.get((role, None))
        if not candidates:
            return None
        return min(candidates, key=lambda item: (item.rank != tensor.rank, item.layer != tensor.layer, item.op != tensor.op, item.order))


def _read(table: Tensor | None, lengths: Tensor | None, slots: Tensor | None, positions: Tensor | None) -> Placement:
    tables = [] if table is None else _rows(table)
    known = [] if lengths is None else [number for row in _rows(lengths) for number in row]
    rows = max(len(tables), len(known))
    if tables and known and len(known) != len(tables):
        known = known[: len(tables)] if len(known) > len(tables) else []
        rows = len(tables)
    requests = tuple(
        Request(_ids(tables[row]) if row < len(tables) else None, known[row] if row < len(known) and known[row] >= 0 else None) for row in range(rows)
    )
    written = frozenset(number for row in ([] if slots is None else _rows(slots)) for number in row if number >= 0)
    return Placement(requests, written, None if positions is None else _range([number for row in _rows(positions) for number in row]))


def _rows(tensor: Tensor) -> list[list[int]]:
    """A small table of integers; one row for a vector. Anything else holds nothing."""
    values: Any = content(tensor)
    if values.dtype.kind not in "iu" or values.size > MAX_ENTRIES or values.ndim > 3:
        return []
    flat: list[list[int]] = values.reshape(-1, values.shape[-1] if values.ndim else 1).tolist() if values.size else []
    return flat


def _ids(row: Sequence[int]) -> tuple[int, ...]:
    """Up to the first negative id."""
    return tuple(_until_negative(row))


def _without_zeros(table: Sequence[int]) -> tuple[int, ...]:
    """Without the zeros that fill it up (block 0 may be the first one, or none)."""
    used = len(table)
    while used > 1 and table[used - 1] == 0:
        used -= 1
    return tuple(table[:used])


def _until_negative(row: Iterable[int]) -> Iterable[int]:
    for number in row:
        if number < 0:
            return
        yield number


def _range(numbers: Sequence[int]) -> tuple[int, int] | None:
    if not numbers or any(after - before != 1 for before, after in pairwise(numbers)):
        return None
    return numbers[0], len(numbers)
