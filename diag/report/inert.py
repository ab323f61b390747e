"""Text of the evidence made harmless to show: one line, nothing that moves the cursor, hides, or turns the direction of text."""

import re
from collections.abc import Iterator

MAX_VALUE_CHARS = 400
SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# $'\x1b' of bash, zsh and ksh: one piece that must not be broken
ANSI_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)


def inert(value: object, limit: int = MAX_VALUE_CHARS) -> str:
    """Any text of the evidence as one harmless line: escapes and direction marks made visible, cut after `limit` characters."""
    text = "unknown" if value is None else str(value)
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else visible(char) for char in shown)[:limit]
    return shown if len(text) <= limit else f"{shown}… ({len(text)} characters)"


def visible(char: str) -> str:
    """A character that would move, hide or turn text as an escape that Python and most shells read."""
    code = ord(char)
    if char in SHORT_ESCAPES:
        return SHORT_ESCAPES[char]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8, kept by surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def command(text: str) -> str:
    """A shell command as one printable line that a shell (bash, zsh, ksh) still reads the same: never shortened.

    Characters that must not reach a terminal raw become `$'\\x1b'`, outside of the quotes they stood in.
    """
    if text.isprintable():
        return text
    return "".join(unit if unit.isprintable() else f"{quote}$'{visible(unit)}'{quote}" for unit, quote in shell_units(text))


def shell_units(text: str) -> Iterator[tuple[str, str]]:
    """A shell command in pieces that must not be broken, each with the quote that is open after it ("" is none)."""
    quote, place = "", 0
    while place < len(text):
        size = 1
        char = text[place]
        if char == "\\" and quote != "'" and text[place + 1 : place + 2].isprintable():
            size = 2
        elif not quote and (found := ANSI_QUOTED.match(text, place)):
            size = len(found.group())
        elif char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        yield text[place : place + size], quote
        place += size
