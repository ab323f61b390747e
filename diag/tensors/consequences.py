"""Blocks that hold the right tokens and are wrong for what came before them: whatever they look like, nobody else's.

Layer 0 of the cache depends on the tokens and their positions alone. A block that is right there and wrong in deeper layers,
behind a block that is wrong in a lower layer, was computed from right tokens after a wrong prefix.
"""

from collections import defaultdict
from collections.abc import Sequence

from diag.tensors.result import Result

KV = frozenset({"k", "v", "kv"})
Request = tuple[int | None, int | None]
"""Request and step."""


def consequences(results: Sequence[Result]) -> set[int]:
    """`ord` of each such block."""
    cache = [item for item in results if item.role in KV and item.block is not None and item.layer is not None]
    right: dict[tuple[Request, int], bool] = {}
    lowest: dict[Request, dict[int, int]] = defaultdict(dict)
    for item in cache:
        request, block, layer = (item.request, item.step), item.block or 0, item.layer or 0
        if layer == 0:
            right[(request, block)] = right.get((request, block), True) and not item.is_wrong and not item.is_suspicious
        if item.is_wrong:
            lowest[request][block] = min(layer, lowest[request].get(block, layer))
    return {item.ord for item in cache if item.is_wrong and right.get(((item.request, item.step), item.block or 0)) and _is_behind(item, lowest)}


def _is_behind(item: Result, lowest: dict[Request, dict[int, int]]) -> bool:
    """Is an earlier block of its request wrong in a lower layer?"""
    earlier = lowest[(item.request, item.step)].items()
    return any(block < (item.block or 0) and layer < (item.layer or 0) for block, layer in earlier)
