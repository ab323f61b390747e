"""Which blocks of a prefix are reused: a walk to the first miss, and the binary search that takes holes for hits.

A mask says of each block of one request whether it is cached and computed. Blocks are chained, so that only a leading
run can be reused. `std::lower_bound` (MindIE up to 2.2) and `bisect_left` (vLLM V0) look at O(log n) of the blocks and
are right only for masks of the form T..TF..F.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Replay:
    """Both answers over one mask, in blocks."""

    blocks: int
    linear: int
    binary: int
    hole: int | None
    """The first missing block before the binary answer; None: there is none."""
    probes: tuple[int, ...]
    """Blocks that the binary search looks at, in its order."""

    @property
    def disagrees(self) -> bool:
        """A binary answer beyond the walk's reuses a block that is not there; one below it only wastes work."""
        return self.binary != self.linear


def replay(mask: Sequence[bool]) -> Replay:
    """Both answers over a mask."""
    seen: list[int] = []
    binary = _search(mask, seen)
    leading = linear(mask)
    return Replay(len(mask), leading, binary, leading if leading < binary else None, tuple(seen))


def linear(mask: Sequence[bool]) -> int:
    """Length of the leading run of blocks that are there."""
    return next((position for position, there in enumerate(mask) if not there), len(mask))


def lower_bound(mask: Sequence[bool]) -> int:
    """What `std::lower_bound` and `bisect_left` answer: the place of the first miss if the mask is T..TF..F."""
    return _search(mask, [])


def blind_spots(blocks: int, cached: int | None = None) -> tuple[int, ...]:
    """Positions whose block can be missing without a binary search over `blocks` noticing: its answer stays the same.

    `cached`: length of the chain as it should be, where not all of the blocks are cached (default: all).
    """
    chain = blocks if cached is None else cached
    if not 0 <= chain <= blocks:
        raise ValueError(f"{chain} of {blocks} blocks cannot be cached")
    looked_at: list[int] = []
    _search([position < chain for position in range(blocks)], looked_at)
    return tuple(position for position in range(chain) if position not in set(looked_at))


def _search(mask: Sequence[bool], seen: list[int]) -> int:
    """The loop of libstdc++'s lower_bound, with `element < value` meaning that the block is there."""
    first, count = 0, len(mask)
    while count > 0:
        step = count // 2
        seen.append(first + step)
        if mask[first + step]:
            first += step + 1
            count -= step + 1
        else:
            count = step
    return first
