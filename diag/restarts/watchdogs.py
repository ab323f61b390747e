"""By which rule each initiator decides, given or measured, and whether its restarts keep to its period.

Periods are measured on many probes, not on few restarts. The phase test (Rayleigh) is made per initiator, never pooled, from
four restarts in six hours on; below that it is not testable, and this is said. All that were made are corrected by Holm.
"""

import cmath
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from diag.restarts.records import Event, Restart, Time, WatchRule, between_s

LEAST_PROBES = 4
SHORTEST_S, LONGEST_S = 1.0, 7200.0
REGULAR = 0.15
"""Median deviation of the gaps, as a share of the period, up to which somebody probes regularly."""
SAME_PERIOD = 0.1
LEAST_RESTARTS, LEAST_HOURS = 4, 6.0
GAP = 1.5
"""Failures further apart than this many periods were not in a row: a look between them was fine."""
COUNTS = re.compile(r"(?i)\b(?:[45]xx|[45]\d\ds?|errors?|exceptions?|tracebacks?|log lines?)\b")
PROBES = re.compile(r"(?i)\b(?:probe|ping|chat|completion|request to|http-get|exec|grpc|tcp-socket|sd_notify|curl|answers?)\b|https?://|/health|/v1/")
STATUS = re.compile(r"\b([45]\d\d)s?\b")


@dataclass(frozen=True)
class Prober:
    """Somebody who sends the same request again and again. `period_s` is the median gap."""

    who: str
    what: str
    period_s: float
    n: int
    source: str


@dataclass(frozen=True)
class Known:
    """What is known of one watchdog."""

    rule: WatchRule
    basis: str
    """given | measured | given and measured | nothing"""
    n: int
    """Probes, or failures in its own log, that the period was measured on; 0 = given."""


@dataclass(frozen=True)
class Phase:
    """Whether restarts fall into the phase of a period. `p` None = not testable."""

    n: int
    hours: float
    r: float | None
    p: float | None
    says: str


def counts_errors(rule: WatchRule) -> bool:
    """Does it count errors that others met, rather than fail itself?"""
    return COUNTS.search(rule.what) is not None and PROBES.search(rule.what) is None


def counted_status(rule: WatchRule) -> int | None:
    """The one HTTP status it counts; None = all from 500 on."""
    found = STATUS.search(rule.what)
    return None if found is None or "xx" in rule.what.lower() else int(found[1])


