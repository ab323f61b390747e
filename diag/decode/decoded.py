"""What a stored value turned out to be: arrays, texts, wrapper facts, damage. Plain data, nothing executed."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Buffer = bytes | memoryview
Problem = Literal["truncated", "corrupt"]


@dataclass(frozen=True, eq=False)
class Array:
    """One array inside a value.

    `dtype` is numpy's name ("float16") or, where numpy has none, the framework's ("bfloat16", "float8_e4m3fn").
    `values` views the value's own bytes; None where numpy has no such type, `raw` then holds the packed elements.
    """

    dtype: str
    shape: tuple[int, ...]
    values: npt.NDArray[Any] | None = None
    raw: Buffer | None = None

    @property
    def size(self) -> int:
        """Number of elements by shape; 1 for a scalar."""
        count = 1
        for axis in self.shape:
            count *= axis
        return count


@dataclass(frozen=True)
class Wrapper:
    """Facts that a cache item carries about itself beside its data."""

    kind: str
    """Class name of the item, or "dict"."""
    version: str | None = None
    created_at: float | None = None
    """Unix seconds, as stored; the wrapper's own word."""
    checksum: str | None = None
    checksum_kind: str | None = None
    """"crc32", "adler32", "digest": which function the stored checksum fits."""
    crc_ok: bool | None = None
    """Does the stored checksum fit the stored data; None = there is none, or of an unknown kind."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """One value, read without executing it. Every field is a fact about the bytes, never a verdict."""

    codec: str
    """"pickle", "npy", "json", "text", "raw", "empty", or several joined with "+" from the outside in."""
    arrays: tuple[Array, ...] = ()
    """Largest first."""
    texts: tuple[str, ...] = ()
    """Texts that are leaves of the value (not dictionary keys), bounded in number and length."""
    keys: tuple[str, ...] = ()
    """Names of the outermost mapping, or of an object's attributes."""
    wrapper: Wrapper | None = None
    foreign: tuple[str, ...] = ()
    """Globals a reader of this value would import that are no plain data type: "posix.system", "app.CacheItem"."""
    error: str | None = None
    """The value is itself an error report: an exception object, an error body."""
    problem: Problem | None = None
    detail: str = ""
    error_inside: bool = False
    """Not the value itself, but the data it carries is the error report."""
    root: str | None = None
    """What the value is, and what the first element of a list is: "dict", "list[int]"; None: not told."""
    is_none: bool = False
    is_empty: bool = False
    """No bytes, or a container or array without any element."""
    hollow: Literal["none", "empty"] | None = None
    """A mapping whose data field is there and holds nothing: {"embedding": null}, {"data": []}."""
    blob: Buffer | None = None
    """The longest run of bytes that no format explains: a raw buffer, or one inside of the value."""
    announces_bytes: int | None = None
    """The value describes another one, which must be this long."""
    inflated: Buffer | None = None
    """What a compressed value holds."""
    trailing_bytes: int = 0
    needs_bytes: int | None = None
    """If truncated: the value must be at least this long. Lets a head of a long value be judged by its length."""
    nested: tuple[Buffer, ...] = ()
    """Bytes inside that are values themselves; `decode` opens them."""

    @property
    def main(self) -> Array | None:
        return self.arrays[0] if self.arrays else None

    @property
    def array(self) -> npt.NDArray[Any] | None:
        """The largest array as numpy sees it, or None."""
        return None if self.main is None else self.main.values

    @property
    def dtype(self) -> str | None:
        return None if self.main is None else self.main.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self.main is None else self.main.shape


def numbers(array: Array) -> npt.NDArray[Any] | None:
    """The elements as numpy numbers; types numpy lacks are widened to float32. None: not numbers."""
    from diag.decode.dtypes import widen

    if array.values is not None:
        return array.values if array.values.dtype.kind in "iufcb" else None
    if array.raw is None:
        return None
    wide = widen(array.raw, array.dtype)
    return None if wide is None else np.reshape(wide, array.shape)
