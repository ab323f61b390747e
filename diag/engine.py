"""Rules over evidence -> a Diagnosis. Pure: it decides, it does not collect and does not print.

Verdicts are three-valued: a signal held, was looked at and is empty, or could not be looked at. "Could not look" is
neither healthy nor broken.
"""

import shlex
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from jinja2 import TemplateError, Undefined, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing as top_level

from diag.errors import RuleError
from diag.evidence import Evidence
from diag.model import Action, Collected, Diagnosis, RuleResult, SignalResult, SignalState, Verdict, mostly_unread
from diag.rules import ACTION_FIELDS, SEVERITIES, ActionTemplate, Rule, Signal

MAX_ROWS = 1_000
MAX_SENTENCES = 5
BLIND = frozenset({"unseen", "because"})
"""A row with `unseen` does not hold: it says which table (or table.column) it would take to know, and `because` why."""


Context = Mapping[str, str | tuple[str, ...]]
"""Values of action fields. `bundle` is the first path that was handed in, `evidence` all of them."""


class _Text(string.Formatter):
    """`{column:.0f}` of a row; `{n:# line}` is `1 line` and `3 lines`, `{n:# entry|entries}` where that is not enough. NULL prints as
    "unknown" under any format."""

    def get_field(self, field_name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, str]:
        if not field_name.isidentifier():
            raise RuleError(f"{{{field_name}}} is not a plain column name")
        return kwargs[field_name], field_name

    def format_field(self, value: object, format_spec: str) -> str:
        if not format_spec.startswith("#"):
            return "unknown" if value is None else str(format(value, format_spec))
        one, _, more = format_spec[1:].strip().partition("|")
        return f"{'unknown' if value is None else value} {one if value == 1 else more or f'{one}s'}"


class _Quoted(_Text):
    """The same for commands: every value shell-quoted, unknown ones left visible as <name>."""

    def format_field(self, value: object, format_spec: str) -> str:
        return shlex.join(value) if isinstance(value, tuple) else shlex.quote(super().format_field(value, format_spec))


def diagnose(evidence: Evidence, rules: Sequence[Rule], context: Context, subject: Mapping[str, object]) -> Diagnosis:
    """Run every rule. `context` fills action fields (target, bundle, evidence, pid, backup); `subject` says who was looked at."""
    results = [judge(evidence, rule, context) for rule in rules]
    symptoms = _symptoms(rules)
    matched = sorted((r for r in results if _is_match(r)), key=lambda r: _rank(r, symptoms))
    folded = {cause.rule: _explained(cause, matched, rules) for cause in matched}
    hidden = {name for names in folded.values() for name in names}
    findings = tuple(r for r in matched if r.rule not in hidden)
    inconclusive = tuple(r for r in results if r.verdict is Verdict.INCONCLUSIVE)
    return Diagnosis(
        verdict=_overall(findings, results, evidence.collected, subject),
        findings=findings,
        inconclusive=tuple(sorted(inconclusive, key=lambda r: (-len(r.held()), r.rule))),
        ruled_out=tuple(r for r in results if r.verdict is Verdict.NOT_MATCHED),
        collected=evidence.collected,
        side_effects=_side_effects(evidence),
        subject=subject,
        collect_hints=evidence.hints,
        folded=folded,
        explained=tuple(r for r in matched if r.rule in hidden),
    )


def judge(evidence: Evidence, rule: Rule, context: Context) -> RuleResult:
    """One rule over the evidence."""
    signals = tuple(look(evidence, rule, signal) for signal in rule.signals)
    verdict = decide(signals, {s.id: s.excused_by for s in rule.signals if s.excused_by is not None})
    found = verdict in (Verdict.CONFIRMED, Verdict.LIKELY)
    return RuleResult(
        rule=rule.id, title=rule.title, severity=rule.severity, verdict=verdict, signals=signals, explains=rule.explains,
        actions=_actions(rule, signals, context) if found else (),
        runbook=_runbook(evidence, rule, signals, context) if found else {},
        about=rule.about,
        subject=_say(rule.subject, _first_rows(signals), f"rules/{rule.id}.toml: subject") if found else "",
    )


def decide(signals: Sequence[SignalResult], excused_by: Mapping[str, str]) -> Verdict:
    """Signal results -> verdict; the whole three-valued logic of design.md in one place."""
    held = {signal.id for signal in signals if signal.state is SignalState.HELD}
    required = [signal for signal in signals if signal.role == "required"]
    against = [signal for signal in signals if signal.role == "against"]
    if any(s.state is SignalState.EMPTY for s in required) or any(s.state is SignalState.HELD for s in against):
        return Verdict.NOT_MATCHED
    if any(s.state is SignalState.UNSEEN for s in required):
        return Verdict.INCONCLUSIVE
    unexcused = any(s.state is SignalState.UNSEEN and excused_by.get(s.id) not in held for s in against)
    proved = any(s.role == "proof" and s.state is SignalState.HELD for s in signals)
    return Verdict.CONFIRMED if proved and not unexcused else Verdict.LIKELY


