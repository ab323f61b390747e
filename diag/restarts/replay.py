"""Would the next restart have come without this one? The next watchdog's own rule, replayed without what this restart caused.

An error is this restart's when it happened between the signal and ready (a probe counts from when it was sent). Take those
away: if the rule no longer fires, the link is causal. A rule that looks far back may have counted what the restarts before
this one left as well, and this one may have left nothing; those are taken away too where this one's alone do not suffice, and it is said. If the rule does not fire with all of them either, the evidence is not what the watchdog saw, and nothing is concluded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diag.restarts import watchdogs
from diag.restarts.records import Event, Restart, Time, WatchRule, between_s, later

TIE_S = 1.0
NO_RULE = "watchdog_rules"
NO_ERRORS = "http_events"
NO_LOG = "log_events"
NO_PROBES = "host_events"


@dataclass(frozen=True)
class Error:
    """One error that a watchdog counts. `begin` = when a probe was sent; else the same as `ts`."""

    begin: Time
    ts: Time
    source: str


@dataclass(frozen=True)
class Link:
    """From one restart to the next. `causal` None = cannot be told, and `missing` names the table that would."""

    causal: bool | None
    rule: str
    before: int | None
    without: int | None
    says: str
    source: str
    missing: str | None = None


def link(
    this: Restart, after: Restart, rule: WatchRule | None, failures: Sequence[Event],
    errors: Callable[[Time, Time, int | None], Sequence[Error] | None], earlier: Sequence[Restart] = (), *, log_seen: bool,
) -> Link:  # fmt: skip
    """`failures`: failed probes of who ended `after`; `errors(begin, end, status)`: what clients met, None = no access log; `earlier`: restarts before this one."""
    end = after.killed_at
    if after.how != "external" or end is None:
        return Link(False, "none", None, None, "the next one was not ended from outside", after.source)
    if after.who in ("person", "rollout"):
        return Link(False, "none", None, None, f"the next one was asked for by {after.initiator}, who follows no rule", after.source)
    if after.initiator is None or rule is None:
        who = "nobody is named who ended the next one" if after.initiator is None else f"the rule of {after.initiator} is not known"
        return Link(None, "not known", None, None, who, after.source, NO_RULE)
    counting = watchdogs.counts_errors(rule)
    counted = _counted(this, end, rule, errors) if counting else _failed(end, rule, failures)
    text = words(rule, counting)
    if counted is None:
        what = "no access log or engine log tells the errors it counts" if counting else f"the failed probes of {rule.initiator} are not in the evidence"
        return Link(None, text, None, None, what, after.source, NO_ERRORS if counting else NO_PROBES)
    return _replayed([this, *reversed(earlier)], after, end, counted, rule, text, counting=counting, log_seen=log_seen)


def words(rule: WatchRule, counting: bool) -> str:
    """A rule in words, unknown parts left out."""
    strikes = "an unknown number of" if rule.strikes is None else str(rule.strikes)
    if counting:
        return f"{strikes} errors ({rule.what})" + ("" if rule.period_s is None else f" within {rule.period_s:.0f} s")
    parts = [f"{strikes} failures in a row ({rule.what})"]
    parts += [] if rule.period_s is None else [f"every {rule.period_s:.0f} s"]
    parts += [] if rule.timeout_s is None else [f"timeout {rule.timeout_s:.0f} s"]
    return ", ".join(parts)


def _counted(this: Restart, end: Time, rule: WatchRule, errors: Callable[[Time, Time, int | None], Sequence[Error] | None]) -> Sequence[Error] | None:
    begin = later(end, -rule.period_s) if rule.period_s is not None else this.down_at
    return None if begin is None else errors(begin, end, watchdogs.counted_status(rule))


def _failed(end: Time, rule: WatchRule, failures: Sequence[Event]) -> Sequence[Error] | None:
    run = watchdogs.run_before(failures, end, rule)
    if rule.strikes is not None:
        run = run[-rule.strikes:]
    return [Error(later(event.ts, -(rule.timeout_s or 0.0)), event.ts, event.source) for event in run] if run else None


def _replayed(
    causes: Sequence[Restart], after: Restart, end: Time, counted: Sequence[Error], rule: WatchRule, text: str, *, counting: bool, log_seen: bool
) -> Link:  # fmt: skip
    """`causes`: this restart, then those before it, the latest first."""
    before = len(counted)
    # a watchdog may write "restarting" in place of its last failure
    needed = rule.strikes if rule.strikes is not None else 1 if counting else before
    if not counting and before == needed - 1:
        needed = before
    span = causes[0].until(end if log_seen else None)
    if span is None:
        return Link(None, text, before, None, "when this one was ready again is not known", after.source, NO_LOG)
    if before < needed or before == 0:
        return Link(None, text, before, None, f"{before} of {needed} errors are in the evidence: not all that it saw", after.source, NO_ERRORS)
    own = [error for error in counted if _within(error, span)]
    without = before - len(own)
    if rule.strikes is None and 0 < without < before:
        return Link(None, text, before, without, f"{len(own)} of {before} are of this restart; how many it takes is not known", after.source, NO_RULE)
    causal = without < needed
    if not causal:
        # one that was never ready lasted until the one after it
        ends = [cause.down_at for cause in causes]
        spans = [found for cause, later_down in zip(causes[1:], ends, strict=False) if (found := cause.until(later_down)) is not None]
        rest = [error for error in counted if not any(_within(error, item) for item in (span, *spans))]
        if rule.strikes is None and 0 < len(rest) < without:
            return Link(None, text, before, len(rest), f"{before - len(rest)} of {before} are of this restart and those before it; how many it takes is not known", after.source, NO_RULE)
        if len(rest) < needed:
            theirs = next(error for error in counted if error not in rest)
            says = f"{len(own)} of {before} fall between its signal and ready, {without - len(rest)} more are of restarts before it; {len(rest)} are left"
            return Link(True, text, before, len(rest), f"{says} and it does not fire", theirs.source)
    verdict = f"{without} are left and it does not fire" if causal else f"{without} are left and it fires all the same"
    says = f"{len(own)} of {before} fall between its signal and ready; without them {verdict}"
    return Link(causal, text, before, without, says, own[0].source if own else after.source)


def _within(error: Error, span: tuple[Time, Time]) -> bool:
    return error.begin < span[1] and between_s(span[0], error.ts) >= -TIE_S
