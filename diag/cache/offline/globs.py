"""Key patterns as the servers match them: * ? [a-z] [^a] and \\ before a character meant as itself."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """What stands between two stars: as many bytes as it has characters."""

    look: re.Pattern[bytes]
    width: int


def matcher(glob: bytes) -> Callable[[bytes], bool]:
    """A test for whole keys. Its time is linear in the key for each star, whatever the key is."""
    pieces = [_piece(part) for part in _parts(glob)]
    first, rest = pieces[0], pieces[1:]
    if not rest:
        return lambda key: first.look.fullmatch(key) is not None
    *between, last = rest

    def fits(key: bytes) -> bool:
        begin, end = first.width, len(key) - last.width
        if begin > end or first.look.match(key) is None or last.look.match(key, end) is None:
            return False
        for piece in between:  # the leftmost place leaves the most for those that follow
            found = piece.look.search(key, begin, end)
            if found is None:
                return False
            begin = found.end()
        return True

    return fits


def _parts(glob: bytes) -> Iterator[list[bytes]]:
    """Between stars: one expression for each byte."""
    part: list[bytes] = []
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        at += 1
        if char == b"*":
            yield part
            part = []
        elif char == b"?":
            part.append(b".")
        elif char == b"[":
            chars, at = _class(glob, at)
            part.append(chars)
        else:
            if char == b"\\" and at < len(glob):
                char = glob[at : at + 1]
                at += 1
            part.append(re.escape(char))
    yield part


def _piece(part: list[bytes]) -> Piece:
    return Piece(re.compile(b"".join(part), re.DOTALL), len(part))


def _class(glob: bytes, at: int) -> tuple[bytes, int]:
    """What stands in brackets, and the offset after it; without the closing one the rest of the pattern is in it."""
    negative = glob[at : at + 1] == b"^"
    at += negative
    chars: set[int] = set()
    while at < len(glob) and glob[at : at + 1] != b"]":
        if glob[at : at + 1] == b"\\" and at + 1 < len(glob):
            chars.add(glob[at + 1])
            at += 2
        elif glob[at + 1 : at + 2] == b"-" and at + 2 < len(glob):
            low, high = sorted((glob[at], glob[at + 2]))
            chars.update(range(low, high + 1))
            at += 3
        else:
            chars.add(glob[at])
            at += 1
    if negative:
        chars = set(range(256)) - chars
    listed = b"".join(b"\\x%02x" % char for char in sorted(chars))
    return (b"[" + listed + b"]" if chars else b"(?!)"), at + 1
