"""Tensors that are far off while what was computed from them matches: a hook saved a reference, and the memory was used again.

Only what the bad dump itself shows was not used is one: where the next operation reads the very same numbers, or what an
operation reads is wrong itself, the run did compute with them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from diag.tensors.result import Result

Where = tuple[int | None, int | None]
"""Rank and step."""


def artefacts(ordered: Sequence[Result]) -> set[int]:
    """`ord` of each: the whole next layer matches, or all that the rank computed later."""
    by_where: dict[Where, list[Result]] = defaultdict(list)
    wrong_inputs: set[tuple[Where, str]] = set()
    for item in ordered:
        where = (item.rank, item.step)
        if item.role is None:
            by_where[where].append(item)
        if item.is_wrong and item.op and (item.direction == "input" or item.role is not None):
            wrong_inputs.add((where, item.op))
    found: set[int] = set()
    for where, items in by_where.items():
        for item in {one.ord: one for one in (*_before_good_layers(items), *_before_good_rest(items))}.values():
            if not (item.direction != "input" and (where, item.op) in wrong_inputs) and not _was_used(item, items):
                found.add(item.ord)
    return found


def _before_good_layers(items: Sequence[Result]) -> Iterator[Result]:
    layers: dict[int, list[Result]] = defaultdict(list)
    for item in items:
        if item.layer is not None:
            layers[item.layer].append(item)
    for layer, following in pairwise(sorted(layers)):
        if not any(_is_off(item) for item in layers[following]):
            yield from (item for item in layers[layer] if _may_be(item))


def _before_good_rest(items: Sequence[Result]) -> Iterator[Result]:
    later_good = 0
    for item in reversed(items):
        if _is_off(item):
            if not later_good or not _may_be(item):
                break
            yield item
        elif item.direction != "input":
            later_good += 1


def _is_off(item: Result) -> bool:
    return item.is_wrong or item.is_suspicious


def _may_be(item: Result) -> bool:
    """NaN spreads: where it does not, that is for the rule of NaN to say."""
    return item.is_wrong and item.verdict not in ("shape-mismatch", "dtype-mismatch", "nan")


def _was_used(item: Result, items: Sequence[Result]) -> bool:
    """Does an operation behind it read these very numbers, or wrong ones of its shape? Of an input: is what its operation gives out wrong?"""
    later = [other for other in items if other.ord > item.ord]
    if item.direction == "input":
        return any(_is_off(other) for other in later if other.op == item.op and other.direction == "output")
    inputs = [other for other in later if other.direction == "input" and other.bad.shape == item.bad.shape]
    same = any(item.bad.figures is not None and other.bad.figures == item.bad.figures for other in inputs)
    return same or (bool(inputs) and _is_off(inputs[0]))
