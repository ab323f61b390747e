"""Whose content a wrong block holds: another block of the good run, one of a donor's, of the pool, or of nobody known.

It is looked for by the digest of each token row - among the blocks of the good run and of the donors (dumps of other requests,
or of an earlier generation of the engine), then among pool blocks that belong to no request - and, where no digest is equal,
by distance in the lowest layer. V of layer 0 depends on the token id alone: rows equal there are the same tokens, which
names the donor even where deeper layers differ by rounding.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diag.tensors import order, views
from diag.tensors.cutting import Span
from diag.tensors.dump import ReadError, Unread
from diag.tensors.judging import Wrong
from diag.tensors.libraries import Held, Library
from diag.tensors.matching import READ, Match, Origin, Votes, nearest, row_digests
from diag.tensors.measure import digests, measure_pair
from diag.tensors.result import Result, Twins
from diag.tensors.telling import with_others, with_owner, with_readers, with_rest
from diag.tensors.verdicts import CLOSE, Limits
from diag.tensors.writers import Hands, likeliest, mark, small_writer

MIN_SHARE = 0.5
"""Share of a block's wrong rows that must be found together: equal tokens of strangers are equal rows in layer 0."""
SAME_MEMORY = "the same memory if both are of one process, which proves nothing; else it was never written for this request"
MAX_NEAR = 16
"""Blocks that are looked for by distance."""
MAX_CANDIDATES = 4_096
MAX_OTHERS = 10
Block = tuple[int | None, int | None]
"""Request and block."""


@dataclass(frozen=True)
class Agreed:
    """The origin that most tensors tell of one block."""

    match: Match
    fingerprint: bool
    """V of layer 0 is among them: the tokens are those."""
    others: tuple[Match, ...] = ()
    """Of other donors that hold as much of it."""
    readers: tuple[Match, ...] = ()
    """Of other donors that have it where the bad run has it and did not write it."""


@dataclass(frozen=True)
class Search:
    """Where to look."""

    good: str
    bad: str
    libraries: Sequence[Library]
    limits: Limits
    unread: list[tuple[str, Unread]]
    taken: Mapping[str, int] = field(default_factory=dict)
    """When each dump was written, ns."""


def explain(wrong: Sequence[Wrong], results: Sequence[Result], search: Search) -> tuple[dict[int, Result], list[Twins]]:
    """`ord` -> the result with what was recognised; and blocks of the bad run that hold the same where they must not."""
    by_place: dict[tuple[object, ...], dict[Block, Result]] = defaultdict(dict)
    for item in results:
        if item.verdict == "different" and item.block is not None:
            by_place[item.place][(item.request, item.block)] = item
    tensors = [(tensor, by_place[tensor.place]) for tensor in wrong if by_place.get(tensor.place)]
    matches: dict[int, list[Match]] = {}
    best: dict[int, Best] = {}
    twins: list[Twins] = []
    for tensor, blocks in tensors:
        try:
            found, all_found, same = _exact(tensor, blocks, search)
        except ReadError as error:
            search.unread.append(("donor", Unread(tensor.bad.tensor.source, str(error))))
            continue
        matches |= found
        best |= all_found
        twins += same
    agreed = _agreed(tensors, matches, best, search)
    agreed |= _near(tensors, {key for _, blocks in tensors for key in blocks} - agreed.keys(), search)
    chosen = {item.ord: _chosen(matches.get(item.ord, ()), best.get(item.ord), agreed.get(key)) for _, blocks in tensors for key, item in blocks.items()}
    rests = {number: best[number].rest(match) for number, match in chosen.items() if match is not None and number in best}
    second = _second(tensors, rests)
    told: dict[int, Result] = {}
    for tensor, blocks in tensors:
        for key, item in blocks.items():
            match = chosen[item.ord]
            one = _told(tensor, item, match, agreed.get(key), search)
            if key in agreed:
                one = with_others(one, agreed[key].match.origin.dump, agreed[key].others, (search.good, search.bad))
                one = with_readers(one, agreed[key].match, agreed[key].readers)
            rest = next((one for one in rests.get(item.ord, ()) if mark(one) == second.get(key)), None)
            told[item.ord] = one if rest is None or match is None or one.alias is None or one.alias.by != "rows" else with_rest(one, rest, search.good)
    return told, twins


