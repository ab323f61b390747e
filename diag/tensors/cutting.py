"""A KV tensor as the token blocks of its requests, whatever the order of its axes. Nothing is copied.

Layouts that are known, N blocks of B tokens, H heads of D elements:

    NHD pool            [N, B, H, D]            vLLM, MindIE
    HND pool            [N, H, B, D]            FlashInfer, Ascend NZ as it lies
    keys and values     [2, N, B, H, D] or [N, 2, B, H, D], and the same with H and B changed over
    packed keys         [N, H, D/x, B, x]       paged attention of old
    latent pool         [N, B, D]               MLA
    sequences           [tokens, H, D], [tokens, H*D], [requests, H, tokens, D], [requests, 2, H, tokens, D]

With a block table block i is the i-th of the request and its physical ids are told; without one, pool blocks go by
physical id. Rows behind a request's length are padding and never compared.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from diag.tensors import views
from diag.tensors.dump import Tensor
from diag.tensors.placement import Placement, Request
from diag.tensors.verdicts import CLOSE

KV_ROLES = frozenset({"k", "v", "kv"})
COMMON_BLOCKS = frozenset({16, 32, 64, 128, 256, 512})
DEFAULT_TOKENS = 16
"""Block size of sequences where nobody said one."""


@dataclass(frozen=True)
class How:
    """What a person said about KV tensors. `layout`: auto | nhd | hnd."""

    block_tokens: int | None = None
    layout: str = "auto"


@dataclass(frozen=True)
class Span:
    """One block: rows `start` to `start + tokens` of `at` on the first axis of the cut tensor."""

    request: int | None
    index: int
    at: int
    start: int
    tokens: int
    token: int
    """Number of its first row in the request."""
    physical: int | None = None
    settled: int = 1 << 62
    """Rows before the first one that this very step writes."""


@dataclass(frozen=True)
class Cut:
    """A KV tensor with its axes in the order [block or sequence, token, …], and its blocks."""

    tensor: Tensor
    block_tokens: int
    spans: tuple[Span, ...]
    said: str
    """Its layout in words."""
    straight: bool
    """The spans are the tensor from its first element to its last, each but the last of the same size."""
    order: str = ""
    """NHD, HND, …: the order of its axes."""
    tiled: bool = False
    """The order of elements inside a block is not known: no token rows."""

    @property
    def row_elements(self) -> int:
        return math.prod(self.tensor.shape[2:])

    def block(self, span: Span, tokens: int | None = None) -> Tensor:
        """One block as a tensor [tokens, …]; `tokens`: only its first ones."""
        return views.narrowed(views.selected(self.tensor, 0, span.at), 0, span.start, span.tokens if tokens is None else tokens)


def is_kv(tensor: Tensor, place: Placement, how: How) -> bool:
    """Keys or values of a cache, by what its name says, or by the shape of a pool beside a block table."""
    if tensor.role in KV_ROLES:
        return len(tensor.shape) >= 2
    if tensor.role is not None or len(tensor.shape) not in (4, 5):
        return False
    if not place.has_table:
        return len(tensor.shape) == 4 and how.block_tokens in tensor.shape[1:3] and tensor.shape[0] > 1 and tensor.dtype in CLOSE
    bound = how.block_tokens in tensor.shape[1:-1] if how.block_tokens is not None else bool(COMMON_BLOCKS & {*tensor.shape[1:-1]})
    return bound and max(max(request.table or (0,)) for request in place.requests) < tensor.shape[0]


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Keys and values apart, where one tensor holds both: name[k], name[v]."""
    if tensor.role in ("k", "v") or len(tensor.shape) not in (4, 5):
        return (tensor,)
    axis = next((axis for axis in (1, 0) if tensor.shape[axis] == 2), None)  # of two requests both are 2; no pool has two blocks
    if axis is None or (len(tensor.shape) == 4 and tensor.role != "kv"):
        return (tensor,)
    keys, values = (views.selected(tensor, axis, index, f"{tensor.name}[{'kv'[index]}]") for index in (0, 1))
    return views.with_role(keys, "k"), views.with_role(values, "v")


