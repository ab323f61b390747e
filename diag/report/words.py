"""What every report says, in the order a person on call needs it. Texts of the evidence are as found: formats make them inert."""

import datetime
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diag.model import Diagnosis, RuleResult, SignalResult, SignalState, Verdict, mostly_unread
from diag.report.inert import inert
from diag.report.remedy import completed

MARK = {SignalState.HELD: "+", SignalState.EMPTY: "-", SignalState.UNSEEN: "?"}
STATES = (SignalState.HELD, SignalState.UNSEEN, SignalState.EMPTY)
ROLES = ("proof", "required", "against", "support")
NOT_COLLECTED = "not collected"
MAX_NAMED = 4


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


def headline(diagnosis: Diagnosis) -> tuple[str, str]:
    """The one thing this report says: (verdict and rule, or a whole sentence; what exactly is at fault, or "")."""
    if diagnosis.findings:
        first = diagnosis.findings[0]
        return inert(f"{first.verdict.value.upper()} {first.rule}"), first.subject
    if diagnosis.verdict == "inconclusive":
        half_seen = next((result.rule for result in diagnosis.inconclusive if result.held("required")), None)
        if half_seen is not None:
            return inert(f"INCONCLUSIVE {half_seen}: neither confirmed nor ruled out by this evidence"), ""
        return _dead(diagnosis) or _broken(diagnosis) or _blind(diagnosis), ""
    still_open = len(diagnosis.inconclusive)
    of = len(diagnosis.ruled_out) + still_open
    rules = f"{of} rule{'' if of == 1 else 's'}"
    told = next((section.headline for section in diagnosis.sections if section.headline), None)
    unread = f"{unrecognised(diagnosis)} not recognised" if names(diagnosis, "unrecognised") else ""
    if told is not None:
        return "; ".join(filter(None, [f"CLEAR: {inert(told)}", f"{still_open} of {rules} not judged" if still_open else "", unread])), ""
    gaps = " and ".join(filter(None, [f"{still_open} of {rules} could not be judged" if still_open else "", unread]))
    return f"CLEAR: no known incident found{f', but {gaps}' if gaps else f' ({rules} ruled out)'}", ""


def _dead(diagnosis: Diagnosis) -> str:
    """Something died and nobody knows why; "" = nothing did."""
    seen = names(diagnosis, "deaths")
    return f"INCONCLUSIVE: {inert(seen[-1], 120)}, and no rule knows why" if seen else ""


def _broken(diagnosis: Diagnosis) -> str:
    """Answers are wrong, and no rule says why; "" = none are."""
    return next((f"INCONCLUSIVE: {inert(line.partition(' (')[0])}" for line in names(diagnosis, "broken")), "")


def _blind(diagnosis: Diagnosis) -> str:
    """Too much is open for a verdict: how much, and whether there was any evidence at all."""
    judged, still_open = len(diagnosis.ruled_out), len(diagnosis.inconclusive)
    if judged and mostly_unread(diagnosis.subject):
        return f"INCONCLUSIVE: nothing matches, but {unrecognised(diagnosis)} not recognised"
    if judged:
        return f"INCONCLUSIVE: {still_open} of {judged + still_open} rules could not be judged"
    looked = any(item.status in ("ok", "partial") for item in diagnosis.collected)
    return f"INCONCLUSIVE: nothing could be {'judged' if looked else 'looked at'}"


