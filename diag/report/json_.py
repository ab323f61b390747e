"""The report as data: `llmdiag.diagnosis/1`, stable, described by diag/report/diagnosis.schema.json."""

import datetime
import decimal
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources

from diag.model import Diagnosis, Part, RuleResult, Section
from diag.report import words

SCHEMA = "llmdiag.diagnosis/1"


def schema() -> dict[str, object]:
    """The JSON Schema (2020-12) of `render`'s object."""
    text = resources.files("diag.report").joinpath("diagnosis.schema.json").read_text(encoding="utf-8")
    found: dict[str, object] = json.loads(text)
    return found


def render(diagnosis: Diagnosis) -> dict[str, object]:
    """Diagnosis -> JSON object: unknown, NaN and infinity are null; times are ISO-8601 in UTC; texts are as found."""
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict,
        "subject": plain(diagnosis.subject),
        "findings": [_finding(diagnosis, result) for result in diagnosis.findings],
        "inconclusive": [
            {"rule": r.rule, "held": [s.id for s in r.held()], "missing": _missing(diagnosis, r)}
            for r in diagnosis.inconclusive
        ],
        "ruled_out": [{"rule": rule, "because": why} for rule, why in words.ruled_out(diagnosis)],
        "collected": [
            {"collector": c.collector, "table_name": c.table_name, "status": c.status, "reason": c.reason}
            for c in diagnosis.collected
        ],
        "side_effects": plain({"pause_ms": None, **diagnosis.side_effects}),
        **({"sections": told} if (told := [_section(section, parts) for section in diagnosis.sections if (parts := section.in_words())]) else {}),
    }


def _section(section: Section, parts: Sequence[Part]) -> dict[str, object]:
    shown = [{"text": part.text, "label": part.label, "drawn": list(part.drawn), "run": part.run} for part in parts]
    return {"title": section.title, "parts": shown}


def _finding(diagnosis: Diagnosis, result: RuleResult) -> dict[str, object]:
    return {
        "rule": result.rule,
        "title": result.title,
        "subject": result.subject,
        "severity": result.severity,
        "verdict": result.verdict.value,
        "evidence": [
            {"signal": s.id, "role": s.role, "says": list(s.says), "rows": plain_rows(s.rows), "more": s.more}
            for s in result.held()
        ],
        "missing": _missing(diagnosis, result),
        "explains": list(diagnosis.folded.get(result.rule, ())),
        "actions": [{"title": a.title, "run": a.run, "undo": a.undo} for a in result.actions],
        "runbook": dict(result.runbook),
    }


def _missing(diagnosis: Diagnosis, result: RuleResult) -> list[dict[str, object]]:
    return [
        {
            "signal": s.id,
            "tables": list(s.unseen_tables),
            "because": s.because,
            "collect": words.hints_for(diagnosis, s),
        }
        for s in result.unseen()
    ]


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
        case decimal.Decimal():
            return plain(float(value))
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
