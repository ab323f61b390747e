"""Bytes -> arrays and facts, without executing anything. One codec a file; nothing to register.

A codec module has

    NAME          = what it is called in `Decoded.codec`
    ORDER         = when it is asked: low first. 0-99 sure magic, 100-899 structure, 900+ last resort
    sniff(data)   -> bool       do the first bytes look like mine? Cheap, never raises
    decode(data)  -> Decoded    never raises, whatever the bytes are

Modules without NAME are parts of codecs. Nothing here imports, calls or resolves what a value names.
"""

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Literal, Protocol, TypeVar, cast

from diag.decode.decoded import Array, Buffer, Decoded, Problem, Wrapper, numbers

__all__ = ["Array", "Buffer", "Codec", "Decoded", "Problem", "Wrapper", "codecs", "decode", "numbers"]

MAX_LEVELS = 4
"""A value in a value in a value: deeper is somebody's game."""
MAX_TEXTS = 64
DECODER_FAILED = "this decoder failed, please report it"

T = TypeVar("T")


class Codec(Protocol):
    """The shape of a codec module."""

    NAME: str
    ORDER: int

    def sniff(self, data: Buffer) -> bool: ...

    def decode(self, data: Buffer) -> Decoded: ...


@cache
def codecs() -> tuple[Codec, ...]:
    """All codecs of this folder in the order they are asked."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    found = [cast(Codec, module) for module in modules if hasattr(module, "NAME")]
    return tuple(sorted(found, key=lambda codec: (codec.ORDER, codec.NAME)))


def decode(data: Buffer) -> Decoded:
    """What these bytes hold. Never raises; damage is in `problem`, unknown bytes are codec "raw"."""
    return _decode(data, 0)


def _decode(data: Buffer, level: int) -> Decoded:
    for codec in codecs():
        if codec.sniff(data):
            outer = _ask(codec, data)
            if not outer.nested:
                return outer
            if level >= MAX_LEVELS:
                return replace(outer, nested=(), detail=outer.detail or f"nested more than {MAX_LEVELS} levels deep")
            return _merge(outer, [_decode(inner, level + 1) for inner in outer.nested])
    return Decoded("raw")


def _ask(codec: Codec, data: Buffer) -> Decoded:
    """A codec must not raise; if one does, that value is unread and says so, and the scan goes on."""
    try:
        return codec.decode(data)
    except Exception as error:
        return Decoded(codec.NAME, detail=f"{DECODER_FAILED}: {type(error).__name__}: {error}"[:200])


def _merge(outer: Decoded, inner: list[Decoded]) -> Decoded:
    """One Decoded of a value and the values inside it. The outer damage counts first."""
    broken = outer if outer.problem is not None else next((item for item in inner if item.problem is not None), outer)
    inside = "" if broken is outer or broken.problem is None else "inside: "
    arrays = sorted((*outer.arrays, *_each(item.arrays for item in inner)), key=lambda a: a.size, reverse=True)
    shell = outer.codec.endswith("+")
    only = inner[0] if shell and inner else None
    bare = not arrays and (not outer.texts or outer.wrapper is not None)  # a wrapper's own words are no data
    return replace(
        outer,
        codec=outer.codec + only.codec if only is not None else outer.codec,
        arrays=tuple(arrays),
        texts=(*outer.texts, *_each(item.texts for item in inner))[:MAX_TEXTS],
        keys=outer.keys if only is None else only.keys,
        wrapper=outer.wrapper or next((item.wrapper for item in inner if item.wrapper is not None), None),
        foreign=tuple(dict.fromkeys((*outer.foreign, *_each(item.foreign for item in inner)))),
        error=outer.error or next((item.error for item in inner if item.error is not None), None),
        problem=broken.problem,
        detail=inside + broken.detail,
        root=outer.root or (None if only is None else only.root),
        error_inside=outer.error_inside or (outer.error is None and not shell and any(item.error is not None for item in inner)),
        hollow=outer.hollow or _all_hollow(arrays, inner),
        blob=max((item.blob for item in (outer, *inner) if item.blob is not None), key=len, default=None),
        announces_bytes=outer.announces_bytes or (None if only is None else only.announces_bytes),
        is_none=outer.is_none or (bare and all(item.is_none for item in inner)),
        is_empty=outer.is_empty or (bare and all(item.is_empty for item in inner)),
        needs_bytes=outer.needs_bytes,
        nested=(),
    )


def _all_hollow(arrays: list[Array], inner: list[Decoded]) -> Literal["none", "empty"] | None:
    """Do all values inside have a data field without data?"""
    found = {item.hollow for item in inner}
    if arrays or not inner or None in found:
        return None
    return "empty" if "empty" in found else "none"


def _each(groups: Iterable[Iterable[T]]) -> tuple[T, ...]:
    return tuple(item for group in groups for item in group)
