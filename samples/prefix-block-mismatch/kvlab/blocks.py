"""Blocks of a paged KV cache: who holds which, what is cached, what is evicted first, and the two lookups.

The mechanism is that of vLLM V0's prefix caching allocator and of the published C++ port of it. Three things in it
together make a hole - an early block gone while later ones of the same chain stay - and none of them is scripted:

1. The time of the last access is seconds since 1970 in a float32, whose steps are 128 s apart at that size: within two
   minutes everything was accessed at the same time, and among equals the longest chain goes first.
2. The queue of the evictor is cleaned lazily: a block that is taken back leaves its entry behind. An old entry counts
   as long as its block id is evictable with about the same time - not necessarily with the same content.
3. So an id that was the fourth block of a chain that was hit often, and is now the first block of another one, is
   evicted in the rank of a fourth block: before the blocks that follow it.

A lookup that walks stops at the hole. A binary search, which takes "cached and computed" to be true up to some
position and false from there on, steps over it.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

NO_HASH = 0
CLEANUP_AT = 50
"""Entries per evictable block at which the queue is written anew."""
TOLERANCE = 1e-6
"""Relative: times that are nearer count as the same."""
_MASK, _GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


class PoolFull(Exception):
    """More blocks are wanted than are free or evictable."""


def combine(seed: int, value: int) -> int:
    """One step of the 64-bit hash; a value stands for itself, as std::hash has it."""
    seed ^= (value & _MASK) + _GOLDEN + ((seed << 6) & _MASK) + (seed >> 2) & _MASK
    return seed or 1


def chain(token_ids: Sequence[int], block_size: int, salt: int = NO_HASH) -> list[int]:
    """Hashes of all full blocks; each holds all tokens before it. `salt` goes into the first."""
    hashes: list[int] = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        seed = combine(0, hashes[-1]) if hashes else 0
        for token in token_ids[start : start + block_size]:
            seed = combine(seed, token)
        hashes.append(combine(seed, NO_HASH if hashes else salt))
    return hashes


@dataclass
class _Tracked:
    active: bool = False
    computed: bool = False
    accessed: float = -1.0


@dataclass
class Evictor:
    """Blocks that nobody uses and whose content may still be hit."""

    candidates: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    """Block id -> hash, tokens of the chain up to its end, time of the last access."""
    queue: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, -tokens, block id); entries of blocks that were taken back stay until they come up."""

    def add(self, block: int, block_hash: int, tokens: int, accessed: float) -> None:
        self.candidates[block] = (block_hash, tokens, accessed)
        heapq.heappush(self.queue, (accessed, -tokens, block))
        if len(self.queue) > CLEANUP_AT * len(self.candidates):
            self.queue = [(when, -count, held) for held, (_, count, when) in self.candidates.items()]
            heapq.heapify(self.queue)

    def remove(self, block: int) -> None:
        self.candidates.pop(block, None)

    def evict(self) -> tuple[int, int]:
        """Block id and the hash that it held."""
        while self.queue:
            when, _, block = heapq.heappop(self.queue)
            held = self.candidates.get(block)
            if held is not None and abs(held[2] - when) <= TOLERANCE * max(1.0, abs(when)):
                del self.candidates[block]
                return block, held[0]
        raise PoolFull("no block is free")


@dataclass
class Probe:
    """What a lookup saw of one block."""

    block_hash: int
    block: int | None
    """Its id, where the hash is in the map."""
    computed: bool

    @property
    def cached(self) -> bool:
        """Cached and computed: what both lookups ask."""
        return self.block is not None and self.computed


@dataclass(frozen=True)
class Lookup:
    """Both lookups of one request, as a patched build logs them."""

    probes: tuple[Probe, ...]
    binary: int
    """Blocks that the binary search takes for hit."""
    linear: int
    """Blocks up to the first that is not cached."""


