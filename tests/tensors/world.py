"""Two runs of one engine for tests: pools of a paged KV cache on disk as .npy files, with tables, and faults to put in."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.tensors.compare import Options, compare
from diag.tensors.cutting import How
from diag.tensors.dump import Dump
from diag.tensors.opening import open_dump
from diag.tensors.result import Comparison, Result

LAYERS, POOL, BLOCK, HEADS, DIM = 4, 12, 16, 2, 32
TOKENS = 60
"""Of the request: four blocks, the last one of 12 tokens."""
Array = npt.NDArray[Any]
Key = tuple[int, int, str]
"""Rank, layer, k or v."""


@dataclass
class Run:
    """Pools of one dump, by rank, layer and kind; the request's blocks in order."""

    pools: dict[Key, Array]
    table: list[int]
    tokens: int = TOKENS
    extra: dict[str, Array] = field(default_factory=dict)
    """Further files, by name."""

    def block(self, key: Key, index: int) -> Array:
        """The pool's own memory: writing to it changes the run."""
        return self.pools[key][self.table[index]]

    def write(self, folder: Path) -> Path:
        ranks = {rank for rank, _, _ in self.pools}
        folder.mkdir(parents=True)
        for (rank, layer, kind), pool in self.pools.items():
            place = folder / f"rank{rank}" if len(ranks) > 1 else folder
            place.mkdir(exist_ok=True)
            np.save(place / f"layers.{layer}.{kind}_cache.npy", pool)
        np.save(folder / "block_table.npy", np.array([self.table], np.int32))
        np.save(folder / "context_lens.npy", np.array([self.tokens], np.int32))
        for name, array in self.extra.items():
            np.save(folder / f"{name}.npy", array)
        return settled(folder)


def settled(folder: Path) -> Path:
    """Written a minute ago: nobody waits to see whether it still grows."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    return folder


def request(seed: int, ranks: int = 1, layers: int = LAYERS, tokens: int = TOKENS, dtype: str = "float32") -> dict[Key, Array]:
    """KV of one request, [tokens, heads, dim]; V of layer 0 is a function of the token id alone."""
    source = np.random.default_rng(seed)
    return {
        (rank, layer, kind): source.standard_normal((tokens, HEADS, DIM)).astype(dtype)
        for rank in range(ranks) for layer in range(layers) for kind in "kv"
    }  # fmt: skip


def run(content: Mapping[Key, Array], table: Sequence[int], rest: int = 99) -> Run:
    """That request in a pool whose other blocks hold what others left there."""
    pools = {}
    leftover = np.random.default_rng(rest)
    for key, rows in content.items():
        pool = leftover.standard_normal((POOL, BLOCK, HEADS, DIM)).astype(rows.dtype)
        for index, physical in enumerate(table):
            part = rows[index * BLOCK : (index + 1) * BLOCK]
            pool[physical][: len(part)] = part
        pools[key] = pool
    return Run(pools, list(table), len(next(iter(content.values()))))


def pair(ranks: int = 1, dtype: str = "float32") -> tuple[Run, Run]:
    """A good and a bad run of the same request, equal so far, in other physical blocks and other leftovers."""
    content = request(1, ranks, dtype=dtype)
    return run(content, (0, 1, 2, 3), 90), run(content, (7, 5, 8, 6), 91)


def opened(path: Path) -> Dump:
    return open_dump(path, settle_s=0)


def compared(folder: Path, good: Run, bad: Run, donors: Mapping[str, Run] | None = None, control: Run | None = None, how: How | None = None) -> Comparison:
    """Written to disk, opened, compared."""
    shutil.rmtree(folder, ignore_errors=True)
    others = [opened(one.write(folder / name)) for name, one in (donors or {}).items()]
    again = None if control is None else opened(control.write(folder / "control"))
    return compare(
        opened(good.write(folder / "good")), opened(bad.write(folder / "bad")), control=again, others=others, options=Options(how or How(BLOCK))
    )


def verdicts(found: Comparison) -> dict[tuple[Any, ...], str]:
    """(rank,) layer, kind, block -> verdict of every block that is not the same."""
    return {place(item): item.verdict for item in found.results if item.verdict != "same"}


def place(item: Result) -> tuple[Any, ...]:
    where = (item.layer, item.role, item.block) if item.block is not None else (item.name,)
    return where if item.rank is None else (item.rank, *where)


def everywhere(blocks: Mapping[int, str], layers: Sequence[int] = range(LAYERS), kinds: str = "kv") -> dict[tuple[Any, ...], str]:
    """The same verdict in all of these layers."""
    return {(layer, kind, block): verdict for layer in layers for kind in kinds for block, verdict in blocks.items()}


def each(one: Run, index: int, change: Callable[[Array], None], layers: Sequence[int] = range(LAYERS), kinds: str = "kv", rank: int = 0) -> None:
    """Change one block of the request in these layers."""
    for layer in layers:
        for kind in kinds:
            change(one.block((rank, layer, kind), index))
