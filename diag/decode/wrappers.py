"""Recognises cache items: a value with its version, its time of birth and its checksum beside it."""

import hashlib
import zlib
from collections.abc import Mapping
from typing import Literal

from diag.decode.decoded import Buffer, Wrapper

DATA = ("data", "payload", "value", "blob", "content", "tensor", "embedding", "body", "embeddings", "response", "vector", "features", "choices")
VERSION = ("version", "ver", "schema_version", "format_version", "model_version", "cache_version", "v")
CREATED = ("created_at", "created", "timestamp", "ts", "inserted_at", "stored_at", "time")
CHECKSUM = ("checksum", "crc32", "crc", "crc_32", "digest", "sha256", "md5")

_HEX_DIGESTS = {32: hashlib.md5, 40: hashlib.sha1, 64: hashlib.sha256}


def wrapper_of(kind: str, fields: Mapping[str, object], data: Buffer | None) -> Wrapper | None:
    """What a mapping says of its own data, or None if it says nothing. `data`: its bytes field, if any."""
    version, created, checksum = (_first(fields, names) for names in (VERSION, CREATED, CHECKSUM))
    if version is None and checksum is None and created is None:
        return None
    seconds = float(created) if isinstance(created, (int, float)) and not isinstance(created, bool) else None
    return Wrapper(
        kind=kind,
        version=str(version)[:64] if isinstance(version, (str, int, float)) else None,
        created_at=seconds,
        checksum=str(checksum)[:64] if isinstance(checksum, (str, int)) else None,
        checksum_kind=None if data is None else kind_of(checksum, data),
        crc_ok=None if data is None or checksum is None else fits(checksum, data),
    )


def data_of(fields: Mapping[str, object]) -> object:
    """The field that carries the data, or None."""
    return _first(fields, DATA)


def hollow(fields: Mapping[str, object]) -> Literal["none", "empty"] | None:
    """Are all fields that should carry data null, or without any element? None: one holds something, or there is none."""
    carriers = [fields[name] for name in DATA if name in fields]
    if len(carriers) == 1 and isinstance(carriers[0], dict) and carriers[0]:
        return hollow(carriers[0])
    if carriers and all(value is None for value in carriers):
        return "none"
    if carriers and all(value is None or (isinstance(value, (str, bytes, memoryview, list, tuple, dict)) and not value) for value in carriers):
        return "empty"
    return None


def kind_of(checksum: object, data: Buffer) -> str | None:
    """Which function this is the value of; None: of none that is known."""
    if not fits(checksum, data):
        return None
    return "adler32" if isinstance(checksum, int) and checksum & 0xFFFFFFFF != zlib.crc32(data) else "crc32" if isinstance(checksum, int) else "digest"


def fits(checksum: object, data: Buffer) -> bool | None:
    """Is this the CRC32 (or Adler-32, or hex digest) of the data? None: no checksum of a known kind."""
    if isinstance(checksum, int) and not isinstance(checksum, bool):
        return checksum & 0xFFFFFFFF in (zlib.crc32(data), zlib.adler32(data))
    if isinstance(checksum, str):
        text = checksum.lower().removeprefix("0x").removeprefix("sha256:").removeprefix("md5:")
        try:
            number = int(text, 16)
        except ValueError:
            return None
        if len(text) in _HEX_DIGESTS:
            return _HEX_DIGESTS[len(text)](data).hexdigest() == text
        return number == zlib.crc32(data) if len(text) <= 8 else None
    return None


def _first(fields: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((fields[name] for name in names if fields.get(name) is not None), None)
