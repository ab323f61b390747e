"""Compressed values: zlib, gzip, xz, bzip2 under a cap; zstd and lz4 are named, not read."""

import bz2
import lzma
import zlib
from typing import Protocol

from diag.decode import raw
from diag.decode.decoded import Buffer, Decoded

NAME = "compressed"
ORDER = 20

MAX_BYTES = 64 << 20
"""A value that inflates to more is not opened."""
UNREAD = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}


class Inflater(Protocol):
    """The part of the standard library's decompressors that all have."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def sniff(data: Buffer) -> bool:
    return _name(bytes(data[:6])) != ""


def _name(head: bytes) -> str:
    if head[:4] in UNREAD:
        return UNREAD[head[:4]]
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    if head[:3] == b"BZh" and head[3:4].isdigit():
        return "bzip2"
    if len(head) > 1 and head[0] == 0x78 and (head[0] << 8 | head[1]) % 31 == 0:
        return "zlib"
    return ""


def _inflater(name: str) -> Inflater:
    if name == "xz":
        return lzma.LZMADecompressor(memlimit=128 << 20)
    if name == "bzip2":
        return bz2.BZ2Decompressor()
    return zlib.decompressobj(31 if name == "gzip" else 15)


def decode(data: Buffer) -> Decoded:
    name = _name(bytes(data[:6]))
    if name in UNREAD.values():
        return Decoded(name, detail=f"{name} is not read here")
    inflater = _inflater(name)
    try:
        inner = inflater.decompress(bytes(data), MAX_BYTES + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        if name == "zlib":
            return raw.decode(data)  # two bytes of magic: a raw buffer may begin like that
        return Decoded(name, problem="corrupt", detail=f"{name}: {error}")
    if len(inner) > MAX_BYTES:
        return Decoded(name, detail=f"{name} not read: inflates to more than {MAX_BYTES} bytes")
    if not inflater.eof:
        if name == "zlib" and not inner:
            return raw.decode(data)
        return Decoded(name, problem="truncated", detail=f"{name} ends early", needs_bytes=len(data) + 1)
    return Decoded(name + "+", nested=(inner,))
