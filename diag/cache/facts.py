"""What a value is in numbers: size, type, shape, smallest, largest, norm, NaN - facts, not verdicts."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.decode import Array, Decoded, decode, numbers

KINDS = ("array", "raw", "text", "json", "object", "none", "empty", "broken", "unread")


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of one array over its finite elements; `nan` and `inf` count the others."""

    size: int
    min: float | None
    max: float | None
    mean: float | None
    norm: float | None
    nan: int
    inf: int
    zeros: int

    @property
    def constant(self) -> bool:
        """All elements are one and the same number, which is not zero."""
        return self.size > 1 and self.nan == 0 and self.inf == 0 and self.min == self.max and self.min != 0


@dataclass(frozen=True, slots=True)
class Facts:
    """One value as a verdict sees it. The value itself is gone."""

    bytes: int
    kind: str
    """One of KINDS: what the value mainly is."""
    codec: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    stats: Stats | None = None
    """Of the largest array; NaN and Inf of all arrays together."""
    texts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    error: str | None = None
    problem: str | None = None
    detail: str = ""
    version: str | None = None
    """As the wrapper says."""
    created_at: float | None = None
    crc_ok: bool | None = None
    marked: str | None = None
    """The caller's own marker text, if the value contains one."""
    blank: bool = False
    """Every byte of a value of unknown format is zero."""
    sha256: str | None = None
    """None: only the head of the value was read."""


def facts_of(value: bytes, *, length: int | None = None, markers: Sequence[bytes] = ()) -> Facts:
    """Facts about a value. `length`: its full length in bytes where `value` is only its head."""
    whole = length is None or length <= len(value)
    decoded = decode(value)
    if not whole and length is not None:
        decoded = _as_head(decoded, length)
    main = decoded.main
    stats = _stats(decoded.arrays)
    wrapper = decoded.wrapper
    return Facts(
        bytes=len(value) if length is None else length,
        kind=_kind(decoded),
        codec=decoded.codec,
        dtype=decoded.dtype,
        shape=None if main is None else main.shape,
        stats=stats,
        texts=decoded.texts,
        keys=decoded.keys,
        foreign=decoded.foreign,
        error=decoded.error,
        problem=decoded.problem,
        detail=decoded.detail,
        version=None if wrapper is None else wrapper.version,
        created_at=None if wrapper is None else wrapper.created_at,
        crc_ok=None if wrapper is None or not whole else wrapper.crc_ok,
        marked=next((marker.decode("utf-8", "replace") for marker in markers if marker in value), None),
        blank=decoded.codec == "raw" and not value.strip(b"\0"),
        sha256=hashlib.sha256(value).hexdigest() if whole else None,
    )


def _as_head(decoded: Decoded, length: int) -> Decoded:
    """A head always ends too early; it is damage only if the whole value is too short for what it announces."""
    if decoded.problem == "truncated" and decoded.needs_bytes is not None and decoded.needs_bytes <= length:
        return replace(decoded, problem=None, detail="only its head was read")
    if decoded.problem == "corrupt" and decoded.codec != "npy":
        return replace(decoded, problem=None, detail=f"only its head was read: {decoded.detail}")
    return decoded


def _kind(decoded: Decoded) -> str:
    if decoded.problem is not None:
        return "broken"
    if decoded.is_none and not decoded.arrays:
        return "none"
    if decoded.arrays:
        return "empty" if all(array.size == 0 for array in decoded.arrays) else "array"
    if decoded.is_empty:
        return "empty"
    if decoded.detail:
        return "unread"
    last = decoded.codec.rpartition("+")[2]
    return last if last in ("raw", "text", "json") else "object"


def _stats(arrays: tuple[Array, ...]) -> Stats | None:
    """Of the largest array, plus every NaN and Inf of the others: one bad tensor spoils the value."""
    if not arrays:
        return None
    each = [_measure(numbers(array)) for array in arrays[:64]]
    first, others = each[0], [item for item in each[1:] if item is not None]
    if first is None:
        return None
    return replace(first, nan=first.nan + sum(s.nan for s in others), inf=first.inf + sum(s.inf for s in others))


def _measure(values: npt.NDArray[Any] | None) -> Stats | None:
    if values is None:
        return None
    flat = np.abs(values) if values.dtype.kind == "c" else values
    flat = flat.reshape(-1)
    size = int(flat.size)
    if size == 0:
        return Stats(0, None, None, None, None, 0, 0, 0)
    with np.errstate(all="ignore"):
        wide = flat.astype(np.float64)
        low, high = float(wide.min()), float(wide.max())
        nan = inf = 0
        if not np.isfinite(low) or not np.isfinite(high):
            nan = int(np.isnan(wide).sum())
            inf = int(np.isinf(wide).sum())
            wide = wide[np.isfinite(wide)]
            if wide.size == 0:
                return Stats(size, None, None, None, None, nan, inf, 0)
            low, high = float(wide.min()), float(wide.max())
        norm = float(np.sqrt(np.dot(wide, wide)))
        return Stats(
            size, low, high, float(wide.mean()), norm if np.isfinite(norm) else None, nan, inf,
            size - nan - inf - int(np.count_nonzero(wide)),
        )  # fmt: skip
