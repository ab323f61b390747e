"""The first divergence in execution order, what merely follows from it, and where wrong blocks point at.

Keys and values of a layer are read before the layer computes anything, so they come before its outputs whatever the order of
the files. A KV block that is wrong while all that was computed before is right is bad KV input, not a broken kernel. A tensor
far off whose successors all match was not what the engine computed with: a hook saved a reference, and the memory was used
again (a capture artefact). Where the figures grow step by step without a jump, rounding adds up and no operation is to blame.
"""

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from diag.tensors.artefacts import artefacts
from diag.tensors.consequences import KV, is_behind, lowest_layers
from diag.tensors.result import First, Result, Scope
from diag.tensors.shelf import Picked, Shelf
from diag.tensors.verdicts import ARTEFACT, CLOSE, DIFFERENT, GOOD_VERDICTS

INPUTS = frozenset({"token_ids", "positions", "context_lens"})
JUMP = 10.0
"""An operation to blame is off by at least so many times what came before it (or than rounding)."""


def in_order(results: Sequence[Result]) -> Sequence[Result]:
    """Execution order: as dumped, but the cache of a layer before what the layer gives out."""
    opened: dict[tuple[int | None, int | None, int], int] = {}
    for item in results:
        if item.layer is not None and item.role not in KV and item.direction != "input":
            where = (item.rank, item.step, item.layer)
            opened[where] = min(item.ord, opened.get(where, item.ord))
    def key(item: Result) -> tuple[float, int]:
        if item.role in KV and item.layer is not None:
            return min(item.ord, opened.get((item.rank, item.step, item.layer), item.ord) - 0.5), item.ord
        return item.ord, item.ord
    keys = [key(item) for item in results]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return results if order == list(range(len(keys))) else Picked(results, order)


def mark(results: Sequence[Result]) -> tuple[Sequence[Result], First | None]:
    """Results in execution order with the first divergence, what follows from it, and capture artefacts marked."""
    ordered = in_order(results)
    if not any(item.is_wrong for item in ordered):
        return ordered, None
    saved_late = artefacts(ordered)
    first = _chosen(ordered, saved_late)
    by_themselves = {
        (item.request, item.step, item.block) for item in ordered
        if item.is_wrong and item.role in KV and item.layer == 0 and item.ord not in saved_late and item.is_retyped == first.is_retyped
    }  # fmt: skip
    marked = Shelf(Result, _marked(ordered, first, saved_late, by_themselves))
    return marked, _first(next(item for item in marked if item.is_first), ordered)


def _chosen(ordered: Sequence[Result], saved_late: Container[int]) -> Result:
    """The first that is wrong: by its content rather than by its type alone, and an artefact only where there is nothing else."""
    first: dict[int, Result] = {}
    before = _first_wrong_token(ordered)
    for item in ordered:
        if item.is_wrong:
            rank = 3 if _is_beside(item, before) else 2 if item.ord in saved_late else 1 if item.is_retyped else 0
            first.setdefault(rank, item)
            if rank == 0:
                break
    return first[min(first)]


def _first_wrong_token(results: Iterable[Result]) -> int | None:
    """Behind which token of its request the first wrong block of the cache ends. None: no block is wrong."""
    sizes: dict[tuple[object, ...], int] = {}
    ends: list[tuple[tuple[object, ...], int, int]] = []
    for item in results:
        if item.block is not None and item.role in KV and item.good.shape:
            sizes[item.place] = max(sizes.get(item.place, 0), item.good.shape[0])
            if item.is_wrong and not item.is_retyped:
                ends.append((item.place, item.block, item.good.shape[0]))
    return min((block * sizes[place] + rows for place, block, rows in ends), default=None)


def _is_beside(item: Result, wrong: int | None) -> bool:
    """Does it tell of other answers, or of when the dump was taken, but not why tokens before that are wrong?

    `wrong`: see `_first_wrong_token`. How long a request is differs whenever its answer does.
    """
    if item.role == "context_lens":
        return True
    return item.role in INPUTS and wrong is not None and item.parted is not None and wrong <= item.parted


