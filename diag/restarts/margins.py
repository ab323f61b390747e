"""Does a probe leave room for what it was measured to take? Timeout against latency, patience against start-up."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diag.restarts.records import WatchRule

PATH = re.compile(r"(?:https?://[^/\s]*)?(/[^\s?]*)")
LEAST_N = 20
LATE_SHARE_PCT = 1.0


@dataclass(frozen=True)
class Margin:
    """One comparison of a probe's patience with what was measured. Seconds."""

    measure: str
    """latency | start-up"""
    allowed_s: float
    measured_s: float
    n: int
    late_pct: float | None
    tight: bool
    says: str


def path_of(what: str) -> str | None:
    """The path a light probe asks for; None = no HTTP request, or a real one, whose length depends on what is asked."""
    found = PATH.search(what)
    return None if found is None or (found[1].startswith("/v1/") and found[1] != "/v1/models") else found[1]


def tolerance_s(rule: WatchRule) -> float | None:
    """How long a service may be silent before it is ended: period x (strikes - 1) + timeout."""
    if rule.period_s is None or rule.strikes is None:
        return None
    return rule.period_s * (rule.strikes - 1) + (rule.timeout_s or 0.0)


def latency(rule: WatchRule, seconds: Sequence[float]) -> Margin | None:
    """Requests to its path, as a proxy timed them, against its timeout. None = too few, or no timeout."""
    if rule.timeout_s is None or len(seconds) < LEAST_N:
        return None
    # what the prober itself gave up was cut at its timeout
    late = sum(value >= rule.timeout_s * 0.98 for value in seconds)
    ordered = sorted(seconds)
    return _late(rule.timeout_s, ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], len(seconds), 100 * late / len(seconds), "a proxy timed them")


def histogram(rule: WatchRule, buckets: Sequence[tuple[float, float]]) -> Margin | None:
    """Cumulative buckets (upper bound, count) of its path against its timeout; the first bound from the timeout on decides."""
    if rule.timeout_s is None or not buckets:
        return None
    ordered = sorted(buckets)
    total = ordered[-1][1]
    if total < LEAST_N:
        return None
    bound, within = next((item for item in ordered if item[0] >= rule.timeout_s), ordered[-1])
    p99 = next(upper for upper, count in ordered if count >= 0.99 * total)
    # between two bounds nothing is known: what is below the bound may be late, what is above is
    return _late(rule.timeout_s, p99, int(total), 100 * (total - within) / total, f"its histogram, at the bound {bound:g} s")


def start_up(rule: WatchRule, seconds: Sequence[float]) -> Margin | None:
    """How long starts took against how long a liveness probe waits from the start; None = none was seen."""
    patience = tolerance_s(rule)
    if patience is None or not seconds or "liveness" not in rule.initiator:
        return None
    allowed, longest = patience + (rule.delay_s or 0.0), max(seconds)
    says = f"it ends what has not answered {allowed:.0f} s after its start; {len(seconds)} starts took up to {longest:.0f} s"
    return Margin("start-up", allowed, longest, len(seconds), None, longest > allowed, says)


def _late(timeout_s: float, p99_s: float, n: int, late_pct: float, how: str) -> Margin:
    says = f"timeout {timeout_s:g} s; of {n} requests to its path {late_pct:.1f} % took as long or longer, p99 {p99_s:.2f} s ({how})"
    return Margin("latency", timeout_s, p99_s, n, late_pct, late_pct >= LATE_SHARE_PCT, says)