def look(evidence: Evidence, rule: Rule, signal: Signal) -> SignalResult:
    """Run one signal: rows, or the nearest miss, or what was not collected."""
    where = f"rules/{rule.id}.toml: signal {signal.id}"
    reads = evidence.reads(signal.sql, where)
    found, more = evidence.rows(signal.sql, where, MAX_ROWS)
    rows = [_without(row, BLIND) for row in found if row.get("unseen") is None]
    if rows:
        says = tuple(_say(signal.says, row, where) for row in rows[:MAX_SENTENCES])
        return SignalResult(signal.id, signal.role, SignalState.HELD, says, tuple(rows), more)
    if found:
        missing = tuple(sorted({str(row["unseen"]) for row in found}))
        because = "; ".join(dict.fromkeys(str(row["because"]) for row in found if row.get("because") is not None))
        return SignalResult(signal.id, signal.role, SignalState.UNSEEN, unseen_tables=missing, because=because)
    missing = evidence.unseen(reads)
    if missing:
        return SignalResult(
            signal.id, signal.role, SignalState.UNSEEN, unseen_tables=missing, because=_reasons(evidence, missing)
        )
    return SignalResult(signal.id, signal.role, SignalState.EMPTY, near=_near(evidence, signal, where))


def _without(row: Mapping[str, object], names: frozenset[str]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in names}


def _near(evidence: Evidence, signal: Signal, where: str) -> str:
    if signal.near is None or signal.near_says is None:
        return ""
    rows, _ = evidence.rows(signal.near, f"{where} (near)", 1)
    return _say(signal.near_says, rows[0], f"{where} (near)") if rows else ""


def _say(template: str, row: Mapping[str, object], where: str) -> str:
    try:
        return _Text().vformat(template, (), row)
    except KeyError as error:
        raise RuleError(f"{where}: says: the SQL returns no column {error}", hint=f"it returns {', '.join(row)}") from error
    except (ValueError, TypeError) as error:
        raise RuleError(f"{where}: says: {error}", hint="check the format of the field against the type of its column") from error


def _reasons(evidence: Evidence, missing: Sequence[str]) -> str:
    tables = {name.split(".")[0] for name in missing} | set(missing)
    found = [c.reason for c in evidence.collected if c.table_name in tables and c.status != "ok" and c.reason]
    return "; ".join(dict.fromkeys(found))


def _is_match(result: RuleResult) -> bool:
    return result.verdict in (Verdict.CONFIRMED, Verdict.LIKELY)


def _symptoms(rules: Iterable[Rule]) -> frozenset[str]:
    """Rules that some other rule explains: symptoms, however severe."""
    named = {name for rule in rules for name in rule.explains}
    return frozenset(named | {rule.id for rule in rules if rule.explained_by})


def _explained(cause: RuleResult, matched: Sequence[RuleResult], rules: Sequence[Rule]) -> tuple[str, ...]:
    """Matched symptoms that this cause explains, whichever of the two says so."""
    said = {rule.id for rule in rules if cause.rule in rule.explained_by}
    return tuple(r.rule for r in matched if r.rule in cause.explains or r.rule in said)


def _rank(result: RuleResult, symptoms: frozenset[str]) -> tuple[object, ...]:
    return (
        result.rule in symptoms,
        result.verdict is not Verdict.CONFIRMED,
        SEVERITIES.index(result.severity),
        -len(result.held()),
        result.rule,
    )


def _overall(findings: Sequence[RuleResult], results: Sequence[RuleResult], collected: Sequence[Collected], subject: Mapping[str, object]) -> str:
    """What was not handed in leaves a diagnosis clear as far as it goes; what could not be read does not, if it is most of it, nor does a death."""
    if findings:
        return "matched"
    if subject.get("deaths") or subject.get("broken") or mostly_unread(subject):
        return "inconclusive"
    still_open = [r for r in results if r.verdict is Verdict.INCONCLUSIVE]
    half_seen = any(r.held("required") for r in still_open)
    unreadable = {item.table_name.split(".")[0] for item in collected if item.status in ("failed", "partial")}
    blind = [r for r in still_open if any(table.split(".")[0] in unreadable for s in r.unseen() for table in s.unseen_tables)]
    mostly_blind = 2 * len(blind) > len(results) or len(still_open) == len(results)
    return "inconclusive" if half_seen or mostly_blind else "clear"


