"""Facts and the family's profile -> a verdict with its reasons. Pure.

Hard reasons make a ghost: a reader of that key gets no usable data. Soft ones are reported and left alone. Nothing
is odd without a family to be odd in; only damage that the bytes themselves prove needs no more than one healthy
sibling.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from diag.cache import markers
from diag.cache.facts import Facts
from diag.cache.families import older
from diag.cache.profile import DATA, MAJORITY, Profile, is_zero

Verdict = Literal["ghost", "soft", "ok", "unknown"]

SHORT_TTL_PART = 0.25
"""A marker that lives less than this part of the data's life is a defence, not a ghost."""
SHORT_TTL_S = 86_400.0
"""The same where the data never expires."""
NORM_FACTOR = 1.5
SHORT_TEXT = 0.5
SOFT = (
    "null-marker", "stale-version", "no-ttl", "length-outlier", "norm-outlier", "placeholder", "foreign-object", "error-cached",
)  # fmt: skip
"""Reasons that may be all there is against a key: reported, purged only when a person includes them."""

EXECUTING = frozenset({
    "os", "posix", "nt", "subprocess", "sys", "socket", "pty", "shutil", "importlib", "runpy", "ctypes", "code",
    "pdb", "webbrowser", "marshal", "types", "pip", "ensurepip", "multiprocessing", "asyncio", "timeit", "operator",
    "functools", "io", "_io", "tempfile", "pickle", "_pickle", "dill", "cloudpickle", "joblib", "inspect", "signal",
    "threading", "sqlite3", "ftplib", "smtplib", "getpass", "linecache", "_posixsubprocess",
    "_interpreters", "commands", "bdb", "trace", "cProfile", "profile", "http", "urllib", "requests",
})  # fmt: skip
EXECUTING_NAMES = frozenset(
    f"{module}.{name}"
    for module in ("builtins", "__builtin__")
    for name in ("eval", "exec", "__import__", "getattr", "setattr", "open", "compile", "globals", "apply", "execfile")
)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a key is odd. `hard` False: reported only; None: odd, but the family is too little known to say more."""

    code: str
    hard: bool | None = True


def judge(
    facts: Facts, profile: Profile, *, ttl_s: float | None, key_version: str | None = None
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on one value and its reason codes, gravest first. `ttl_s` None: never expires."""
    reasons = list(dict.fromkeys((*_damage(facts, profile, ttl_s), *_versions(facts, profile, key_version))))
    if profile.holds_data and facts.kind != "broken":
        reasons += [r for r in _in_family(facts, profile, ttl_s) if r not in reasons]
    reasons.sort(key=lambda reason: reason.hard is not True)
    codes = tuple(dict.fromkeys(reason.code for reason in reasons))
    if any(reason.hard for reason in reasons):
        return "ghost", codes
    if any(reason.hard is None for reason in reasons) or facts.kind == "unread":
        return "unknown", codes
    if reasons:
        return "soft", codes
    return ("ok" if profile.holds_data else "unknown"), codes


def _damage(facts: Facts, profile: Profile, ttl_s: float | None) -> Iterator[Reason]:
    """What the bytes prove by themselves, given that siblings hold data."""
    others = max(profile.support - 1, 1)
    proven = True if profile.healthy >= max(1.0, MAJORITY * others) else None
    if facts.problem is not None and "broken" not in profile.usual and not _just_bytes(facts, profile):
        yield Reason(facts.problem, proven)
    if facts.crc_ok is False and "crc" not in profile.usual:
        yield Reason("checksum-mismatch", proven)
    if facts.kind == "empty":
        if proven and is_short(ttl_s, profile):
            yield Reason("null-marker", False)
        else:
            yield Reason("empty", proven)
    if facts.kind == "none":
        known = profile.holds_data
        yield Reason("null-marker", not is_short(ttl_s, profile) if known else None)
    if facts.marked is not None:
        yield Reason("placeholder", True if profile.holds_data else None)


def _just_bytes(facts: Facts, profile: Profile) -> bool:
    """In a family of raw buffers a first byte of 0x80 is a number, not a pickle."""
    return profile.codec == "raw" and facts.codec != "raw"


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
    return ttl_s < (SHORT_TTL_S if profile.ttl_long_s is None else SHORT_TTL_PART * profile.ttl_long_s)


def _in_family(facts: Facts, profile: Profile, ttl_s: float | None) -> Iterator[Reason]:
    """What is odd beside the siblings."""
    short = is_short(ttl_s, profile)
    if facts.kind in DATA:
        if profile.kind == "array":
            yield from _among_arrays(facts, profile, short)
        else:
            yield from _among_others(facts, profile, short)
        if profile.expires and ttl_s is None:
            yield Reason("no-ttl", False)
        if facts.kind == profile.kind and _far(facts, profile):
            yield Reason("length-outlier", False)


