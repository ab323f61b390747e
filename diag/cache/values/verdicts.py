"""Facts and the family's profile -> a verdict with its reasons. Pure.

Hard reasons make a ghost: a reader of that key gets no usable data. Soft ones are reported and left alone. Nothing
is odd without a family to be odd in; only damage that the bytes themselves prove needs no more than one healthy
sibling, and a family file may state what its values must be.
"""

import math
from collections.abc import Iterator
from typing import Literal

from diag.cache.values import expectations, layouts, markers
from diag.cache.values.executing import runs_code
from diag.cache.values.facts import Facts
from diag.cache.values.families import older
from diag.cache.values.profile import DATA, FEW, MAJORITY, Profile, Spread, is_zero, magnitude, serialisation
from diag.cache.values.reasons import PROTECTED, SOFT, Reason
from diag.decode.dtypes import itemsize

__all__ = ["SOFT", "Reason", "Verdict", "is_short", "judge", "runs_code"]

Verdict = Literal["ghost", "soft", "ok", "unknown"]

SHORT_TTL_PART = 0.25
"""A marker that lives less than this part of the data's life is a defence, not a ghost."""
SHORT_TTL_S = 86_400.0
"""The same where the data never expires."""
DEFENCE_S = 1800.0
"""Defences are written for minutes; what has more left is one only if hardly any data has so little."""
NORM_FACTOR = 1.5
HUGE_FACTOR = 40
"""Texts and objects are of all lengths; one that is so many times as long as usual is odd all the same."""
SHORT_TEXT = 0.5


def judge(
    facts: Facts, profile: Profile, *, ttl_s: float | None, key_version: str | None = None, key: bytes = b""
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on one value and its reason codes, gravest first. `ttl_s` None: never expires."""
    reasons = list(_reasons(facts, profile, ttl_s, key_version, key))
    reasons.sort(key=lambda reason: reason.hard is not True)
    codes = tuple(dict.fromkeys(reason.code for reason in reasons))
    verdict = _verdict(facts, profile, reasons)
    if verdict == "unknown" and any(runs_code(name) for name in facts.foreign):
        return "soft", tuple(dict.fromkeys(("foreign-object", *codes)))  # whatever its siblings are, it would run something
    if profile.stated is not None and profile.stated.file.protected is not None:
        return ("soft", (PROTECTED,)) if verdict in ("ghost", "soft") else (verdict, ())
    return verdict, codes


def _verdict(facts: Facts, profile: Profile, reasons: list[Reason]) -> Verdict:
    if any(reason.hard for reason in reasons):
        return "ghost"
    if any(reason.hard is None for reason in reasons) or facts.kind == "unread":
        return "unknown"
    if reasons:
        return "soft"
    return "ok" if profile.holds_data else "unknown"


def _reasons(facts: Facts, profile: Profile, ttl_s: float | None, key_version: str | None, key: bytes) -> Iterator[Reason]:
    damage = list(_damage(facts, profile, ttl_s))
    yield from damage
    yield from _versions(facts, profile, key_version)
    nothing = facts.kind in ("none", "empty") or facts.hollow is not None
    if profile.stated is not None and not (nothing and is_short(ttl_s, profile)):
        yield from expectations.broken(facts, profile.stated, ttl_s=ttl_s, version=key_version or facts.version)
        yield from layouts.checked(facts, profile, key)
    if profile.holds_data and facts.kind != "broken" and facts.kind in DATA:
        codes = {reason.code for reason in damage}
        yield from (reason for reason in _in_family(facts, profile, ttl_s) if reason.code not in codes)


def _damage(facts: Facts, profile: Profile, ttl_s: float | None) -> Iterator[Reason]:
    """What the bytes prove by themselves, given that siblings hold data."""
    others = max(profile.support - 1, 1)
    proven = True if profile.healthy >= max(1.0, MAJORITY * others) else None
    if facts.problem is not None and "broken" not in profile.usual and not _just_bytes(facts, profile) and not _just_text(facts, profile):
        yield Reason(facts.problem, proven)
    other_crc = profile.crc_kind is not None and facts.crc_kind not in (None, profile.crc_kind)
    if (facts.crc_ok is False or other_crc) and "crc" not in profile.usual:
        yield Reason("checksum-mismatch", proven)
    if facts.kind == "empty" and not ("empty" in profile.usual and facts.bytes > 0):
        yield _nothing(facts, profile, ttl_s, proven)
    if facts.kind == "none":
        known = profile.holds_data
        yield Reason("null-marker", not is_short(ttl_s, profile) if known else None)
    if facts.marked is not None and _mark_counts(facts.marked, profile):
        yield Reason("placeholder", True if profile.holds_data else None)


def _nothing(facts: Facts, profile: Profile, ttl_s: float | None, proven: bool | None) -> Reason:
    """No byte, or a container without an element: the answer "there are none" among lists and mappings."""
    if proven and is_short(ttl_s, profile):
        return Reason("null-marker", False)
    if facts.bytes > 0 and not profile.holds_data:
        return Reason("empty", None)  # well-formed: whether "there is nothing" is an answer here, siblings must tell
    plain = facts.bytes > 0 and profile.kind in ("json", "object") and not _another_thing(facts, profile)
    if plain and not profile.keys and facts.plain_bytes >= 0.25 * profile.least.get(profile.kind or "", 0):
        return Reason("empty", False if proven else None)
    return Reason("empty", proven)


def _mark_counts(text: str, profile: Profile) -> bool:
    """A family file's marker counts in its family; any other is the caller's and counts everywhere."""
    if text not in profile.marks_elsewhere:
        return True
    return profile.stated is not None and text in profile.stated.file.expect.markers


def _just_bytes(facts: Facts, profile: Profile) -> bool:
    """In a family of raw buffers a first byte of 0x80 is a number, not a pickle."""
    return "raw" in profile.formats and profile.codec is not None and profile.codec.endswith("raw") and serialisation(facts) != "raw"


def _just_text(facts: Facts, profile: Profile) -> bool:
    """Among texts, one that begins like JSON and goes on otherwise is a text."""
    return profile.kind == "text" and profile.dominant and facts.codec in ("json", "literal")


def _versions(facts: Facts, profile: Profile, key_version: str | None) -> Iterator[Reason]:
    current = profile.key_version
    if current is not None and key_version is not None and older(key_version, current):
        yield Reason("stale-version", False)
    normal, ours = profile.version, facts.version
    if normal is not None and ours is not None and ours != normal and older(ours, normal) is not False:
        yield Reason("stale-version", False)


def is_short(ttl_s: float | None, profile: Profile) -> bool:
    """Does this key live much shorter than the family's data?"""
    if ttl_s is None:
        return False
    stated = None if profile.stated is None else profile.stated.file.null_marker_ttl_s
    if stated is not None:
        return ttl_s <= stated
    if profile.ttl_long_s is None:
        return ttl_s < SHORT_TTL_S
    # what is left of a long life may be little: as little as some of the data has is no sign of a short one
    return ttl_s < SHORT_TTL_PART * profile.ttl_long_s and ttl_s <= max(DEFENCE_S, 0.5 * (profile.ttl_least_s or 0.0))


def _in_family(facts: Facts, profile: Profile, ttl_s: float | None) -> Iterator[Reason]:
    """What is odd beside the siblings. One of a second normal kind is judged among its own."""
    short = is_short(ttl_s, profile)
    alien = facts.kind not in profile.kinds
    other = profile.kind != "array" and _another_thing(facts, profile) and not _is_number(facts)
    if other and short:
        yield Reason("null-marker", False)
    elif other:
        yield Reason("dtype-mismatch")
    if profile.kind == "array" and alien:
        yield from _instead_of_array(facts, profile, short)
    elif facts.kind == "array":
        yield from _arrays(facts, profile, alien)
    else:
        yield from _others(facts, profile, short)
    if alien and profile.kind != "array" and facts.kind != "array":
        yield from _unreadable(facts, profile)
    if profile.expires and ttl_s is None:
        yield Reason("no-ttl", False)
    if _far(facts, profile):
        yield Reason("length-outlier", False)


def _far(facts: Facts, profile: Profile) -> bool:
    """Is it much shorter or longer than its siblings, and not because it says the same in another format?"""
    same_form = facts.shape in profile.shapes or (profile.axes is not None and None in profile.axes and not _misshapen(facts, profile))
    if (facts.kind == "array" and facts.dtype in profile.dtypes and same_form) or facts.bytes in profile.sizes:
        return False
    spread = profile.lengths.get(facts.kind)
    if spread is None or _is_number(facts):
        return False
    if facts.kind == "raw" and spread.mad == 0:
        return True
    distance, usual = math.log(max(facts.plain_bytes, 1)) - spread.median, 8 * 1.4826 * spread.mad
    if facts.kind in ("array", "raw"):
        return abs(distance) > max(usual, math.log(1.25))
    return abs(distance) > max(usual, math.log(4)) or distance > math.log(HUGE_FACTOR)


def _instead_of_array(facts: Facts, profile: Profile, short: bool) -> Iterator[Reason]:
    """Siblings are arrays, this is none."""
    odd = frozenset(facts.foreign) - profile.foreign
    if short and not odd:
        yield Reason("null-marker", False)  # a plain value that soon goes: negative caching
        return
    if facts.hollow is not None:
        yield Reason("null-marker" if facts.hollow == "none" else "empty")
    if facts.error is not None:
        yield Reason("error-cached")
    if markers.inside(_odd_texts(facts, profile)) is not None or markers.inside(_class_names(facts, profile)):
        yield Reason("placeholder")
    if odd:
        yield Reason("foreign-object")
    yield Reason("corrupt" if facts.kind == "raw" else "dtype-mismatch")


def _arrays(facts: Facts, profile: Profile, alien: bool) -> Iterator[Reason]:
    oddities = [*_numbers(facts, profile), *_form(facts, profile)]
    oddities += _unreadable(facts, profile) if alien else ()
    yield from oddities
    healthy = not any(reason.hard for reason in oddities)
    lone = facts.stats is not None and facts.stats.size < 2  # one number and a marker beside it is a marker
    yield from _markers_beside_array(facts, profile, healthy and not lone)
    yield from _foreign(facts, profile, hard=not healthy)
    yield from _norm(facts, profile)


def _numbers(facts: Facts, profile: Profile) -> Iterator[Reason]:
    stats = facts.stats
    if stats is None or facts.dtype == "bool":
        return
    if stats.nan + stats.inf > 0 and "nan-inf" not in profile.usual:
        yield Reason("nan-inf")
    picture = facts.dtype == "uint8" and facts.shape is not None and len(facts.shape) >= 3
    if stats.size < 2 or picture:  # a black picture is a picture
        return
    few = stats.size < FEW and facts.shape in profile.shapes
    if is_zero(facts) and profile.usual.isdisjoint(("all-zero", "constant")) and not profile.sparse and not few:
        yield Reason("all-zero")
    whole_numbers = facts.dtype is not None and facts.dtype.startswith(("int", "uint"))
    if stats.constant and not whole_numbers and "constant" not in profile.usual and not few:
        yield Reason("constant")


def _form(facts: Facts, profile: Profile) -> Iterator[Reason]:
    if profile.dtype is not None and facts.dtype is not None and facts.dtype not in profile.dtypes:
        yield Reason("dtype-mismatch")
    if _misshapen(facts, profile):
        yield Reason("shape-mismatch", not _maybe_tail(facts.shape, profile.axes))


def _maybe_tail(shape: tuple[int, ...] | None, axes: tuple[int | None, ...] | None) -> bool:
    """Shorter than usual, but as wide: tails of sequences look like that, however few of them are seen."""
    if shape is None or axes is None or len(shape) != len(axes) or len(axes) < 2 or 0 in shape:
        return False
    return shape[-1] == axes[-1] and all(axis is None or size <= axis for axis, size in zip(axes, shape, strict=True))


def _misshapen(facts: Facts, profile: Profile) -> bool:
    """Of another rank, or of another size in an axis that does not vary."""
    if facts.shape is None or facts.shape in profile.shapes or profile.axes is None:
        return False
    if profile.closed or len(facts.shape) != len(profile.axes):
        return True
    return any(axis is not None and axis != size for axis, size in zip(profile.axes, facts.shape, strict=True))


def _markers_beside_array(facts: Facts, profile: Profile, healthy: bool) -> Iterator[Reason]:
    """A caption may say "error"; beside a sound array a marker is only worth a look."""
    texts = _odd_texts(facts, profile)
    if healthy:
        if markers.whole(texts) is not None:
            yield Reason("placeholder", False)
    elif markers.inside(texts) is not None or markers.inside(_class_names(facts, profile)) is not None:
        yield Reason("placeholder")


def _foreign(facts: Facts, profile: Profile, *, hard: bool) -> Iterator[Reason]:
    odd = frozenset(facts.foreign) - profile.foreign_known
    if odd:
        yield Reason("foreign-object", hard or any(runs_code(name) for name in odd))


def _norm(facts: Facts, profile: Profile) -> Iterator[Reason]:
    size = magnitude(facts)
    if profile.norm is not None and size is not None and _far_size(size, profile.norm):
        yield Reason("norm-outlier", False)


def _far_size(size: float, usual: Spread) -> bool:
    return abs(size - usual.median) > max(8 * 1.4826 * usual.mad, math.log(NORM_FACTOR))


def _others(facts: Facts, profile: Profile, short: bool) -> Iterator[Reason]:
    """Texts, JSON bodies, objects, raw buffers."""
    spread = profile.lengths.get(facts.kind)
    typical = math.exp(spread.median) if spread is not None else 0.0 if profile.length is None else profile.length.median
    small = facts.bytes < SHORT_TEXT * typical
    alike = facts.kind in profile.kinds
    yield from _buffer(facts, profile)
    if facts.kind == "raw" and alike and not _far(facts, profile):
        return
    stranger = len(profile.keys & set(facts.keys)) < 0.5 * len(profile.keys)
    inside = facts.error_inside or facts.hollow is not None
    if facts.error is not None and "error" not in profile.usual:
        yield Reason("error-cached", not short and (stranger or inside or not profile.keys))
    if facts.hollow is not None and stranger and profile.keys:
        yield Reason("null-marker" if facts.hollow == "none" else "empty", not short)
    texts = _odd_texts(facts, profile)
    marked = markers.whole(texts) if alike or profile.kind == "text" else markers.inside(texts)
    if marked is not None and (small or not alike):
        # among texts a word is an answer, unless it is written as only programs write
        coded = not alike or facts.kind != "text" or markers.coded(texts) is not None
        if coded or marked[-1:].isalnum():
            yield Reason("null-marker" if short else "placeholder", not short and coded)
    yield from _foreign(facts, profile, hard=profile.kind in ("raw", "json", "text"))


def _buffer(facts: Facts, profile: Profile) -> Iterator[Reason]:
    """A raw buffer, by itself or inside of an object, seen as its siblings' numbers."""
    if facts.blob_bytes is None:
        return
    if facts.blank and "all-zero" not in profile.usual and facts.kind in profile.kinds:
        yield Reason("all-zero")
    if profile.view is None:
        return
    if facts.kind == "raw" and facts.blob_bytes % itemsize(profile.view):
        yield Reason("truncated")
    if facts.repeats and "constant" not in profile.usual:
        yield Reason("constant")
    view = next((view for view in facts.views if view.dtype == profile.view), None)
    if view is not None and view.bad > 0:
        yield Reason("nan-inf")
    elif view is not None and profile.view_size is not None and view.size is not None and _far_size(view.size, profile.view_size):
        yield Reason("norm-outlier", False)


def _unreadable(facts: Facts, profile: Profile) -> Iterator[Reason]:
    """Written in another way than nine of ten siblings: their reader cannot read it."""
    if not profile.dominant or serialisation(facts) in profile.formats or (profile.kind == "raw" and profile.view is None):
        return
    if facts.kind == "raw":
        yield Reason("corrupt")
    elif not (facts.kind == "text" and _is_number(facts)):  # Django keeps whole numbers as text among its pickles
        yield Reason("corrupt" if facts.kind == "text" and profile.kind != "raw" else "dtype-mismatch")


def _another_thing(facts: Facts, profile: Profile) -> bool:
    """A text where all siblings are mappings, a list of texts where all are lists of numbers."""
    return bool(profile.roots) and facts.root is not None and facts.root not in profile.roots


def _is_number(facts: Facts) -> bool:
    return bool(facts.texts) and facts.texts[0].lstrip("-").replace(".", "", 1).isdigit()


def _odd_texts(facts: Facts, profile: Profile) -> list[str]:
    odd = [text for text in facts.texts if text not in profile.texts]
    # what a buffer holds by chance is rarely six letters long
    return odd if facts.kind != "raw" else [text for text in odd if markers.LETTERS.fullmatch(text) is not None]


def _class_names(facts: Facts, profile: Profile) -> list[str]:
    return [name.rpartition(".")[2] for name in facts.foreign if name not in profile.foreign]
