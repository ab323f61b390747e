"""Reads append-only files: one command after the other, as places in the file. What they do is not known here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from diag.cache.offline.wire import Buffer, Damaged

MAX_WORDS = 1 << 20
"""A server takes no more from a client either."""
NUMBER_BYTES = 24


class Cut(Damaged):
    """The file ends inside the command that begins at `at`, as after a crash."""


class Command(NamedTuple):
    """One command: the words of it as (offset, bytes)."""

    at: int
    words: list[tuple[int, int]]


@dataclass
class Log:
    """One pass over the commands from `at` to `size`."""

    buf: Buffer
    size: int
    at: int = 0
    """Everything before it is read."""
    stamp_s: int | None = None
    """The last time that the file tells (`#TS:`, where the server writes it), Unix seconds."""

    def commands(self) -> Iterator[Command]:
        """In order. Raises Cut, or Damaged where something else than a command begins."""
        at = self.at
        while at < self.size:
            if self.buf[at] == 0x23:  # '#'
                at = self._annotation(at)
            else:
                try:
                    words, at = self._words(at)
                except IndexError:
                    raise Cut(self.at, "the file ends inside a command") from None
                yield Command(self.at, words)
            self.at = at

    def _words(self, at: int) -> tuple[list[tuple[int, int]], int]:
        count, at = self._number(at, b"*")
        if not 0 < count <= MAX_WORDS:
            raise Damaged(self.at, f"a command of {count} words")
        words = []
        for _ in range(count):
            size, start = self._number(at, b"$")
            at = start + size + 2
            if at > self.size:
                raise Cut(self.at, "the file ends inside a command")
            if self.buf[at - 2 : at] != b"\r\n":
                raise Damaged(self.at, f"a word of {size} bytes that does not end where it should")
            words.append((start, size))
        return words, at

    def _number(self, at: int, mark: bytes) -> tuple[int, int]:
        line = self.buf[at : min(at + NUMBER_BYTES, self.size)]
        digits, end, _ = line[1:].partition(b"\r\n")
        if not end and len(line) < NUMBER_BYTES and (line[:1] in (b"", mark)) and (not digits or digits.rstrip(b"\r").isdigit()):
            raise Cut(self.at, "the file ends inside a command")
        if line[:1] != mark or not digits.isdigit():
            raise Damaged(self.at, "no command, or a damaged one")
        return int(digits), at + 1 + len(digits) + 2

    def _annotation(self, at: int) -> int:
        end = self.buf.find(b"\n", at, at + 1024)
        if end < 0 or end >= self.size:
            raise (Cut if self.size - at < 1024 else Damaged)(at, "an annotation without end")
        line = self.buf[at:end].strip()
        if line.startswith(b"#TS:") and line[4:].isdigit() and len(line) < 16:
            self.stamp_s = int(line[4:])
        return end + 1
