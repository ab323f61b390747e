"""Which stretch of rows elsewhere a block's rows are equal to, or alike: votes of its rows for (where, by how many rows moved).

Rows are recognised by their digest, so one pass over the places that may hold them is enough and nothing is kept but the
votes. Rows that repeat inside a block (zeros, a fill pattern) say nothing and have no vote.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from diag.tensors import outliers, views
from diag.tensors.cutting import Cut, Span
from diag.tensors.dump import Tensor
from diag.tensors.measure import content, digests

if TYPE_CHECKING:
    import numpy as np

REPEATED = 3
"""A row that a block holds so often is no sign."""
PLACES = 16
"""Votes of one row at most, wherever it is found."""
BATCH_ROWS = 2_048
READ, HELD, WROTE = range(3)
"""What a dump did with a block: its step only read it where the bad run did; it has it; its step filled it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A stretch of tokens that may be elsewhere: one request of a dump, or one block of a pool that belongs to none."""

    dump: str
    name: str
    step: int | None
    request: int | None
    physical: int | None = None
    """Of a block without a request."""


@dataclass(frozen=True, slots=True)
class Match:
    """Rows of a block found at one origin, all moved by the same number of rows."""

    origin: Origin
    shift: int
    """Token of the origin minus token of the block, in the count of their requests."""
    rows: int
    block: int
    """Where most of them are."""
    exact: bool = True
    which: int = 0
    """Bit n: the n-th row of the block is among them."""
    hand: int = HELD
    """READ, HELD or WROTE."""
    wrote: int = 0
    """Rows of that block that its dumped step fills."""


Key = Hashable


@dataclass
class Votes:
    """Votes of the rows of some blocks (`Key`), each row with the token number it has in its own request."""

    wanted: dict[bytes, list[tuple[Key, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Digest -> block, token number, number of the row in its block."""
    cast: dict[Key, dict[tuple[Origin, int], Counter[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Counter)))
    which: dict[Key, dict[tuple[Origin, int], int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    whole: dict[tuple[bytes, ...], list[tuple[Key, int]]] = field(default_factory=lambda: defaultdict(list))

    def want(self, key: Key, rows: Mapping[int, bytes], whole: Sequence[bytes], first: int) -> None:
        """Look for these rows, token number -> digest, and for a block of exactly the rows `whole`, the first of them token `first`."""
        if len(set(whole)) > 1 or len(whole) == 1:
            self.whole[tuple(whole)].append((key, first))
        often = Counter(rows.values())
        for token, digest in rows.items():
            if often[digest] < REPEATED:
                self.wanted[digest].append((key, token, token - first))

    def offer(self, origin: Origin, block: int, first_token: int, rows: Sequence[bytes]) -> None:
        """Rows of one block of an origin, the first of them token `first_token` there."""
        equal = self.whole.get(tuple(rows), ())
        for key, token in equal:
            self.vote(key, (origin, first_token - token), block, len(rows), (1 << len(rows)) - 1)
        done = {key for key, _ in equal}
        for number, digest in enumerate(rows):
            for key, token, row in self.wanted.get(digest, ())[:PLACES]:
                if key not in done:
                    self.vote(key, (origin, first_token + number - token), block, 1, 1 << row)

    def vote(self, key: Key, place: tuple[Origin, int], block: int, rows: int, which: int) -> None:
        """So many rows of that block were found at a place (origin and shift)."""
        self.cast[key][place][block] += rows
        self.which[key][place] |= which

    def best(self, key: Key) -> list[Match]:
        """What was found, most rows first."""
        found = [
            Match(origin, shift, blocks.total(), blocks.most_common(1)[0][0], which=self.which[key][(origin, shift)])
            for (origin, shift), blocks in self.cast.get(key, {}).items()
        ]
        return sorted(found, key=lambda item: -item.rows)


def row_digests(cut: Cut, span: Span) -> list[bytes]:
    """One digest per token row of a block; of a tiled one a digest of the whole."""
    block = cut.block(span)
    return digests(block, views.count(block) if cut.tiled else cut.row_elements)


def nearest(wanted: Sequence[tuple[Key, int, Tensor]], candidates: Iterable[tuple[Origin, int, int, Tensor]], tolerance: float) -> dict[Key, list[Match]]:
    """The same by distance, for runs whose rounding differs: rows within `tolerance` (relative L2) of each other are alike.

    `wanted`: key, token number of the first row, block; `candidates`: origin, block, token number of the first row, block.
    """
    import numpy as np

    votes = Votes()
    rows = np.concatenate([_rows(tensor) for _, _, tensor in wanted])
    owners = [(key, token + number, number) for key, token, tensor in wanted for number in range(tensor.shape[0])]
    sizes = np.einsum("ij,ij->i", rows, rows)
    for batch in _batches(candidates):
        theirs = np.concatenate([_rows(tensor) for _, _, _, tensor in batch])
        places = [(origin, block, token + number) for origin, block, token, tensor in batch for number in range(tensor.shape[0])]
        norms = np.einsum("ij,ij->i", theirs, theirs)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = norms[:, None] + sizes[None, :] - 2 * (theirs @ rows.T)
            alike = (apart <= tolerance**2 * norms[:, None]) & (norms[:, None] > 0)
        for place, row in zip(*np.nonzero(alike), strict=True):
            (origin, block, there), (key, token, number) = places[place], owners[row]
            votes.vote(key, (origin, there - token), block, 1, 1 << number)
    found = {key: votes.best(key) for key, _, _ in wanted}
    return {key: [replace(match, exact=False) for match in matches] for key, matches in found.items()}


def _rows(tensor: Tensor) -> "np.ndarray[Any, Any]":
    import numpy as np

    wide = outliers.values(content(tensor), tensor.dtype).reshape(tensor.shape[0], -1)
    return wide.astype(np.float64, copy=False)


def _batches(candidates: Iterable[tuple[Origin, int, int, Tensor]]) -> Iterable[list[tuple[Origin, int, int, Tensor]]]:
    batch: list[tuple[Origin, int, int, Tensor]] = []
    rows = 0
    for candidate in candidates:
        batch.append(candidate)
        rows += candidate[3].shape[0]
        if rows >= BATCH_ROWS:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch
