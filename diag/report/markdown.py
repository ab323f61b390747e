"""The report as Markdown that pastes into a ticket: verdict, proof, what to do, what was ruled out, what is missing.

Text of the evidence stands in code spans and fences only: there it is no mention, link, image, table, HTML or emoji on
any of GitHub, GitLab and Jira. Nothing here needs HTML.
"""

import functools
import re
from collections.abc import Sequence
from importlib import resources

from jinja2.environment import TemplateModule
from jinja2.sandbox import ImmutableSandboxedEnvironment

from diag.model import Diagnosis, RuleResult
from diag.report import words
from diag.report.inert import command, inert
from diag.report.words import Sentence

LIMITS = {"github": 60_000, "gitlab": 900_000, "jira": 30_000, "slack": 3_600}
"""What a report may have where an issue holds 65,536 characters, a comment 1,000,000 or 32,767, and a message, at its best, 4,000: the rest is
for what a person adds."""
MAX_CHARS = LIMITS["github"]
LONG_CODE = re.compile(r"(?<!`)(`{2,})(?!`)([^\n]+?)(?<!`)\1(?!`)")
CALLS = re.compile(r"<([!@#])")
"""Of Slack: `<!channel>`, `<@U123>`, `<#C123>`."""
MIN_SHARE = 1_000
"""Of one of many captures."""
MAX_TEXT_CHARS = 600
MAX_PROSE_CHARS = 2_000
MAX_SENTENCES = 40
MAX_COMMAND_CHARS = 4_000
MAX_LISTED = 20
SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~$&"})
# @user, #123, GH-1, and of GitLab !12 &3 ~label %milestone $4, https://…, www.… and :smile: become links or pictures after Markdown has been read
LIVE = re.compile(
    r"(?<=[@#!&~%$])(?=\w)|(?<=GH)(?=-\d)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=:)(?=[\w+-]+:)", re.IGNORECASE
)
ZERO_WIDTH_SPACE = "\u200b"
# 1. step / - point / ```sh / ### heading / `code` / **bold** / *emphasis*: all of Markdown that a runbook may use
LINE = re.compile(r"(?P<indent> *)(?P<marker>(?:[-*]|\d{1,3}\.) +)?(?P<rest>.*)")
FENCE = re.compile(r" *(`{3,}|~{3,})[^`]*")
HEADING = re.compile(r"#{1,6} +(.*\S.*)")
INLINE = re.compile(
    r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>[^`]*[^`\s][^`]*)(?P=ticks)(?!`)"
    r"|\*\*(?P<bold>[^*`\s](?:[^*`]*[^*`\s])?)\*\*|(?<![\w*])\*(?P<stress>[^*`\s](?:[^*`]*[^*`\s])?)\*(?![\w*])"
)
# === or --- would make the line above a heading, - - - draws a line
RULER = re.compile(r"[-=+][-=+ ]*")
# - + = 1. 1) at the beginning of a paragraph would make a list, a heading or a line of it
BEGINNING = re.compile(r"^(\d{0,9})([-+=.)])")
BLANK_LINES = re.compile(r"\n{3,}")


