"""One pair of tensors -> results: cut it into blocks where it is a KV tensor, measure, judge."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diag.tensors import outliers, views
from diag.tensors.cutting import KV_ROLES, Cut, How, Span, cut, is_kv, parts
from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.elements import itemsize
from diag.tensors.measure import Figures, Segment, measure_pair
from diag.tensors.pairing import Lone, Pair
from diag.tensors.placement import NOWHERE, Placements
from diag.tensors.result import Result, Side
from diag.tensors.suffix import Suffixes
from diag.tensors.summary import shown, summaries, told
from diag.tensors.verdicts import CLOSE, DEFAULT_LIMITS, Judged, Limits, judge

if TYPE_CHECKING:
    import numpy as np

    Rows = np.ndarray[Any, Any]

Views = Callable[[], tuple[Tensor, Tensor]]
Place = tuple[str, int | None, int | None, int | None]
TELLS_TOKENS = frozenset({"token_ids", "positions"})
ONE_HIT = "only the rows of the tokens that both runs computed are compared: one of them took the others from its cache"
OTHER_LENGTHS = "only the rows of the tokens that both runs begin with are compared: what follows is not the same, as after other answers"
FIRST_CACHES = 4
"""Keys and values of two layers."""
NOT_COMPARED = frozenset({"block_table", "slot_mapping"})
"""Where blocks lie may differ between two runs; it is used to find them, not compared."""
LOST: Mapping[str, str] = {"opaque2": "bfloat16", "opaque1": "float8_e4m3fn"}
"""numpy writes these types without their names: what they are taken for, and it is said."""


@dataclass(frozen=True)
class Noise:
    """How far two good runs are apart: of each tensor the most noisy block, and each block."""

    tensors: Mapping[Place, float]
    blocks: Mapping[tuple[Place, int | None, int | None], float]


@dataclass(frozen=True)
class Wrong:
    """A KV tensor with wrong blocks, to be explained."""

    place: Place
    role: str | None
    good: Cut
    bad: Cut


@dataclass
class Judge:
    """Judges one pair after the other and keeps what has to be told of all of them."""

    good: Placements
    bad: Placements
    how: How
    suffixes: Suffixes
    limits: Limits = DEFAULT_LIMITS
    noise: Noise | None = None
    unread: list[tuple[str, Unread]] = field(default_factory=list)
    unpaired: list[Lone] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)
    """What was assumed, and of how many tensors."""
    hidden_blocks: int = 0
    block_tokens: Counter[int] = field(default_factory=Counter)
    pairs: Sequence[Pair] = ()
    """All that will be judged, in execution order."""
    coarsest: dict[tuple[int | None, int | None], float] = field(default_factory=dict)
    """Rank and step -> the widest tolerance of the element types so far: wider numbers that are computed from them are no better."""
    _ord: int = 0
    _caches: dict[tuple[int | None, int | None], list[Pair]] | None = None
    _written: dict[tuple[int | None, int | None], bool] = field(default_factory=dict)

    def results(self, pair: Pair) -> Iterator[Result]:
        """All results of one pair, in order. What cannot be read is in `unread`."""
        good, bad = pair.good, pair.bad
        if good.role in NOT_COMPARED:
            self.said["block tables and slot mappings are used to find the blocks and not compared: ids may differ between two runs"] += 1
            return
        try:
            yield from self._results(good, bad)
        except ReadError as error:
            side = "bad" if str(bad.file) in str(error) and bad.file != good.file else "good" if str(good.file) in str(error) else "good and bad"
            self.unread.append((side, Unread(bad.source if side == "bad" else good.source, str(error))))

    def _results(self, good: Tensor, bad: Tensor) -> Iterator[Result]:
        if good.offset < 0 or bad.offset < 0:
            yield self._by_summary(good, bad)
            return
        good, bad = self._named(good, bad)
        if good.tiled != bad.tiled:
            reason = f"its elements lie in another order ({good.tiled or 'row by row'} against {bad.tiled or 'row by row'})"
            self.unread.append(("bad", Unread(bad.source, reason)))
            return
        places = (self.good.of(good), self.bad.of(bad)) if _may_be_kv(good) else (NOWHERE, NOWHERE)
        if is_kv(good, places[0], self.how) and views.count(good) and views.count(bad):
            ours, theirs = parts(good), parts(bad)
            cuts = [(cut(a, places[0], self.how), cut(b, places[1], self.how)) for a, b in zip(ours, theirs, strict=False)]
            if len(ours) == len(theirs) and all(a is not None and b is not None and _alike(a, b) for a, b in cuts):
                for a, b, part in zip(*zip(*cuts, strict=True), ours, strict=True):
                    yield from self._blocks(a, b, part)
                return
            self.said[f"not cut into blocks: {'x'.join(map(str, good.shape))} fits no known layout of a cache (say --block-size and --layout)"] += 1
        yield self._whole(good, bad)

    def _named(self, good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        """Types that a file lost: the other side's, else the usual one, and it is said."""
        for lost, usual in LOST.items():
            if good.dtype == lost and bad.dtype == lost:
                self.said[f"{lost} taken as {usual}, whose name a .npy file does not keep (say --dtype if it is another)"] += 1
                return replace(good, dtype=usual), replace(bad, dtype=usual)
            if good.dtype == lost and itemsize(bad.dtype) == itemsize(lost):
                return replace(good, dtype=bad.dtype), bad
            if bad.dtype == lost and itemsize(good.dtype) == itemsize(lost):
                return good, replace(bad, dtype=good.dtype)
        return good, bad

    def _whole(self, good: Tensor, bad: Tensor) -> Result:
        parted = self._parted(good, bad) if good.role in TELLS_TOKENS or good.shape != bad.shape else None
        if good.shape != bad.shape and (parted is None or good.role not in TELLS_TOKENS) and (both := self.suffixes.aligned(good, bad)) is not None:
            self.said[ONE_HIT if self.suffixes.common(good, bad) is None else OTHER_LENGTHS] += 1
            good, bad = both
        if good.shape != bad.shape:
            detail = f"{shown(good.shape)} in the good run, {shown(bad.shape)} in the bad one"
            detail += "" if parted is None else f"; the same up to token {parted}"
            return replace(self._result(good, good, bad, Judged("shape-mismatch", detail=detail), None), parted=parted)
        if parted is not None:
            found = measure_pair(good, bad)
            judged = Judged("different", detail=f"the same up to token {parted}") if not found.whole.difference.equal_values else Judged("same")
            return replace(self._result(good, good, bad, judged, found.whole), parted=parted)
        found = measure_pair(good, bad, row_elements=_row_elements(good))
        rows = found.rows if len(found.rows) else None
        judged = self._judged(good, bad, found.whole, rows, (good.name, good.rank, good.step, good.layer), lambda: (good, bad))
        return self._result(good, good, bad, judged, found.whole)

    def _parted(self, good: Tensor, bad: Tensor) -> int | None:
        """The token of the request (or of all requests in a row) from which the two runs worked on others. None: not known, or on the same ones."""
        common = self.suffixes.common(good, bad)
        starts = [place.positions[0] if place.positions is not None else 0 for place in (self.good.of(good), self.bad.of(bad))]
        return starts[0] + common if common and starts[0] == starts[1] else None

    def _blocks(self, good: Cut, bad: Cut, part: Tensor) -> Iterator[Result]:
        """Block by block. Those that only one run has are unpaired."""
        self.said[f"cache {good.said}" if good.said == bad.said else f"cache {good.said} in the good run, {bad.said} in the bad one"] += 1
        if self.how.block_tokens not in (None, good.block_tokens):
            self.said[f"--block-size {self.how.block_tokens} is not used: this cache has blocks of {good.block_tokens} tokens"] += 1
        self.block_tokens[good.block_tokens] += 1
        place = (part.name, part.rank, part.step, part.layer)
        partners = {(span.request, span.index): span for span in bad.spans}
        pairs = [(span, partners.pop((span.request, span.index), None)) for span in good.spans]
        self._lone_blocks(part, "good", [span for span, partner in pairs if partner is None])
        self._lone_blocks(part, "bad", list(partners.values()))
        any_wrong = False
        both = [(span, partner) for span, partner in pairs if partner is not None]
        null = _null_blocks(good.spans) & _null_blocks(bad.spans)
        if null:
            self.said["null blocks (id 0 in several places of the block table of both runs, as a sliding window leaves them) are not compared"] += 1
            both = [pair for pair in both if (pair[0].request, pair[0].index) not in null]
        for ours, theirs, segment, rows, pair in self._measured(good, bad, both):
            if _is_unused(good, ours, segment):
                self.hidden_blocks += 1
                continue
            judged = self._judged(good.tensor, bad.tensor, segment, rows, place, pair)
            if good.order != bad.order:
                detail = f"{good.said} against {bad.said}; with axes in one order the content is {judged.verdict}"
                judged = replace(judged, verdict="shape-mismatch", doubt=None, detail=detail)
            result = self._result(part, good.tensor, bad.tensor, judged, segment, ours, theirs)
            any_wrong |= result.is_wrong
            yield result
        if any_wrong:
            self.wrong.append(Wrong(place, part.role, good, bad))

    def _measured(self, good: Cut, bad: Cut, spans: Sequence[tuple[Span, Span]]) -> "Iterator[tuple[Span, Span, Segment, Rows | None, Views]]":
        """Each pair of blocks with its segment and the relative L2 of its rows; in one pass where the blocks follow each other."""
        row = None if good.tiled else good.row_elements
        if good.straight and bad.straight and row and len(spans) == len(good.spans) == len(bad.spans) and good.tensor.shape == bad.tensor.shape:
            found = measure_pair(good.tensor, bad.tensor, segment_elements=good.block_tokens * row, row_elements=row)
            done = 0
            for (ours, theirs), segment in zip(spans, found.segments, strict=True):
                rows = found.rows[done : done + ours.tokens] if len(found.rows) else None
                done += ours.tokens
                yield ours, theirs, segment, rows, partial(_two_blocks, good, bad, ours, theirs, ours.tokens)
            return
        for ours, theirs in spans:
            tokens = _common_tokens(ours, theirs)
            if not self._is_written(good, bad, spans):
                tokens = min(tokens, _settled(ours, theirs))
            if tokens == 0:
                self.said["blocks whose every row is written by this very step are not compared where it reads them"] += 1
                continue
            one = measure_pair(*_two_blocks(good, bad, ours, theirs, tokens), row_elements=row)
            yield ours, theirs, one.whole, one.rows if len(one.rows) else None, partial(_two_blocks, good, bad, ours, theirs, tokens)

    def _is_written(self, good: Cut, bad: Cut, spans: Sequence[tuple[Span, Span]]) -> bool:
        """Are the rows that both runs write in this step there already? A cache that is an input may be dumped before or after.

        Those of the first layers tell: they come from equal tokens, so in one of the first cache tensors most are alike if they
        are there at all. What is left from earlier is alike by chance only, or because it is all zero.
        """
        tensor = good.tensor
        if tensor.direction != "input" or not any(_settled(*pair) < _common_tokens(*pair) for pair in spans):
            return True
        key = (tensor.rank, tensor.step)
        if key not in self._written:
            self._written[key] = any(self._is_alike(*cuts) for cuts in self._first_caches(good, bad))
        return self._written[key]

    def _first_caches(self, good: Cut, bad: Cut) -> Iterator[tuple[Cut, Cut]]:
        """This cache tensor, and the next ones of its rank and step."""
        yield good, bad
        if self._caches is None:
            self._caches = _first_pairs(self.pairs)
        for pair in self._caches.get((good.tensor.rank, good.tensor.step), ()):
            if pair.good.direction != "input" or min(pair.good.offset, pair.bad.offset) < 0:
                continue
            for one, other in zip(parts(pair.good), parts(pair.bad), strict=False):
                ours, theirs = cut(one, self.good.of(pair.good), self.how), cut(other, self.bad.of(pair.bad), self.how)
                if ours is not None and theirs is not None and _alike(ours, theirs) and ours.tensor.dtype == theirs.tensor.dtype:
                    yield ours, theirs

    def _is_alike(self, good: Cut, bad: Cut) -> bool:
        """Are most of the blocks that both runs write in this step alike, and not for being empty?"""
        partners = {(span.request, span.index): span for span in bad.spans}
        both = [(span, partners[span.request, span.index]) for span in good.spans if (span.request, span.index) in partners]
        fresh = [pair for pair in both if _settled(*pair) < _common_tokens(*pair)]
        alike = 0
        for pair in fresh:
            found = measure_pair(*_two_blocks(good, bad, *pair, _common_tokens(*pair))).whole
            rel = found.difference.rel_l2
            alike += rel is not None and rel <= self.limits.close(good.tensor.dtype) and found.good.zeros < found.good.count
        return 2 * alike >= len(fresh)

    def _lone_blocks(self, part: Tensor, side: str, spans: Sequence[Span]) -> None:
        if spans:
            listed = ", ".join(str(span.index) for span in spans[:8]) + (" …" if len(spans) > 8 else "")
            self.unpaired.append(Lone(side, part, f"only the {side} dump has block {listed} of it"))

    def _judged(self, good: Tensor, bad: Tensor, segment: Segment, rows: "Rows | None", place: Place, pair: Views) -> Judged:
        noise = None if self.noise is None else self.noise.tensors.get(place)
        limits = self._limits(good)
        coarser = max(good.dtype, bad.dtype, key=limits.close) if {good.dtype, bad.dtype} <= CLOSE.keys() else good.dtype
        judged = judge(coarser, segment.good, segment.bad, segment.difference, rows, limits, noise)
        if good.dtype != bad.dtype:
            words = "values are equal" if judged.verdict == "same" else f"values are {judged.doubt or judged.verdict}"
            return replace(judged, verdict="dtype-mismatch", doubt=None, detail=f"{good.dtype} in the good run, {bad.dtype} in the bad one; {words} when widened")
        if judged.verdict == "close" and rows is not None and outliers.may_hide(segment.good):
            hidden = outliers.hidden_rows(*pair(), len(rows))
            if len(hidden):
                detail = f"{len(hidden)} of {len(rows)} rows hold other content, which a few huge channels hide"
                return replace(judged, verdict="different", doubt=None, detail=detail, rows_differ=len(hidden), first_row=int(hidden[0]))
        return judged

    def _limits(self, tensor: Tensor) -> Limits:
        """Float32 logits of a bfloat16 model are as far apart as its bfloat16 tensors."""
        own, key = self.limits.close(tensor.dtype), (tensor.rank, tensor.step)
        if tensor.dtype not in CLOSE:
            return self.limits
        widest = self.coarsest[key] = max(own, self.coarsest.get(key, 0.0))
        return self.limits if widest == own or tensor.role in KV_ROLES else replace(self.limits, least=widest)

    def _result(
        self, part: Tensor, good: Tensor, bad: Tensor, judged: Judged, segment: Segment | None, ours: Span | None = None, theirs: Span | None = None
    ) -> Result:  # fmt: skip
        self._ord += 1
        place = (part.name, part.rank, part.step, part.layer)
        request, block = (None, None) if ours is None else (ours.request, ours.index)
        one, other = (None, None) if segment is None else (segment.good, segment.bad)
        return Result(
            *place, part.role, part.op, part.direction, request, block, self._ord - 1,
            _side(good, one, ours), _side(bad, other, theirs), judged.verdict, None if segment is None else segment.difference,
            judged.doubt, judged.detail, judged.rows_differ, judged.rows_of, judged.first_row,
            None if self.noise is None else self.noise.blocks.get((place, request, block)),
        )  # fmt: skip

    def _by_summary(self, good: Tensor, bad: Tensor) -> Result:
        """Only the figures that the dumps tell: equal ones prove little, other ones do."""
        self.said["figures only: the dump holds no content, and equal figures do not prove equal content (dump tensors, not statistics)"] += 1
        self._ord += 1
        verdict, detail = summaries(good, bad, self.limits)
        return Result(good.name, good.rank, good.step, good.layer, good.role, good.op, good.direction, None, None, self._ord - 1, told(good), told(bad), verdict, detail=detail)


