"""Entries of two keys (LMCache's `…metadata` and `…kv_bytes`): the half that is alone, and halves that disagree.

The halves of an entry come at any time of a scan. Each waits for the other by a digest of their common name; what is
still alone at the end is looked up once more, because a writer may have been between its two SETs.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from diag.cache.values.facts import Facts
from diag.cache.values.family_files import Halves, Known, shipped
from diag.cache.values.keys import CacheKey
from diag.cache.values.profile import MAJORITY, Profile

YOUNG_S = 10.0
"""A half that was touched within it may still get its other half."""
PAUSE_S = 2.0

METADATA = b"metadata"
"""How LMCache's half that goes first ends."""

Exists = Callable[[Sequence[bytes]], Sequence[bool]]


def base_and_side(key: bytes, halves: Halves) -> tuple[bytes, int] | None:
    """The common name, and which half this is: 0 is deleted first. None: neither."""
    for side, affix in enumerate(halves.ends or halves.begins or ()):
        text = affix.encode()
        if halves.ends is not None and key.endswith(text):
            return key[: -len(text)], side
        if halves.begins is not None and key.startswith(text):
            return key[len(text) :], side
    return None


def partner(key: bytes, known: Known | None = None) -> bytes | None:
    """The key of the other half. None: this key is no half of anything.

    `known` is the family file of the key; without it the shipped ones that are sure of their halves decide.
    """
    if known is None:
        known = next((one for one in shipped().families if one.file.halves is not None and not one.file.halves.assumed and one.fits(key)), None)
    halves = None if known is None else known.file.halves
    found = None if halves is None else base_and_side(key, halves)
    if halves is None or found is None:
        return None
    base, side = found
    if halves.ends is not None:
        return base + halves.ends[1 - side].encode()
    return halves.begins[1 - side].encode() + base if halves.begins is not None else None


@dataclass(frozen=True, slots=True)
class Half:
    """One half that has been seen."""

    row: CacheKey
    side: int
    announces_bytes: int | None


@dataclass
class Waiting:
    """Halves of one scan that have not met. About 1 KB each."""

    alone: dict[bytes, tuple[Known, Half]] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)

    def meet(self, row: CacheKey, facts: Facts, profile: Profile) -> list[CacheKey]:
        """The rows that can be told now: none while a half waits, both when they have met."""
        known = profile.stated
        found = None if known is None or known.file.halves is None else base_and_side(row.name, known.file.halves)
        if known is None or found is None:
            return [row]
        base, side = found
        digest = hashlib.blake2b(base, digest_size=16, key=f"{row.db} {known.name}".encode()[:64]).digest()
        own = Half(row, side, facts.announces_bytes)
        if digest not in self.alone:
            self.alone[digest] = (known, own)
            return []
        if self.alone[digest][1].side == side:  # SCAN may tell a key twice
            return []
        self.met[known.name] += 1
        _, other = self.alone.pop(digest)
        return together(own, other)

    def settle(self, exists: Exists | None, *, pause_s: float = PAUSE_S) -> list[CacheKey]:
        """What is still alone, as ghosts, and as they were if it turned out that they are not alone.

        `exists` looks once more, twice for young halves; None: there is nothing to look at (a file).
        """
        alone = [*self.alone.values()]
        self.alone.clear()
        lone = alone if exists is None else _still_alone(alone, exists, pause_s)
        names = {(half.row.db, half.row.key_hex) for _, half in lone}
        counts = Counter(known.name for known, _ in lone)
        rows = []
        for known, half in alone:
            halves = known.file.halves
            few = counts[known.name] <= (1 - MAJORITY) * (counts[known.name] + self.met[known.name])
            sure = halves is not None and (not halves.assumed or few)
            rows.append(without_other(half.row) if sure and (half.row.db, half.row.key_hex) in names else half.row)
        return rows


def together(one: Half, other: Half) -> list[CacheKey]:
    """Both rows of an entry; the chunk is a ghost if it has not the length that is announced."""
    index, chunk = (one, other) if one.announces_bytes is not None else (other, one)
    length = index.announces_bytes
    if length and chunk.announces_bytes is None and chunk.row.bytes not in (0, length) and "corrupt" not in index.row.reasons:
        code = "truncated" if chunk.row.bytes < length else "corrupt"
        said = f"{chunk.row.bytes} bytes, its other half announces {length}"
        return [index.row, ghost(chunk.row, code, said)]
    return [one.row, other.row]


def without_other(row: CacheKey) -> CacheKey:
    """The row of a half that is alone."""
    return ghost(row, "missing-half", "the other half of this entry does not exist")


def ghost(row: CacheKey, code: str, said: str) -> CacheKey:
    """The row with one more hard reason."""
    reasons = tuple(dict.fromkeys((code, *(reason for reason in row.reasons if row.verdict == "ghost" or reason != code))))
    return replace(row, verdict="ghost", reasons=reasons, detail="; ".join(filter(None, (said, row.detail))))


def _still_alone(alone: Sequence[tuple[Known, Half]], exists: Exists, pause_s: float) -> list[tuple[Known, Half]]:
    left = _without(alone, exists)
    young = [item for item in left if item[1].row.idle_s is None or item[1].row.idle_s < YOUNG_S]
    if not young:
        return left
    time.sleep(pause_s)
    again = _without(young, exists)
    return [item for item in left if item not in young] + again


def _without(items: Sequence[tuple[Known, Half]], exists: Exists) -> list[tuple[Known, Half]]:
    """Those that are there while their other half is not."""
    names = [name for known, half in items for name in (half.row.name, partner(half.row.name, known) or b"")]
    there = exists(names) if names else []
    return [item for at, item in enumerate(items) if there[2 * at] and not there[2 * at + 1]]
