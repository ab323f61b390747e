"""Compare two dumps: pair their tensors, cut KV tensors into token blocks, measure, judge, explain what is wrong.

    found = compare(open_dump(good), open_dump(bad), others=[open_dump(other)], options=Options(How(16)))
    found.first.result.block                    # the first wrong block
"""

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from diag.errors import BadInput
from diag.tensors import bits, divergence, donors, order
from diag.tensors.consequences import consequences
from diag.tensors.cutting import How
from diag.tensors.dump import Dump, Unread
from diag.tensors.judging import Judge, Noise, Place
from diag.tensors.libraries import Library
from diag.tensors.measure import COMPILED, warm_up
from diag.tensors.opening import still_same
from diag.tensors.pairing import HOLDERS, Lone, Pair, Pairing, pair
from diag.tensors.placement import Placements
from diag.tensors.renaming import SAME_NAMES, Names, check, lent
from diag.tensors.result import Comparison, Result, Twins, Who
from diag.tensors.shelf import Shelf
from diag.tensors.suffix import Suffixes
from diag.tensors.verdicts import CLOSE, DEFAULT_LIMITS, DIFFERENT, Limits

Progress = Callable[[str, float], None]
WHY_NOT = {"good": ", which is searched in any case", "bad": "", "control": ", whose blocks are the good run's"}
"""Why that dump is no donor."""
EVERY = 64
"""Pairs between two signs of life."""


@dataclass(frozen=True)
class Options:
    """What a person said."""

    how: How = field(default_factory=How)
    names: Names = SAME_NAMES
    limits: Limits = DEFAULT_LIMITS
    types: Mapping[str, str] = field(default_factory=dict)
    """Element types that were said, by name or for all (`"*"`): those are not guessed."""


def compare(
    good: Dump, bad: Dump, *, control: Dump | None = None, others: Sequence[Dump] = (), options: Options | None = None,
    progress: Progress = lambda what, share: None,
) -> Comparison:  # fmt: skip
    """All of it. BadInput: the dumps have nothing in common, nothing could be read, or a file changed meanwhile."""
    notes: list[str] = []
    good, bad, control, others = _named_apart(good, bad, control, others, notes)
    options = options or Options()
    begin = time.monotonic()
    check(options.names, good, bad)
    good, bad, *others = lent(options.names, good, bad, others)
    control = None if control is None else lent(options.names, good, bad, (control,))[2]
    pairing = pair(good, bad, options.names)
    if any(tensor.dtype in HOLDERS for dump in (good, bad) for tensor in dump.tensors):
        guess = bits.guess(pairing.pairs, options.types)
        notes += filter(None, [guess.note])
        good, bad, *others = (guess.typed(dump) for dump in (good, bad, *others))
        control = None if control is None else guess.typed(control)
        pairing = pair(good, bad, options.names) if guess.names else pairing
    noise = None if control is None else _noise(good, control, options, notes, progress)
    judge = Judge(Placements(good), Placements(bad), options.how, Suffixes(good, bad), options.limits, noise, pairs=pairing.pairs)
    results: Sequence[Result] = _judged(judge, pairing, "comparing", progress)
    if not results:
        raise _nothing_compared(good, bad, judge)
    results, twins = _explained(judge, results, good, bad, others, options, progress)
    results, first = divergence.mark(results)
    _check_unchanged((good, bad, *(() if control is None else (control,)), *others))
    unread = [*judge.unread, *(("good", item) for item in good.unread), *(("bad", item) for item in bad.unread)]
    return Comparison(
        divergence.overall(results), _who(good), _who(bad), None if control is None else _who(control), [_who(donor) for donor in others],
        results, Shelf(Lone, chain(pairing.unpaired, judge.unpaired)), unread, first, None if first is not None and first.kind == "input" else divergence.scope(results), twins,
        (*notes, *pairing.notes, *divergence.about_lengths(results, first), *_about_tokens(results), *(_counted(text, count) for text, count in judge.said.items())), judge.hidden_blocks,
        judge.block_tokens.most_common(1)[0][0] if judge.block_tokens else None, time.monotonic() - begin,
        {dtype: options.limits.close(dtype) for dtype in {item.bad.dtype for item in results} if dtype in CLOSE},
    )  # fmt: skip


def _judged(judge: Judge, pairing: Pairing, title: str, progress: Progress) -> Shelf[Result]:
    results = Shelf[Result](Result)
    for number, item in enumerate(pairing.pairs):
        if number % EVERY == 0:
            progress(f"{title} {item.good.name}", number / len(pairing.pairs))
        _load_loops(item, number / len(pairing.pairs), progress)
        results.extend(judge.results(item))
    return results


def _load_loops(item: Pair, share: float, progress: Progress) -> None:
    """What the first pair large enough waits for: said, so that it does not look like a tensor that takes seconds."""
    if {item.good.dtype, item.bad.dtype} <= COMPILED:
        warm_up(math.prod(item.good.shape), lambda text: progress(text, share))


