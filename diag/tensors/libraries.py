"""The KV tensors of a dump in which somebody's blocks are looked for."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from diag.tensors.cutting import Cut, How, cut, is_kv, parts
from diag.tensors.dump import Dump, Tensor, Unread
from diag.tensors.elements import itemsize
from diag.tensors.judging import LOST
from diag.tensors.placement import Placements


@dataclass(frozen=True)
class Held:
    """One KV tensor of a dump that may hold what the bad run holds."""

    dump: str
    step: int | None
    cut: Cut
    knows_slots: bool = False
    """Its dump tells which slots the step fills."""


@dataclass
class Library:
    """The KV tensors of one dump by name, rank and layer, cut when they are asked for."""

    dump: Dump
    how: How
    unread: list[tuple[str, Unread]]
    _by_key: dict[tuple[str, int | None, int | None], list[tuple[Tensor, Tensor]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._places = Placements(self.dump)
        for tensor in self.dump.tensors:
            if tensor.offset >= 0 and is_kv(tensor, self._places.of(tensor), self.how):
                for part in parts(tensor):
                    self._by_key[(part.name, part.rank, part.layer)].append((tensor, part))

    def find(self, name: str, rank: int | None, layer: int | None, dtype: str) -> Iterator[Held]:
        """The same tensor in this dump, of every step; `dtype`: what it is where its file lost the type."""
        for whole, part in self._by_key.get((name, rank, layer), ()):
            known = replace(part, dtype=dtype) if part.dtype in LOST and itemsize(part.dtype) == itemsize(dtype) else part
            place = self._places.of(whole)
            found = cut(known, place, self.how)
            if found is not None:
                yield Held(self.dump.name, part.step, found, bool(place.written))