def about_lengths(results: Sequence[Result], first: First | None) -> Iterator[str]:
    """What tells of other answers and is not the first divergence, in words."""
    if first is None or first.kind == "input":
        return
    found = [item for item in results if item.role in INPUTS and item.is_wrong]
    names = ", ".join(dict.fromkeys(item.name for item in found))
    parted = [item.parted for item in found if item.parted is not None]
    if names:
        since = f" (tokens are the same up to token {min(parted)})" if parted else ""
        yield f"{names} differ{'s' if ',' not in names else ''} between the two dumps{since}, as after answers of other lengths: no reason for what is wrong before that"


def _marked(
    ordered: Sequence[Result], first: Result, saved_late: Container[int], by_themselves: Container[tuple[int | None, int | None, int | None]]
) -> Iterator[Result]:
    after = False
    for item in ordered:
        doubt = ARTEFACT if item.ord in saved_late else item.doubt
        is_first = item.ord == first.ord
        follows = after and item.is_wrong and not item.is_retyped and (item.role not in INPUTS or first.role in INPUTS) and doubt != ARTEFACT and not _independent(item, first, by_themselves)
        yield replace(item, doubt=doubt, is_first=is_first, follows=follows) if is_first or follows or doubt != item.doubt else item
        after |= is_first


def _independent(item: Result, first: Result, by_themselves: Container[tuple[int | None, int | None, int | None]]) -> bool:
    """A block of the cache that is wrong by itself: wrong in layer 0 already, the same block elsewhere, or an earlier one."""
    if item.role not in KV or first.role not in KV or item.block is None or first.block is None:
        return False
    if (item.request, item.step, item.block) in by_themselves:
        return True
    return item.alias is not None or item.request != first.request or item.block <= first.block


def _first(item: Result, ordered: Sequence[Result]) -> First:
    place = _place(item)
    if item.is_retyped:
        return First(item, "other", _retyped(item, ordered))
    if item.is_artefact:
        return First(item, "artefact", f"{place} is far off, but everything computed after it matches: probably the dump, not the run (a hook that kept a reference)")
    if item.role in INPUTS:
        if item.role == "context_lens":
            return First(item, "input", f"{place} differs and nothing else does: the dumps were taken after answers of other lengths, or of other prompts")
        return First(item, "input", f"{place} differs: the two runs were not given the same input")
    if item.role in KV:
        before = sum(
            other.role is None and (other.rank, other.step) == (item.rank, item.step) and other.ord != item.ord and not other.is_wrong
            and (other.layer is None or item.layer is None or other.layer < item.layer)
            for other in ordered
        )  # fmt: skip
        seen = f", while {_tensors(before)} computed before it match" if before else ""
        if everything(ordered) is not None:
            return First(item, "other", f"{place} is the first that differs{seen}, and so do all blocks of the cache")
        return First(item, "bad-kv", f"{place} is wrong where the run reads it{seen}: bad KV cache input")
    if item.verdict == "nan":
        return First(item, "nan", f"{place} is the first with NaN or Inf that the good run does not have")
    return _computed(item, ordered, place)


def _retyped(item: Result, ordered: Sequence[Result]) -> str:
    count = sum(other.is_retyped for other in ordered)
    of = sum(other.role not in INPUTS for other in ordered)
    where = "everywhere" if count >= of else f"in {count} of {of} tensors and blocks"
    return f"only the types differ, {where} ({item.good.dtype} against {item.bad.dtype}): the values are equal or close when widened, no content is wrong"


def _computed(item: Result, ordered: Sequence[Result], place: str) -> First:
    """An activation: inputs same and output different is an operation; without a jump it is rounding that adds up."""
    inputs, last = 0, None
    for other in ordered:
        if (other.rank, other.step) == (item.rank, item.step):
            inputs += bool(other.op) and other.op == item.op and other.direction == "input"
            if other.ord < item.ord and other.role is None:
                last = _rel(other)
    now = _rel(item)
    floor = max(CLOSE.get(item.bad.dtype, 0.0), last or 0.0)
    if last is not None and now is not None and floor > 0 and now / floor <= JUMP and item.verdict == "different" and not item.rows_differ:
        return First(item, "drift", f"{place} differs without a jump ({now:.2g} after {last:.2g}): rounding that adds up, compare with a control run")
    if item.direction == "input":
        return First(item, "other", f"{place} is the first that differs, and it is the input of its operation: what gives it out was not dumped")
    if inputs:
        return First(item, "operation", f"{place} differs while the {_tensors(inputs)} that its operation reads match: the operation itself")
    return First(item, "operation", f"{place} is the first that differs")