def cut(tensor: Tensor, place: Placement, how: How) -> Cut | None:
    """The blocks of one KV tensor (see `parts`), or None: it has no token axis that is known."""
    if not views.count(tensor):
        return None
    if tensor.tiled:
        return _tiled(tensor, place)
    match len(tensor.shape):
        case 2:
            return _sequences(_with_axis(tensor), place, how, "[tokens, elements]")
        case 3:
            return _three_axes(tensor, place, how)
        case 4:
            return _four_axes(tensor, place, how)
        case 5 if tensor.shape[3] == how.block_tokens or tensor.shape[3] in COMMON_BLOCKS:
            return _pool(views.permuted(tensor, (0, 3, 1, 2, 4)), place, "packed [blocks, heads, elements/x, tokens, x]", tensor)
    return None


def _three_axes(tensor: Tensor, place: Placement, how: How) -> Cut | None:
    """[tokens, heads, elements], or a latent pool [blocks, tokens, elements]."""
    rows, middle, _ = tensor.shape
    computed = place.tokens == rows or (place.positions is not None and place.positions[1] == rows)
    fits = middle == how.block_tokens or (how.block_tokens is None and place.has_table and middle in COMMON_BLOCKS)
    if fits and not computed and (tensor.role == "kv" or place.has_table):
        return _pool(tensor, place, "latent pool [blocks, tokens, elements]", tensor)
    if how.layout == "hnd":
        return _sequences(_with_axis(views.permuted(tensor, (1, 0, 2))), place, how, "[heads, tokens, elements]")
    return _sequences(_with_axis(tensor), place, how, "[tokens, heads, elements]")


def _four_axes(tensor: Tensor, place: Placement, how: How) -> Cut | None:
    first, second, third, _ = tensor.shape
    swapped = views.permuted(tensor, (0, 2, 1, 3))
    nhd, hnd = "NHD pool [blocks, tokens, heads, elements]", "HND pool [blocks, heads, tokens, elements]"
    if _is_pool(tensor, place, how):
        sizes = {how.block_tokens} if how.block_tokens in (second, third) else COMMON_BLOCKS  # a size that it cannot have tells nothing
        fits = {size for size in (second, third) if all(request.fits(size) for request in place.requests)}
        if how.layout == "hnd" or (how.layout == "auto" and third in sizes & fits and (second not in sizes or second not in fits)):
            return _pool(swapped, place, hnd, tensor)
        return _pool(tensor, place, nhd, tensor)
    longest = max((request.length or 0 for request in place.requests), default=0)
    if how.layout == "nhd" or (how.layout == "auto" and (second > third or third < longest <= second)):
        return _sequences(tensor, place, how, "[requests, tokens, heads, elements]", batch=True)
    return _sequences(swapped, place, how, "[requests, heads, tokens, elements]", batch=first > 0)


def _is_pool(tensor: Tensor, place: Placement, how: How) -> bool:
    """Against one sequence per request, [requests, …]."""
    if place.has_table:
        return True
    if how.block_tokens is not None and how.block_tokens in tensor.shape[1:3]:
        return True
    lengths = [request.length for request in place.requests]
    return tensor.shape[0] > 1 and len(lengths) != tensor.shape[0] and bool(COMMON_BLOCKS & {*tensor.shape[1:3]})


def _pool(tensor: Tensor, place: Placement, said: str, whole: Tensor) -> Cut:
    blocks, size = tensor.shape[:2]
    shown = f"{said} {'x'.join(map(str, whole.shape))}"
    if place.has_table:
        if not all(request.fits(size) for request in place.requests):
            shown += ", though its block table is too short for all tokens in such blocks (is --layout right?)"
        spans = tuple(span for row, request in enumerate(place.requests) for span in _of_table(row, request, blocks, size, place))
        return Cut(tensor, size, spans, shown, straight=False, order=said)
    loose = tuple(Span(None, at, at, 0, size, at * size) for at in range(blocks))
    return Cut(tensor, size, loose, f"{shown}, no block table: by physical id", straight=True, order=said)


