"""LZF, the compression of single strings in RDB files: unpacked in bounded memory, whatever the bytes announce."""

MAX_RATIO = 88
"""Three packed bytes become at most 264."""


class Unpackable(Exception):
    """These bytes are no LZF, or not of this length: its text says why."""


def unpack(packed: bytes, size: int, most: int | None = None) -> bytes:
    """The `size` bytes that were packed; only the first `most` of them where that is less. Raises Unpackable.

    Never holds more than `most` and 264 bytes, and nothing at all for a size that `packed` cannot have come from.
    """
    if size > MAX_RATIO * len(packed):
        raise Unpackable(f"{len(packed)} packed bytes cannot hold {size}")
    wanted = size if most is None else min(size, most)
    out = bytearray()
    at, end = 0, len(packed)
    try:
        while at < end and len(out) < wanted:
            control = packed[at]
            if control < 32:  # that many and one more bytes as they are
                after = at + control + 2
                out += packed[at + 1 : after]
                at = after
                continue
            count = (control >> 5) + 2  # a piece of what was unpacked before
            if count == 9:
                at += 1
                count += packed[at]
            start = len(out) - ((control & 31) << 8 | packed[at + 1]) - 1
            at += 2
            if start < 0:
                raise Unpackable("it points before its begin")
            piece = out[start : start + count]
            if len(piece) < count:  # it overlaps what it makes
                piece = (piece * (count // len(piece) + 1))[:count]
            out += piece
    except IndexError:
        raise Unpackable("it ends too early") from None
    whole = wanted == size
    if at > end or len(out) < wanted or (whole and (len(out) != size or at != end)):
        raise Unpackable(f"it does not unpack to the {size} bytes it announces")
    return bytes(out[:wanted])
