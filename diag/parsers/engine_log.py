"""Logs of an inference server -> what happened and when it fell silent. Streaming: lines in, rows out.

Files are read through `engine_scan`, which finds the lines that can matter; what becomes of a line is decided here.

Kept in `log_events` are known events (`engine_events`), WARNING and above, the exception line of every traceback, and one line
of engine statistics per interval; access lines go to `http_events`; everything else is counted in `log_files`.

    (APIServer pid=12143) INFO 11-30 03:05:52 [launcher.py:254] [shutdown] API server: shutdown triggered
    (EngineCore pid=12240) ERROR 11-30 03:05:52 [core.py:935] EngineCore encountered a fatal error.
    INFO:     127.0.0.1:60298 - "GET /health HTTP/1.1" 200 OK
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from diag.model import Row
from diag.parsers import log_access, log_heads
from diag.parsers.engine_events import event_of
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import Head

head_of = lru_cache(maxsize=8)(log_heads.split)
"""A line taken apart; whoever decides whether to feed it has looked at it just before."""

LOUD = frozenset({"WARNING", "ERROR", "CRITICAL"})
ENGINES_OWN = frozenset({"vllm", "glog", "nccl"})
"""Formats that nothing else writes: one line of them says enough."""
STATS_EVERY_S = 5.0
MESSAGE_CHARS = 2_000
LINE_BYTES = 64 << 10
"""Longer lines are read to their end, but only this much of them is looked at."""
TRACEBACK = "Traceback (most recent call last)"
TRACEBACK_LINES = 5_000
TOLD_LINES = 100
"""How far behind its exception line, in lines of the log, a traceback may go on (chained, or more lines of the message)."""
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<func>.+))?')
EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w<>]*\.)*[A-Za-z_]\w*(?::(?:\s|$)|$(?<=Error|ption|.Exit|rrupt|ation|meout|Empty|.Full|Group|rning))"
)
GROUP = re.compile(r"^\s*(?:\+-\+-+ \d+ -+|\+-+(?: \d+ -+)?|\||\+) ?")
"""What a traceback of an ExceptionGroup has before its lines."""
CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
STATS_ENGINE = re.compile(r"^(?:Engine (?P<engine>\d+)|(?P<batch>Prefill|Decode))")
Line = tuple[int, str, int]
"""(number from 1, cleaned text without its end, bytes with its end)"""


@dataclass(frozen=True)
class Origin:
    """Where lines come from, and what the live collector knows of it (None = loose file)."""

    file: str
    at: Callable[[int], str]
    """Line number -> `source` of a row."""
    pids: Sequence[int] = ()
    """Processes that write to it, root first, as the host numbers them."""
    roles: Mapping[int, str] = field(default_factory=dict)
    ns_pids: Mapping[int, int] = field(default_factory=dict)
    """Pid as the container prints it -> pid of the host."""
    written_at: float | None = None
    collected_at: float | None = None
    cut: bool = False


class _Writer(NamedTuple):
    """Keeps interleaved writers of one log apart."""

    outer: int | None
    kind: str
    who: str | None
    pid: int | None


@dataclass
class _Traceback:
    """A traceback that is being read."""

    line: int
    head: Head
    ts: datetime.datetime | None
    dated: bool
    where: str | None = None
    lines: int = 0
    told: bool = False
    """Its exception line was read; a chained traceback may follow."""
    told_at: int = 0
    chained: bool = False


def read(stream: BinaryIO) -> Iterator[Line]:
    """Lines of a file, streamed: bad UTF-8 is replaced, control characters are dropped, no line is lost."""
    number = 0
    while raw := stream.readline(LINE_BYTES):
        number += 1
        size = len(raw)
        whole = raw
        while not raw.endswith(b"\n") and (raw := stream.readline(LINE_BYTES)):
            size += len(raw)
        for text in texts_of(whole):
            yield number, text, size
            size = 0


def texts_of(raw: bytes) -> list[str]:
    """The beginning of a line as it stands in a file -> what is shown of it, cleaned: several where a progress bar wrote over itself."""
    return [log_heads.clean(piece.decode("utf-8", "replace")) for piece in raw[:LINE_BYTES].rstrip(b"\r\n").split(b"\r")]


def rows(lines: Iterable[Line], origin: Origin, *, year: int | None = None, tz: str | None = None) -> Iterator[Row]:
    """Lines -> rows of log_events, http_events and one of log_files (last).

    `year` and `tz` (`UTC`, `+02:00`, `Europe/Berlin`) complete times that lack them; None = assumed and said so.
    Raises BadInput for an unknown zone.
    """
    log = Log(origin, Clock(year, tz, origin.collected_at))
    for number, text, size in lines:
        yield from log.line(number, text, size)
    yield from log.end()


def looks_like_log(head: str, least: int = 3, of: int = 50) -> bool:
    """Is this the beginning of an engine log: enough lines of a known format, or a Python traceback?"""
    found = 0
    before = ""
    for line in [line for line in head.splitlines() if line.strip()][:of]:
        if FRAME.match(line) and before.rstrip().endswith(TRACEBACK + ":"):
            return True
        before = line
        found += log_heads.is_engine_line(line) or log_access.of_line(line) is not None
        if found >= least:
            return True
    return False


def is_fragment(head: str, of: int = 5) -> bool:
    """A few lines cut out of a log: half of them or more begin as only engines begin theirs."""
    lines = [log_heads.clean(line) for line in head.splitlines() if line.strip()]
    own = sum(head_of(line).kind in ENGINES_OWN for line in lines[: of + 1])
    return 0 < len(lines) <= of and 2 * own >= len(lines)


def kinds_in(head: str, of: int = 50) -> frozenset[str]:
    """Formats of the first lines (as log_heads names them); an access line of a web server is `uvicorn`."""
    lines = [log_heads.clean(line) for line in head.splitlines() if line.strip()][:of]
    heads = [log_heads.split(line) for line in lines]
    return frozenset("uvicorn" if item.request is None and log_access.of_head(item) is not None else item.kind for item in heads)


class Log:
    """One log being read: counters, clock, open tracebacks, held back statistics.

    Lines that cannot matter need not be fed, while no traceback is open and as long as `date` is told of the last
    dated one among them.
    """

    def __init__(self, origin: Origin, clock: Clock) -> None:
        self.origin = origin
        self.clock = clock
        self.lines = self.kept = self.size = 0
        self.first: datetime.datetime | None = None
        self.last: datetime.datetime | None = None
        self.now: datetime.datetime | None = None
        self.before: tuple[int, Head, datetime.datetime | None, bool] | None = None
        self.open: dict[_Writer, _Traceback] = {}
        self.stats_at: dict[tuple[object, ...], datetime.datetime] = {}
        self.stats_held: dict[tuple[object, ...], Row] = {}

    def line(self, number: int, text: str, size: int) -> Iterator[Row]:
        self.lines += size > 0
        self.size += size
        if self.open:
            yield from self._keep(self._expired(number))
        if not text:
            return
        head, access, ts, dated = self._dated(text)
        if access is not None:
            self._span(ts)
            yield "http_events", {**access.row, "ts": ts, "dated": dated, "source": self.origin.at(number)}
            if head.request is None or head.level not in LOUD:
                return
        writer = _Writer(head.outer, head.kind, head.who, head.pid)
        going = self.open.get(writer)
        if going is not None:
            found, taken = self._continue(going, head, number)
            yield from self._keep(found)
            if taken:
                return
        if TRACEBACK in head.message:
            self._begin(writer, number, head, ts, dated)
            if head.message.strip().rstrip(":") == TRACEBACK:
                return
        self.before = (number, head, ts, dated)
        yield from self._keep(self._plain(number, head, ts, dated))

    def end(self) -> Iterator[Row]:
        """Tracebacks without an end, the last statistics, and the row about the file."""
        for going in {id(item): item for item in self.open.values()}.values():
            if not going.told:
                yield from self._keep([self._exception(going, TRACEBACK + " … (cut off)")])
        yield from self._keep(self.stats_held.values())
        self._span(self.now)
        origin = self.origin
        written, collected = _epoch(origin.written_at), _epoch(origin.collected_at)
        sign = written if written is not None else self.last if collected is not None else None
        yield "log_files", {
            "file": origin.file, "pid": origin.pids[0] if origin.pids else None, "lines": self.lines, "kept": self.kept,
            "bytes": self.size, "cut": origin.cut, "first_ts": self.first, "last_ts": self.last, "written_at": written,
            "collected_at": collected, "assumed": self.clock.assumed, "source": origin.at(max(self.lines, 1)),
            "silent_s": None if collected is None or sign is None else max(0.0, (collected - sign).total_seconds()),
        }

    def date(self, text: str) -> bool:
        """A line that is not fed: has it a time? The lines after it are no older."""
        return bool(text) and self._dated(text)[3]

    def _dated(self, text: str) -> tuple[Head, log_access.Access | None, datetime.datetime | None, bool]:
        """A line taken apart, the request it tells of, its time, and whether that is its own."""
        head = head_of(text)
        ts, dated = self._time(head)
        access = log_access.of_head(head)
        if access is not None and access.stamp is not None and (at := self._own_time(access.stamp)) is not None:
            ts, dated = at, True
        return head, access, ts, dated

    def _time(self, head: Head) -> tuple[datetime.datetime | None, bool]:
        """The line's own time, or the time of the last dated line before it: it was written no earlier."""
        own = None if head.stamp is None else self._own_time(head.stamp)
        return (self.now, False) if own is None else (own, True)

    def _own_time(self, stamp: log_heads.Stamp) -> datetime.datetime | None:
        own = self.clock.utc(stamp)
        if own is not None:
            self.now = own
            if self.first is None:
                self._span(own)
        return own

    def _span(self, ts: datetime.datetime | None) -> None:
        """From when to when the log is: the first and the last dated line, and all that is kept."""
        if ts is not None:
            self.first = ts if self.first is None else min(self.first, ts)
            self.last = ts if self.last is None else max(self.last, ts)

    def _keep(self, found: Iterable[Row]) -> Iterator[Row]:
        for row in found:
            self.kept += 1
            ts = row[1]["ts"]
            self._span(ts if isinstance(ts, datetime.datetime) else None)
            yield row

    def _plain(self, number: int, head: Head, ts: datetime.datetime | None, dated: bool) -> Iterator[Row]:
        """A line outside tracebacks: kept when it is a known event or loud."""
        event = event_of(head.message)
        if event == "engine_stats":
            yield from self._statistics(self._row(number, head, ts, dated, event), head, ts)
        elif event is not None or head.level in LOUD:
            if event == "ready" and head.kind == "sglang" and "fired up" not in head.message:
                event = "api_up"
            yield self._row(number, head, ts, dated, event)

    def _statistics(self, row: Row, head: Head, ts: datetime.datetime | None) -> Iterator[Row]:
        """One line per interval and engine; the last one is held back until the end, where silence begins."""
        match = STATS_ENGINE.match(head.message)
        key = (head.outer, head.who, head.pid, match.groups() if match else None)
        before = self.stats_at.get(key)
        if ts is None or before is None or abs((ts - before).total_seconds()) >= STATS_EVERY_S:
            self.stats_held.pop(key, None)
            if ts is not None:
                self.stats_at[key] = ts
            yield row
        else:
            self.stats_held[key] = row

    def _row(self, number: int, head: Head, ts: datetime.datetime | None, dated: bool, event: str | None) -> Row:
        pid = self._pid(head)
        return "log_events", {
            "ts": ts, "dated": dated, "file": self.origin.file, "line": number, "pid": pid,
            "role": head.role or (None if pid is None else self.origin.roles.get(pid)),
            "level": head.level, "logger": head.logger, "message": head.message[:MESSAGE_CHARS].rstrip(), "event": event,
            "source": self.origin.at(number),
        }

    def _pid(self, head: Head) -> int | None:
        """Pid as the host sees it: printed ones may come from a container, an only writer needs no name."""
        if head.pid is None:
            return self.origin.pids[0] if len(self.origin.pids) == 1 else None
        return self.origin.ns_pids.get(head.pid, head.pid)

    def _begin(self, writer: _Writer, number: int, head: Head, ts: datetime.datetime | None, dated: bool) -> None:
        if head.kind == "raw" and self.before is not None and self.before[0] == number - 1 and self.before[1].level in LOUD:
            # logger.exception(): the line that announces it has the time and the writer.
            _, announced, ts, dated = self.before
            head = announced._replace(outer=head.outer)
        going = _Traceback(number, head, ts, dated)
        self.open[writer] = going
        if head.kind == "sglang" or (head.kind != "vllm" and writer.who is None):
            # vLLM repeats its prefix on every line of a message, the others do not.
            self.open[_Writer(head.outer, "raw", None, head.outer)] = going

    def _expired(self, number: int) -> list[Row]:
        """Tracebacks of writers that fell silent are over, before line `number`: rows of those without an end."""
        rows = []
        for going in {id(item): item for item in self.open.values()}.values():
            if going.told and number - going.told_at > TOLD_LINES:
                self._close(going)
            elif not going.told and number - going.line > TRACEBACK_LINES:
                self._close(going)
                rows.append(self._exception(going, TRACEBACK + " … (no exception line)"))
        return rows

    def _continue(self, going: _Traceback, head: Head, number: int) -> tuple[list[Row], bool]:
        """Rows that the next line of the writer of an open traceback gives, and whether it is part of the traceback."""
        grouped = head.message.lstrip()[:1] in ("|", "+")
        text = GROUP.sub("", head.message) if grouped else head.message
        going.lines += 1
        if (match := FRAME.match(text)) is not None:
            going.where = f"{match['file']}:{match['line']}"
        if TRACEBACK in text and (going.chained or grouped):
            going.told, going.chained, going.where = False, False, None
            return [], True
        if text.startswith(CHAIN):
            going.chained = True
        if (not text.strip() or text[:1].isspace() or text.startswith(CHAIN)) and going.lines <= TRACEBACK_LINES:
            return [], True
        if not going.told and TRACEBACK not in text and EXCEPTION.match(text):
            going.told, going.told_at = True, number
            return [self._exception(going, text)], True
        if head.kind == "raw" and not going.told and TRACEBACK not in text and going.lines <= TRACEBACK_LINES:
            return [], False
        self._close(going)
        return [] if going.told else [self._exception(going, TRACEBACK + " … (no exception line)")], False

    def _close(self, going: _Traceback) -> None:
        self.open = {writer: other for writer, other in self.open.items() if other is not going}

    def _exception(self, going: _Traceback, text: str) -> Row:
        head = going.head._replace(message=text, level="ERROR", logger=going.head.logger or going.where)
        return self._row(going.line, head, going.ts, going.dated, event_of(text) or "traceback")


def _epoch(seconds: float | None) -> datetime.datetime | None:
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None)
