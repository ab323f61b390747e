"""Which rows two runs share where they computed other numbers of tokens.

A prefix hit computes only the last tokens: their rows are compared with the same tokens' rows of a run that computed all. And
where a dump was taken after the answer, answers of other lengths leave the prompt's tokens, which come first, in both.
"""

from dataclasses import dataclass, field

from diag.tensors import views
from diag.tensors.dump import Dump, Tensor
from diag.tensors.measure import content
from diag.tensors.placement import MAX_ENTRIES

Where = tuple[int | None, int | None]
"""Rank and step."""


@dataclass
class Suffixes:
    """Token ids of both runs, by rank and step, and which rows they share."""

    good: Dump
    bad: Dump
    _ids: tuple[dict[Where, bytes], dict[Where, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self._ids = (token_ids(self.good), token_ids(self.bad))

    def aligned(self, good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor] | None:
        """Both with only the rows of the tokens that both runs computed, or None: that is not why their shapes differ."""
        ours, theirs = (_of(ids, tensor) for ids, tensor in zip(self._ids, (good, bad), strict=True))
        if ours is None or theirs is None or len(ours) == len(theirs) or len(good.shape) != len(bad.shape):
            return None
        counts = len(ours) // 8, len(theirs) // 8
        at_end = is_suffix(ours, theirs)
        rows = min(counts) if at_end else _common(ours, theirs)
        for axis in (0, 1) if rows else ():
            if len(good.shape) > axis and (good.shape[axis], bad.shape[axis]) == counts and _rest(good, axis) == _rest(bad, axis):
                begin = (counts[0] - rows, counts[1] - rows) if at_end else (0, 0)
                return views.narrowed(good, axis, begin[0], rows), views.narrowed(bad, axis, begin[1], rows)
        return None

    def common(self, good: Tensor, bad: Tensor) -> int | None:
        """How many tokens both runs begin with in the step of these tensors, where they do not end alike. None: not known, or they do."""
        ours, theirs = (_of(ids, tensor) for ids, tensor in zip(self._ids, (good, bad), strict=True))
        return None if ours is None or theirs is None or is_suffix(ours, theirs) else _common(ours, theirs)


def token_ids(dump: Dump) -> dict[Where, bytes]:
    """Rank and step -> token ids as 64-bit integers; the first of several tensors counts."""
    found: dict[Where, bytes] = {}
    for tensor in dump.tensors:
        if tensor.role == "token_ids" and tensor.offset >= 0 and (tensor.rank, tensor.step) not in found and views.count(tensor) <= MAX_ENTRIES:
            values = content(tensor)
            if values.dtype.kind in "iu":
                found[(tensor.rank, tensor.step)] = values.astype("<i8").tobytes()
    return found


def is_suffix(one: bytes, other: bytes) -> bool:
    """Does one of the two end with the other, and is neither empty?"""
    return bool(one) and bool(other) and (one.endswith(other) or other.endswith(one))


def _common(one: bytes, other: bytes) -> int:
    """Tokens that both begin with."""
    import numpy as np

    size = min(len(one), len(other)) // 8
    unlike = np.flatnonzero(np.frombuffer(one, "<i8", size) != np.frombuffer(other, "<i8", size))
    return int(unlike[0]) if len(unlike) else size


def _of(ids: dict[Where, bytes], tensor: Tensor) -> bytes | None:
    return ids.get((tensor.rank, tensor.step)) or ids.get((None, tensor.step)) or next((found for (_, step), found in ids.items() if step == tensor.step), None)


def _rest(tensor: Tensor, axis: int) -> tuple[int, ...]:
    return (*tensor.shape[:axis], *tensor.shape[axis + 1 :])