def _noise(good: Dump, control: Dump, options: Options, notes: list[str], progress: Progress) -> Noise:
    """How far the good run and its repetition are apart, in every tensor and block."""
    pairing = pair(good, control)
    judge = Judge(Placements(good), Placements(control), options.how, Suffixes(good, control), options.limits, pairs=pairing.pairs)
    tensors: dict[Place, float] = defaultdict(float)
    blocks: dict[tuple[Place, int | None, int | None], float] = {}
    wrong: list[Result] = []
    for item in _judged(judge, pairing, "control run", progress):
        rel = None if item.difference is None else item.difference.rel_l2
        if rel is None:
            continue
        blocks[(item.place, item.request, item.block)] = rel
        if rel < DIFFERENT and not item.is_wrong:
            tensors[item.place] = max(tensors[item.place], rel)
        else:
            wrong.append(item)
    if wrong:
        notes.append(
            f"the control run differs from the good run in {len(wrong)} places, first in {wrong[0].name}: it was not given the same input, one of the two "
            "is bad as well, or this engine does not repeat itself; those places are judged without it"
        )
    if not blocks:
        raise BadInput(f"{control.root}: nothing in it could be compared with the good dump", hint="the control is a dump of the good request, taken a second time")
    if not any(blocks.values()):
        notes.append(
            f"the control run {control.name} repeats the good run bit for bit, so it shows nothing of this engine's noise: take it in another batch, or beside "
            "other requests, and tolerances stay as they are without one"
        )
    return Noise(tensors, blocks)


def _explained(
    judge: Judge, results: Sequence[Result], good: Dump, bad: Dump, others: Sequence[Dump], options: Options, progress: Progress
) -> tuple[Sequence[Result], list[Twins]]:
    if not judge.wrong:
        return results, []
    progress("looking for whose blocks they are", 1.0)
    taken = {dump.name: order.taken_at(dump) for dump in (bad, *others)}
    libraries = [Library(dump, options.how, judge.unread) for dump in others]
    told, twins = donors.explain(judge.wrong, results, donors.Search(good.name, bad.name, libraries, options.limits, judge.unread, taken))
    follow = consequences(results)
    return Shelf(Result, (item if item.ord in follow else told.get(item.ord, item) for item in results)), twins


def _named_apart(good: Dump, bad: Dump, control: Dump | None, others: Sequence[Dump], notes: list[str]) -> tuple[Dump, Dump, Dump | None, list[Dump]]:
    """Each dump under the shortest end of its path that no other has; donors that are one of the others, or there twice, go."""
    main = [dump for dump in (good, bad, control) if dump is not None]
    roles = dict(zip(("good", "bad", "control"), (good, bad, control), strict=True))
    seen = {os.path.realpath(dump.root) for dump in main}
    for dump in others:
        same = [role for role, one in roles.items() if one is not None and os.path.realpath(one.root) == os.path.realpath(dump.root)]
        if same:
            notes.append(f"donor {dump.root.name} is dropped: it is the {same[0]} dump itself{WHY_NOT[same[0]]}")
    donors: list[Dump] = []
    for dump in others:
        if os.path.realpath(dump.root) not in seen:
            seen.add(os.path.realpath(dump.root))
            donors.append(dump)
    places = [dump.root.absolute().parts for dump in (*main, *donors)]
    names = [_shortest(place, [other for number, other in enumerate(places) if number != at]) for at, place in enumerate(places)]
    named = [replace(dump, name=name) for dump, name in zip((*main, *donors), names, strict=True)]
    return named[0], named[1], None if control is None else named[2], named[len(main) :]


def _shortest(place: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> str:
    for length in range(1, len(place)):
        end = place[-length:]
        if all(other[-length:] != end for other in others):
            return "/".join(end)
    return place[-1]  # the very same dump under two roles


def _about_tokens(results: Sequence[Result]) -> Iterator[str]:
    """Where V of layer 0 is missing, equal tokens of another computation cannot be recognised."""
    unknown = False
    for item in results:
        if item.block is not None and item.role == "v" and item.layer == 0:
            return
        unknown |= item.block is not None and item.verdict == "different" and item.alias is None and not item.follows
    if unknown:
        yield "whose tokens the wrong blocks hold could not be told: the dumps have no V of layer 0, which depends on the tokens alone (dump layer 0 as well)"


def _nothing_compared(good: Dump, bad: Dump, judge: Judge) -> BadInput:
    unread: list[tuple[str, Unread]] = judge.unread
    if unread:
        return BadInput(f"nothing could be compared: {unread[0][1].reason}", hint="dump again, and wait until the folder stops growing")
    lone: Sequence[Lone] = judge.unpaired
    why = lone[0].why if lone else "the tensors they share only tell where blocks lie"
    return BadInput(f"{good.root} and {bad.root} have nothing that can be compared: {why}", hint="dump the K and V cache, or hidden states, of both runs")


def _check_unchanged(dumps: Sequence[Dump]) -> None:
    for dump in dumps:
        changed = still_same(dump)
        if changed:
            raise BadInput(f"{dump.root} changed while it was compared: {changed[0]}", hint="wait until it stops growing, then compare again")


def _who(dump: Dump) -> Who:
    return Who(dump.name, str(dump.root), dump.layout, len(dump.tensors))


def _counted(text: str, count: int) -> str:
    return text if count == 1 else f"{text} ({count} tensors)"