def _of_table(row: int, request: Request, blocks: int, size: int, place: Placement) -> Iterator[Span]:
    used = request.blocks(size)
    length = len(used) * size if request.length is None else request.length
    for index, physical in enumerate(used):
        if physical < blocks:
            slots = range(physical * size, (physical + 1) * size)
            settled = next((offset for offset, slot in enumerate(slots) if slot in place.written), 1 << 62) if place.written else 1 << 62
            yield Span(row if len(place.requests) > 1 else None, index, physical, 0, min(size, length - index * size), index * size, physical, settled)


def _sequences(tensor: Tensor, place: Placement, how: How, said: str, *, batch: bool = False) -> Cut:
    """[sequence, token, …]: one that may hold several requests in a row, or one for each request."""
    size = how.block_tokens or DEFAULT_TOKENS
    count, rows = tensor.shape[:2]
    lengths = [request.length for request in place.requests]
    known = "" if how.block_tokens is not None else f", blocks of {size} tokens assumed"
    if batch and count > 1:
        ends = [rows if at >= len(lengths) else min(rows, lengths[at] or rows) for at in range(count)]
        spans = tuple(span for at in range(count) for span in _stretch(at, at, 0, ends[at], 0, size))
        return Cut(tensor, size, spans, said + known, straight=all(end == rows for end in ends) and rows % size == 0, order=said)
    if len(lengths) > 1 and place.tokens == rows:
        starts = [sum(length or 0 for length in lengths[:at]) for at in range(len(lengths))]
        spans = tuple(span for at, start in enumerate(starts) for span in _stretch(at, 0, start, lengths[at] or 0, 0, size))
        return Cut(tensor, size, spans, said + known, straight=False, order=said)
    first = place.positions[0] if place.positions is not None and place.positions[1] == rows else 0
    end = rows if len(lengths) != 1 or lengths[0] is None or first else min(rows, lengths[0])
    if how.block_tokens is not None and end % size:
        known = f", --block-size {size} does not divide its {end} tokens: the last block has {end % size}"
    return Cut(tensor, size, tuple(_stretch(None, 0, 0, end, first, size)), said + known, straight=first % size == 0 and end == rows, order=said)


def _stretch(request: int | None, at: int, start: int, tokens: int, position: int, size: int) -> Iterator[Span]:
    """Blocks of `tokens` rows whose first is token `position` of the request: blocks begin at multiples of the block size."""
    done = 0
    while done < tokens:
        rows = min(size - (position + done) % size, tokens - done)
        yield Span(request, (position + done) // size, at, start + done, rows, position + done)
        done += rows


def _tiled(tensor: Tensor, place: Placement) -> Cut | None:
    """Whole blocks of a pool in an order of its own; a block that is not full is compared as it is."""
    if len(tensor.shape) < 3 or not place.has_table or tensor.strides is not None:
        return None
    size = tensor.shape[1]
    spans = tuple(
        Span(row if len(place.requests) > 1 else None, index, physical, 0, size, index * size, physical)
        for row, request in enumerate(place.requests) for index, physical in enumerate(request.blocks(size)) if physical < tensor.shape[0]
    )  # fmt: skip
    return Cut(tensor, size, spans, f"{tensor.tiled} pool {'x'.join(map(str, tensor.shape))}, no token rows", straight=False, tiled=True)


def _with_axis(tensor: Tensor) -> Tensor:
    """[tokens, …] -> [1, tokens, …]."""
    return views.part(tensor, (1, *tensor.shape), (math.prod(tensor.shape), *views.strides(tensor)))