def _first_pairs(pairs: Sequence[Pair]) -> dict[tuple[int | None, int | None], list[Pair]]:
    """Rank and step -> the first cache tensors of both runs."""
    found: dict[tuple[int | None, int | None], list[Pair]] = {}
    for pair in pairs:
        if pair.good.role in KV_ROLES:
            first = found.setdefault((pair.good.rank, pair.good.step), [])
            if len(first) < FIRST_CACHES:
                first.append(pair)
    return found


def _is_unused(good: Cut, span: Span, segment: Segment) -> bool:
    """A block of a pool without a table that holds zeros in both runs."""
    loose = good.straight and good.tensor.shape[0] > 1 and span.request is None
    return loose and segment.difference.equal_values and segment.good.zeros == segment.good.count


def _null_blocks(spans: Sequence[Span]) -> set[tuple[int | None, int]]:
    """Blocks of a request that have left its window: physical id 0 in more than one place."""
    zero = [(span.request, span.index) for span in spans if span.physical == 0]
    often = Counter(request for request, _ in zero)
    return {(request, index) for request, index in zero if often[request] > 1}


def _two_blocks(good: Cut, bad: Cut, ours: Span, theirs: Span, tokens: int) -> tuple[Tensor, Tensor]:
    return good.block(ours, tokens), bad.block(theirs, tokens)


