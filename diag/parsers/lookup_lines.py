"""Lines of a log that tell of prefix cache lookups: found by their marks, dated by whatever stands before them.

Logs are read as bytes, because most lines have no mark, and because a log with Chinese words may be GBK.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from diag.model import Artefact
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import Stamp, clean

LINE_BYTES = 1 << 20
"""Of a longer line only the beginning is looked at."""
CHUNK_BYTES = 1 << 20
STAMP = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,:](?P<frac>\d{1,9}))?\s?(?P<zone>Z\b|[+-]\d\d:?\d\d\b)?"
)
# [4711] [139876], pid=4711: whoever else writes to the same log has other numbers
WRITER = re.compile(r"\[(\d{1,18})\]|\b(?:pid|tid|rank)[=: ]?(\d{1,18})\b")


class Marked(NamedTuple):
    """A line with a mark."""

    number: int
    before: str
    """What stands before the mark: time, writer, level."""
    text: str
    """From the mark on."""

    @property
    def writer(self) -> tuple[str, ...]:
        """Keeps the lines of interleaved writers apart: the numbers in brackets before the mark."""
        without_time = STAMP.sub("", self.before)
        return tuple(match[1] or match[2] for match in WRITER.finditer(without_time))


def marked(artefact: Artefact, marks: Sequence[str]) -> Iterator[Marked]:
    """Lines that hold one of the marks, in UTF-8 or GBK; all others are skipped undecoded."""
    wanted = re.compile(b"|".join(re.escape(raw) for raw in encodings(marks)))
    at = re.compile("|".join(re.escape(mark) for mark in marks))
    number = 0
    with artefact.opener() as stream:
        while raw := stream.readline(LINE_BYTES):
            number += 1
            whole = raw
            while not raw.endswith(b"\n") and (raw := stream.readline(LINE_BYTES)):
                pass
            if wanted.search(whole) is None:
                continue
            line = clean(decoded(whole).rstrip("\r\n"))
            if (match := at.search(line)) is not None:
                yield Marked(number, line[: match.start()], line[match.start() :])


def present(artefact: Artefact, groups: Mapping[str, Sequence[str]]) -> set[str]:
    """Which groups of marks a file holds at all: one pass over its bytes, at the speed of reading them."""
    wanted = {name: encodings(marks) for name, marks in groups.items()}
    found: set[str] = set()
    longest = max((len(raw) for raws in wanted.values() for raw in raws), default=1)
    tail = b""
    with artefact.opener() as stream:
        while (chunk := stream.read(CHUNK_BYTES)) and len(found) < len(wanted):
            data = tail + chunk
            found |= {name for name, raws in wanted.items() if name not in found and any(raw in data for raw in raws)}
            tail = data[-longest:]
    return found


def encodings(marks: Sequence[str]) -> list[bytes]:
    """The marks as they may stand in a file."""
    return list(dict.fromkeys(mark.encode(code) for mark in marks for code in ("utf-8", "gb18030")))


def decoded(raw: bytes) -> str:
    """UTF-8, else GBK; what is neither stays visible as replacement characters."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("gb18030", "replace")


def time_of(before: str, clock: Clock) -> datetime.datetime | None:
    """The time that stands before a mark, in UTC; None: none, or none that exists."""
    match = STAMP.search(before)
    if match is None:
        return None
    date = match["date"]
    return clock.utc(Stamp(int(date[:4]), int(date[5:7]), int(date[8:10]), match["time"], match["frac"] or "", match["zone"]))