def render_all(diagnoses: Sequence[Diagnosis], max_chars: int = MAX_CHARS) -> str:
    """Several captures, one below the other: together as long as one alone may be, and each with its share; where that is too little, the last ones."""
    shown = diagnoses[-max(1, max_chars // MIN_SHARE) :]
    left_out = len(diagnoses) - len(shown)
    note = f"*{left_out} earlier captures are left out.*\n\n" if left_out else ""
    return note + "\n".join(render(diagnosis, (max_chars - len(note)) // max(1, len(shown)) - 1) for diagnosis in shown)


def render(diagnosis: Diagnosis, max_chars: int = MAX_CHARS) -> str:
    """Diagnosis -> Markdown of at most so many characters; what had to be left out is said at the end."""
    body = [part("finding", diagnosis, result, number, words.explained(diagnosis, result)) for number, result in enumerate(diagnosis.findings, 1)]
    body += [] if diagnosis.findings else [part("next_steps", words.next_to_collect(diagnosis), words.hint_for(diagnosis, ""))]
    body += [part("section", section.title, parts) for section in diagnosis.sections if (parts := section.in_words())]
    missing, ruled_out = words.missing(diagnosis), words.ruled_out(diagnosis)
    half_seen = [result for result in diagnosis.inconclusive if result.held("required")]
    blind = [result.rule for result in diagnosis.inconclusive if not result.held("required")]
    body += [part("still_open", half_seen, blind)] if diagnosis.inconclusive else []
    for name, found in (("missing", missing), ("ruled_out", ruled_out)):
        body += [part(name, found)] if found else []
    head = part("head", *words.headline(diagnosis), words.origin(diagnosis), [*words.notes(diagnosis), *filter(None, [words.deaths(diagnosis)]), *words.broken(diagnosis), *(f"assumed: {text}" for text in words.assumed(diagnosis))])
    tail = part(
        "collected",
        words.footer(diagnosis)[0],
        words.collectors(diagnosis)[2][:MAX_LISTED],
        words.side_effects(diagnosis),
        _listed(diagnosis, "dropped"),
        _listed(diagnosis, "unrecognised"),
        words.sharing(diagnosis),
    )
    return bounded(head, body, tail, words.report_command(diagnosis), max_chars)


@functools.cache
def _macros(template: str) -> TemplateModule:
    environment = ImmutableSandboxedEnvironment(autoescape=False, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "md": escaped, "prose": prose, "code": code, "fence": fence, "runbook": runbook,
        "drawn": _drawn, "because": words.because, "why": _why, "untold": _untold, "reason": words.reason,
    }
    source = resources.files("diag.report").joinpath(template).read_text(encoding="utf-8")
    return environment.from_string(source).make_module()


def part(name: str, *values: object, template: str = "report.md.j2") -> str:
    """One macro of a template, with single blank lines."""
    return BLANK_LINES.sub("\n\n", str(getattr(_macros(template), name)(*values))).strip("\n") + "\n"


def _why(result: RuleResult) -> list[Sentence]:
    return words.told_in_full(result)[:MAX_SENTENCES]


def _untold(result: RuleResult) -> list[str]:
    """Evidence that has no line of its own."""
    more = len(words.told_in_full(result)) - MAX_SENTENCES
    left_out = [f"{more} further sentences in the JSON report"] if more > 0 else []
    return left_out + [text for signal in result.held() if (text := words.untold(signal))]


def _listed(diagnosis: Diagnosis, what: str) -> list[str]:
    names = words.names(diagnosis, what)
    more = len(names) - MAX_LISTED
    return [*names[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])]


def escaped(value: object, limit: int = MAX_TEXT_CHARS) -> str:
    """Any text as literal Markdown text on one line: no markup, no HTML, no link, no mention, no emoji."""
    text = inert(" ".join(str(value).split()) if value is not None else None, limit)
    return LIVE.sub(ZERO_WIDTH_SPACE, text).translate(SPECIAL)


def code(value: object, limit: int = MAX_TEXT_CHARS) -> str:
    """Text of the evidence as a code span on one line, whatever back-ticks it holds."""
    text = inert(value, limit) or "(empty)"
    fence_ = "`" * (_longest_ticks(text) + 1)
    pad = " " if text.strip() and (text[0] in "` " or text[-1] in "` ") else ""
    return f"{fence_}{pad}{text}{pad}{fence_}"


def for_slack(text: str) -> str:
    """The same for Slack, which knows no longer fences and no escapes: back-ticks inside code become quotes, and what would
    call a person or a channel gets a space."""
    plain = LONG_CODE.sub(lambda found: "`" + found[2].strip().replace("`", "'") + "`", text)
    return CALLS.sub(r"< \1", plain)


def prose(value: str) -> str:
    """A sentence as a paragraph of its own, however it begins."""
    return BEGINNING.sub(lambda found: f"{found[1]}\\{found[2]}", escaped(value, MAX_PROSE_CHARS))


def _drawn(lines: Sequence[str]) -> str:
    """A picture, in letters of one width."""
    return _fenced([inert(line) for line in lines], "text", 0)


def fence(value: str, indent: int = 0) -> str:
    """A command as a fenced block: exactly as it is to be typed, on one line."""
    if len(value) > MAX_COMMAND_CHARS:
        return f"{' ' * indent}*{len(value)} characters long: see the JSON report.*"
    return _fenced([command(value)], "sh", indent)


def _fenced(lines: Sequence[str], language: str, indent: int) -> str:
    ticks = "`" * max(3, _longest_ticks("\n".join(lines)) + 1)
    return "\n".join(" " * indent + line for line in (ticks + language, *lines, ticks))


def _longest_ticks(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def runbook(text: str) -> str:
    """A runbook with only lists, bold, emphasis, code and fences left of its Markdown: evidence may stand in it."""
    shown: list[str] = []
    block: list[str] | None = None
    closing, item = "", 0
    for raw in text.replace("\r\n", "\n").split("\n"):
        opened = FENCE.fullmatch(raw)
        if block is None and opened:
            block, closing, indent = [], opened.group(1), min(len(raw) - len(raw.lstrip(" ")), 12)
        elif block is None:
            line, item = _runbook_line(raw, item)
            shown.append(line)
        elif raw.strip() == closing:
            shown.append(_fenced(block, "", indent))
            block = None
        else:
            block.append(inert(raw[indent:] if not raw[:indent].strip() else raw, MAX_TEXT_CHARS))
    return "\n".join([*shown, *([_fenced(block, "", indent)] if block is not None else [])])


def _runbook_line(raw: str, item: int) -> tuple[str, int]:
    """A line, and where the text of the list item begins that it is in. Further in than that would be code."""
    found = LINE.fullmatch(inert(raw, MAX_TEXT_CHARS))
    if found is None:
        return escaped(raw), item
    if not found["rest"] and not found["marker"]:
        return "", item
    rest, marker = found["rest"], found["marker"] or ""
    heading = HEADING.fullmatch(rest)
    body = f"**{escaped(heading.group(1))}**" if heading else f"\\{rest}" if RULER.fullmatch(rest) else _inline(rest)
    indent = found["indent"][: min(item + 3, 12)]
    item = len(indent) + len(marker) if marker else min(item, len(indent))
    return f"{indent}{marker.rstrip()}{' ' if marker else ''}{body}".rstrip(), item


def _inline(text: str) -> str:
    """Code, bold and emphasis as they are meant; everything else as literal text."""
    parts, end = [], 0
    for found in INLINE.finditer(text):
        parts.append(_literal(text[end : found.start()]))
        parts.append(_kept(found))
        end = found.end()
    return "".join([*parts, _literal(text[end:])])


def _kept(found: re.Match[str]) -> str:
    if found["code"]:
        return code(found["code"].strip())
    return f"**{escaped(found['bold'])}**" if found["bold"] else f"*{escaped(found['stress'])}*"


def _literal(text: str) -> str:
    """`escaped`, with the blanks at both ends kept."""
    body = text.strip(" ")
    return f"{' ' if text[:1] == ' ' else ''}{escaped(body)}{' ' if text[-1:] == ' ' and body else ''}" if text else ""


def bounded(head: str, body: Sequence[str], tail: str, everything: str, max_chars: int) -> str:
    """All parts if they fit; else whole lines up to the limit, a note, and the tail. Where there is little room, head and tail are cut as well."""
    whole = "\n".join([head, *body, tail])
    if len(whole) <= max_chars:
        return whole
    note = f"**Cut:** the whole report has {len(whole)} characters. All of it:\n\n{fence(f'{everything} -f md')}\n"
    if len(note) > max_chars // 3:
        note = f"**Cut:** the whole report has {len(whole)} characters.\n"
    head, tail = _cut(head, max_chars // 3), _last_lines(tail, max_chars // 4)
    room = max_chars - len(head) - len(tail) - len(note) - 3
    return "\n".join([head, _cut("\n".join(body), room), note, tail])


def _last_lines(text: str, room: int) -> str:
    """Whole lines of the end of a text without fences."""
    return text if len(text) <= room else text[-room:].partition("\n")[2]


def _cut(text: str, room: int) -> str:
    """Whole lines of Markdown; a fence that would be cut is left out."""
    kept: list[str] = []
    safe, ticks = 0, ""
    for line in text.splitlines():
        room -= len(line) + 1
        if room < 0:
            whole = kept[:safe]
            while whole and (not whole[-1].strip() or whole[-1].startswith("#")):
                whole.pop()  # a heading of nothing
            return "\n".join(whole) + "\n"
        kept.append(line)
        opened = FENCE.fullmatch(line)
        if not ticks and opened:
            ticks = opened.group(1)
        elif ticks and line.strip() == ticks:
            ticks = ""
        safe = safe if ticks else len(kept)
    return text
