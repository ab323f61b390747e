"""Text in terminal cells: wrapping, clipping, and commands over several lines that a shell still reads as one."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

from diag.report import inert

MIN_BEFORE = 30
"""Cells of a reason that stay before its remedy."""


def wrapped(text: str, width: int) -> list[str]:
    """One line of text -> lines of at most `width` cells; a word that is longer than a line is broken. Never empty."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines += chop_cells(word, width)
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def limited(lines: Sequence[str], limit: int | None, width: int) -> list[str]:
    """At most `limit` lines; the last one says with … that there were more."""
    if limit is None or len(lines) <= limit:
        return list(lines)
    last = lines[limit - 1]
    return [*lines[: limit - 1], f"{set_cell_size(last, min(cell_len(last), width - 2)).rstrip()} …"]


def remedy_kept(text: str, limit: int, width: int) -> list[str]:
    """`what is missing; its remedy` on at most `limit` lines, one more for a long remedy: only what is before it is shortened."""
    lines = wrapped(text, width)
    before, mark, remedy = text.rpartition("; ")
    if len(lines) <= limit or not mark:
        return limited(lines, limit, width)
    for most in (limit, limit + 1):
        for room in range(cell_len(before), MIN_BEFORE, -1):
            lines = wrapped(f"{clipped(before, room)}{mark}{remedy}", width)
            if len(lines) <= most:
                return lines
    return limited(lines, limit + 1, width)


def clipped(text: str, width: int) -> str:
    """The beginning of a text; … says that it was cut."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A small table as lines: every column as wide as it must be, two blanks between."""
    table = [names, *rows]
    widths = [max(cell_len(row[place]) for row in table) for place in range(len(names))]
    return ["  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def joined(parts: Iterable[str], width: int, limit: int) -> list[str]:
    """Short facts with ` · ` between them, whole ones per line."""
    lines = [""]
    for part in (clipped(part, width) for part in parts):
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return limited(lines, limit, width)


def command_lines(text: str, width: int, indent: int) -> list[str]:
    """A shell command, never shortened: at `indent`, else further left, else over lines that a shell joins again."""
    exact = inert.command(text)
    for blanks in (indent, 2):
        if cell_len(exact) + blanks <= width:
            return [" " * blanks + exact]
    return _continued(exact, width)


def _continued(exact: str, width: int) -> list[str]:
    lines = [" "]
    for word in _shell_words(exact):
        text = "".join(unit for unit, _ in word)
        if cell_len(lines[-1]) + 1 + cell_len(text) + 2 <= width:
            lines[-1] += f" {text}"
            continue
        if lines[-1].strip():
            lines[-1] += " \\"
            lines.append("   ")
        first, *rest = _broken(word, width - cell_len(lines[-1]) - 1, width)
        lines[-1] += f" {first}"
        lines += rest
    return lines


def _shell_words(exact: str) -> list[list[tuple[str, str]]]:
    """Split at blanks outside of quotes; each word in pieces that must not be broken."""
    found: list[list[tuple[str, str]]] = [[]]
    for unit, quote in inert.shell_units(exact):
        if unit == " " and not quote:
            found.append([])
        else:
            found[-1].append((unit, quote))
    return [word for word in found if word]


def _broken(word: Sequence[tuple[str, str]], room: int, width: int) -> list[str]:
    """A word in pieces that fit: `'abc'\\` and at the very start of the next line `'def'` are one word to a shell."""
    lines, line, quote = [], "", ""
    for unit, after in word:
        if cell_len(line) + cell_len(unit) + len(quote) + len(after) + 2 > room:
            lines.append(f"{line}{quote}\\")
            line, room = quote, width
        line += unit
        quote = after
    return [*lines, line]
