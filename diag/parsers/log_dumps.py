"""py-spy dumps that an engine's own watchdog wrote into its log: read out of it, of processes and times that its lines name.

    [2026-11-30 02:41:10 TP0] Pyspy dump for PID 88:
    Process 88: sglang::scheduler_TP0
    …
"""

from collections import deque
from dataclasses import dataclass

from diag.model import Artefact
from diag.parsers import log_scan, pyspy
from diag.parsers.dump_times import Times
from diag.parsers.log_clock import Clock
from diag.parsers.log_prefix import without_prefix
from diag.parsers.log_scan import BLOCK_BYTES, Block
from diag.parsers.lookup_lines import present
from diag.parsers.stack_dumps import Dump

MARK = "spy dump"
BIRTH = "server_args="
"""An engine begins: what was dumped before it is of another life, whose pids may be the same."""
HEAD_LINES, LOOK_BACK_LINES = 8, 50
"""So many lines may stand between the announcement and the first thread, and are looked at for a time before it."""


def dumps(artefact: Artefact, clock: Clock, *, block_bytes: int = BLOCK_BYTES) -> list[Dump]:
    """All dumps of the last life that the log tells of, in order; none in most logs, which costs one search."""
    if not present(artefact, {"dumps": (MARK,)}):
        return []
    reading = _Reading(pyspy.Reader(artefact.at), Times(clock))
    marks = (MARK.encode(), BIRTH.encode())
    with artefact.opener() as stream:
        for block in log_scan.blocks(stream, log_scan.by_words(marks, marks), block_bytes=block_bytes):
            reading.block(block)
    found = [dump for dump in reading.reader.finished() if dump.failure is None and dump.line > reading.born]
    return reading.times.dated(found)


@dataclass
class _Reading:
    """A log being read: from announcement to announcement, and as long as a dump goes on."""

    reader: pyspy.Reader
    times: Times
    born: int = 0
    """Line at which the engine of the last life begins."""
    since: int = HEAD_LINES
    """Lines that were of no dump since the last one that was."""

    def block(self, block: Block) -> None:
        place, number, hits = 0, block.first, deque(block.hits)
        while place < len(block.data):
            while hits and hits[0].begin < place:
                hits.popleft()
            if self.since >= HEAD_LINES:  # no dump is open: on to the next announcement
                if not hits:
                    break
                place, number = hits[0].begin, hits[0].number
            end = block.data.find(b"\n", place) + 1 or len(block.data)
            self._line(block.data, place, end, number)
            place, number = end, number + 1

    def _line(self, data: bytes, begin: int, end: int, number: int) -> None:
        line = _text(data[begin:end])
        announced = MARK in line
        if announced and not self.times.see(number, line):
            _date_back(data, begin, number, self.times)
        if BIRTH in line:
            self.born = number
        self.reader.line(number, without_prefix(line))
        self.since = 0 if announced or self.reader.thread is not None else self.since + 1


def _date_back(data: bytes, place: int, number: int, times: Times) -> None:
    """An announcement without a time of its own has that of the last line before it that has one."""
    for _ in range(LOOK_BACK_LINES):
        if place <= 0:
            return
        begin = data.rfind(b"\n", 0, place - 1) + 1
        if times.see(number, _text(data[begin:place])):
            return
        place = begin


def _text(raw: bytes) -> str:
    return raw[: log_scan.LINE_BYTES].decode("utf-8", "replace").rstrip("\r\n")
