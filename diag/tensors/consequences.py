"""Blocks that hold the right tokens and are wrong for what came before them: whatever they look like, nobody else's.

Layer 0 of the cache depends on the tokens and their positions alone. A block that is right there and wrong in deeper layers,
behind a block that is wrong in a lower layer, was computed from right tokens after a wrong prefix.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from diag.tensors.result import Result

KV = frozenset({"k", "v", "kv"})
Request = tuple[int | None, int | None]
"""Request and step."""
Lowest = Mapping[Request, tuple[list[int], list[int]]]
"""Its wrong blocks in order, and for each the lowest layer in which it or an earlier one is wrong."""


def consequences(results: Sequence[Result]) -> set[int]:
    """`ord` of each such block."""
    right: dict[tuple[Request, int], bool] = {}
    wrong: list[tuple[Request, int, int, int]] = []
    for item in results:
        if item.role not in KV or item.block is None or item.layer is None:
            continue
        request = (item.request, item.step)
        if item.layer == 0:
            right[(request, item.block)] = right.get((request, item.block), True) and not item.is_wrong and not item.is_suspicious
        if item.is_wrong:
            wrong.append((request, item.block, item.layer, item.ord))
    lowest = lowest_layers((request, block, layer) for request, block, layer, _ in wrong)
    return {ord for request, block, layer, ord in wrong if right.get((request, block)) and is_behind(lowest, request, block, layer)}


def lowest_layers(wrong: Iterable[tuple[Request, int, int]]) -> Lowest:
    """Of wrong blocks, each with its request and layer."""
    found: dict[Request, dict[int, int]] = defaultdict(dict)
    for request, block, layer in wrong:
        found[request][block] = min(layer, found[request].get(block, layer))
    return {request: (sorted(layers), list(accumulate((layers[block] for block in sorted(layers)), min))) for request, layers in found.items()}


def is_behind(lowest: Lowest, request: Request, block: int, layer: int) -> bool:
    """Is an earlier block of its request wrong in a lower layer?"""
    blocks, layers = lowest.get(request, ([], []))
    before = bisect_left(blocks, block)
    return before > 0 and layers[before - 1] < layer
