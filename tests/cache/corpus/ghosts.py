"""Faults planted into families of single keys: one maker per reason that can happen in the family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lite
import numpy as np
import words
from dice import Dice
from families import Family, Planted, Put

Maker = Callable[[Dice], Planted]
CONSTANTS = (1.0, 0.5, -1.0, 0.04419417, 0.0625)


def makers(family: Family) -> dict[tuple[str, str], Maker]:
    """(label, reason) -> a maker of such a key in this family."""
    values = _any_values(family) | (_array_values(family) if family.content == "array" else {})
    found: dict[tuple[str, str], Maker] = {("ghost", reason): _wrap(family, "ghost", reason, make) for reason, make in values.items()}
    found |= {("soft", reason): _wrap(family, "soft", reason, make) for reason, make in _soft_values(family).items()}
    if family.layout.null is not None:
        found["ghost", "null-marker"] = _wrap(family, "ghost", "null-marker", family.layout.null, ttl="data")
        if family.ttl_s is not None:
            found["soft", "null-marker"] = _wrap(family, "soft", "null-marker", family.layout.null, ttl="short")
    if family.ttl_s is not None:
        found["soft", "no-ttl"] = _wrap(family, "soft", "no-ttl", lambda dice: family.layout.dumps(family.draw(dice), dice), ttl="none")
    if family.stale is not None:
        found["soft", "stale-version"] = _stale(family)
    return found


def _wrap(family: Family, label: str, reason: str, value: Callable[[Dice], bytes], ttl: str = "usual") -> Maker:
    def make(dice: Dice) -> Planted:
        ttl_s = {"usual": dice.left_s(family.ttl_s), "data": dice.fresh_s(family.ttl_s), "short": dice.short_s(), "none": None}[ttl]
        if ttl == "data" and dice.chance(0.3):
            ttl_s = None
        return Planted((Put(family.key(dice), value(dice), ttl_s),), label, reason, family.name)

    return make


def _stale(family: Family) -> Maker:
    def make(dice: Dice) -> Planted:
        assert family.stale is not None
        key, value = family.stale(dice)
        return Planted((Put(key, value, dice.left_s(family.ttl_s)),), "soft", "stale-version", family.name)

    return make


def _any_values(family: Family) -> dict[str, Callable[[Dice], bytes]]:
    layout = family.layout

    def good(dice: Dice) -> bytes:
        return layout.dumps(family.draw(dice), dice)

    def empty(dice: Dice) -> bytes:
        return layout.hollow(dice) if layout.hollow is not None and dice.chance(0.4) else b""

    found: dict[str, Callable[[Dice], bytes]] = {"empty": empty, "corrupt": lambda dice: corrupted(good, layout.loads, dice)}
    if family.name != "text_answer":  # a text that stops early is still a text
        found["truncated"] = lambda dice: truncated(good(dice), layout.loads, dice)
    if family.name == "litellm_completion":
        found["truncated"] = lambda dice: lite.half_completion(dice) if dice.chance(0.34) else truncated(good(dice), layout.loads, dice)
    for reason, make in (("placeholder", layout.placeholder), ("error-cached", layout.error), ("foreign-object", layout.foreign)):
        if make is not None:
            found[reason] = make
    if layout.bad_checksum is not None:
        found["checksum-mismatch"] = lambda dice: layout.bad_checksum(family.draw(dice), dice)  # type: ignore[misc]
    return found


def _array_values(family: Family) -> dict[str, Callable[[Dice], bytes]]:
    def changed(change: Callable[[np.ndarray, Dice], np.ndarray]) -> Callable[[Dice], bytes]:
        return lambda dice: family.layout.dumps(change(family.draw(dice), dice), dice)

    found = {"nan-inf": changed(poisoned), "all-zero": changed(lambda arr, dice: np.zeros_like(arr)), "constant": changed(constant),
             "shape-mismatch": changed(misshapen)}
    if family.layout.typed:
        found["dtype-mismatch"] = changed(mistyped)
    return found


def _soft_values(family: Family) -> dict[str, Callable[[Dice], bytes]]:
    layout, found = family.layout, {}
    if family.content == "array" and family.even_norm:
        found["norm-outlier"] = lambda dice: layout.dumps(rescaled(family.draw(dice), dice), dice)
    if family.content == "text":
        found["length-outlier"] = lambda dice: layout.dumps(words.long_text(dice), dice)
    if family.name == "token_list":
        found["length-outlier"] = lambda dice: layout.dumps(dice.np.integers(5, 128_000, dice.rnd.randrange(20_000, 40_000)).tolist(), dice)
    if family.name == "aio_json":
        found["length-outlier"] = lambda dice: layout.dumps({"caption": words.long_text(dice), "model": "blip2-opt-2.7b", "score": 0.31, "error": None}, dice)
    if family.name == "cachelib":
        found["length-outlier"] = lambda dice: layout.dumps({"answer": words.long_text(dice), "sources": [], "score": 0.2, "cached": True}, dice)
    return found


def poisoned(arr: np.ndarray, dice: Dice) -> np.ndarray:
    """NaN or Inf in one number, in some, in a row, or in all."""
    bad = arr.copy().reshape(-1)
    value = dice.pick((np.nan, np.nan, np.inf, -np.inf))
    share = dice.pick((1, 1, max(2, bad.size // 50), bad.size // 2, bad.size))
    start = dice.rnd.randrange(bad.size - share + 1)
    where = slice(start, start + share) if dice.chance(0.5) else dice.np.choice(bad.size, share, replace=False)
    bad[where] = value
    return bad.reshape(arr.shape)


def constant(arr: np.ndarray, dice: Dice) -> np.ndarray:
    """The same number everywhere, not zero."""
    return np.full_like(arr, dice.pick(CONSTANTS))


def misshapen(arr: np.ndarray, dice: Dice) -> np.ndarray:
    """Honest numbers in a shape that no sibling has. The first axis of a matrix stays: it may legally differ in length."""
    last = arr.shape[-1]
    options: list[tuple[int, ...]] = [(*arr.shape[:-1], last // 2), (*arr.shape[:-1], last * 2), (*arr.shape[:-1], last + 8), (1, *arr.shape)]
    if arr.ndim > 1:
        options.append((arr.size,))
    shape = dice.pick(options)
    scale = float(arr.astype(np.float32).std())
    return dice.normal(*shape, dtype=str(arr.dtype), scale=scale)


def mistyped(arr: np.ndarray, dice: Dice) -> np.ndarray:
    """The same numbers in a dtype that no sibling has."""
    other = dice.pick(("float64", "float64", "float16" if arr.dtype == np.float32 else "float32", "int32"))
    return (arr * 1000).astype(other) if other == "int32" else arr.astype(other)


def rescaled(arr: np.ndarray, dice: Dice) -> np.ndarray:
    """The same direction with a norm that no sibling comes near."""
    factor = dice.pick((40.0, 25.0, 0.02, 0.01))
    return (arr.astype(np.float32) * factor).astype(arr.dtype)


def truncated(value: bytes, loads: Callable[[bytes], Any], dice: Dice) -> bytes:
    """The value cut somewhere, such that its own reader can not read it."""
    for _ in range(50):
        cut = value[: max(1, int(len(value) * dice.rnd.uniform(0.04, 0.97)))]
        if not readable(cut, loads):
            return cut
    raise ValueError("no cut made this value unreadable")


def corrupted(good: Callable[[Dice], bytes], loads: Callable[[bytes], Any], dice: Dice) -> bytes:
    """A value with some bytes flipped or a run of bytes overwritten, such that its own reader can not read it."""
    for attempt in range(400):
        value = bytearray(good(dice))
        head = min(len(value), 120)
        if dice.chance(0.3) and len(value) > 80:
            at = dice.rnd.randrange(head if attempt % 2 else len(value) - 32)
            value[at : at + 32] = dice.rnd.randbytes(len(value[at : at + 32]))
        else:
            for _ in range(dice.rnd.randint(1, 6)):
                value[dice.rnd.randrange(head if dice.chance(0.6) else len(value))] ^= dice.rnd.randrange(1, 256)
        if not readable(bytes(value), loads):
            return bytes(value)
    raise ValueError("no flip made this value unreadable")


def readable(value: bytes, loads: Callable[[bytes], Any]) -> bool:
    """Whether the family's reader takes the value. Damaged bytes can raise anything, from UnpicklingError to MemoryError: all of it means no."""
    try:
        loads(value)
    except Exception:
        return False
    return True