@dataclass(frozen=True)
class Best:
    """All who have rows of a wrong block, most rows first."""

    matches: list[Match]
    wrong_rows: int
    """Bit n: the n-th row is not the good run's."""

    def rest(self, first: Match) -> list[Match]:
        """Who else has wrong rows of it, of those that the first does not have."""
        left = (
            replace(match, rows=(match.which & ~first.which & self.wrong_rows).bit_count())
            for match in self.matches if match.origin.dump != first.origin.dump and match.hand != READ
        )  # fmt: skip
        return [match for match in left if match.rows]


def _exact(tensor: Wrong, blocks: dict[Block, Result], search: Search) -> tuple[dict[int, list[Match]], dict[int, Best], list[Twins]]:
    """By digests of rows: who holds enough of a block; all who hold some; and blocks of the bad run that are twins."""
    votes, hands = Votes(), Hands(tensor.bad.block_tokens)
    ours: dict[Block, Span] = {(span.request, span.index): span for span in tensor.good.spans}
    theirs: dict[Block, tuple[Span, list[bytes]]] = {(span.request, span.index): (span, row_digests(tensor.bad, span)) for span in tensor.bad.spans}
    good_rows = {key: row_digests(tensor.good, ours[key]) for key in blocks}
    sought: dict[int, int] = {}
    wrong_rows: dict[int, int] = {}
    physical: dict[int, int | None] = {}
    for key, item in blocks.items():
        span, rows = theirs[key]
        other = {span.token + n: row for n, row in enumerate(rows) if n >= len(good_rows[key]) or row != good_rows[key][n]}
        votes.want(item.ord, other, rows, span.token)
        sought[item.ord] = min(len(other), item.rows_differ or len(other))
        wrong_rows[item.ord] = sum(1 << (token - span.token) for token in other)
        physical[item.ord] = span.physical
    for held in _held(tensor, search):
        for origin, span in _listed(held):
            hands.add(origin, span, knows_slots=held.knows_slots)
            votes.offer(origin, span.index, span.token, row_digests(held.cut, span))
    best = {number: hands.known(votes.best(number), physical[number]) for number in sought}
    found = {number: _enough(best[number], sought[number]) for number in sought}
    lost = [number for number, matches in found.items() if not matches]
    if lost and not tensor.good.tiled:
        for held in _held(tensor, search, bad=True):
            for origin, span in _unlisted(held):
                votes.offer(origin, span.index, 0, row_digests(held.cut, span))
        for number in lost:
            found[number] = _enough(votes.best(number), sought[number])
    return found, {number: Best(matches, wrong_rows[number]) for number, matches in best.items()}, _twins(tensor, ours, theirs, blocks)


def _second(tensors: Sequence[tuple[Wrong, dict[Block, Result]]], rests: dict[int, list[Match]]) -> dict[Block, tuple[object, ...]]:
    """The second owner of each block that has two, by all tensors together."""
    votes: dict[Block, Counter[tuple[object, ...]]] = defaultdict(Counter)
    for _, blocks in tensors:
        for key, item in blocks.items():
            for match in rests.get(item.ord, ()):
                votes[key][mark(match)] += match.rows
    return {key: count.most_common(1)[0][0] for key, count in votes.items()}


def _enough(matches: Sequence[Match], sought: int) -> list[Match]:
    return [match for match in matches if match.rows >= MIN_SHARE * sought]


def _held(tensor: Wrong, search: Search, *, bad: bool = False) -> Iterator[Held]:
    """The good run itself, the donors, and (`bad`) the pool of the bad run."""
    name, rank, step, layer = tensor.place
    yield Held(search.good, step, tensor.good)
    for library in search.libraries:
        theirs = tensor.bad.tensor
        yield from library.find(name, rank, layer, theirs.dtype)
        if (theirs.name, theirs.rank) != (name, rank):
            yield from library.find(theirs.name, theirs.rank, layer, theirs.dtype)
    if bad:
        yield Held(search.bad, step, tensor.bad)


def _listed(held: Held) -> Iterator[tuple[Origin, Span]]:
    """Blocks of the requests of that dump."""
    for span in held.cut.spans:
        yield Origin(held.dump, held.cut.tensor.name, held.step, span.request), span


def _unlisted(held: Held) -> Iterator[tuple[Origin, Span]]:
    """Blocks of its pool that belong to no request."""
    taken = {span.physical for span in held.cut.spans}
    if None in taken:
        return
    for at in range(held.cut.tensor.shape[0]):
        if at not in taken:
            yield Origin(held.dump, held.cut.tensor.name, held.step, None, at), Span(None, at, at, 0, held.cut.tensor.shape[1], 0, at)


