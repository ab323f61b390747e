"""Tensors that are far off while what was computed from them matches: a hook saved a reference, and the memory was used again.

Only what the bad dump itself shows was not used is one: where the next operation reads the very same numbers, or what an
operation reads is wrong itself, the run did compute with them. So it did where a wrong block of the cache was read in that layer
or a lower one, and where all was bit for bit the same up to there and is not any more behind it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from diag.tensors.consequences import KV
from diag.tensors.result import Result

Where = tuple[int | None, int | None]
"""Rank and step."""
Shape = tuple[int, ...]


class Off(NamedTuple):
    """A tensor that is far off and may be an artefact: what its judgement needs, its figures as their hash."""

    ord: int
    layer: int | None
    direction: str | None
    op: str
    shape: Shape
    content: int | None
    is_exact: bool
    """All before it is bit for bit the same."""


@dataclass
class Ran:
    """What one rank computed in one step, gathered in execution order."""

    layers: set[int] = field(default_factory=set)
    off_layers: set[int] = field(default_factory=set)
    off: list[Off] = field(default_factory=list)
    """Those that may be artefacts, in order."""
    tail: int = 0
    """From this number of `off` on nothing else is off."""
    good_behind: bool = False
    """Something computed after the last one that is off matches."""
    first_change: int | None = None
    last_change: int = -1
    """`ord` of the first and of the last one that is not bit for bit the same; of the last, one that is not off."""
    read: dict[tuple[Shape, int], int] = field(default_factory=dict)
    """Shape and content of an input -> `ord` of the last one."""
    inputs: dict[Shape, tuple[list[int], list[bool]]] = field(default_factory=lambda: defaultdict(lambda: ([], [])))
    """Shape -> `ord` of each input, and is it off?"""
    off_outputs: dict[str, int] = field(default_factory=dict)
    """Operation -> `ord` of its last output that is off."""

    def add(self, item: Result) -> None:
        """The next one."""
        off, figures = item.is_wrong or item.is_suspicious, item.bad.figures
        content = None if figures is None else hash(figures)
        if item.layer is not None:
            self.layers.add(item.layer)
            self.off_layers |= {item.layer} if off else set()
        if item.direction == "input":
            ords, offs = self.inputs[item.bad.shape]
            ords.append(item.ord)
            offs.append(off)
            if content is not None:
                self.read[(item.bad.shape, content)] = item.ord
        is_exact = self.first_change is None
        if item.verdict != "same":
            self.first_change = item.ord if is_exact else self.first_change
            self.last_change = self.last_change if off else item.ord
        if off:
            self.good_behind = False
            if item.direction == "output":
                self.off_outputs[item.op] = item.ord
            if _may_be(item):
                self.off.append(Off(item.ord, item.layer, item.direction, item.op, item.bad.shape, content, is_exact))
            else:
                self.tail = len(self.off)
        elif item.direction != "input":
            self.good_behind = True

    def candidates(self) -> Iterator[Off]:
        """The whole next layer matches, or all that the rank computed later. Some twice."""
        fine_next = {layer for layer, following in pairwise(sorted(self.layers)) if following not in self.off_layers}
        yield from (item for item in self.off if item.layer in fine_next)
        if self.good_behind:
            yield from self.off[self.tail :]

    def was_used(self, item: Off) -> bool:
        """Does an operation behind it read these very numbers, or wrong ones of its shape? Of an input: is what its operation gives out wrong?

        Or does what comes later show a change, however small, that nothing before has?
        """
        if item.is_exact and self.last_change > item.ord:
            return True
        if item.direction == "input":
            return self.off_outputs.get(item.op, -1) > item.ord
        if item.content is not None and self.read.get((item.shape, item.content), -1) > item.ord:
            return True
        ords, offs = self.inputs.get(item.shape, ([], []))
        behind = bisect_right(ords, item.ord)
        return behind < len(ords) and offs[behind]


def artefacts(ordered: Sequence[Result]) -> set[int]:
    """`ord` of each."""
    ran: dict[Where, Ran] = defaultdict(Ran)
    wrong_inputs: set[tuple[Where, str]] = set()
    wrong_cache: dict[Where, int] = {}
    for item in ordered:
        where = (item.rank, item.step)
        if item.role is None:
            ran[where].add(item)
        if item.is_wrong and item.op and (item.direction == "input" or item.role is not None):
            wrong_inputs.add((where, item.op))
        if item.role in KV and item.is_wrong and not item.is_retyped and item.layer is not None:
            wrong_cache[where] = min(item.layer, wrong_cache.get(where, item.layer))

    def read_wrong_cache(where: Where, item: Off) -> bool:
        return where in wrong_cache and (item.layer is None or item.layer >= wrong_cache[where])

    return {
        item.ord for where, found in ran.items() for item in found.candidates()
        if not (item.direction != "input" and (where, item.op) in wrong_inputs) and not found.was_used(item) and not read_wrong_cache(where, item)
    }  # fmt: skip


def _may_be(item: Result) -> bool:
    """NaN spreads: where it does not, that is for the rule of NaN to say."""
    return item.is_wrong and item.verdict not in ("shape-mismatch", "dtype-mismatch", "nan")
