"""What every report says, in the order a person on call needs it, and how evidence is made harmless to show."""

import datetime
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diag.model import Diagnosis, RuleResult, SignalResult, SignalState, Verdict

MAX_VALUE_CHARS = 400
MARK = {SignalState.HELD: "+", SignalState.EMPTY: "-", SignalState.UNSEEN: "?"}
STATES = (SignalState.HELD, SignalState.UNSEEN, SignalState.EMPTY)
ROLES = ("proof", "required", "against", "support")
SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# A newline, a quote, a backslash pair or a finished $'…' of a shell command: everything that changes how the rest is read
ANSI_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)


@dataclass(frozen=True)
class Sentence:
    """One line of evidence: `+` held, `-` looked at and not found, `?` could not be looked at."""

    mark: str
    role: str
    signal: str
    text: str
    source: str = ""
    others: str = ""
    """How many further rows the signal has: "", "3", "999 or more"."""


@dataclass(frozen=True)
class Missing:
    """Something that was not looked at, why, and the exact command that would look."""

    tables: tuple[str, ...]
    because: str
    command: str
    rules: tuple[str, ...]


def inert(value: object, limit: int = MAX_VALUE_CHARS) -> str:
    """Any text of the evidence as one harmless line: escapes and direction marks made visible, at most `limit` characters."""
    text = "unknown" if value is None else str(value)
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else visible(char) for char in shown)
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


def headline(diagnosis: Diagnosis) -> tuple[str, str]:
    """The one thing this report says: (verdict and rule, or a whole sentence; what exactly is at fault, or "")."""
    if diagnosis.findings:
        first = diagnosis.findings[0]
        return inert(f"{first.verdict.value.upper()} {first.rule}"), first.subject
    if diagnosis.verdict == "inconclusive":
        if not diagnosis.inconclusive:
            return "INCONCLUSIVE: nothing could be looked at", ""
        return inert(f"INCONCLUSIVE {diagnosis.inconclusive[0].rule}: neither confirmed nor ruled out by this evidence"), ""
    still_open = len(diagnosis.inconclusive)
    rules = f"{len(diagnosis.ruled_out) + still_open} rules"
    if still_open:
        return f"CLEAR: no known incident found, but {still_open} of {rules} could not be judged", ""
    return f"CLEAR: no known incident found ({rules} ruled out)", ""


