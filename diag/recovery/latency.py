"""How long the first requests took after a recovery, and those before it: percentiles of access logs or histograms."""

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diag.recovery.records import Request, Sample, Time
from diag.restarts.records import between_s, later

LIGHT = re.compile(r"^/(?:health\w*|healthz|livez|readyz|metrics|ping|v1/models|version|load|get_model_info|get_server_info|server_info|tokenize|detokenize)?/?$")
"""Paths that an engine answers while it does no work."""
FIRST_S, FIRST_N = 60.0, 100
"""First requests: those of the first minute, at most so many."""
BEFORE_S = 600.0
AT_ONCE_S = 0.005
HISTOGRAMS = ("vllm:e2e_request_latency_seconds_bucket", "sglang:e2e_request_latency_seconds_bucket", "http_request_duration_seconds_bucket")


@dataclass(frozen=True)
class Latency:
    """Percentiles of n requests. `basis`: access log | histogram."""

    p50_s: float
    p99_s: float
    n: int
    basis: str
    source: str


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, min(len(ordered) - 1, int(rank) - 1))]


def within(requests: Sequence[Request], begin: Time, end: Time) -> Sequence[Request]:
    """Requests from one moment to another, both included; they are in order of time."""
    return requests[bisect_left(requests, begin, key=lambda item: item.ts) : bisect_right(requests, end, key=lambda item: item.ts)]


def is_work(request: Request) -> bool:
    return request.method == "POST" and LIGHT.match(request.path) is None


def succeeded(request: Request) -> bool:
    return request.status is not None and 200 <= request.status < 300 and not unread(request)


def of_users(requests: Sequence[Request]) -> Sequence[Request]:
    """Where a proxy's log is there, only that: the engine's own answers the proxy, whether a user still waits or not."""
    proxied = [item for item in requests if item.proxied]
    return proxied or requests


def unread(request: Request) -> bool:
    """Had the client left before the first byte? HAProxy without `abortonclose` lets the engine answer it all the same: 200, CD, and no time for the data."""
    if request.ended is None or request.ended[:2] != "CD" or request.seconds is None or request.first_byte_s is None:
        return False
    return request.seconds - (request.queue_s or 0.0) - request.first_byte_s <= AT_ONCE_S


def after(ready: Time, until: Time | None, requests: Sequence[Request], samples: Sequence[Sample], whole: bool = False) -> tuple[Latency | None, str]:
    """First requests after a moment, and why there are none. What they had waited before that moment does not count, unless the `whole` does."""
    end = later(ready, FIRST_S) if until is None else min(until, later(ready, FIRST_S))
    found = _logged(within(requests, ready, end)[:FIRST_N], None if whole else ready)
    if found is not None:
        return found, ""
    found = _first_read(ready, until, samples)
    return found, "" if found is not None else _why(requests, samples)


def before(end: Time, since: Time | None, requests: Sequence[Request], samples: Sequence[Sample]) -> tuple[Latency | None, str]:
    """Requests of the ten minutes before a moment, and why there are none."""
    begin = later(end, -BEFORE_S) if since is None else max(since, later(end, -BEFORE_S))
    found = _logged(within(requests, begin, end))
    if found is not None:
        return found, ""
    found = _last_reads(begin, end, samples)
    return found, "" if found is not None else _why(requests, samples)


def _why(requests: Sequence[Request], samples: Sequence[Sample]) -> str:
    if any(item.seconds is not None for item in requests):
        return "no request with a duration in that time"
    if requests:
        return "the access log has no durations"
    return "no read of a latency histogram in that time" if any(item.name in HISTOGRAMS for item in samples) else "no access log with times and durations, no latency histogram"


def _logged(requests: Iterable[Request], since: Time | None = None) -> Latency | None:
    found = [item for item in requests if item.seconds is not None and succeeded(item) and is_work(item)]
    values = [item.seconds if since is None else min(item.seconds, between_s(since, item.ts)) for item in found if item.seconds is not None]
    if not values:
        return None
    return Latency(percentile(values, 0.5), percentile(values, 0.99), len(values), "access log", found[0].source)


Buckets = dict[float, float]


def _reads(samples: Iterable[Sample]) -> list[tuple[Time, Buckets, str]]:
    """Histograms by time of read, over all labels but the bounds; of several names the first that there is."""
    by_name: dict[str, dict[Time, tuple[Buckets, str]]] = {}
    for item in samples:
        if item.name in HISTOGRAMS and (bound := _bound(item.labels)) is not None:
            buckets, _ = by_name.setdefault(item.name, {}).setdefault(item.ts, (defaultdict(float), item.source))
            buckets[bound] += item.value
    for name in HISTOGRAMS:
        if name in by_name:
            return [(ts, dict(buckets), source) for ts, (buckets, source) in sorted(by_name[name].items())]
    return []


def _bound(labels: str) -> float | None:
    try:
        known = json.loads(labels or "{}")
        if LIGHT.match(str(known.get("handler", "/v1/"))) is not None:
            return None
        value = float(str(known.get("le")).replace("+Inf", "inf"))
    except (ValueError, AttributeError):
        return None
    return value if value == value else None


def _first_read(ready: Time, until: Time | None, samples: Sequence[Sample]) -> Latency | None:
    """A new process counts from zero: its first read with requests is of the first ones."""
    for ts, buckets, source in _reads(samples):
        if ts >= ready and (until is None or ts < until) and (found := _of_buckets(buckets, source)) is not None:
            return found
    return None


def _last_reads(begin: Time, end: Time, samples: Sequence[Sample]) -> Latency | None:
    reads = [read for read in _reads(samples) if read[0] < end]
    if not reads:
        return None
    _, last, source = reads[-1]
    earlier = [buckets for ts, buckets, _ in reads[:-1] if ts >= begin]
    if earlier and all(last.get(bound, 0.0) >= value for bound, value in earlier[0].items()):
        moved = {bound: value - earlier[0].get(bound, 0.0) for bound, value in last.items()}
        return _of_buckets(moved, source) or _of_buckets(last, source)
    return _of_buckets(last, source)


def _of_buckets(buckets: Buckets, source: str) -> Latency | None:
    ordered = sorted(buckets.items())
    total = ordered[-1][1] if ordered else 0.0
    if total <= 0:
        return None
    return Latency(_quantile(ordered, total, 0.5), _quantile(ordered, total, 0.99), round(total), "histogram", source)


def _quantile(ordered: Sequence[tuple[float, float]], total: float, share: float) -> float:
    """Linear within its bucket; in the last, open one its lower bound."""
    wanted, low, below = total * share, 0.0, 0.0
    for bound, count in ordered:
        if count >= wanted:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / max(count - below, 1e-12)
        low, below = bound, count
    return low