def _rel(item: Result) -> float | None:
    found = None if item.difference is None else item.difference.rel_l2
    return found if found is not None and math.isfinite(found) else None


def _place(item: Result) -> str:
    parts = [item.name] if item.block is None else [f"block {item.block} of {item.name}"]
    parts += [f"rank {item.rank}"] if item.rank is not None else []
    parts += [f"request {item.request}"] if item.request is not None else []
    parts += [f"step {item.step}"] if item.step else []
    return ", ".join(parts)


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


class Everything(NamedTuple):
    """Every block differs in every tensor of the cache, and nobody's content is recognised."""

    why: str
    is_small: bool = False


def everything(results: Iterable[Result]) -> Everything | None:
    """None: some block is right, or is known to be another's. One cache tensor alone tells nothing."""
    caches: set[tuple[object, ...]] = set()
    worst, zeros, blocks, any_wrong, same_tokens = 0.0, 0, 0, False, False
    for item in results:
        same_tokens |= item.role == "token_ids" and not item.is_wrong
        if item.block is None or item.role not in KV or item.is_artefact:
            continue
        if not (item.is_wrong or item.is_suspicious) or item.is_retyped or item.alias is not None or item.verdict == "shape-mismatch":
            return None
        caches.add(item.place)
        blocks += 1
        zeros += item.verdict == "zero"
        any_wrong |= item.is_wrong
        worst = max(worst, _rel(item) or 0.0)
    if not any_wrong or len(caches) < 2:
        return None
    if zeros == blocks:
        return Everything("nothing was written there, or it was dumped before that")
    if 0 < worst < DIFFERENT:
        return Everything(f"by {worst:.2g} at most (relative L2): rounding of another kernel, batch or build, a scale, or slightly other weights come first", is_small=True)
    return Everything(f"other weights, adapter{' or quantisation' if same_tokens else ', quantisation or another prompt'} come first")


def _is_computed_from(item: Result, first: Result | None) -> bool:
    """Is this block of the cache, nobody else's, filled by what an operation gave out wrong before?"""
    if first is None or first.block is not None or item.alias is not None or first.is_artefact or first.is_retyped or first.role in KV:
        return False
    if first.layer is not None and item.layer is not None:
        return item.layer > first.layer
    return (item.rank, item.step) != (first.rank, first.step) or item.ord > first.ord


def scope(results: Sequence[Result]) -> Scope | None:
    """What the pattern of wrong blocks over layers and ranks points at. None: no block is wrong.

    A wrong block makes later tokens wrong in deeper layers, so what lies behind an earlier wrong block of a lower layer counts
    as its consequence, and so does what was computed from an operation that was wrong before.
    """
    first = next((item for item in results if item.is_first), None)
    kept: list[Spot] = []
    later: list[Spot] = []
    for item in results:
        if item.block is not None and item.role in KV and not item.is_artefact:
            spot = _spot(item)
            (later if spot.is_wrong and _is_computed_from(item, first) else kept).append(spot)
    wrong = [item for item in kept if item.is_wrong]
    if later and not wrong and first is not None:
        return _computed_later(first, later)
    blocks = [*kept, *(item._replace(is_wrong=False) for item in later)]
    if not wrong:
        return None
    if (all_off := everything(results)) is not None:
        layers, every = _numbers(item.layer for item in wrong), tuple(sorted({item.block for item in wrong}))
        says = f"all {len(every)} blocks differ on all {len(layers)} layers: {all_off.why}; an allocator only where some blocks are right"
        return Scope("weights-or-input", every, layers, _numbers(item.rank for item in wrong), says, all_off.is_small)
    lowest = lowest_layers(((item.request, item.step), item.block, item.layer) for item in wrong if item.layer is not None)
    origins = [item for item in wrong if item.is_owned or item.layer is None or not is_behind(lowest, (item.request, item.step), item.block, item.layer)]
    numbers = sorted({(item.request, item.block) for item in origins}, key=lambda pair: (pair[0] or 0, pair[1] or 0))
    known = set(numbers)
    at_layer_0 = {(item.request, item.block) for item in origins if item.layer == 0}
    if at_layer_0:  # right tokens in layer 0: what is wrong above it has another reason
        numbers, known = [number for number in numbers if number in at_layer_0], at_layer_0
    there = [item for item in wrong if (item.request, item.block) in known]
    return _pointing(blocks, there, tuple(dict.fromkeys(number or 0 for _, number in numbers)))