def _side_effects(evidence: Evidence) -> dict[str, object]:
    effects: dict[str, object] = {"pause_ms": 0.0}
    for source in evidence.sources:
        if source.manifest is None:
            continue
        for name, amount in source.manifest.side_effects.items():
            before = effects.get(name, 0)
            effects[name] = before + amount if isinstance(amount, int | float) and isinstance(before, int | float) else amount
    return effects


def _first_rows(signals: Sequence[SignalResult]) -> dict[str, object]:
    """Columns of the first row of every held signal; proof wins over required, required over support."""
    merged: dict[str, object] = {}
    for role in ("support", "required", "proof"):
        for signal in signals:
            if signal.role == role and signal.rows:
                merged |= {name: value for name, value in signal.rows[0].items() if value is not None or name not in merged}
    return merged


def _actions(rule: Rule, signals: Sequence[SignalResult], context: Context) -> tuple[Action, ...]:
    held = {signal.id for signal in signals if signal.rows}
    values = {name: name.upper() for name in ACTION_FIELDS} | _first_rows(signals)
    values |= {name: value for name, value in context.items() if name in ("bundle", "evidence", "backup") or values.get(name) in (None, name.upper())}
    return tuple(_action(rule, item, values) for item in rule.actions if item.when is None or item.when in held)


def _action(rule: Rule, item: ActionTemplate, values: Mapping[str, object]) -> Action:
    try:
        return Action(item.title, _Quoted().vformat(item.run, (), values), _Quoted().vformat(item.undo, (), values))
    except KeyError as error:
        raise RuleError(f"rules/{rule.id}.toml: action {item.title!r}: no column {error}", hint=f"known: {', '.join(values)}") from error


def _check_names(evidence: Evidence, rule: Rule, part: str, unknown: Iterable[str]) -> None:
    """Names that no row has: columns of signals that did not hold. Raises RuleError for one that no signal returns."""
    names = sorted(unknown)
    if not names:
        return
    columns = {name for s in rule.signals for name in evidence.find(s.sql, f"rules/{rule.id}.toml: signal {s.id}", 1).columns}
    if typos := [name for name in names if name not in columns]:
        raise RuleError(f"rules/{rule.id}.toml: runbook.{part}: no column {typos[0]!r}", hint=f"the signals return {', '.join(sorted(columns - BLIND))}")


class _Mistyped(Undefined):
    """A name that a runbook uses and nothing has. A column that a row does not have is a mistake wherever it is used; what only an
    unheld signal would tell is false in a condition, and prints as "unknown".
    """

    def __str__(self) -> str:
        return "unknown" if self._undefined_obj is top_level else str(self._typo())

    def __bool__(self) -> bool:
        return bool(self._typo()) if isinstance(self._undefined_obj, dict) else False

    def __iter__(self) -> Iterator[object]:
        return iter(self._typo() if isinstance(self._undefined_obj, dict) else ())

    def _typo(self) -> NoReturn:
        if isinstance(self._undefined_obj, dict):
            raise UndefinedError(f"no {self._undefined_name!r} among {', '.join(map(str, self._undefined_obj))}")
        self._fail_with_undefined_error()


def _one_line(value: object) -> object:
    """Evidence in a runbook is one line, so that it cannot add steps; NULL prints as "unknown"."""
    return "unknown" if value is None else " ".join(value.split()) if isinstance(value, str) else value


def _runbook(evidence: Evidence, rule: Rule, signals: Sequence[SignalResult], context: Context) -> dict[str, str]:
    environment = ImmutableSandboxedEnvironment(autoescape=False, trim_blocks=True, lstrip_blocks=True, finalize=_one_line, undefined=_Mistyped)
    values = {**_first_rows(signals), **context}
    rows = {signal.id: list(signal.rows[:20]) for signal in signals}
    texts = {}
    for name in ("confirm", "stop_the_bleeding", "fix", "prevent"):
        template = getattr(rule.runbook, name)
        try:
            _check_names(evidence, rule, name, meta.find_undeclared_variables(environment.parse(template)) - {*values, *environment.globals, *ACTION_FIELDS, "rows", "held"})
            texts[name] = environment.from_string(template).render(**{"rows": rows, "held": list(rows), **values}).strip()
        except TemplateError as error:
            raise RuleError(f"rules/{rule.id}.toml: runbook.{name}: {error}", hint="a Jinja2 template over the evidence rows") from error
    return texts