def _far(facts: Facts, profile: Profile) -> bool:
    """Is it much shorter or longer than its siblings, and not because it says the same in another format?"""
    if facts.kind == "array" and facts.dtype in profile.dtypes and facts.shape in profile.shapes:
        return False
    return profile.length is not None and profile.length.far(facts.bytes, times=8, least=0.25)


def _among_arrays(facts: Facts, profile: Profile, short: bool) -> Iterator[Reason]:
    if facts.kind == "array":
        oddities = [*_numbers(facts, profile), *_form(facts, profile)]
        yield from oddities
        healthy = not any(reason.hard for reason in oddities)
        yield from _markers_beside_array(facts, profile, healthy)
        yield from _foreign(facts, profile, hard=not healthy)
        yield from _norm(facts, profile)
        return
    odd = frozenset(facts.foreign) - profile.foreign
    if short and not odd:
        yield Reason("null-marker", False)  # a plain value that soon goes: negative caching
        return
    if facts.error is not None:
        yield Reason("error-cached")
    if markers.inside(_odd_texts(facts, profile)) is not None or markers.inside(_class_names(facts, profile)):
        yield Reason("placeholder")
    if odd:
        yield Reason("foreign-object")
    if facts.kind not in profile.kinds:
        yield Reason("corrupt" if facts.kind == "raw" else "dtype-mismatch")


def _numbers(facts: Facts, profile: Profile) -> Iterator[Reason]:
    stats = facts.stats
    if stats is None or facts.dtype == "bool":
        return
    if stats.nan + stats.inf > 0 and "nan-inf" not in profile.usual:
        yield Reason("nan-inf")
    picture = facts.dtype == "uint8" and facts.shape is not None and len(facts.shape) >= 3
    if stats.size < 2 or picture:  # a black picture is a picture
        return
    if is_zero(facts) and profile.usual.isdisjoint(("all-zero", "constant")):
        yield Reason("all-zero")
    whole_numbers = facts.dtype is not None and facts.dtype.startswith(("int", "uint"))
    if stats.constant and not whole_numbers and "constant" not in profile.usual:
        yield Reason("constant")


def _form(facts: Facts, profile: Profile) -> Iterator[Reason]:
    if profile.dtype is not None and facts.dtype is not None and facts.dtype not in profile.dtypes:
        yield Reason("dtype-mismatch")
    if profile.axes is not None and facts.shape is not None and facts.shape not in profile.shapes:
        same_rank = len(facts.shape) == len(profile.axes)
        if not same_rank or any(
            axis is not None and axis != size for axis, size in zip(profile.axes, facts.shape, strict=True)
        ):
            yield Reason("shape-mismatch")


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
    norm = None if facts.stats is None else facts.stats.norm
    if profile.norm is not None and norm:
        distance = abs(math.log(norm) - profile.norm.median)
        if distance > max(8 * 1.4826 * profile.norm.mad, math.log(NORM_FACTOR)):
            yield Reason("norm-outlier", False)


def _among_others(facts: Facts, profile: Profile, short: bool) -> Iterator[Reason]:
    """Families of texts, JSON bodies, objects, raw buffers."""
    small = profile.length is not None and facts.bytes < SHORT_TEXT * profile.length.median
    alike = facts.kind == profile.kind
    if profile.kind == "raw" and alike:
        if facts.blank and "all-zero" not in profile.usual:
            yield Reason("all-zero")
        if not _far(facts, profile):
            return
    if facts.error is not None and "error" not in profile.usual and (small or profile.kind != "text"):
        yield Reason("error-cached", not short)
    texts = _odd_texts(facts, profile)
    marked = markers.whole(texts) if alike or profile.kind == "text" else markers.inside(texts)
    if marked is not None and small:
        yield Reason("null-marker" if short else "placeholder", not short)
    yield from _foreign(facts, profile, hard=profile.kind in ("raw", "json", "text"))
    if facts.kind == "raw" and profile.kind == "json" and "raw" not in profile.kinds:
        yield Reason("corrupt")


def _odd_texts(facts: Facts, profile: Profile) -> list[str]:
    return [text for text in facts.texts if text not in profile.texts]


def _class_names(facts: Facts, profile: Profile) -> list[str]:
    return [name.rpartition(".")[2] for name in facts.foreign if name not in profile.foreign]


def runs_code(name: str) -> bool:
    """Would a reader who unpickles this run something rather than build something?"""
    return name in EXECUTING_NAMES or name.partition(".")[0] in EXECUTING
