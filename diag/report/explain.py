"""`analyze --explain RULE`: every signal of one rule, whether it matched or not, with its nearest miss."""

from collections.abc import Mapping, Sequence
from typing import cast

from rich.text import Text

from diag.model import Diagnosis, RuleResult, SignalResult, SignalState
from diag.report import screen, words
from diag.report.inert import inert
from diag.report.json_ import plain_rows
from diag.report.layout import command_lines, wrapped

WIDTH = 100
MAX_ROWS = 20
MAX_SENTENCE_CHARS = 2_000


def facts(diagnosis: Diagnosis, rule: str) -> dict[str, object] | None:
    """One rule's signals as data; None when there is no such rule."""
    results = (*diagnosis.findings, *diagnosis.explained, *diagnosis.inconclusive, *diagnosis.ruled_out)
    result = next((r for r in results if r.rule == rule), None)
    if result is None:
        return None
    cause = next((cause for cause, names in diagnosis.folded.items() if rule in names), None)
    return _facts(diagnosis, result) | ({} if cause is None else {"folded_under": cause})


def _facts(diagnosis: Diagnosis, result: RuleResult) -> dict[str, object]:
    return {
        "rule": result.rule,
        "title": result.title,
        "verdict": result.verdict.value,
        "because": words.reason(result),
        "signals": [_signal(diagnosis, signal) for signal in result.signals],
    }


def _signal(diagnosis: Diagnosis, signal: SignalResult) -> dict[str, object]:
    return {
        "signal": signal.id,
        "role": signal.role,
        "state": signal.state.value,
        "says": list(signal.says),
        "near": signal.near,
        "tables": list(signal.unseen_tables),
        "because": signal.because,
        "rows": plain_rows(signal.rows[:MAX_ROWS]),
        "collect": words.hints_for(diagnosis, signal),
    }


def render(found: Mapping[str, object], width: int = WIDTH) -> Text:
    """What `facts` found, for a terminal."""
    verdict = str(found["verdict"])
    lines = [Text(inert(f"{verdict.upper()} {found['rule']}"), style=words.verdict_colour(verdict))]
    if "folded_under" in found:
        lines += _part(f"it matched, and {found['folded_under']} explains it", 2, width)
    if found.get("because"):
        lines += _part(f"{found.get('title')}: {found['because']}", 2, width)
    for signal in cast("Sequence[Mapping[str, object]]", found["signals"]):
        lines += _signal_lines(signal, width)
    text = Text()
    for line in lines:
        text.append(line).append("\n")
    return text


def _signal_lines(signal: Mapping[str, object], width: int) -> list[Text]:
    mark = words.MARK[SignalState(str(signal["state"]))]
    title = inert(f"{signal['signal']} ({signal['role']}): {signal['state']}")
    lines = screen.sentence_lines(mark, wrapped(title, width - 4))
    rows = cast("Sequence[Mapping[str, object]]", signal["rows"])
    for number, sentence in enumerate(_texts(signal["says"])):
        lines += _part(sentence, 4, width)
        lines += _part(words.source_of(rows[number]), 6, width, "dim") if number < len(rows) else []
    lines += _part(f"nearest: {signal['near']}", 4, width) if signal["near"] else []
    if signal["tables"]:
        why = signal["because"] or words.NOT_COLLECTED
        lines += _part(f"{', '.join(_texts(signal['tables']))}: {why}", 4, width)
        commands = [line for run in _texts(signal["collect"]) for line in command_lines(run, width, 6)]
        lines += [Text(line, style=screen.COMMAND_STYLE) for line in commands]
    return lines


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _part(text: str, indent: int, width: int, style: str = "") -> list[Text]:
    parts = wrapped(inert(text, MAX_SENTENCE_CHARS), width - indent) if text else []
    return [Text(" " * indent + part, style=style) for part in parts]