class Spot(NamedTuple):
    """What the pattern needs of a block."""

    rank: int | None
    step: int | None
    layer: int | None
    role: str | None
    request: int | None
    block: int
    is_wrong: bool
    is_owned: bool
    """Something is known of it: no mere consequence."""


def _computed_later(first: Result, wrong: Sequence[Spot]) -> Scope:
    layers, numbers = _numbers(item.layer for item in wrong), tuple(sorted({item.block for item in wrong}))
    what = f"block{'s' if len(numbers) > 1 else ''} {_list(numbers)} of layer{'s' if len(layers) > 1 else ''} {_list(layers)}"
    says = f"{first.name}: {what} of the cache {'were' if len(numbers) > 1 else 'was'} computed from it, so the cache is not the cause"
    return Scope("operation", numbers, layers, _numbers(item.rank for item in wrong), says)


def _spot(item: Result) -> Spot:
    return Spot(item.rank, item.step, item.layer, item.role, item.request, item.block or 0, item.is_wrong and not item.is_retyped, item.alias is not None)


def _pointing(blocks: Sequence[Spot], wrong: Sequence[Spot], numbers: tuple[int, ...]) -> Scope:
    layers, ranks = _numbers(item.layer for item in wrong), _numbers(item.rank for item in wrong)
    all_layers, all_ranks = _numbers(item.layer for item in blocks), _numbers(item.rank for item in blocks)
    kinds, all_kinds = {item.role for item in wrong}, {item.role for item in blocks}
    what = f"block{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}{' …' if len(numbers) > 8 else ''}"
    def made(points_at: str, says: str) -> Scope:
        return Scope(points_at, numbers, layers, ranks, says)
    sets = defaultdict(set)
    for item in wrong:
        sets[(item.rank, item.layer, item.role)].add((item.request, item.block))
    whole = {(item.rank, item.layer, item.role) for item in blocks}
    if len(whole) == 1:
        return made("unknown", f"{what} wrong; only one cache tensor was dumped, so nothing tells an allocator from a kernel or a transfer")
    if sets.keys() == whole and len({frozenset(found) for found in sets.values()}) == 1:
        over = f"all {len(all_layers)} layers" if len(all_layers) > 1 else "keys and values"
        over += f" and all {len(all_ranks)} ranks" if len(all_ranks) > 1 else ""
        return made("allocator", f"{what} wrong on {over} alike: the block table or the allocator, no kernel and no transfer")
    if ranks != all_ranks:
        return made("rank", f"{what} wrong on rank {_list(ranks)} only, of {len(all_ranks)}: a transfer, or that rank's own memory; no allocator that all ranks share")
    if layers != all_layers:
        if len(layers) == 1:
            return made("kernel-or-transfer", f"{what} wrong in layer {_list(layers)} only, of {len(all_layers)}: a kernel or a transfer of that layer")
        if layers == all_layers[all_layers.index(layers[0]):]:
            return made("kernel-or-transfer", f"{what} wrong from layer {layers[0]} on: a kernel or a transfer of that layer, the later layers follow")
        return made("kernel-or-transfer", f"{what} wrong in layers {_list(layers)}, of {len(all_layers)}: a kernel or a transfer")
    if kinds != all_kinds:
        return made("kernel-or-transfer", f"{what} wrong in {'keys' if kinds == {'k'} else 'values'} only: a kernel or a transfer, no allocator")
    return made("unknown", f"{what} wrong in some of the cache tensors only, other ones in other tensors: more than one cause, or none that the pattern tells")


def _numbers(found: Iterable[int | None]) -> tuple[int | None, ...]:
    return tuple(sorted(set(found), key=lambda number: -1 if number is None else number))


def _list(numbers: Sequence[int | None], limit: int = 8) -> str:
    return ", ".join("?" if number is None else str(number) for number in numbers[:limit]) + (" …" if len(numbers) > limit else "")


def overall(results: Sequence[Result]) -> str:
    """same | close | differ."""
    verdicts = {item.verdict for item in results}
    if not verdicts <= GOOD_VERDICTS:
        return "differ"
    return "close" if "close" in verdicts else "same"
