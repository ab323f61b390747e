"""The lines of a huge file that can matter, found by one regular expression over blocks of 2 MiB; all others are only counted.

    for block in blocks(stream, finder):        # in order; whole lines; a few blocks in memory, whatever the file's size
        for hit in block.hits: …                # number, begin and end of a line that matters

Blocks are searched by two threads while the one before is being worked on: google-re2 lets go of the interpreter's lock.
Bytes are searched as bytes (Latin-1): what is no UTF-8 hides nothing. A line with a control character where it could split a
word is a hit as well, and so is one that is too long to be looked at whole. Nothing is anchored, so that neither the border
of a block nor what a container runtime put before a line matters.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import re2

BLOCK_BYTES = 2 << 20
LINE_BYTES = 64 << 10
"""Of a longer line only this much is kept."""
THREADS = 2
ALIGNED, PART_BYTES = 64, 256 << 10
LINE_END, BLANK, DELETE, LATIN_CONTROL = 10, 32, 127, 0xC2
AHEAD = 6
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


Finder = Callable[[bytes], Iterable[int]]
"""Where in a block something is found that makes its line matter: in any order, lines more than once if need be."""


@lru_cache(maxsize=8)
def by_pattern(alternatives: tuple[bytes, ...]) -> Finder:
    """Alternatives in the syntax of RE2, over bytes; lines split by control characters are found too."""
    search = _compiled(b"|".join((*alternatives, CONTROL))).search

    def find(data: bytes) -> Iterator[int]:
        place = 0
        while place < len(data) and (match := search(data, place)) is not None:
            yield match.start()
            place = data.find(b"\n", match.start()) + 1 or len(data)

    return find


@lru_cache(maxsize=8)
def by_words(words: tuple[bytes, ...], alternatives: tuple[bytes, ...]) -> Finder:
    """The same for few alternatives of which each holds one of the words: RE2 finds a single word many times faster than any of several."""
    searches, exact, control = [_compiled(re2.escape(word)).finditer for word in words], _compiled(b"|".join(alternatives)).search, _compiled(CONTROL)

    def find(data: bytes) -> Iterator[int]:
        for search in searches:
            for match in search(data):
                place = match.start()
                begin, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place) + 1 or len(data)
                if exact(data, begin, end) is not None:
                    yield place
        if _may_hold_control(data):
            yield from (match.start() for match in control.finditer(data))

    return find


def _may_hold_control(data: bytes) -> bool:
    """In parts that stay in the cache of a CPU."""
    for begin in range(0, len(data), PART_BYTES):
        part = np.frombuffer(data, np.uint8, min(PART_BYTES, len(data) - begin), begin)
        if np.count_nonzero(part < BLANK) > np.count_nonzero(part == LINE_END):
            return True
        if part.max() >= DELETE and np.any((part == DELETE) | (part == LATIN_CONTROL)):
            return True
    return False


def _compiled(pattern: bytes) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem, options.log_errors, options.longest_match = MEMORY_BYTES, False, True
    return re2.compile(pattern, options=options)


def blocks(stream: BinaryIO, find: Finder, *, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """All of a file in order. Memory does not grow with it, nor with its longest line."""
    pieces, first = _pieces(stream, block_bytes), 1
    begin = list(islice(pieces, 2))
    if len(begin) < 2:  # small: no threads
        yield from (_block(piece, 1, *_search(piece.data, find)) for piece in begin)
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="log-scan") as pool:
        waiting: deque[tuple[_Piece, Future[_Found]]] = deque()
        try:
            for piece in chain(begin, pieces, (None,) * AHEAD):
                if piece is not None:
                    waiting.append((piece, pool.submit(_search, piece.data, find)))
                if waiting and (piece is None or len(waiting) >= AHEAD):
                    done, future = waiting.popleft()
                    block = _block(done, first, *future.result())
                    first += block.lines
                    yield block
        finally:
            for _, future in waiting:
                future.cancel()


_Found = tuple[int, list[Hit]]


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


def _search(data: bytes, find: Finder) -> _Found:
    """Lines in it, and those that matter (numbered from 0)."""
    hits: list[Hit] = []
    place = counted = number = 0
    ends = np.frombuffer(data, np.uint8) == LINE_END
    for found in sorted(chain(find(data), _long_lines(data))):
        if found < place:  # on the line before
            continue
        begin, place = data.rfind(b"\n", place, found) + 1 or place, data.find(b"\n", found) + 1 or len(data)
        edge = begin // ALIGNED * ALIGNED  # from elsewhere numpy counts ten times more slowly
        number += int(np.count_nonzero(ends[counted:edge]))
        counted = edge
        hits.append(Hit(number + data.count(b"\n", edge, begin), begin, place))
    return number + int(np.count_nonzero(ends[counted:])) + (not data.endswith(b"\n")), hits


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
