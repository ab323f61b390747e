"""The report for a terminal: the first screen, and with `full` all that was looked at and what to do about it."""

import re
from collections.abc import Sequence

from rich.cells import cell_len, chop_cells
from rich.text import Text

from diag.model import Diagnosis, Part, RuleResult
from diag.report import screen, words
from diag.report.inert import inert
from diag.report.layout import wrapped

WIDTH = 100
MIN_WIDTH = 40
MAX_SENTENCE_CHARS = 2_000
MAX_LISTED = 20
MAX_COMMAND_LINES = 100
# 1. Reproduce away from production / - a point
LIST_MARKER = re.compile(r"([-*]|[0-9]{1,3}\.)(?= )")


def render(diagnosis: Diagnosis, *, full: bool = False, width: int = WIDTH, whole: bool = False) -> Text:
    """First screen (less than 24 lines), then with `full` the rest. No line is wider than `width`, taken as 40 to 100 cells -
    with `whole`, for a file or a pipe, only the headline may be.

    `.plain` has no colour and says the same.
    """
    width = max(MIN_WIDTH, min(width, WIDTH))
    lines = screen.lines(diagnosis, width, more=not full, whole=whole)
    if full:
        lines += [Text(), *_rest(diagnosis, width)]
    text = Text()
    for line in lines:
        text.append(line).append("\n")
    return text


def _rest(diagnosis: Diagnosis, width: int) -> list[Text]:
    lines: list[Text] = []
    for number, result in enumerate(diagnosis.findings, 1):
        lines += _finding(diagnosis, result, number, width)
    for section in diagnosis.sections:
        parts = section.in_words()
        shown = [line for part in parts for line in _part(part, _label_cells(parts), width)]
        lines += [*map(_title, wrapped(inert(section.title), width)), *shown, Text()] if parts else []
    if diagnosis.inconclusive:
        lines.append(_title("Open: neither confirmed nor ruled out"))
        for result in diagnosis.inconclusive:
            lines += _bullet(f"{result.rule}: {result.title}; {words.reason(result)}", width)
            held = [sentence for sentence in words.because(result) if sentence.mark == "+"]
            lines += [line for sentence in held for line in _sentence(sentence, width)]
        lines.append(Text())
    lines += _section("Ruled out", [f"{rule}: {why}" for rule, why in words.ruled_out(diagnosis)], width)
    lines += _missing(diagnosis, width)
    gaps = [f"{name}: {why}" for name, why in words.collectors(diagnosis)[2]]
    lines += _section("Collectors that did not read everything", gaps, width)
    lines += _section("Assumed", _listed(words.assumed(diagnosis)), width)
    lines += _section("Cut short and dropped", _listed(words.names(diagnosis, "dropped")), width)
    lines += _section("Not recognised as evidence", _listed(words.names(diagnosis, "unrecognised")), width)
    return [
        *lines,
        *_section("What llmdiag did to this machine", words.side_effects(diagnosis), width),
        *_section("Before you share this", [words.sharing(diagnosis)], width),
    ]


def _finding(diagnosis: Diagnosis, result: RuleResult, number: int, width: int) -> list[Text]:
    subject = f": {result.subject}" if result.subject else ""
    lead = f"{number}. {result.verdict.value.upper()} {result.rule}{subject} ({result.severity}; {words.reason(result)})"
    lines = [Text(part, style="bold") for part in wrapped(inert(lead, MAX_SENTENCE_CHARS), width)]
    about = " ".join(f"{result.title}. {result.about}".split())
    lines += [Text(f"  {part}") for part in wrapped(inert(about, MAX_SENTENCE_CHARS), width - 2)]
    lines += [line for sentence in words.told_in_full(result) for line in _sentence(sentence, width)]
    lines += [line for signal in result.held() if words.untold(signal) for line in _bullet(words.untold(signal), width)]
    for name, adds in words.explained(diagnosis, result):
        lines += _bullet(f"explains {name}{': ' if adds else ''}{adds}", width)
    for place, action in enumerate(result.actions, 1):
        lines += [Text(f"  {part}") for part in wrapped(f"Do {place}: {inert(action.title)}", width - 2)]
        lines += _command(action.run, width)
        if action.undo:
            lines += [Text("    undo:"), *_command(action.undo, width)]
    lines.append(Text())
    for name, text in result.runbook.items():
        lines += [Text(f"  {inert(name.replace('_', ' ').capitalize())}", style="bold")]
        lines += [line for raw in text.replace("\r\n", "\n").split("\n") for line in _runbook_line(raw, width)]
        lines.append(Text())
    return lines


