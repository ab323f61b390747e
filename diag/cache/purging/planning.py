"""What a purge would delete, and what speaks against it. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from diag.cache.purging import pairing
from diag.cache.values.keys import CacheKey

MAX_KEYS = 10_000
FAMILY_SHARE = 0.10
HALF = 0.5
TOTAL_SHARE = HALF
FEW = 5
"""So few keys of a family are no tenth of it that anybody would miss …"""
SINGLE = 1
"""… but two keys can be half of one."""

Where = tuple[int, bytes]
"""Database and key."""
Partners = Mapping[Where, CacheKey | None]
"""The other halves that are no finding themselves, by their own place, as looked up; None: there is none."""


@dataclass(frozen=True)
class Plan:
    """What a purge would delete."""

    target: str
    keys: tuple[CacheKey, ...]
    """By database; the halves of a pair side by side, metadata first."""
    reasons: Mapping[str, int]
    families: Mapping[str, int]
    bytes: int
    refusals: tuple[str, ...] = ()
    """Limits it breaks; a person must force it."""
    left_out: tuple[CacheKey, ...] = ()
    """Odd keys that this plan does not touch."""
    sizes: Mapping[str, int] | None = None
    """Keys of each family as the scan counted them; None: not known."""
    guarded: int = 0
    """How many of `left_out` would go, were their family not protected: only a forced plan takes them."""


def plan(
    rows: Iterable[CacheKey],
    *,
    target: str,
    sizes: Mapping[str, int] | None = None,
    include: Iterable[str] = (),
    max_keys: int = MAX_KEYS,
    partners: Partners | None = None,
    force: bool = False,
) -> Plan:
    """Which keys to delete: the ghosts, and soft ones for a reason in `include`; of a pair both halves or none.

    `sizes` are the keys per family as the scan counted them; with them the plan knows what share it would take.
    `partners` are the halves that were looked up (pairs.look_up). `force` also takes protected keys.
    """
    wanted = frozenset(include)
    odd = [row for row in rows if row.verdict in ("ghost", "soft")]
    asked = [row for row in odd if row.sha256 is not None and (row.verdict == "ghost" or wanted & set(row.reasons))]
    open_ = [row for row in asked if force or not is_protected(row)]
    keys = tuple(_in_order(_paired(open_, partners)))
    chosen = {(row.db, row.key_hex) for row in keys}
    families = Counter(row.family for row in keys)
    return Plan(
        target=target,
        keys=keys,
        reasons=Counter(reason for row in keys if row.verdict in ("ghost", "soft") for reason in row.reasons),
        families=families,
        bytes=sum(row.bytes for row in keys),
        refusals=tuple(refusals(families, sizes, max_keys)),
        left_out=tuple(row for row in odd if (row.db, row.key_hex) not in chosen),
        sizes=sizes,
        guarded=len(asked) - len(open_),
    )


def is_protected(row: CacheKey) -> bool:
    """Does it belong to a family that is never purged unless a person insists?"""
    return "protected" in row.reasons


def refusals(families: Mapping[str, int], sizes: Mapping[str, int] | None, max_keys: int) -> Iterator[str]:
    """The limits that a purge of so many keys by family breaks, in words."""
    total = sum(families.values())
    if total > max_keys:
        yield f"{total} keys are more than the limit of {max_keys}"
    if sizes is None:
        return
    for name, count in families.items():
        size = max(sizes.get(name, count), count)
        if count > SINGLE and count > HALF * size:
            yield f"{count} of {size} keys of {name} are more than half: the rule may be wrong, not the keys"
        elif count >= FEW and count > FAMILY_SHARE * size:
            yield f"{count} of {size} keys of {name} are more than {FAMILY_SHARE:.0%}: the rule may be wrong, not the keys"
    everything = max(sum(sizes.values()), total)
    if total > SINGLE and total > HALF * everything:
        yield f"{total} of {everything} keys are more than half of everything"


def _paired(rows: list[CacheKey], partners: Partners | None) -> Iterator[CacheKey]:
    """Those that are no halves; halves with their other half; none of a pair of which one may not or cannot go."""
    places = {(row.db, row.name) for row in rows}
    for row in rows:
        other = pairing.partner(row.name)
        if other is None or (row.db, other) in places:
            yield row
        elif partners is None or (row.db, other) not in partners:
            if "missing-half" in row.reasons:
                yield row
        else:
            found = partners[row.db, other]
            if found is None:
                yield row
            elif found.sha256 is not None:
                yield from (row, found)


def _in_order(rows: Iterable[CacheKey]) -> list[CacheKey]:
    """By database; within it as they came, each second half right behind its metadata."""
    by_place = {(row.db, row.name): row for row in rows}
    ordered: dict[Where, CacheKey] = {}
    for (db, name), row in sorted(by_place.items(), key=lambda item: item[0][0]):
        other = pairing.partner(name)
        pair = [(db, name)] if other is None else sorted([(db, name), (db, other)], key=lambda place: not pairing.goes_first(place[1]))
        for place in pair:
            if place in by_place:
                ordered.setdefault(place, row if place == (db, name) else by_place[place])
    return list(ordered.values())
