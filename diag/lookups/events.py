"""What a cache holds after each of its events, as far as a recording can tell.

A recording begins late or loses messages (publishers drop what subscribers do not take): from there on, a block that
was never seen stored may be there all the same. Such states are `unsure`, and say why.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

DIGEST = re.compile(r"[0-9a-f]{64}")
SIGNED = re.compile(r"-\d{1,19}")


@lru_cache(maxsize=1 << 17)
def key_of(block_hash: str) -> str:
    """One name for one hash: events may tell only the low 64 bits of a digest that a log tells whole, as a number with or without sign."""
    if DIGEST.fullmatch(block_hash):
        return str(int(block_hash[-16:], 16))
    return str(int(block_hash) % (1 << 64)) if SIGNED.fullmatch(block_hash) else block_hash


@dataclass(frozen=True)
class Event:
    """One block stored or removed, or the whole cache cleared."""

    kind: str
    """stored, removed, cleared"""
    source: str
    block_hash: str | None = None
    parent: str | None = None
    tokens: tuple[int, ...] | None = None
    seq: int | None = None
    ts: float | None = None
    """Seconds since 1970."""
    origin: str = ""
    """Rank or worker: each has a cache and numbers of its own."""
    position: int = 0
    event_tokens: int | None = None
    event_blocks: int | None = None
    block_size: int | None = None
    lora: str | None = None
    extra: str | None = None
    medium: str = ""
    group: int = 0
    spec_kind: str | None = None

    @property
    def key(self) -> str:
        """Its hash under the name that caches know it by."""
        return "" if self.block_hash is None else key_of(self.block_hash)

    @property
    def content(self) -> tuple[object, ...]:
        """What a hash stands for."""
        return (self.parent, self.tokens, self.lora, self.extra)


@dataclass
class Cache:
    """The cache of one origin. Blocks are known by `key_of` their hashes."""

    alive: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    """Hash -> (medium, group) -> how often it was stored and not removed."""
    seen: set[str] = field(default_factory=set)
    """Every block that was ever seen stored."""
    removed: dict[str, str] = field(default_factory=dict)
    """Blocks seen stored and then removed: where that is written."""
    cleared: str | None = None
    """Where the last clearing is written."""
    gone: set[str] = field(default_factory=set)
    """Blocks that the last clearing took and nobody stored again."""
    doubtful: set[str] = field(default_factory=set)
    """Announced more than once and removed less often: copies, or one block announced again when it was reused."""
    unsure: str | None = None
    """Why a block that was never seen stored may be there; None: the whole life of the cache was recorded."""

    def holds(self, block_hash: str) -> bool | None:
        """Is the block there? None: it cannot be told."""
        key = key_of(block_hash)
        if key in self.alive:
            return None if key in self.doubtful else True
        return None if self.unsure is not None and not self.saw_go(block_hash) else False

    def saw_go(self, block_hash: str) -> bool:
        """Was the block seen to be removed, or cleared with all others, and not stored again?"""
        key = key_of(block_hash)
        return key in self.removed or key in self.gone

    def apply(self, event: Event) -> None:
        """Take one event in."""
        if event.kind == "cleared":
            self.gone |= self.alive.keys()
            self.alive.clear()
            self.doubtful.clear()
            self.cleared, self.unsure = event.source, None
            return
        if event.block_hash is None:
            return
        key = event.key
        place = (event.medium, event.group)
        copies = self.alive.setdefault(key, {})
        if event.kind == "stored":
            copies[place] = copies.get(place, 0) + 1
            self.seen.add(key)
            self.removed.pop(key, None)
            self.gone.discard(key)
        else:
            copies[place] = copies.get(place, 1) - 1
            self.doubtful.add(key)
            if copies[place] <= 0:
                del copies[place]
        if not copies:
            del self.alive[key]
            self.doubtful.discard(key)
            if key in self.seen:
                self.removed[key] = event.source


@dataclass(frozen=True)
class Break:
    """A place where the recording is not whole: (what is wrong, where)."""

    says: str
    source: str
    origin: str
    late: bool = False
    """It only begins late, which is no fault."""


def breaks(events: Iterable[Event]) -> Iterator[tuple[Event, Break | None]]:
    """Every event with what is wrong with the numbering or the time at it."""
    before: dict[str, tuple[int | None, float | None]] = {}
    for event in events:
        seq, ts = event.seq, event.ts
        wrong: Break | None = None
        if event.origin not in before:
            if seq != 0:
                said = f"the recording begins with message {seq}" if seq is not None else "messages are not numbered"
                wrong = Break(f"{said}: what the cache held before is not known", event.source, event.origin, late=True)
        else:
            last, when = before[event.origin]
            if seq is not None and last is not None and seq not in (last, last + 1):
                wrong = Break(f"message {seq} comes after message {last}", event.source, event.origin)
            elif ts is not None and when is not None and ts < when:
                wrong = Break(f"time goes back by {when - ts:.3f} s", event.source, event.origin)
        before[event.origin] = (seq, ts)
        yield event, wrong