def _twins(
    tensor: Wrong, ours: dict[Block, Span], theirs: dict[Block, tuple[Span, list[bytes]]], blocks: dict[Block, Result]
) -> list[Twins]:  # fmt: skip
    """Blocks with equal content in the bad run, at least one of them wrong, whose good ones are not equal."""
    groups: dict[tuple[object, ...], list[Block]] = defaultdict(list)
    for key, (_, rows) in theirs.items():
        groups[(key[0], *rows)].append(key)
    found = []
    for keys in groups.values():
        if len(keys) > 1 and any(key in blocks for key in keys):
            good = {tuple(row_digests(tensor.good, ours[key])) for key in keys if key in ours}
            if len(good) > 1:
                name, rank, _, layer = tensor.place
                physical = tuple(theirs[key][0].physical for key in keys)
                found.append(Twins(name, rank, layer, keys[0][0], tuple(key[1] or 0 for key in keys), physical))
    return found


def _agreed(
    tensors: Sequence[tuple[Wrong, dict[Block, Result]]], matches: dict[int, list[Match]], best: Mapping[int, Best], search: Search
) -> dict[Block, Agreed]:  # fmt: skip
    """What most tensors say of one block: the origin that explains it. A block of a pool that is nobody's comes behind any that has a name."""
    votes: dict[Block, Counter[tuple[object, ...]]] = defaultdict(Counter)
    examples: dict[tuple[object, ...], Match] = {}
    tokens: set[tuple[Block, tuple[object, ...]]] = set()
    deep: set[Block] = set()
    seen_deep: set[tuple[Block, tuple[object, ...]]] = set()
    for tensor, blocks in tensors:
        is_deep = tensor.place[3] != 0
        deep |= blocks.keys() if is_deep else set()
        for key, item in blocks.items():
            for match in matches.get(item.ord, ()):
                votes[key][mark(match)] += match.rows
                examples.setdefault(mark(match), match)
                if _tells_tokens(tensor):
                    tokens.add((key, mark(match)))
                if is_deep:
                    seen_deep.add((key, mark(match)))
    for key, count in votes.items():  # equal tokens make equal rows in layer 0, whosesoever they are
        for weak in [one for one in count if _is_weak(examples[one], search) and key in deep and (key, one) not in seen_deep]:
            del count[weak]
    agreed = {}
    for key, count in votes.items():
        if count:
            match, others = _earliest((examples[one] for one in likeliest(count, examples, search.good)), search)
            if match.hand == READ:
                few = small_writer([best[blocks[key].ord].matches for _, blocks in tensors if key in blocks and blocks[key].ord in best])
                match, others = (match, others) if few is None else (few, ())
            readers = {examples[one].origin.dump: examples[one] for one in count if examples[one].hand == READ}
            agreed[key] = Agreed(match, (key, mark(match)) in tokens, others, tuple(readers[dump] for dump in sorted(readers.keys() - {match.origin.dump}, key=order.number)))
    return agreed


def _earliest(equal: Iterable[Match], search: Search) -> tuple[Match, tuple[Match, ...]]:
    """The one of equal matches that is named, and those of other donors. The good run's own content comes first."""
    by_dump: dict[str, Match] = {}
    for match in equal:
        by_dump.setdefault(match.origin.dump, match)
    name = search.good if search.good in by_dump else order.earliest(by_dump, search.bad, search.taken)
    others = (match for dump, match in by_dump.items() if dump != name and match.origin.physical is None)
    return by_dump[name], tuple(others)[:MAX_OTHERS]


def _tells_tokens(tensor: Wrong) -> bool:
    return tensor.role == "v" and tensor.place[3] == 0


def _is_weak(match: Match, search: Search) -> bool:
    """A block of a pool that is nobody's, or the good run itself: rows that were copied there by mistake are alike in every layer."""
    return match.origin.physical is not None or match.origin.dump == search.good


def _chosen(matches: Sequence[Match], best: Best | None, agreed: Agreed | None) -> Match | None:
    """What most tensors agree on, if this one says it too; else what it says itself, but no block of a pool that has no name."""
    if agreed is None:
        return None
    known = best.matches if best is not None and agreed.match.wrote and agreed.match not in matches else matches
    same = next((match for match in known if mark(match) == mark(agreed.match)), None)
    return same or next((match for match in matches if match.origin.physical is None), None)


