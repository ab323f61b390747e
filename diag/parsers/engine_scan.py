"""A whole engine log -> rows, at the speed of a search: only lines that can matter are taken apart by `engine_log`.

The rows are those that `engine_log.rows` gives when it is fed every line: the search finds more than is kept, all lines are
fed while a traceback is open, and what has no time of its own gets that of the last dated line before it.
"""

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO

import re2

from diag.model import Row
from diag.parsers import engine_log, log_scan
from diag.parsers.engine_events import EVENTS
from diag.parsers.engine_log import TRACEBACK, Log, Origin
from diag.parsers.log_clock import Clock
from diag.parsers.log_scan import BLOCK_BYTES, Block, Finder

BROAD = frozenset({"orker", "equest", "version "})
"""Texts of EVENTS that stand in any log: there the regex beside them is searched for."""
OTHERS = (
    rb"WARN|ERROR|CRITICAL|FATAL|EXCEPTION",  # levels, as engines, NCCL and loggers spell them
    rb"[WEF]\d{3,4} \d\d:\d\d:\d\d",  # those of glog; torch writes no zero before a month
    rb"Warning: ",
    rb'"[A-Z]{3,8} [^"\n]*" \d\d\d',  # requests
    re.escape(TRACEBACK).replace("\\ ", " ").encode(),
    rb'\{"log":[^\n]*[^\n)"]\\(?:u00|[/bf])',  # docker's JSON: an escape where it could split a word
    rb'"MESSAGE"\s?:\s?(?:\[|"[^\n]*[^\n)"]\\(?:u00|[/bf]))',  # the same in a journal's
    rb'(?i:level|levelname|severity|lvl|@l)\\?"[ \t]*:[ \t]*(?:\\?"(?i:warn|err|crit|fatal|d?panic|alert|emerg)|[4-6]0[,} \t]|[0-4][,} \t])',  # levels in lines of JSON
    rb'(?i:status|code)\\?"[ \t]*:[ \t]*\\?"?[1-5]\d\d[",}\\ \t]',  # requests in lines of JSON
)
DATED = re2.compile(rb'\d\d:\d\d:\d\d|(?i:t|ts|time|timestamp)\\?"[ \t]*:[ \t]*\\?"?[1-9]\d{8}')
"""Stands in every time that a log prints; in lines of JSON as seconds since 1970 too."""
Texts = Callable[[bytes], Sequence[str]]
"""A line as it stands in the file -> what it says, cleaned; nothing = it is not the engine's."""


@lru_cache(maxsize=1)
def finder() -> Finder:
    """Finds, in bytes, every line that `engine_log` can make anything of."""
    return log_scan.by_pattern((*alternatives(), *OTHERS))


def alternatives() -> Iterator[bytes]:
    """EVENTS in the syntax of RE2. Without borders of words: the letter that ends a colour would be none."""
    for _, texts, regex in EVENTS:
        if BROAD.intersection(texts):
            yield b"(?:" + regex.replace(r"\b", "").encode() + b")"
        else:
            yield from (re2.escape(text.encode()) for text in texts)


def rows(
    stream: BinaryIO, origin: Origin, *, year: int | None = None, tz: str | None = None, texts: Texts = engine_log.texts_of, block_bytes: int = BLOCK_BYTES
) -> Iterator[Row]:  # fmt: skip
    """A file -> rows of log_events, http_events and one of log_files (last). Raises BadInput for an unknown zone.

    `texts` takes lines apart that hold the engine's inside something else (a journal).
    """
    log = Log(origin, Clock(year, tz, origin.collected_at))
    for block in log_scan.blocks(stream, finder(), block_bytes=block_bytes):
        yield from _block(log, block, texts)
        log.lines += block.lines
        log.size += block.size
    yield from log.end()


def _block(log: Log, block: Block, texts: Texts) -> Iterator[Row]:
    """Hits, the lines a traceback needs, and the times in between."""
    data, place, number = block.data, 0, block.first
    for hit in block.hits:
        if log.open:
            place, number = yield from _fed(log, data, place, number, hit.begin, texts)
        found = texts(data[hit.begin : hit.end])
        if place < hit.begin:
            if log.now is None:
                _first_time(log, data, place, hit.begin, texts)
            if _needs_time(found):
                _last_time(log, data, place, hit.begin, texts)
        for text in found:
            yield from log.line(hit.number, text, 0)
        place, number = hit.end, hit.number + 1
    place, number = yield from _fed(log, data, place, number, len(data), texts)
    if place < len(data):
        _first_time(log, data, place, len(data), texts)
        _last_time(log, data, place, len(data), texts)


def _fed(log: Log, data: bytes, place: int, number: int, until: int, texts: Texts) -> Generator[Row, None, tuple[int, int]]:
    """Lines one by one as long as a traceback is open -> where it stopped."""
    while log.open and place < until:
        end = data.find(b"\n", place) + 1 or len(data)
        for text in texts(data[place:end]):
            yield from log.line(number, text, 0)
        place, number = end, number + 1
    return place, number


def _needs_time(found: Sequence[str]) -> bool:
    """Does a line have no time of its own, or perhaps one that does not exist (31 February)?"""
    text = next((text for text in found if text), "")
    stamp = engine_log.head_of(text).stamp
    return stamp is None or not (1 <= stamp.month <= 12 and 1 <= stamp.day <= 28 and stamp.clock < "24" and stamp.clock[3] < "6" and stamp.year != 0)


def _first_time(log: Log, data: bytes, begin: int, end: int, texts: Texts) -> None:
    """Until the log has a time: the first one in a part that is not fed."""
    while log.now is None and (match := DATED.search(data, begin, end)) is not None:
        start = data.rfind(b"\n", begin, match.start()) + 1 or begin
        stop = data.find(b"\n", match.start(), end) + 1 or end
        for text in texts(data[start:stop]):
            log.date(text)
        begin = stop


def _last_time(log: Log, data: bytes, begin: int, end: int, texts: Texts) -> None:
    """The last one in a part that is not fed."""
    if DATED.search(data, begin, end) is None:
        return
    while end > begin:
        start = data.rfind(b"\n", begin, end - 1) + 1 or begin
        if DATED.search(data, start, end) is not None and any(log.date(text) for text in reversed(texts(data[start:end]))):
            return
        end = start