def _sentence(sentence: words.Sentence, width: int) -> list[Text]:
    """A whole sentence and, below it, where its raw line is."""
    parts = wrapped(inert(sentence.text, MAX_SENTENCE_CHARS), width - 6)
    lines = [Text("  ").append(line) for line in screen.sentence_lines(sentence.mark, parts)]
    if sentence.source:
        lines += [Text(f"      {part}", style="dim") for part in wrapped(inert(sentence.source), width - 6)]
    return lines


def _label_cells(parts: Sequence[Part]) -> int:
    """Quotations of a section stand below each other."""
    return max((len(part.label) for part in parts), default=0)


def _part(part: Part, label_cells: int, width: int) -> list[Text]:
    """A sentence or a quotation wrapped, a picture as it is where there is room for it, a command."""
    indent = " " * (4 + label_cells + 2) if part.label else "  "
    said = wrapped(inert(part.text, MAX_SENTENCE_CHARS), width - len(indent)) if part.text else []
    first = f"    {part.label:<{label_cells}}  " if part.label else indent
    lines = [Text(f"{indent if number else first}{line}") for number, line in enumerate(said)]
    lines += [Text(piece) for line in _fitting(part.drawn, width - 4) for piece in _drawn(f"    {inert(line)}", width)]
    return [*lines, *_command(part.run, width)]


def _fitting(lines: Sequence[str], width: int) -> Sequence[str]:
    """Where there is no room for the bars of a chart, it is shown without any."""
    return lines if max(map(cell_len, lines), default=0) <= width else [line.rstrip("#").rstrip() for line in lines]


def _drawn(line: str, width: int) -> list[str]:
    """Too wide a line is broken: that can be read, what is not there cannot."""
    return [line] if cell_len(line) <= width else [f"    {piece}" for piece in chop_cells(line.strip(), width - 4)]


def _runbook_line(raw: str, width: int) -> list[Text]:
    """A line of a runbook, wrapped below its own indentation or list number."""
    body = raw.lstrip(" ")
    blanks = min(len(raw) - len(body), 12)
    marker = f"{found.group()} " if (found := LIST_MARKER.match(body)) else ""
    first, *rest = wrapped(inert(body[len(marker) :], MAX_SENTENCE_CHARS), width - 4 - blanks - len(marker))
    indent = " " * (4 + blanks)
    return [Text(f"{indent}{marker}{first}"), *(Text(f"{indent}{' ' * len(marker)}{part}") for part in rest)]


def _missing(diagnosis: Diagnosis, width: int) -> list[Text]:
    gaps = words.missing(diagnosis)
    lines = [_title("Could not be looked at")] if gaps else []
    for gap in gaps:
        text = f"{', '.join(gap.tables)}: {gap.because} (for {', '.join(gap.rules)})"
        lines += [*_bullet(text, width), *_command(gap.command, width)]
    return [*lines, Text()] if gaps else []


def _command(text: str, width: int) -> list[Text]:
    return screen.command(text, width, indent=6, most=MAX_COMMAND_LINES) if text else []


def _section(title: str, items: Sequence[str], width: int) -> list[Text]:
    return [_title(title), *(line for item in items for line in _bullet(item, width)), Text()] if items else []


def _bullet(text: str, width: int) -> list[Text]:
    first, *rest = wrapped(inert(text, MAX_SENTENCE_CHARS), width - 4)
    return [Text(f"  - {first}"), *(Text(f"    {part}") for part in rest)]


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _listed(names: Sequence[str]) -> list[str]:
    more = len(names) - MAX_LISTED
    return [*(inert(name) for name in names[:MAX_LISTED]), *([f"and {more} more"] if more > 0 else [])]