class Allocator:
    """Hands out blocks, remembers what they hold, evicts. Ids begin with 1: block 0 fills up block tables."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.total, self.block_size = blocks, block_size
        self.cached: dict[int, int] = {}
        """Hash -> block id."""
        self._free = deque(range(1, blocks + 1))
        self._references = [0] * (blocks + 1)
        self._tracked = [_Tracked() for _ in range(blocks + 1)]
        self._evictor = Evictor()
        self._touched: set[int] = set()

    @property
    def in_use(self) -> int:
        """Blocks that running requests hold."""
        return self.total - self.available

    @property
    def available(self) -> int:
        """Blocks that are free or can be evicted."""
        return len(self._free) + len(self._evictor.candidates)

    @property
    def filled(self) -> int:
        """Blocks with content that is in use or may be hit."""
        return self.total - len(self._free)

    def is_computed(self, block: int) -> bool:
        """Does the allocator believe that the content is there?"""
        tracked = self._tracked[block]
        return tracked.computed if tracked.active else block in self._evictor.candidates

    def look_up(self, hashes: Sequence[int]) -> Lookup:
        """Longest cached prefix of a chain, by both methods."""
        probes = tuple(self._probe(item) for item in hashes)
        low, high = 0, len(probes)  # std::lower_bound for the first block that is not cached
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if probes[middle].cached else (low, middle)
        walked = next((index for index, probe in enumerate(probes) if not probe.cached), len(probes))
        return Lookup(probes, low, walked)

    def allocate(self, hashes: Sequence[int], tokens: int) -> list[int]:
        """Blocks for a prompt: the cached ones where their hash is in the map, fresh ones for the rest. Raises PoolFull."""
        count = -(-tokens // self.block_size)
        if count > self.available:
            raise PoolFull(f"{count} blocks are needed, {self.available} of {self.total} can be had")
        table = [self._take(item) for item in hashes]
        return table + [self._fresh() for _ in range(count - len(hashes))]

    def fresh(self) -> int:
        """One more block for a request that grows. Raises PoolFull."""
        return self._fresh()

    def promote(self, block: int, block_hash: int) -> int:
        """A block that became full joins the map -> the id to use from now on (another, if that content is cached)."""
        held = self.cached.get(block_hash)
        if held is None:
            self.cached[block_hash] = block
            self._touched.add(block)
            return block
        self._release_hashless(block)
        self._reuse(held)
        return held

    def mark_computed(self) -> None:
        """End of a scheduling step: what joined the map in it counts as computed from now on."""
        for block in self._touched:
            self._tracked[block].computed = True
        self._touched.clear()

    def release(self, table: Iterable[int], hashes: Sequence[int], now_s: float) -> None:
        """Give back the blocks of a request that was last scheduled at `now_s`, seconds since 1970."""
        blocks, accessed = list(table), float(np.float32(now_s))
        for block in blocks:
            self._tracked[block].accessed = accessed
        for index, block in enumerate(blocks):
            if index >= len(hashes):
                self._release_hashless(block)
                continue
            self._references[block] -= 1
            if not self._references[block]:
                self._evictor.add(block, hashes[index], (index + 1) * self.block_size, self._tracked[block].accessed)
                self._tracked[block] = _Tracked()

    def _probe(self, block_hash: int) -> Probe:
        block = self.cached.get(block_hash)
        return Probe(block_hash, block, block is not None and self.is_computed(block))

    def _take(self, block_hash: int) -> int:
        held = self.cached.get(block_hash)
        if held is None:
            return self.promote(self._fresh(), block_hash)
        self._reuse(held)
        return held

    def _reuse(self, block: int) -> None:
        self._references[block] += 1
        if self._references[block] == 1:
            self._evictor.remove(block)
            self._tracked[block] = _Tracked(active=True, computed=True)

    def _fresh(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, block_hash = self._evictor.evict()
            del self.cached[block_hash]
        self._references[block] += 1
        self._tracked[block] = _Tracked(active=True)
        return block

    def _release_hashless(self, block: int) -> None:
        self._references[block] -= 1
        if not self._references[block]:
            self._tracked[block] = _Tracked()
            self._free.append(block)
