"""Does every part of a rule matter? Parts are left out one at a time; each must change what some sample's report says.

    python -m tests.corpus.mutation [RULE…]      # prints what survived; exits 1 if anything did

A part is a signal, a nearest miss, or one of the terms joined by AND in a WHERE, HAVING, QUALIFY or ON of a query (found
with sqlglot, common table expressions included). A signal matters when a verdict changes or, of those that only
support, when it is told in some report; a term when rows, verdict or what could not be looked at change.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlglot
from sqlglot import exp

from diag import analysis, engine, evidence, rules, ruletest
from diag.errors import LlmdiagError
from diag.model import SignalResult, SignalState, Verdict
from diag.sources import sources_of

COLLECTORS = evidence.collectors_of(evidence.Extras())
JOINS = ("bundle", "host", "capture", "pid", "started_at", "tid", "read", "sample", "target", "engine", "incident", "restart")
"""Terms that only say that two rows are of one capture, process or read: they matter where several are looked at together."""


@dataclass(frozen=True)
class Mutant:
    """A rule with one part left out."""

    what: str
    rule: rules.Rule
    kind: str
    signal: str


def mutants(rule: rules.Rule) -> Iterator[Mutant]:
    """Every way to leave one part of a rule out."""
    for place, signal in enumerate(rule.signals):
        rest = rule.signals[:place] + rule.signals[place + 1 :]
        if any(other.role == "required" for other in rest):
            yield Mutant(f"{signal.id} ({signal.role})", msgspec.structs.replace(rule, signals=rest), "signal", signal.id)
        for term, sql in _without_terms(signal.sql):
            yield Mutant(f"{signal.id}: {term}", _with(rule, place, sql=sql), "term", signal.id)
        if signal.near is not None:
            yield Mutant(f"{signal.id}: near", _with(rule, place, near=None, near_says=None), "near", signal.id)


def _with(rule: rules.Rule, place: int, **changes: Any) -> rules.Rule:
    changed = msgspec.structs.replace(rule.signals[place], **changes)
    return msgspec.structs.replace(rule, signals=(*rule.signals[:place], changed, *rule.signals[place + 1 :]))


def _without_terms(sql: str) -> Iterator[tuple[str, str]]:
    """(the term, the query without it), for each top-level AND term that is no mere join of the same process."""
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    holders = [node for node in tree.walk() if isinstance(node, exp.Where | exp.Having | exp.Qualify | exp.Join)]
    for number, holder in enumerate(holders):
        condition = holder.args.get("on") if isinstance(holder, exp.Join) else holder.this
        if condition is None:
            continue
        terms = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
        for index, term in enumerate(terms):
            if _is_join(term):
                continue
            copy = tree.copy()
            same = [node for node in copy.walk() if isinstance(node, exp.Where | exp.Having | exp.Qualify | exp.Join)][number]
            left = [other.copy() for at, other in enumerate(terms) if at != index]
            put = exp.and_(*left, dialect="duckdb") if left else exp.true()
            same.set("on" if isinstance(same, exp.Join) else "this", put)
            yield term.sql(dialect="duckdb"), copy.sql(dialect="duckdb")


def _is_join(term: exp.Expression) -> bool:
    """`a.pid = b.pid` and its like."""
    if not isinstance(term, exp.EQ | exp.NullSafeEQ | exp.NEQ):
        return False
    sides = (term.this, term.expression)
    return all(isinstance(side, exp.Column) for side in sides) and sides[0].name in JOINS and sides[0].name == sides[1].name


Told = tuple[Verdict, Mapping[str, SignalResult]]


def told(loaded: Sequence[evidence.Evidence], rule: rules.Rule) -> list[Told]:
    """What the captures of one sample say by this rule."""
    results = [engine.judge(capture, rule, {}) for capture in loaded]
    return [(result.verdict, {signal.id: signal for signal in result.signals}) for result in results]


def told_anew(loaded: Sequence[evidence.Evidence], mutant: Mutant, before: Sequence[Told]) -> list[Told]:
    """The same by a mutant; of one with another query nothing but that is looked at again."""
    if mutant.kind == "signal":
        return told(loaded, mutant.rule)
    (changed,) = (signal for signal in mutant.rule.signals if signal.id == mutant.signal)
    excused_by = {signal.id: signal.excused_by for signal in mutant.rule.signals if signal.excused_by is not None}
    found: list[Told] = []
    for capture, (_, signals) in zip(loaded, before, strict=True):
        now = {**signals, changed.id: engine.look(capture, mutant.rule, changed)}
        found.append((engine.decide(tuple(now.values()), excused_by), now))
    return found


def matters(mutant: Mutant, rule: rules.Rule, before: Mapping[str, list[Told]], loaded: Mapping[str, Sequence[evidence.Evidence]]) -> bool:
    """Is there a sample on which it changes anything?"""
    role = next(signal.role for signal in rule.signals if signal.id == mutant.signal)
    for name, captures in loaded.items():
        try:
            after = told_anew(captures, mutant, before[name])
        except LlmdiagError:  # the query makes no sense without it
            return True
        for (verdict, signals), (verdict_now, signals_now) in zip(before[name], after, strict=True):
            if verdict != verdict_now or _is_open(verdict, signals) != _is_open(verdict_now, signals_now):
                return True
            if mutant.kind == "signal" and role == "support" and signals[mutant.signal].state is SignalState.HELD:
                return True
            if mutant.kind != "signal" and repr(signals[mutant.signal]) != repr(signals_now[mutant.signal]):
                return True
    return False


def _is_open(verdict: Verdict, signals: Mapping[str, SignalResult]) -> bool:
    """Would it leave a whole diagnosis inconclusive? So does a rule of which something required held."""
    return verdict is Verdict.INCONCLUSIVE and any(signal.role == "required" and signal.state is SignalState.HELD for signal in signals.values())


def survivors(rule: rules.Rule, loaded: Mapping[str, Sequence[evidence.Evidence]]) -> list[str]:
    """Parts of a rule that no sample needs."""
    own = {name: captures for name, captures in loaded.items() if any(test.sample == name for test in rule.tests)}
    others = {name: captures for name, captures in loaded.items() if name not in own}
    before = {name: told(captures, rule) for name, captures in loaded.items()}
    return [
        mutant.what for mutant in mutants(rule) if not matters(mutant, rule, before, own) and not matters(mutant, rule, before, others)
    ]


def load(name: str) -> list[evidence.Evidence]:
    """The captures of one sample."""
    sources = sources_of([ruletest.sample_path(name, rules.shipped())], COLLECTORS)
    return [evidence.load(group, COLLECTORS) for group in analysis.captures(sources)]


def main(arguments: Sequence[str]) -> int:
    shipped = [rule for rule in rules.load(rules.shipped()) if not arguments or rule.id in arguments]
    names = sorted({test.sample for rule in shipped for test in rule.tests})
    loaded: dict[str, Sequence[evidence.Evidence]] = {}
    for number, name in enumerate(names, 1):
        print(f"\rloading {number} of {len(names)}", end="", file=sys.stderr, flush=True)
        loaded[name] = load(name)
    print(file=sys.stderr)
    total = alive = 0
    for rule in shipped:
        found = survivors(rule, loaded)
        total += sum(1 for _ in mutants(rule))
        alive += len(found)
        for what in found:
            print(f"{rule.id}: {what}", flush=True)
    print(f"{total} parts left out one at a time, {alive} of them unnoticed")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