def origin(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Who was looked at, when, with what: (our word, the value from the evidence)."""
    s = diagnosis.subject
    own = ("llmdiag", f"{inert(s.get('tool_version'), 20)}, {inert(s.get('rules'), 20)} rule{'' if s.get('rules') == 1 else 's'}")
    if s.get("dumps"):  # no host and no process was looked at
        return [("dumps", inert(s["dumps"], 120)), own]
    tree = f" ({s['tree']})" if s.get("tree") else ""
    taken = s.get("taken_at")
    return [
        ("host", inert(s.get("hosts"), 60)),
        ("pid", inert(s.get("pid"), 20) + inert(tree, 80)),
        ("at", "unknown" if taken is None else inert(moment(taken))),
        ("from", inert(s.get("bundle"), 80)),
        own,
    ]


def moment(taken: object) -> str:
    """A time of the evidence to the second, UTC."""
    text = taken.isoformat() if isinstance(taken, datetime.datetime) else str(taken)
    return f"{text[:19].replace('T', ' ')}Z" if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text) else text


def because(result: RuleResult) -> list[Sentence]:
    """A finding's sentences: what held (proof first), what could not be looked at, what was looked for and not found."""
    order = sorted(result.signals, key=lambda s: (STATES.index(s.state), ROLES.index(s.role)))
    return [sentence for signal in order for sentence in sentences(signal)]


def told_in_full(result: RuleResult) -> list[Sentence]:
    """`because`, with the signals that were not found and had no near miss in one sentence at the end."""
    found = because(result)
    blanks = [s for s in result.signals if s.state is SignalState.EMPTY and s.role != "against" and not s.near]
    if len(blanks) < 2:
        return found
    rest = [sentence for sentence in found if sentence.signal not in {signal.id for signal in blanks}]
    return [*rest, Sentence("-", "support", "", f"looked for, not found: {', '.join(_title(signal) for signal in blanks)}")]


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


def explained(diagnosis: Diagnosis, result: RuleResult) -> list[tuple[str, str]]:
    """(symptom that this finding explains, what it adds: its first proof, else what it rests on, "" where it tells nothing)."""
    symptoms = {symptom.rule: symptom for symptom in diagnosis.explained}
    return [(name, _adds(symptoms.get(name))) for name in diagnosis.folded.get(result.rule, ())]


def _adds(symptom: RuleResult | None) -> str:
    held = [] if symptom is None else sorted(symptom.held(), key=lambda signal: ROLES.index(signal.role))
    return next((signal.says[0] for signal in held if signal.says), "")


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
            proof = f"the proof ({unseen['proof']}) could not be looked at" if "proof" in unseen else "no proof was found"
            return f"not confirmed: {proof}"
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
    return near[0] if near else f"its sign '{_title(empty[0])}' was not found" if empty else "a required signal is missing"


def missing(diagnosis: Diagnosis) -> list[Missing]:
    """What findings and open questions still need, grouped by the command that would collect it, the first finding's first."""
    tables: dict[str, dict[str, str]] = {}
    rules: dict[str, dict[str, None]] = {}
    for result in (*diagnosis.findings, *diagnosis.inconclusive):
        for signal in sorted(result.unseen(), key=lambda s: ROLES.index(s.role)):
            for table in signal.unseen_tables:
                run = hint_for(diagnosis, table)
                tables.setdefault(run, {})[table] = _not_read(diagnosis, table) or signal.because or NOT_COLLECTED
                rules.setdefault(run, {})[result.rule] = None
    return [Missing(tuple(sorted(found)), _together(found.values()), run, tuple(rules[run])) for run, found in tables.items()]


def next_to_collect(diagnosis: Diagnosis) -> list[Missing]:
    """Gaps worth a person's time. Of a snapshot's, not those that it did not leave out (the same command again tells no more),
    nor those of other evidence than a service's (journals, tensor dumps, lookups) unless an open question or a death turns on it.
    """
    found = missing(diagnosis)
    if diagnosis.subject.get("taken_at") is None:
        return found
    half_seen = {result.rule for result in diagnosis.inconclusive if result.held("required")}
    dead = bool(names(diagnosis, "deaths"))
    return [gap for gap in found if not _is_circular(diagnosis, gap) and (dead or half_seen & {*gap.rules} or "llmdiag snapshot" in gap.command)]


def _is_circular(diagnosis: Diagnosis, gap: Missing) -> bool:
    """Would the command that took this snapshot be asked for again, although it left nothing out?"""
    return gap.because == NOT_COLLECTED and gap.command == hint_for(diagnosis, "")


def _together(reasons: Iterable[str]) -> str:
    """Distinct reasons; one that another one already says is left out."""
    kept: list[str] = []
    for why in sorted(set(reasons) - {NOT_COLLECTED}, key=lambda text: (-len(text), text)):
        kept += [] if any(why in longer for longer in kept) else [why]
    return "; ".join(sorted(kept)) or NOT_COLLECTED


def _not_read(diagnosis: Diagnosis, table: str) -> str:
    """Why a table was not read, as its collector said."""
    said = [c.reason for c in diagnosis.collected if c.table_name in (table, table.split(".")[0]) and c.status != "ok" and c.reason]
    return "; ".join(dict.fromkeys(said))


def hint_for(diagnosis: Diagnosis, table: str) -> str:
    """The exact command that collects a table on this target."""
    pid = diagnosis.subject.get("pid")
    template = diagnosis.collect_hints.get(table) or diagnosis.collect_hints.get(table.split(".")[0]) or "llmdiag snapshot {pid}"
    bundle = next(iter(shlex.split(str(diagnosis.subject.get("path") or ""))), "BUNDLE")
    run = template.replace("{pid}", "PID" if pid is None else shlex.quote(str(pid))).replace("{bundle}", shlex.quote(bundle))
    return completed(run, "" if _left_out(diagnosis) else _not_read(diagnosis, table))


def _left_out(diagnosis: Diagnosis) -> bool:
    """Were the sockets not asked for? Then a whole snapshot finds ports and cache servers by itself."""
    return any(item.table_name == "sockets" and item.status == "skipped" for item in diagnosis.collected)


def hints_for(diagnosis: Diagnosis, signal: SignalResult) -> list[str]:
    """The commands that collect everything a signal could not look at, each once."""
    return list(dict.fromkeys(hint_for(diagnosis, table) for table in signal.unseen_tables))


def report_command(diagnosis: Diagnosis, form: str = "") -> str:
    """The command that prints all there is."""
    return f"llmdiag report {diagnosis.subject.get('path') or 'BUNDLE'}{' -f ' + form if form else ''}"


def collectors(diagnosis: Diagnosis) -> tuple[int, int, list[tuple[str, str]]]:
    """(collectors that read everything, collectors, what the others say)."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for item in diagnosis.collected:
        by_name.setdefault(item.collector, []).append((item.status, item.reason or ""))
    gaps = [
        (name, "; ".join(dict.fromkeys(why for status, why in found if status != "ok" and why)) or NOT_COLLECTED)
        for name, found in by_name.items()
        if any(status != "ok" for status, _ in found)
    ]
    return len(by_name) - len(gaps), len(by_name), gaps


def _partial(diagnosis: Diagnosis) -> int:
    """Collectors that read something, and not everything."""
    states: dict[str, set[str]] = {}
    for item in diagnosis.collected:
        states.setdefault(item.collector, set()).add(item.status)
    return sum(1 for found in states.values() if found & {"ok", "partial"} and found != {"ok"})


def footer(diagnosis: Diagnosis) -> list[str]:
    """How much was looked at and what it cost the patient."""
    if diagnosis.subject.get("dumps"):
        return [redaction(diagnosis)]
    good, total, gaps = collectors(diagnosis)
    partial = _partial(diagnosis)
    most = MAX_NAMED - 1 if partial else MAX_NAMED
    named = ", ".join(inert(name, 20) for name, _ in gaps[:most])
    without = f" (not: {named}{f' +{len(gaps) - most}' if len(gaps) > most else ''})" if gaps else ""
    half = f", {partial} partial" if partial else ""
    return [f"{good}/{total} collectors complete{half}{without}", pause(diagnosis), redaction(diagnosis), *_effects(diagnosis)]


def side_effects(diagnosis: Diagnosis) -> list[str]:
    """Everything llmdiag did to the machine."""
    return [f"{pause(diagnosis)} (upper bound)", *_effects(diagnosis)]


def _effects(diagnosis: Diagnosis) -> list[str]:
    """Side effects other than the pause, as far as there were any."""
    found = {name: amount for name, amount in sorted(diagnosis.side_effects.items()) if name != "pause_ms" and amount != 0}
    return [f"{inert(name.replace('_', ' '), 40)}: {inert(amount, 80)}" for name, amount in found.items()]


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
    return "loose files as handed in" if count is None else f"{inert(count, 20)} value{'' if count == 1 else 's'} redacted"


def sharing(diagnosis: Diagnosis) -> str:
    """What whoever passes the report on must know."""
    if not diagnosis.subject.get("redaction", True):
        return "NOT redacted: it may hold secrets and prompts. Review before sharing."
    if diagnosis.subject.get("redacted") is None:
        return "The evidence was handed in as loose files: what looks like a secret is masked here, and stands in them. Review before sharing."
    kept = "host names, addresses, model names, code paths"
    return f"{redaction(diagnosis)}, by pattern and structure. Not redacted: {kept}. Review before sharing."


def notes(diagnosis: Diagnosis) -> list[str]:
    """What makes this evidence less than it seems: a snapshot cut short, files nobody could read."""
    found = ["the snapshot was interrupted: this is what there was"] if diagnosis.subject.get("interrupted") else []
    dropped, unread = names(diagnosis, "dropped"), names(diagnosis, "unrecognised")
    if dropped:
        found.append(f"{len(dropped)} {'file' if len(dropped) == 1 else 'files'} cut short and dropped")
    if unread:
        more = f" and {len(unread) - MAX_NAMED} more" if len(unread) > MAX_NAMED else ""
        found.append(f"{unrecognised(diagnosis)} not recognised as evidence: {', '.join(inert(name, 60) for name in unread[:MAX_NAMED])}{more}")
    return found


def unrecognised(diagnosis: Diagnosis) -> str:
    """`4 of 6 files were`, of those that nobody recognised."""
    count, handed_in = len(names(diagnosis, "unrecognised")), diagnosis.subject.get("handed_in")
    of = f" of {handed_in}" if isinstance(handed_in, int) else ""
    return f"{count}{of} file{'s' if handed_in != 1 and (of or count > 1) else ''} {'was' if count == 1 else 'were'}"


def deaths(diagnosis: Diagnosis) -> str:
    """Ends of the engine that no rule explains: no incident that is known is not the same as no incident. "" = none."""
    seen = names(diagnosis, "deaths")
    if not seen or diagnosis.findings:
        return ""
    count = f"{len(seen)} death{'' if len(seen) == 1 else 's'} seen"
    path = diagnosis.subject.get("path") or "PATHS"
    why = "dmesg -T and the supervisor's journal of that time may tell why, if they are handed in too"
    return f"{count} ({inert(seen[-1], 120)}): no rule knows its cause; {why}; llmdiag recovery {path} shows where the time went"


def broken(diagnosis: Diagnosis) -> list[str]:
    """Answers of an experiment that are wrong, and no rule says why."""
    return [] if diagnosis.findings else names(diagnosis, "broken")


def assumed(diagnosis: Diagnosis) -> list[str]:
    """What was taken for granted of year and zone, what a map did not meet: warnings first."""
    return sorted(names(diagnosis, "assumed"), key=lambda text: not text.startswith(("WRONG", "the logs")))


def names(diagnosis: Diagnosis, what: str) -> list[str]:
    """File names under `dropped` or `unrecognised` of the subject, lines under `assumed`, `deaths` and `broken`."""
    found = diagnosis.subject.get(what)
    return [str(name) for name in found] if isinstance(found, list | tuple) else []


def mostly_open(diagnosis: Diagnosis) -> bool:
    """Could most rules not be judged? Clear is not green then."""
    return len(diagnosis.inconclusive) > len(diagnosis.ruled_out)


def verdict_colour(verdict: Verdict | str) -> str:
    """Red is proved, yellow is likely or open, green is clear."""
    doubtful = ("likely", "matched", "inconclusive")
    return "bold white on red" if verdict == "confirmed" else f"bold black on {'yellow' if verdict in doubtful else 'green'}"
