"""What no sound prefix cache would do, checked on recorded events and lookups.

Each finding carries `benign`: a known harmless cause that applies here (the subscriber came late, messages are missing,
a kind of attention with rules of its own), or None.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from diag.lookups.events import Break, Cache, Event, breaks, key_of

NAMES: Mapping[str, str] = {
    "event-gap": "messages are numbered without gaps and in order of time",
    "token-count": "an event has block_size tokens for every hash",
    "orphan-child": "a block's parent is stored when it is stored",
    "wrong-hash": "a hash is the hash of its parent, tokens and keys",
    "one-hash-two-contents": "one hash stands for one content",
    "one-hash-two-owners": "one hash stands for one adapter and one salt",
    "removed-unknown": "only what was stored is removed",
    "hit-after-miss": "no block behind a missing one is reused",
    "hit-after-clear": "no block is reused after the cache was cleared",
    "one-id-two-hashes": "one physical block holds one content at a time",
    "hit-length": "a hit is whole blocks and shorter than the prompt",
    "hit-not-computed": "no block is reused before it is computed",
    "old-epoch": "no block of an earlier engine generation is reused",
}
"""Name -> what holds in a sound cache. The first eleven are in the order of the message, chain, content, lookup they concern."""

UNALIGNED = ("mamba", "linear", "short_conv")
"""Kinds of attention whose blocks are not a fixed number of tokens each."""
WINDOWED = ("sliding", "chunked", "mamba", "linear", "short_conv", "cross", "sink")
"""Kinds of attention that may reuse blocks behind a missing one: they need only the last ones."""


@dataclass(frozen=True)
class Violation:
    """One thing that a sound cache would not do, or would not have announced."""

    invariant: str
    says: str
    source: str
    benign: str | None = None
    request: str | None = None
    position: int | None = None
    block_hash: str | None = None


@dataclass(frozen=True)
class Look:
    """One block of one lookup."""

    lookup: str
    source: str
    position: int
    hit: bool
    request: str | None = None
    ts: float | None = None
    block_hash: str | None = None
    block_id: int | None = None
    cached: bool | None = None
    computed: bool | None = None
    epoch: int | None = None
    engine_epoch: int | None = None


@dataclass(frozen=True)
class Hit:
    """How many tokens of a prompt came from a cache."""

    source: str
    hit_tokens: int
    cache: str
    request: str | None = None
    prompt_tokens: int | None = None
    block_size: int | None = None


def of_events(events: Sequence[Event]) -> Iterator[Violation]:
    """event-gap, token-count, orphan-child, one-hash-two-contents, one-hash-two-owners, removed-unknown."""
    caches: dict[str, Cache] = {}
    first: dict[str, Event] = {}
    for event, wrong in breaks(events):
        cache = caches.setdefault(event.origin, Cache())
        if wrong is not None:
            cache.unsure = wrong.says
            if not wrong.late:
                yield Violation("event-gap", f"{wrong.says}: the state of the cache is not known from here on", wrong.source, "publishers drop messages under load")
        yield from _of_event(event, cache, first)
        cache.apply(event)


def _of_event(event: Event, cache: Cache, first: dict[str, Event]) -> Iterator[Violation]:
    text = event.block_hash
    if text is None:
        return
    if event.kind == "removed":
        if event.key not in cache.alive:
            yield Violation("removed-unknown", f"block {text} is removed but was not stored", event.source, _why_unknown(cache, text), block_hash=text)
        return
    size, told, blocks = event.block_size, event.event_tokens, event.event_blocks
    if event.position == 0 and size and told is not None and blocks is not None and told != size * blocks:
        yield Violation(
            "token-count", f"{told} tokens are announced for {blocks} blocks of {size}", event.source, _why_uneven(event, told, blocks, size), block_hash=text
        )
    if event.parent is not None and key_of(event.parent) not in cache.alive:
        gone = cache.removed.get(key_of(event.parent))
        said = f"its parent {event.parent} was removed ({gone})" if gone else f"its parent {event.parent} was never stored"
        yield Violation("orphan-child", f"block {text} is stored, but {said}", event.source, _why_unknown(cache, event.parent), block_hash=text)
    known = first.setdefault(text, event)
    if known.content == event.content or known.group != event.group:
        return
    if (known.parent, known.tokens) == (event.parent, event.tokens):
        said = f"{known.lora or 'no adapter'}, keys {known.extra or 'none'} and {event.lora or 'no adapter'}, keys {event.extra or 'none'}"
        yield Violation("one-hash-two-owners", f"block {text} is stored for {said} (first: {known.source})", event.source, block_hash=text)
    elif known.tokens is not None and event.tokens is not None:
        what = "other tokens" if known.tokens != event.tokens else "another parent"
        yield Violation("one-hash-two-contents", f"block {text} is stored with {what} than before ({known.source})", event.source, block_hash=text)


def _why_unknown(cache: Cache, block_hash: str) -> str | None:
    return None if cache.saw_go(block_hash) else cache.unsure


def _why_uneven(event: Event, told: int, blocks: int, size: int) -> str | None:
    if event.spec_kind is not None and any(word in event.spec_kind.lower() for word in UNALIGNED):
        return f"blocks of {event.spec_kind} are not aligned to tokens"
    return "the last block is announced before it is full" if size * (blocks - 1) < told < size * blocks else None


def of_looks(looks: Iterable[Look]) -> Iterator[Violation]:
    """one-id-two-hashes, hit-not-computed, old-epoch: what one lookup alone shows."""
    ids: dict[tuple[str, int], Look] = {}
    newest: dict[str, int] = {}
    told: set[tuple[str, str, int]] = set()
    for look in looks:
        file = look.source.partition(":")[0]
        if look.engine_epoch is not None or look.epoch is not None:
            newest[file] = max(newest.get(file, 0), look.engine_epoch or 0, look.epoch or 0)
        if look.block_id is not None and look.block_hash is not None:
            other = ids.setdefault((look.lookup, look.block_id), look)
            if other.block_hash != look.block_hash:
                yield _of_look("one-id-two-hashes", look, f"block id {look.block_id} stands for {other.block_hash} and {look.block_hash}")
        if not look.hit:
            continue
        current = look.engine_epoch if look.engine_epoch is not None else newest.get(file)
        found = []
        if look.computed is False:
            found.append(("hit-not-computed", f"block {look.position} is reused, but it is not computed"))
        if look.epoch is not None and current is not None and look.epoch < current:
            found.append(("old-epoch", f"block {look.position} is reused in generation {current}, but generation {look.epoch} wrote it"))
        for name, says in found:
            if (name, look.lookup, look.position) not in told:
                told.add((name, look.lookup, look.position))
                yield _of_look(name, look, says)


def of_hits(hits: Iterable[Hit], block_size: int | None) -> Iterator[Violation]:
    """hit-length. `block_size`: of the engine's events, where its hits do not tell."""
    for hit in hits:
        size = hit.block_size or (block_size if hit.cache == "vllm" else None)
        if size and hit.hit_tokens % size:
            yield Violation("hit-length", f"{hit.hit_tokens} tokens are no whole number of blocks of {size}", hit.source, request=hit.request)
        whole = hit.prompt_tokens is not None and hit.hit_tokens >= hit.prompt_tokens > 0
        if whole and hit.cache != "lmcache":  # it stores the last token as well, and recomputes it after loading
            yield Violation("hit-length", f"all {hit.prompt_tokens} tokens of the prompt were taken from the cache", hit.source, request=hit.request)


