"""msgpack: plain maps and lists, msgpack-numpy's arrays, texts and bytes of exactly the announced length.

    \\x85\\xc4\\x02nd\\xc3\\xc4\\x04type\\xa3<f4\\xc4\\x04kind\\xc4\\x00\\xc4\\x05shape\\x91\\xcd\\x02\\x00\\xc4\\x04data\\xc5 …
"""

import re
from typing import Any

import msgspec

from diag.decode.decoded import Buffer, Decoded
from diag.decode.plain import describe

NAME = "msgpack"
ORDER = 910

MAX_BYTES = 64 << 20
# first bytes of maps, arrays, bin8-32, str8-32; no format has a magic, so what follows must hold too
CONTAINERS = frozenset([*range(0x81, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
BYTES = frozenset([0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB])
NIL, NO_LIST = b"\xc0", b"\x90"
# a map that begins with a name: enough to call a cut one cut
NAMED = re.compile(rb"(?:[\x81-\x8f]|\xde..|\xdf....)(?:[\xa2-\xbf]|\xd9.|\xc4.)[A-Za-z_][A-Za-z_0-9]", re.DOTALL)
# a list that begins with a float: an embedding
FLOATS = re.compile(rb"(?:\xdc..|\xdd....)\xcb.{8}\xcb.{8}\xcb", re.DOTALL)


def sniff(data: Buffer) -> bool:
    head = bytes(data[:64])
    if head in (NIL, NO_LIST):
        return True
    return len(head) > 1 and (head[0] in BYTES or head[0] in CONTAINERS)


def decode(data: Buffer) -> Decoded:
    if len(data) > MAX_BYTES:
        return Decoded("raw", detail=f"not read: more than {MAX_BYTES} bytes")
    try:
        value = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return _damaged(data, str(error))
    if isinstance(value, (str, bytes)) and len(data) < 8:
        return _raw(data)  # two or three bytes fit by chance
    return describe(_plain(value), NAME)


def _damaged(data: Buffer, said: str) -> Decoded:
    """Cut or broken, if the beginning is one that no raw buffer has; else a raw buffer."""
    head = bytes(data[:64])
    if NAMED.match(head) is None and FLOATS.match(head) is None:
        return _raw(data)
    if "truncated" in said:
        return Decoded(NAME, problem="truncated", detail="msgpack ends early", needs_bytes=len(data) + 1)
    return Decoded(NAME, problem="corrupt", detail=f"msgpack: {said[:100]}")


def _raw(data: Buffer) -> Decoded:
    from diag.decode import raw

    return raw.decode(data)


def _plain(value: Any) -> Any:
    """An extension type is bytes to us, whatever its code means to its reader."""
    return bytes(value.data) if isinstance(value, msgspec.msgpack.Ext) else value