def origin(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Who was looked at, when, with what: (our word, the value from the evidence)."""
    s = diagnosis.subject
    tree = f" ({s['tree']})" if s.get("tree") else ""
    taken = s.get("taken_at")
    return [
        ("host", inert(s.get("hosts"), 60)),
        ("pid", inert(s.get("pid"), 20) + inert(tree, 80)),
        ("at", "unknown" if taken is None else inert(moment(taken))),
        ("from", inert(s.get("bundle"), 80)),
        ("llmdiag", f"{inert(s.get('tool_version'), 20)}, {inert(s.get('rules'), 20)} rules"),
    ]


def moment(taken: object) -> str:
    """A time of the evidence to the second, UTC."""
    text = taken.isoformat() if isinstance(taken, datetime.datetime) else str(taken)
    return f"{text[:19].replace('T', ' ')}Z" if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text) else text


def because(result: RuleResult) -> list[Sentence]:
    """A finding's sentences: what held (proof first), what could not be looked at, what was looked for and not found."""
    order = sorted(result.signals, key=lambda s: (STATES.index(s.state), ROLES.index(s.role)))
    return [sentence for signal in order for sentence in sentences(signal)]


def sentences(signal: SignalResult) -> list[Sentence]:
    """One signal in words. An `against` that was looked at and is empty needs none."""
    mark = MARK[signal.state]
    match signal.state:
        case SignalState.HELD:
            sources = [source_of(row) for row in signal.rows]
            others = f"{len(signal.rows) - 1}{' or more' if signal.more else ''}" if len(signal.rows) > 1 else ""
            said = signal.says or (f"{_title(signal)}: found",)
            return [
                Sentence(mark, signal.role, signal.id, text, sources[n] if n < len(sources) else "", others if n == 0 else "")
                for n, text in enumerate(said)
            ]
        case SignalState.UNSEEN:
            why = signal.because or f"not collected: {', '.join(signal.unseen_tables)}"
            return [Sentence(mark, signal.role, signal.id, f"{_title(signal)}: could not be looked at ({why})")]
        case _ if signal.role == "against":
            return []
        case _:
            near = f"; nearest: {signal.near}" if signal.near else ""
            return [Sentence(mark, signal.role, signal.id, f"{_title(signal)}: looked for, not found{near}")]


def untold(signal: SignalResult) -> str:
    """Rows of a signal that have no sentence of their own."""
    more = len(signal.rows) - max(1, len(signal.says))
    return f"{_title(signal)}: {more}{' or more' if signal.more else ''} further rows" if signal.rows and more > 0 else ""


def source_of(row: Mapping[str, object]) -> str:
    """Where the raw line of a row is: `artefact:line`."""
    return "" if row.get("source") is None else str(row["source"])


def _title(signal: SignalResult) -> str:
    return signal.id.replace("_", " ")


def reason(result: RuleResult) -> str:
    """Why this verdict and no other, in half a sentence."""
    unseen = {s.role: _title(s) for s in reversed(result.unseen())}
    match result.verdict:
        case Verdict.CONFIRMED:
            return f"proved by {', '.join(_title(s) for s in result.held('proof'))}; nothing speaks against it"
        case Verdict.LIKELY if not result.held("proof"):
            return f"not confirmed: the proof ({unseen['proof']}) could not be looked at" if "proof" in unseen else "not confirmed: no proof"
        case Verdict.LIKELY:
            return f"not confirmed: what may speak against it ({unseen.get('against', 'unknown')}) could not be looked at"
        case Verdict.INCONCLUSIVE:
            return f"{unseen.get('required', 'something required')} could not be looked at"
        case _:
            return _why_not(result)


def ruled_out(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(rule, why it is ruled out), the nearest misses first."""
    return [(result.rule, _why_not(result)) for result in sorted(diagnosis.ruled_out, key=_distance)]


def _distance(result: RuleResult) -> tuple[object, ...]:
    near = any(s.near for s in result.signals if s.role == "required")
    return (not result.held("against"), -len(result.held("required")), not near, result.rule)


def _why_not(result: RuleResult) -> str:
    for signal in result.held("against"):
        return signal.says[0] if signal.says else f"{_title(signal)} speaks against it"
    empty = [s for s in result.signals if s.role == "required" and s.state is SignalState.EMPTY]
    near = [s.near for s in empty if s.near]
    return near[0] if near else f"no sign of: {_title(empty[0])}" if empty else "a required signal is missing"


def missing(diagnosis: Diagnosis) -> list[Missing]:
    """What findings and open questions still need, grouped by the command that would collect it, the first finding's first."""
    found: dict[str, tuple[set[str], set[str], dict[str, None]]] = {}
    for result in (*diagnosis.findings, *diagnosis.inconclusive):
        for signal in sorted(result.unseen(), key=lambda s: ROLES.index(s.role)):
            for table in signal.unseen_tables:
                tables, reasons, rules = found.setdefault(hint_for(diagnosis, table), (set(), set(), {}))
                tables.add(table)
                rules[result.rule] = None
                reasons.update(part for part in signal.because.split("; ") if part)
    return [Missing(tuple(sorted(t)), "; ".join(sorted(r)) or "not collected", run, tuple(n)) for run, (t, r, n) in found.items()]


def hint_for(diagnosis: Diagnosis, table: str) -> str:
    """The exact command that collects a table on this target."""
    pid = diagnosis.subject.get("pid")
    template = diagnosis.collect_hints.get(table) or diagnosis.collect_hints.get(table.split(".")[0]) or "llmdiag snapshot {pid}"
    return template.replace("{pid}", "PID" if pid is None else shlex.quote(str(pid)))


def report_command(diagnosis: Diagnosis, form: str = "") -> str:
    """The command that prints all there is."""
    return f"llmdiag report {diagnosis.subject.get('path') or 'BUNDLE'}{' -f ' + form if form else ''}"


def collectors(diagnosis: Diagnosis) -> tuple[int, int, list[tuple[str, str]]]:
    """(collectors that read everything, collectors, what the others say)."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for item in diagnosis.collected:
        by_name.setdefault(item.collector, []).append((item.status, item.reason or ""))
    gaps = [
        (name, "; ".join(dict.fromkeys(why for status, why in found if status != "ok" and why)) or "not collected")
        for name, found in by_name.items()
        if any(status != "ok" for status, _ in found)
    ]
    return len(by_name) - len(gaps), len(by_name), gaps


def footer(diagnosis: Diagnosis) -> list[str]:
    """How much was looked at and what it cost the patient."""
    good, total, gaps = collectors(diagnosis)
    without = f" (not: {', '.join(inert(name, 20) for name, _ in gaps)})" if gaps else ""
    return [f"{good}/{total} collectors complete{without}", pause(diagnosis), redaction(diagnosis)]


def pause(diagnosis: Diagnosis) -> str:
    """Upper bound of how long the target was stopped."""
    amount = diagnosis.side_effects.get("pause_ms")
    if not isinstance(amount, int | float) or not math.isfinite(amount):
        return "pause of the target unknown"
    return f"target paused at most {math.ceil(amount)} ms"


def redaction(diagnosis: Diagnosis) -> str:
    """How many values were taken out before anything was written."""
    if not diagnosis.subject.get("redaction", True):
        return "NOT redacted"
    count = diagnosis.subject.get("redacted")
    return "files as handed in, not redacted" if count is None else f"{inert(count, 20)} values redacted"


def notes(diagnosis: Diagnosis) -> list[str]:
    """What makes this evidence less than it seems: a snapshot cut short, files nobody could read."""
    found = ["the snapshot was interrupted: this is what there was"] if diagnosis.subject.get("interrupted") else []
    for name, what in (("dropped", "cut short and dropped"), ("unrecognised", "not recognised as evidence")):
        files = names(diagnosis, name)
        if files:
            found.append(f"{len(files)} {'file' if len(files) == 1 else 'files'} {what}")
    return found


def names(diagnosis: Diagnosis, what: str) -> list[str]:
    """File names under `dropped` or `unrecognised` of the subject."""
    found = diagnosis.subject.get(what)
    return [str(name) for name in found] if isinstance(found, list | tuple) else []


def side_effects(diagnosis: Diagnosis) -> list[str]:
    """Everything llmdiag did to the machine."""
    rest = {name: amount for name, amount in sorted(diagnosis.side_effects.items()) if name != "pause_ms"}
    return [f"{pause(diagnosis)} (upper bound)", *(f"{name.replace('_', ' ')}: {inert(amount)}" for name, amount in rest.items())]


def verdict_colour(verdict: Verdict | str) -> str:
    """Red is proved, yellow is likely or open, green is clear."""
    return {"confirmed": "bold white on red", "likely": "bold black on yellow", "inconclusive": "bold black on yellow"}.get(str(verdict), "bold black on green")


def plain_rows(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Rows with values that JSON can carry."""
    return [{str(name): plain(value) for name, value in row.items()} for row in rows]


def plain(value: object) -> object:
    """One value as JSON can carry it: times as ISO-8601 in UTC, NaN and infinity as null, anything else as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime.datetime():
            utc = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
            return f"{utc.isoformat()}Z"
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case datetime.timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case _:
            return str(value)
