"""Compressed values: zlib, gzip, xz, bzip2, zstd and lz4 frames, inflated under a cap."""

import bz2
import importlib
import lzma
import sys
import zlib
from typing import Protocol, cast

from diag.decode import raw
from diag.decode.decoded import Buffer, Decoded

NAME = "compressed"
ORDER = 20

MAX_BYTES = 64 << 20
"""A value that inflates to more is not opened."""
MAX_WINDOW_BITS = 27
SURE = 64
"""zlib that gives nothing out of so many bytes is none."""
FRAMES = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
BROKEN = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, RuntimeError, MemoryError)


class Inflater(Protocol):
    """The part of the standard library's decompressors that all have."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def sniff(data: Buffer) -> bool:
    return _name(bytes(data[:6])) != ""


def _name(head: bytes) -> str:
    if head[:4] in FRAMES:
        return FRAMES[head[:4]]
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    if head[:3] == b"BZh" and head[3:4].isdigit():
        return "bzip2"
    if len(head) > 1 and head[0] == 0x78 and (head[0] << 8 | head[1]) % 31 == 0:
        return "zlib"
    return ""


def _inflater(name: str) -> tuple[Inflater, tuple[type[Exception], ...]] | None:
    """And what it raises besides the usual. None: the library that reads it is not installed. Imported late: few caches need either."""
    try:
        if name == "zstd":
            zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
            limits = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_BITS}
            return cast(Inflater, zstd.ZstdDecompressor(options=limits)), (zstd.ZstdError,)
        if name == "lz4":
            return cast(Inflater, importlib.import_module("lz4.frame").LZ4FrameDecompressor()), ()
    except ImportError:
        return None
    if name == "xz":
        return lzma.LZMADecompressor(memlimit=128 << 20), ()
    if name == "bzip2":
        return bz2.BZ2Decompressor(), ()
    return zlib.decompressobj(31 if name == "gzip" else 15), ()


def decode(data: Buffer) -> Decoded:
    name = _name(bytes(data[:6]))
    found = _inflater(name)
    if found is None:
        return Decoded(name, detail=f"{name} not read: its library is not installed")
    inflater, own_errors = found
    broken: tuple[type[Exception], ...] = (*BROKEN, *own_errors)
    try:
        inner = inflater.decompress(bytes(data), MAX_BYTES + 1)
    except broken as error:
        if name == "zlib":
            return raw.decode(data)  # two bytes of magic: a raw buffer may begin like that
        return Decoded(name, problem="corrupt", detail=f"{name}: {error}")
    if len(inner) > MAX_BYTES:
        return Decoded(name, detail=f"{name} not read: inflates to more than {MAX_BYTES} bytes")
    if not inflater.eof:
        if name == "zlib" and not inner and len(data) >= SURE:
            return raw.decode(data)
        return Decoded(name, problem="truncated", detail=f"{name} ends early", needs_bytes=len(data) + 1)
    return Decoded(name + "+", nested=(inner,), inflated=inner)
