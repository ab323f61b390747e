"""Checks of one layout each, named by family files: what LMCache, LiteLLM and raw buffers promise of one value."""

import math
from collections.abc import Callable, Iterator

from diag.cache.values.facts import Facts
from diag.cache.values.profile import MAJORITY, SUPPORT, Profile
from diag.cache.values.reasons import Reason

ENCODER_FORMAT = "EC_TD"
NAMES = {"half": "float16", "float": "float32", "double": "float64", "fp8_e4m3fn": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
LITELLM_FORMAT = "2"

Check = Callable[[Facts, Profile, bytes], Iterator[Reason]]


def checked(facts: Facts, profile: Profile, key: bytes) -> Iterator[Reason]:
    """The reasons that the checks of the family's file give."""
    known = profile.stated
    for name in () if known is None else known.file.checks:
        yield from CHECKS[name](facts, profile, key)


def _lmcache_metadata(facts: Facts, profile: Profile, key: bytes) -> Iterator[Reason]:
    """The half that describes the chunk: native integers, and the element type that the key names."""
    if not key.endswith(b"metadata") or facts.kind in ("empty", "none"):
        return
    if facts.codec != "lmcache-metadata":
        if facts.kind == "broken":
            return
        yield Reason("all-zero" if facts.blank else "corrupt")
        return
    if facts.announces_bytes == 0:
        yield Reason("empty")
        return
    form, dtype, _shape = facts.keys
    said = None if profile.stated is None else profile.stated.said(key, "dtype")
    if said is not None and dtype != "None" and NAMES.get(said, said) != dtype:
        # the encoder cache keeps the engine's type whatever the key says
        yield Reason("dtype-mismatch", form != ENCODER_FORMAT)


def _lmcache_chunk(facts: Facts, profile: Profile, key: bytes) -> Iterator[Reason]:
    """The half that is the chunk: raw bytes (or a pickle, with the cachegen serde)."""
    if not key.endswith(b"kv_bytes") or facts.kind in ("empty", "none", "broken"):
        return
    if facts.blank and "all-zero" not in profile.usual:
        yield Reason("all-zero")
    if facts.kind == "text" and profile.kind != "text":
        yield Reason("corrupt")


def _one_length(facts: Facts, profile: Profile, _key: bytes) -> Iterator[Reason]:
    """A reader that knows the length takes every other one for a miss, and never writes the key anew."""
    spread = profile.lengths.get("raw")
    if facts.kind not in ("raw", "text") or spread is None or profile.kind != "raw" or spread.mad > 0 or profile.support < SUPPORT:
        return
    usual = round(math.exp(spread.median))
    if profile.healthy >= MAJORITY * profile.support and facts.bytes != usual:
        yield Reason("truncated" if facts.bytes < usual else "shape-mismatch")


def _litellm(facts: Facts, profile: Profile, _key: bytes) -> Iterator[Reason]:
    """An embedding without the format's number is dropped by the reader; an answer without a body fails it."""
    if {"embedding", "response.embedding"} & set(facts.keys) and facts.version != LITELLM_FORMAT:
        yield Reason("stale-version", False)
    if facts.error is not None:
        yield Reason("error-cached")
    if facts.hollow is not None:
        yield Reason("null-marker" if facts.hollow == "none" else "empty")


def _whole_rows(facts: Facts, profile: Profile, _key: bytes) -> Iterator[Reason]:
    """Raw buffers are whole numbers of elements of the type the file states."""
    known = profile.stated
    if facts.kind != "raw" or known is None or not known.file.expect.dtype:
        return
    widths = [_width(name) for name in known.file.expect.dtype]
    if all(width and facts.bytes % width for width in widths):
        yield Reason("truncated")


def _width(dtype: str) -> int:
    digits = "".join(char for char in dtype if char.isdigit())
    return int(digits) // 8 if digits and not dtype.startswith("float8") else 1


def _no_reader(_facts: Facts, _profile: Profile, _key: bytes) -> Iterator[Reason]:
    """A layout that nothing current asks for."""
    yield Reason("stale-version", False)


CHECKS: dict[str, Check] = {
    "lmcache-metadata": _lmcache_metadata, "lmcache-chunk": _lmcache_chunk, "one-length": _one_length, "litellm": _litellm,
    "whole-rows": _whole_rows, "no-reader": _no_reader,
}  # fmt: skip
