"""The lines of a huge file that can matter, found by one regular expression over blocks of 4 MiB; all others are only counted.

    for block in blocks(stream, pattern):       # in order; whole lines; a few blocks in memory, whatever the file's size
        for hit in block.hits: …                # number, begin and end of a line that matches

Blocks are searched by two threads while the one before is being worked on: google-re2 lets go of the interpreter's lock.
Bytes are searched as bytes (Latin-1): what is no UTF-8 hides nothing. A line with a control character where it could split a
word is a hit as well, and so is one that is too long to be looked at whole. Nothing is anchored, so that neither the border
of a block nor what a container runtime put before a line matters.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import re2

BLOCK_BYTES = 4 << 20
LINE_BYTES = 64 << 10
"""Of a longer line only this much is kept."""
THREADS = 2
LINE_END = 10
AHEAD = 3
"""Blocks that are searched or wait while one is worked on."""
MEMORY_BYTES = 64 << 20
"""For the automaton of a pattern: a hundred alternatives do not fit into the 8 MiB it gets by itself."""
# at the beginning of a line, and between `)` and a blank, stand the colours of vLLM's writers, which split no word of a pattern
CONTROL = (
    rb"[^\n)](?:[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f])"
    rb"|\)(?:[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]|\x1b(?:[^\[\n]|\[[0-9;]*(?:[^0-9;m\n]|m[^ \n])))"
)


class Hit(NamedTuple):
    """A line that can matter: its number in the file, from 1; where it begins and ends (its line end included) in its block."""

    number: int
    begin: int
    end: int


@dataclass(frozen=True)
class Block:
    """Whole lines that follow each other. `size` are the bytes they have in the file: more than `data` where one was too long."""

    data: bytes
    first: int
    """Number of its first line."""
    lines: int
    size: int
    hits: Sequence[Hit]


@dataclass(frozen=True)
class _Piece:
    """A block before it is searched."""

    data: bytes
    size: int


@lru_cache(maxsize=8)
def compiled(alternatives: tuple[bytes, ...]) -> Any:
    """Alternatives in the syntax of RE2, over bytes -> one pattern; lines split by control characters are hits too."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem, options.log_errors, options.longest_match = MEMORY_BYTES, False, True
    return re2.compile(b"|".join((*alternatives, CONTROL)), options=options)


def blocks(stream: BinaryIO, pattern: Any, *, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """All of a file in order. Memory does not grow with it, nor with its longest line."""
    pieces, first = _pieces(stream, block_bytes), 1
    head = next(pieces, None)
    if head is None:
        return
    second = next(pieces, None)
    if second is None:  # small: no threads
        lines, hits = _search(head.data, pattern)
        yield _block(head, first, lines, hits)
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="log-scan") as pool:
        waiting: deque[tuple[_Piece, Future[_Found]]] = deque()
        try:
            for piece in _chain(head, second, pieces):
                waiting.append((piece, pool.submit(_search, piece.data, pattern)))
                if len(waiting) >= AHEAD:
                    block = _taken(waiting, first)
                    first += block.lines
                    yield block
            while waiting:
                block = _taken(waiting, first)
                first += block.lines
                yield block
        finally:
            for _, future in waiting:
                future.cancel()


_Found = tuple[int, list[Hit]]


def _chain(head: _Piece, second: _Piece, rest: Iterator[_Piece]) -> Iterator[_Piece]:
    yield head
    yield second
    yield from rest


def _taken(waiting: "deque[tuple[_Piece, Future[_Found]]]", first: int) -> Block:
    piece, future = waiting.popleft()
    return _block(piece, first, *future.result())


def _block(piece: _Piece, first: int, lines: int, hits: list[Hit]) -> Block:
    return Block(piece.data, first, lines, piece.size, [Hit(first + number, begin, end) for number, begin, end in hits])


def _pieces(stream: BinaryIO, block_bytes: int) -> Iterator[_Piece]:
    """The file cut behind the line end after every `block_bytes`; of a line that is too long only the beginning is kept."""
    while data := stream.read(block_bytes):
        if not data.endswith(b"\n"):
            data += stream.readline(LINE_BYTES)
        size = len(data)
        if size > LINE_BYTES and not data.endswith(b"\n"):
            while rest := stream.readline(block_bytes):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
            data += b"\n" if size > len(data) else b""
        yield _Piece(data, size)


def _search(data: bytes, pattern: Any) -> _Found:
    """Lines in it, and those that match (numbered from 0)."""
    hits: list[Hit] = []
    number = place = 0
    long = iter(_long_lines(data))
    next_long = next(long, None)
    search, ends = pattern.search, np.frombuffer(data, np.uint8) == LINE_END
    while place < len(data):
        match = search(data, place)
        found = len(data) if match is None else match.start()
        begin = (data.rfind(b"\n", place, found) + 1 or place) if match is not None else len(data)
        if next_long is not None and next_long <= begin:
            begin = found = next_long
            next_long = next(long, None)
        if begin == len(data):
            break
        end = data.find(b"\n", found) + 1 or len(data)
        number += int(np.count_nonzero(ends[place:begin]))
        hits.append(Hit(number, begin, end))
        number, place = number + 1, end
    return number + int(np.count_nonzero(ends[place:])) + (place < len(data) and not data.endswith(b"\n")), hits


def _long_lines(data: bytes) -> Iterator[int]:
    """Where lines begin that are longer than is looked at."""
    begin = 0
    while len(data) - begin > LINE_BYTES:
        cut = data.rfind(b"\n", begin, begin + LINE_BYTES) + 1
        if cut:
            begin = cut
            continue
        yield begin
        begin = data.find(b"\n", begin) + 1 or len(data)