def of_reuse(events: Sequence[Event], looks: Sequence[Look]) -> Iterator[Violation]:
    """hit-after-clear: a lookup that reuses what the last clearing took. Needs times on both sides."""
    for look, cache in at_lookups(events, looks):
        if look.hit and look.block_hash is not None and cache.cleared is not None and key_of(look.block_hash) in cache.gone:
            yield _of_look("hit-after-clear", look, f"block {look.position} ({look.block_hash}) is reused, but the cache was cleared ({cache.cleared})")


def at_lookups(events: Sequence[Event], looks: Sequence[Look]) -> Iterator[tuple[Look, Cache]]:
    """Each look with the cache as it was then; of several caches the one that knows the block."""
    timed = sorted((event for event in events if event.ts is not None), key=lambda event: event.ts or 0.0)
    wrong: dict[int, Break | None] = {id(event): found for event, found in breaks(timed)}
    caches: dict[str, Cache] = {}
    at = 0
    for look in sorted((look for look in looks if look.ts is not None), key=lambda look: look.ts or 0.0):
        while at < len(timed) and (timed[at].ts or 0.0) <= (look.ts or 0.0):
            event = timed[at]
            cache = caches.setdefault(event.origin, Cache())
            if (found := wrong[id(event)]) is not None:
                cache.unsure = found.says
            cache.apply(event)
            at += 1
        if caches:
            knowing = (cache for cache in caches.values() if look.block_hash is not None and key_of(look.block_hash) in cache.seen)
            yield look, next(knowing, next(iter(caches.values())))


def _of_look(name: str, look: Look, says: str) -> Violation:
    return Violation(name, says, look.source, None, look.request, look.position, look.block_hash)


def windowed(spec_kind: str | None) -> str | None:
    """Why blocks of this kind of attention may be reused behind a missing one; None: they may not."""
    if spec_kind is not None and any(word in spec_kind.lower() for word in WINDOWED):
        return f"{spec_kind} needs only the last blocks"
    return None
