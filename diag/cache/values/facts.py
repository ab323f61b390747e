"""What a value is in numbers: size, type, shape, smallest, largest, norm, NaN - facts, not verdicts."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.cache.values.views import View, repeats, views
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
    plain_bytes: int = 0
    """Once it is inflated; the same if it is not compressed."""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    stats: Stats | None = None
    """Of the largest array; NaN and Inf of all arrays together."""
    texts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    error: str | None = None
    error_inside: bool = False
    """The error is in the data that the value carries."""
    root: str | None = None
    """What the value is: "dict", "list[int]", "str"."""
    crc_kind: str | None = None
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
    hollow: str | None = None
    """"none" or "empty": a mapping whose data field is there and holds nothing."""
    views: tuple[View, ...] = ()
    """A raw buffer, or one inside the value, as numbers."""
    repeats: bool = False
    """That buffer is one element, not zero, over and over."""
    blob_bytes: int | None = None
    """Length of that buffer."""
    announces_bytes: int | None = None
    """It describes another value, which must be this long."""
    trailing_bytes: int = 0
    """Behind the end of the value proper."""
    sha256: str | None = None
    """None: only the head of the value was read."""


def facts_of(value: bytes, *, length: int | None = None, markers: Sequence[bytes] = ()) -> Facts:
    """Facts about a value. `length`: its full length in bytes where `value` is only its head."""
    whole = length is None or length <= len(value)
    decoded = decode(value)
    if not whole and length is not None:
        decoded = _as_head(decoded, length)
    inside = b"" if decoded.inflated is None else bytes(decoded.inflated)
    marked = next((marker.decode("utf-8", "replace") for marker in markers if marker in value or marker in inside), None)
    digest = hashlib.sha256(value).hexdigest() if whole else None
    return describe(decoded, len(value) if length is None else length, whole=whole, marked=marked, sha256=digest)


def describe(decoded: Decoded, size: int, *, whole: bool = True, marked: str | None = None, sha256: str | None = None) -> Facts:
    """Facts about a value of `size` bytes that was decoded. `whole` False: from its head."""
    main, wrapper = decoded.main, decoded.wrapper
    blob = None if decoded.arrays else decoded.blob
    blank = blob is not None and len(blob) > 0 and not bytes(blob).strip(b"\0")
    return Facts(
        bytes=size,
        plain_bytes=size if decoded.inflated is None else len(decoded.inflated),
        kind=_kind(decoded),
        codec=decoded.codec,
        dtype=decoded.dtype,
        shape=None if main is None else main.shape,
        stats=_stats(decoded.arrays),
        texts=decoded.texts,
        keys=decoded.keys,
        foreign=decoded.foreign,
        error=decoded.error,
        error_inside=decoded.error_inside,
        root=decoded.root,
        problem=decoded.problem,
        detail=decoded.detail,
        version=None if wrapper is None else wrapper.version,
        created_at=None if wrapper is None else wrapper.created_at,
        crc_kind=None if wrapper is None else wrapper.checksum_kind,
        crc_ok=None if wrapper is None or not whole else wrapper.crc_ok,
        marked=marked,
        sha256=sha256,
        blank=blank,
        hollow=decoded.hollow,
        views=() if blob is None or blank else views(blob),
        repeats=blob is not None and not blank and repeats(blob),
        blob_bytes=None if blob is None else len(blob),
        announces_bytes=decoded.announces_bytes,
        trailing_bytes=decoded.trailing_bytes if whole else 0,
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
    return "json" if last == "literal" else last if last in ("raw", "text", "json") else "object"


def _stats(arrays: tuple[Array, ...]) -> Stats | None:
    """Of the largest array, plus every NaN and Inf of the others: one bad tensor spoils the value."""
    if not arrays:
        return None
    each = [None if (values := numbers(array)) is None else measure(values) for array in arrays[:64]]
    first, others = each[0], [item for item in each[1:] if item is not None]
    if first is None:
        return None
    return replace(first, nan=first.nan + sum(s.nan for s in others), inf=first.inf + sum(s.inf for s in others))


def measure(values: npt.NDArray[Any]) -> Stats:
    """The numbers of one array of numbers, of any shape."""
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
