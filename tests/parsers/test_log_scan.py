"""The search over blocks: every line that matches, its number, and memory that does not grow with lines or files."""

import io
import re
import tracemalloc
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.parsers import log_scan

ALTERNATIVES = (b"needle", b'"[A-Z]{3,8} [^"\\n]*" \\d\\d\\d')
FIND = log_scan.by_pattern(ALTERNATIVES)
WORDS = log_scan.by_words((b"need", b'" 2'), ALTERNATIVES)
ANY = re.compile(b"|".join((*ALTERNATIVES, log_scan.CONTROL)))
PIECES = st.sampled_from([b"needle", b"hay", b"\n", b"\n", b"\r\n", b"\r", b"\x00", b"\xff", b"\xc2", b"\x85", b"\xe2\x96\x88", b"\x1b[1;36m", b"(", b") ", b'"GET /x" 200', b"nee", b"dle", b" "])
TEXTS = st.lists(PIECES, max_size=60).map(b"".join)


def numbered(data: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(io.BytesIO(data), 1))


def found(stream: BinaryIO, block_bytes: int, find: log_scan.Finder = FIND) -> tuple[list[tuple[int, bytes]], int, int, bytes]:
    hits, lines, size, whole = [], 0, 0, b""
    for block in log_scan.blocks(stream, find, block_bytes=block_bytes):
        assert block.first == lines + 1
        hits += [(hit.number, block.data[hit.begin : hit.end]) for hit in block.hits]
        lines, size, whole = lines + block.lines, size + block.size, whole + block.data
    return hits, lines, size, whole


@given(TEXTS, st.integers(1, 40))
@settings(max_examples=400, deadline=None)
def test_all_matching_lines_and_no_other(data: bytes, block_bytes: int) -> None:
    wanted = [(number, line) for number, line in numbered(data) if ANY.search(line)]
    for find in (FIND, WORDS):
        assert found(io.BytesIO(data), block_bytes, find) == (wanted, len(numbered(data)), len(data), data)


@pytest.mark.parametrize("where", [0, 1, 63, 64, 65, 127, 128, 129])
def test_a_border_of_a_block_in_every_place_of_a_line(where: int) -> None:
    data = b"x" * where + b"\n" + b"here is a needle\n" + b"y" * 200 + b"\nneedle without an end"
    hits, lines, _, _ = found(io.BytesIO(data), 128)
    assert [number for number, line in hits if b"needle" in line] == [2, 4]
    assert lines == 4


def test_a_control_character_hides_no_word_and_a_colour_costs_nothing() -> None:
    lines = [b"nee\x00dle", b"nee\x1b[0mdle", b"nee\xc2\x9bdle", b"\x1b[1;36m(EngineCore pid=1)\x1b[0;0m hay", b"hay", b"\x7f", b"a\x7f", b"(s)\x1b[0m:", b"(s)\x00 x", b"x)\x1b[0m"]
    for find in (FIND, WORDS):
        hits, _, _, _ = found(io.BytesIO(b"\n".join(lines)), 1 << 20, find)
        assert [number for number, _ in hits] == [1, 2, 3, 7, 8, 9]


class Made(io.RawIOBase):
    """A file that is made while it is read: the same bytes over and over, then some others."""

    def __init__(self, unit: bytes, size: int, tail: bytes = b"") -> None:
        self.many, self.left, self.tail = unit * (1 + (1 << 20) // len(unit)), size, tail

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        part = self.many[: min(len(buffer), self.left, len(self.many))]
        self.left -= len(part)
        if not part:
            part, self.tail = self.tail[: len(buffer)], self.tail[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def measured(raw: Made) -> tuple[list[tuple[int, int]], int, int, int]:
    """(number, length) of each hit, lines, bytes, and how much memory it took at most."""
    hits, lines, size = [], 0, 0
    tracemalloc.start()
    for block in log_scan.blocks(io.BufferedReader(raw), FIND, block_bytes=1 << 20):
        hits += [(hit.number, hit.end - hit.begin) for hit in block.hits]
        lines, size = lines + block.lines, size + block.size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return hits, lines, size, peak


def test_a_line_of_three_hundred_megabytes() -> None:
    hits, lines, size, peak = measured(Made(b"x", 300 << 20, b"\nneedle\n"))
    assert (lines, size) == (2, (300 << 20) + 8)
    assert [number for number, _ in hits] == [1, 2]
    assert log_scan.LINE_BYTES < hits[0][1] < 2 << 20
    assert peak < 8 << 20, f"{peak >> 20} MiB"


def test_memory_does_not_grow_with_the_file() -> None:
    hits, lines, _, peak = measured(Made(b"hay and more hay that nobody wants to read, sixty-four bytes...\n", 200 << 20, b"needle"))
    assert lines > 3_000_000
    assert [number for number, _ in hits] == [lines]
    assert peak < 16 << 20, f"{peak >> 20} MiB"


def test_nothing_waits_when_the_reader_leaves_early() -> None:
    import threading

    def workers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("log-scan")]

    blocks = log_scan.blocks(io.BytesIO(b"needle\n" * 100_000), FIND, block_bytes=1 << 12)
    next(blocks)
    assert workers()
    blocks.close()  # type: ignore[attr-defined]
    assert workers() == []


def test_no_pattern_reaches_over_a_line_end() -> None:
    from diag.parsers import engine_scan, journal_scan

    for alternative in (*engine_scan.alternatives(), *engine_scan.OTHERS, *journal_scan.TEXT, *journal_scan.JSON):
        assert not re.search(rb"\\n(?![)\"\]])|\\s(?!\?)|\(\?s", alternative), alternative


def test_no_text_of_an_event_has_a_bracket_where_a_colour_may_stand() -> None:
    """CONTROL takes no notice of a colour between a closing bracket and a blank."""
    from diag.parsers.engine_events import EVENTS

    assert [text for _, texts, _ in EVENTS for text in texts if ") " in text[:-1]] == []


def test_every_line_that_matters_of_a_journal_has_one_of_its_words() -> None:
    from diag.parsers import journal_scan
    from tests.parsers import test_journald as cases

    messages = [f"systemd[1]: {item[0]}" for item in cases.ONE_LINE] + [f"sudo[9]: ops : COMMAND={item[0]}" for item in cases.COMMANDS] + [item[0] for item in cases.OTHERS]
    lines = [f"Aug 20 13:37:51 gpu-7 {message}" for message in messages] + ["-- Reboot --", "-- Boot 0123456789abcdef0123456789abcdef --"]
    for line in lines:
        data = f"ordinary\n{line}\nordinary\n".encode()
        for find in (journal_scan.finder("short"), log_scan.by_pattern(journal_scan.TEXT)):
            assert [number for number, _ in found(io.BytesIO(data), 1 << 20, find)[0]] == [2], line