def _common_tokens(ours: Span, theirs: Span) -> int:
    """Rows that both have."""
    return min(ours.tokens, theirs.tokens)


def _settled(ours: Span, theirs: Span) -> int:
    """Rows before those that both runs write in this very step."""
    return max(ours.settled, theirs.settled)


def _alike(good: Cut, bad: Cut) -> bool:
    return good.block_tokens == bad.block_tokens and good.tensor.shape[2:] == bad.tensor.shape[2:] and good.tiled == bad.tiled


def _may_be_kv(tensor: Tensor) -> bool:
    return tensor.role in KV_ROLES or (tensor.role is None and len(tensor.shape) in (4, 5))


def _row_elements(tensor: Tensor) -> int | None:
    """Elements of one token row of an activation [tokens, …] or [1, tokens, …]; None: it has no rows."""
    shape = list(tensor.shape)
    while len(shape) > 2 and shape[0] == 1:
        shape.pop(0)
    row: int = math.prod(shape[1:])
    return row if len(shape) > 1 and not tensor.tiled and row * shape[0] else None


def _side(tensor: Tensor, figures: Figures | None, span: Span | None) -> Side:
    shape = tensor.shape if span is None else (span.tokens, *tensor.shape[2:])
    return Side(tensor.dtype, shape, figures, None if span is None else span.physical)
