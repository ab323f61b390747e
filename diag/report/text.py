"""The report for a terminal: the first screen (24 lines by 100 cells) says what, why and what to do."""

import textwrap

from rich.text import Text

from diag.model import Diagnosis, RuleResult
from diag.report import words

WIDTH = 100
FIRST_SCREEN_LINES = 24
LABEL = 11
MARK_STYLE = {"+": "green", "-": "dim", "?": "yellow"}


def render(diagnosis: Diagnosis, *, full: bool = False, width: int = WIDTH) -> Text:
    """First screen, then (with `full`) everything else. `.plain` has no colour."""
    width = max(40, min(width, WIDTH))
    body = _first_screen(diagnosis, width)
    if full:
        body += ["", *_rest(diagnosis, width)]
    text = Text()
    for line in body:
        text.append(line if isinstance(line, Text) else Text(line))
        text.append("\n")
    return text


def _first_screen(diagnosis: Diagnosis, width: int) -> list[str | Text]:
    verdict = diagnosis.findings[0].verdict.value if diagnosis.findings else diagnosis.verdict
    head: list[str | Text] = [Text(_clip(words.headline(diagnosis), width), style=words.verdict_colour(verdict)), Text(_clip(words.origin(diagnosis), width), style="dim")]
    foot: list[str | Text] = [Text(_clip(words.footer(diagnosis), width), style="dim")]
    room = FIRST_SCREEN_LINES - len(head) - len(foot)
    middle = _finding(diagnosis, diagnosis.findings[0], width, room) if diagnosis.findings else _nothing_found(diagnosis, width, room)
    return [*head, *middle[:room], *foot]


def _finding(diagnosis: Diagnosis, first: RuleResult, width: int, room: int) -> list[str | Text]:
    others = [f"{r.verdict.value} {r.rule}{': ' + r.subject if r.subject else ''}" for r in diagnosis.findings[1:4]]
    tail: list[str | Text] = []
    for number, action in enumerate(first.actions[:2], 1):
        tail += _labelled("Do next" if number == 1 else "", f"{number} {words.inert(action.title)}", width, limit=1)
        if action.run:
            tail.append(Text(" " * (LABEL + 2) + action.run, style="cyan"))
    tail += _labelled("Also", words.inert("; ".join(others)), width, limit=1) if others else []
    folded = diagnosis.folded.get(first.rule, ())
    tail += _labelled("Explains", ", ".join(folded), width, limit=1) if folded else []
    out = "; ".join(f"{rule}: {why}" for rule, why in words.ruled_out(diagnosis)[:3])
    tail += _labelled("Not", out, width, limit=2) if out else []
    for item in words.missing(diagnosis)[:1]:
        tail += _labelled("Not seen", f"{', '.join(item.tables)} -> {item.command}", width, limit=1)
    what = _labelled("What", words.inert(first.title) + f" ({first.severity})", width, limit=2)
    evidence = _because(first, width)
    space = max(1, room - len(tail) - len(what))
    if len(evidence) > space:
        evidence = [*evidence[: space - 1], Text(" " * LABEL + "… (report -f md shows all)", style="dim")]
    return [*what, *evidence, *tail]


def _because(result: RuleResult, width: int) -> list[str | Text]:
    lines: list[str | Text] = []
    for number, (mark, _, sentence) in enumerate(words.because(result)):
        label = "Because" if number == 0 else ""
        for place, part in enumerate(_wrap(f"[{mark}] {sentence}", width - LABEL, hang=4)[:3]):
            lines.append(Text(f"{label if place == 0 else '':<{LABEL}}{part}", style=MARK_STYLE[mark]))
    return lines


def _nothing_found(diagnosis: Diagnosis, width: int, room: int) -> list[str | Text]:
    lines: list[str | Text] = []
    for result in diagnosis.inconclusive[:3]:
        held = ", ".join(signal.id for signal in result.held()) or "nothing yet"
        lines += _labelled("Open", f"{result.rule}: held {held}", width, limit=1)
    for item in words.missing(diagnosis)[:3]:
        lines += _labelled("Not seen", f"{', '.join(item.tables)}: {item.because or 'not collected'}", width, limit=2)
        lines.append(Text(f"{'Run':<{LABEL}}{item.command}", style="cyan"))
    for rule, why in words.ruled_out(diagnosis):
        lines += _labelled("Not", f"{rule}: {why}", width, limit=2)
    return lines[:room]


def _rest(diagnosis: Diagnosis, width: int) -> list[str | Text]:
    lines: list[str | Text] = []
    for number, result in enumerate(diagnosis.findings):
        if number:
            lines += [Text(f"{result.verdict.value.upper()} {result.rule}: {words.inert(result.subject or result.title)}", style="bold"), *_because(result, width), ""]
        lines += _commands(result, width)
        for name, text in result.runbook.items():
            lines += [Text(f"{name.replace('_', ' ').capitalize()}", style="bold"), *textwrap.indent(words_lines(text), "  ").splitlines(), ""]
    lines += _section("Ruled out", [f"{rule}: {why}" for rule, why in words.ruled_out(diagnosis)], width)
    lines += _section(
        "Could not be looked at", [f"{', '.join(m.tables)} (for {', '.join(m.rules)}): {m.because or 'not collected'} -> {m.command}" for m in words.missing(diagnosis)], width
    )
    lines += _section("Collectors that did not read everything", words.collectors(diagnosis)[2], width)
    return lines + _section("What llmdiag did to this machine", words.side_effects(diagnosis), width)


def words_lines(text: str) -> str:
    """A runbook text made inert line by line."""
    return "\n".join(words.inert(line) for line in text.splitlines())


def _commands(result: RuleResult, width: int) -> list[str | Text]:
    lines: list[str | Text] = []
    for action in result.actions:
        lines += [f"  {words.inert(action.title)}", Text(f"    {action.run}", style="cyan")]
        if action.undo:
            lines.append(f"    undo: {action.undo}")
    return [*lines, ""] if lines else []


def _section(title: str, items: list[str], width: int) -> list[str | Text]:
    if not items:
        return []
    body = [part for item in items for part in _wrap(f"- {item}", width - 2, hang=2)]
    return [Text(title, style="bold"), *(f"  {part}" for part in body), ""]


def _labelled(label: str, text: str, width: int, *, limit: int) -> list[str | Text]:
    parts = _wrap(text, width - LABEL)
    if len(parts) > limit:
        parts = [*parts[: limit - 1], _clip(parts[limit - 1] + " …", width - LABEL)]
    return [f"{label if n == 0 else '':<{LABEL}}{part}" for n, part in enumerate(parts)]


def _wrap(text: str, width: int, hang: int = 0) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * hang, break_on_hyphens=False) or [""]


def _clip(text: str, width: int) -> str:
    if words.cells(text) <= width:
        return text
    while words.cells(text) > width - 1:
        text = text[:-1]
    return text + "…"
