"""Which tensors of an ATB dump are the paged KV cache: the one place where this is guessed, and from what.

ATB dumps carry no tensor names, only "input 2 of ReshapeAndCache". Two sources, both checked against shapes:

1. The positions in the public operator reference of ATB. Writing into the cache:
       ReshapeAndCache     key, value, keyCache, valueCache, slotMapping -> keyCache, valueCache (in place)
   Reading from it:
       PagedAttention      query, keyCache, valueCache, blockTables, contextLens, …
       PagedCacheLoad      keyCache, valueCache, blockTables, contextLens, …
   The token ids are the one input of WordEmbedding that holds integers in one row (the other one is the table of weights).
2. Elsewhere (a layer, an attention block): exactly two inputs that both have four axes, one shape and one type are the
   key and the value pool, in that order, as every operator above has them.

A pool is [blocks, tokens of a block, heads, head size], or tiled (FRACTAL_NZ) with blocks first. Where the pools of
keys and values differ in shape (MLA), only the positions of 1. say which is which. What fits neither has no role.
"""

import re
from collections.abc import Iterable, Mapping

from diag.tensors.dump import Direction, Role, Tensor

POOL_AXES = 4
_INTEGERS = frozenset({"int32", "int64", "uint32"})

Slot = tuple[Direction, int]

_CACHE: dict[Slot, Role] = {("input", 2): "k", ("input", 3): "v", ("input", 4): "slot_mapping", ("output", 0): "k", ("output", 1): "v"}
_BY_OPERATION: tuple[tuple[re.Pattern[str], Mapping[Slot, Role]], ...] = (
    (re.compile(r"ReshapeAndCache", re.IGNORECASE), _CACHE),
    (re.compile(r"PagedAttention", re.IGNORECASE), {("input", 1): "k", ("input", 2): "v", ("input", 3): "block_table", ("input", 4): "context_lens"}),
    (re.compile(r"PagedCacheLoad", re.IGNORECASE), {("input", 0): "k", ("input", 1): "v", ("input", 2): "block_table", ("input", 3): "context_lens"}),
)
_EMBEDDING = re.compile(r"word_?embedding", re.IGNORECASE)
_MAY_HOLD_CACHE = re.compile(r"layer$|attention|attn", re.IGNORECASE)
_AXES = {"block_table": (2,), "slot_mapping": (1,), "context_lens": (1, 2)}


def roles(operation: str, tensors: Iterable[tuple[Slot, Tensor]]) -> dict[Slot, Role]:
    """Roles of the inputs and outputs of one operation, by its own name ("ReshapeAndCacheOperation")."""
    held = dict(tensors)
    if _EMBEDDING.search(operation):
        ids = [slot for slot, tensor in held.items() if slot[0] == "input" and tensor.dtype in _INTEGERS and len(tensor.shape) == 1]
        return {ids[0]: "token_ids"} if len(ids) == 1 else {}
    for pattern, by_slot in _BY_OPERATION:
        if pattern.search(operation):
            return {slot: role for slot, role in by_slot.items() if slot in held and _fits(role, held[slot])}
    if not _MAY_HOLD_CACHE.search(operation):
        return {}
    pools = sorted(index for (direction, index), tensor in held.items() if direction == "input" and len(tensor.shape) == POOL_AXES)
    if len(pools) != 2:
        return {}
    first, second = held["input", pools[0]], held["input", pools[1]]
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return {}
    return {("input", pools[0]): "k", ("input", pools[1]): "v"}


def _fits(role: Role, tensor: Tensor) -> bool:
    if role in ("k", "v"):
        return len(tensor.shape) == POOL_AXES or bool(tensor.tiled)
    return tensor.dtype in _INTEGERS and len(tensor.shape) in _AXES[role]
