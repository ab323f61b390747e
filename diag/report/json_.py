"""The report as data: `llmdiag.diagnosis/1`, stable, described by diag/report/diagnosis.schema.json."""

from diag.model import Diagnosis, RuleResult, SignalState
from diag.report import words

SCHEMA = "llmdiag.diagnosis/1"


def render(diagnosis: Diagnosis) -> dict[str, object]:
    """Diagnosis -> JSON object."""
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict,
        "subject": dict(diagnosis.subject),
        "findings": [_finding(diagnosis, result) for result in diagnosis.findings],
        "inconclusive": [
            {"rule": r.rule, "held": [s.id for s in r.held()], "missing": _missing(diagnosis, r)} for r in diagnosis.inconclusive
        ],
        "ruled_out": [{"rule": rule, "because": why} for rule, why in words.ruled_out(diagnosis)],
        "collected": [
            {"collector": c.collector, "table_name": c.table_name, "status": c.status, "reason": c.reason} for c in diagnosis.collected
        ],
        "side_effects": dict(diagnosis.side_effects),
    }


def _finding(diagnosis: Diagnosis, result: RuleResult) -> dict[str, object]:
    return {
        "rule": result.rule,
        "title": result.title,
        "subject": result.subject,
        "severity": result.severity,
        "verdict": result.verdict.value,
        "evidence": [
            {"signal": s.id, "role": s.role, "says": list(s.says), "rows": words.plain_rows(s.rows), "more": s.more}
            for s in result.signals
            if s.state is SignalState.HELD
        ],
        "missing": _missing(diagnosis, result),
        "explains": list(diagnosis.folded.get(result.rule, ())),
        "actions": [{"title": a.title, "run": a.run, "undo": a.undo} for a in result.actions],
        "runbook": dict(result.runbook),
    }


def _missing(diagnosis: Diagnosis, result: RuleResult) -> list[dict[str, object]]:
    return [
        {
            "signal": s.id, "tables": list(s.unseen_tables), "because": s.because,
            "collect": list(dict.fromkeys(words.hint_for(diagnosis, table) for table in s.unseen_tables)),
        }
        for s in result.unseen()
    ]