def period_of(moments: Sequence[Time]) -> float | None:
    """Period of moments that come regularly, holes allowed; None = too few, or not regular."""
    gaps = sorted(gap for first, second in pairwise(moments) if (gap := between_s(first, second)) > 0)
    if len(gaps) < LEAST_PROBES - 1:
        return None
    # holes (a restart, a busy engine) make some gaps a multiple: the lower part has the period
    base = gaps[len(gaps) // 5]
    near = [gap for gap in gaps if gap <= GAP * base]
    period = median(near)
    spread = median(abs(gap - period) for gap in near)
    return period if SHORTEST_S <= period <= LONGEST_S and len(near) >= 0.5 * len(gaps) and spread <= REGULAR * period else None


def run_before(failures: Sequence[Event], end: Time, rule: WatchRule, grace_s: float = 5.0) -> list[Event]:
    """Failures in a row up to a moment, oldest first: no gap in which a look could have been fine."""
    run: list[Event] = []
    for event in sorted((event for event in failures if between_s(end, event.ts) <= grace_s), key=lambda event: event.ts, reverse=True):
        after = run[-1].ts if run else end
        allowed = None if rule.period_s is None else GAP * rule.period_s + (rule.timeout_s or 0.0)
        if allowed is not None and between_s(event.ts, after) > allowed:
            break
        run.append(event)
    return run[::-1]


def known(given: Iterable[WatchRule], events: Sequence[Event], restarts: Sequence[Restart], probers: Sequence[Prober]) -> dict[tuple[str, str | None], Known]:
    """(initiator, unit or None) -> what is known of it: those with a rule, with failed probes, or who restarted as watchdogs."""
    found = {(rule.initiator, rule.unit): Known(rule, "given", 0) for rule in given}
    failures: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == "probe_failed" and event.initiator is not None:
            failures.setdefault(event.initiator, []).append(event)
    actors = dict.fromkeys([*failures, *(restart.initiator for restart in restarts if restart.who == "watchdog" and restart.initiator is not None)])
    for initiator in actors:
        if not any(name == initiator for name, _ in found):
            sources = [event.source for event in failures.get(initiator, ())] + [restart.source for restart in restarts if restart.initiator == initiator]
            found[initiator, None] = Known(WatchRule(initiator, "not known", sources[0]), "nothing", 0)
    return {key: _measured(item, failures.get(key[0], []), restarts, probers) for key, item in found.items()}


def rule_for(rules: Mapping[tuple[str, str | None], Known], initiator: str | None, unit: str | None) -> WatchRule | None:
    """The rule of an initiator for a unit: its own for that unit, else one for all, else its only one."""
    mine = {whom: item.rule for (name, whom), item in rules.items() if name == initiator}
    short = None if unit is None else unit.removesuffix(".service")
    for whom, rule in mine.items():
        if whom is not None and short is not None and whom.removesuffix(".service") == short:
            return rule
    return mine.get(None) or (next(iter(mine.values())) if len(mine) == 1 else None)


def is_like(prober: Prober, rule: WatchRule) -> bool:
    """Does a client ask as often as a watchdog looks?"""
    return rule.period_s is not None and not counts_errors(rule) and abs(prober.period_s - rule.period_s) <= SAME_PERIOD * rule.period_s


def _measured(item: Known, failures: Sequence[Event], restarts: Sequence[Restart], probers: Sequence[Prober]) -> Known:
    """A rule completed by what its failures, and probes like its own, show."""
    rule, n = item.rule, 0
    period = period_of(sorted(event.ts for event in failures))
    if rule.period_s is None and period is not None:
        rule, n = replace(rule, period_s=round(period, 1)), len(failures)
    like = [prober for prober in probers if is_like(prober, rule)]
    if len(like) == 1 and n == 0:
        n = like[0].n
        rule = replace(rule, what=like[0].what if rule.what == "not known" else rule.what)
    if rule.strikes is None:
        runs = [len(run_before(failures, restart.killed_at, rule)) for restart in restarts if restart.initiator == rule.initiator and restart.killed_at]
        seen = [length for length in runs if length > 0]
        if len(seen) >= 2 and min(seen) == max(seen):
            rule = replace(rule, strikes=seen[0])
    if rule == item.rule:
        return replace(item, n=n, basis="given and measured" if n and item.basis == "given" else item.basis)
    return Known(rule, "measured" if item.basis == "nothing" else "given and measured", n)


def phase(moments: Sequence[Time], period_s: float, hours: float) -> Phase:
    """Rayleigh's test of moments against a period. `hours` = length of the observation, not of the incident."""
    n = len(moments)
    if n < LEAST_RESTARTS or hours < LEAST_HOURS:
        why = f"n = {n}, {LEAST_RESTARTS} needed" if n < LEAST_RESTARTS else f"T = {hours:.1f} h, {LEAST_HOURS:.0f} h needed"
        return Phase(n, hours, None, None, f"phase at {period_s:.0f} s: not testable ({why})")
    first = moments[0]
    r = abs(sum(cmath.exp(2j * math.pi * between_s(first, moment) / period_s) for moment in moments)) / n
    p = min(1.0, math.exp(math.sqrt(1 + 4 * n + 4 * (n * n - (n * r) ** 2)) - (1 + 2 * n)))
    return Phase(n, hours, r, p, "")


def holm(found: Mapping[str, Phase]) -> dict[str, Phase]:
    """Correct all tests that were made for their number, and say what came out."""
    tested = sorted(((item.p, name) for name, item in found.items() if item.p is not None))
    out, worst = dict(found), 0.0
    for rank, (p, name) in enumerate(tested):
        worst = max(worst, min(1.0, p * (len(tested) - rank)))
        item = found[name]
        out[name] = replace(item, p=worst, says=f"R = {item.r:.2f}, n = {item.n}, T = {item.hours:.1f} h, p = {worst:.2g} (Rayleigh, Holm over {len(tested)})")
    return out