def _near(tensors: Sequence[tuple[Wrong, dict[Block, Result]]], keys: set[Block], search: Search) -> dict[Block, Agreed]:
    """By distance, in the lowest layer that is wrong there (values before keys: they do not depend on the position)."""
    found: dict[Block, Agreed] = {}
    lowest = sorted(tensors, key=lambda item: (item[0].place[3] or 0, item[0].role != "v"))
    for tensor, blocks in lowest[:2]:
        wanted = sorted((key for key in blocks if key in keys and key not in found), key=str)[:MAX_NEAR]
        tolerance = search.limits.close(tensor.bad.tensor.dtype)
        if not wanted or not tolerance or tensor.good.tiled or tensor.bad.tensor.dtype not in CLOSE:
            continue
        spans: dict[Block, Span] = {(span.request, span.index): span for span in tensor.bad.spans}
        sought = [(key, spans[key].token, tensor.bad.block(spans[key])) for key in wanted]
        places = [(origin, span, held.cut) for held in _held(tensor, search) for origin, span in _listed(held)][:MAX_CANDIDATES]
        near = nearest(sought, ((origin, span.index, span.token, one.block(span)) for origin, span, one in places), tolerance)
        for key, _, block in sought:
            matches = [match for match in near[key] if not (match.origin.dump == search.good and (match.shift == 0 or match.shift % tensor.bad.block_tokens))]
            matches = _enough(matches, max(1, blocks[key].rows_differ or block.shape[0]))
            if matches:
                match, others = _earliest((match for match in matches if match.rows == matches[0].rows), search)
                found[key] = Agreed(match, _tells_tokens(tensor), others)
    return found


def _told(tensor: Wrong, item: Result, match: Match | None, agreed: Agreed | None, search: Search) -> Result:
    """The result with verdict, alias and words."""
    if match is not None and match.origin.physical is not None and match.origin.dump == search.good and match.origin.physical == item.bad.physical:
        return replace(item, detail=f"bit for bit what pool block {match.origin.physical} of {search.good} holds: {SAME_MEMORY}")
    if match is not None:
        return with_owner(item, match, "block" if match.rows == (item.rows_of or 1) and match.exact else "rows" if match.exact else "noise", tensor, search.good)
    if agreed is not None:
        by = _confirmed(tensor, item, agreed, search)
        if by is not None:
            return with_owner(item, agreed.match, by, tensor, search.good)
    if _is_transposed(tensor, item):
        return replace(item, verdict="permuted", detail="the good run's content with tokens and heads changed over (NHD against HND)")
    return item


def _confirmed(tensor: Wrong, item: Result, agreed: Agreed, search: Search) -> str | None:
    """Does this tensor, too, hold what others hold of that origin? By the rounding that is usual, or by the same tokens."""
    match = agreed.match
    span = next(span for span in tensor.bad.spans if (span.request, span.index) == (item.request, item.block))
    for held in _held(tensor, search):
        for origin, there in _listed(held):
            same = (origin.dump, origin.step, origin.request) == (match.origin.dump, match.origin.step, match.origin.request)
            if same and there.token == span.token + match.shift:
                tokens = min(there.tokens, span.tokens)
                pair = held.cut.block(there, tokens), tensor.bad.block(span, tokens)
                if pair[0].shape == pair[1].shape and pair[0].dtype == pair[1].dtype:
                    apart = measure_pair(*pair).whole.difference.rel_l2
                    if apart is not None and apart <= search.limits.close(pair[0].dtype):
                        return "noise"
    return "fingerprint" if agreed.fingerprint and match.origin.physical is None else None


def _is_transposed(tensor: Wrong, item: Result) -> bool:
    """Whole blocks only: a part of one has no second order."""
    if tensor.good.tiled or len(tensor.good.tensor.shape) < 4:
        return False
    ours, theirs = (
        next(one.block(span) for span in one.spans if (span.request, span.index) == (item.request, item.block)) for one in (tensor.good, tensor.bad)
    )
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    size = views.count(ours)
    swapped = views.permuted(ours, (1, 0, *range(2, len(ours.shape))))
    back = views.permuted(theirs, (1, 0, *range(2, len(ours.shape))))
    return digests(swapped, size) == digests(theirs, size) or digests(back, size) == digests(ours, size)
