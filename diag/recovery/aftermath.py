"""What came after a recovery: requests that failed, the queue, the prefix cache, and a second look after the first peak."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from diag.recovery import latency
from diag.recovery.faults import RUNNING, WAITING, number
from diag.recovery.records import Event, Line, Request, Sample, Time
from diag.restarts.records import between_s, later

AFTER_S = 1800.0
HIT_RATE = re.compile(r"Prefix cache hit rate: (\d{1,3}(?:\.\d+)?)%")
USAGE = re.compile(r"KV cache usage: (\d{1,3}(?:\.\d+)?)%|\btoken usage: (\d{1,3}(?:\.\d{1,20})?)(?!\.?\d)")
FRAGMENTED = re.compile(r"(?<![\d.])(\d{1,9}(?:\.\d+)?) ([KMG])iB is reserved by PyTorch but unallocated")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
KV_USAGE = frozenset({"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"})
QUEUED = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs"})
RUNS = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs"})
WARM_SHARE = 0.9
SLOWER = 2.0
FULL_PCT = 95.0


@dataclass(frozen=True)
class Point:
    """Statistics of an engine at a moment. None = that line does not tell."""

    ts: Time
    source: str
    running: float | None
    waiting: float | None
    usage_pct: float | None


@dataclass(frozen=True)
class Second:
    """The second look, when the first peak of traffic after a recovery is over. None = not known."""

    ts: Time
    memory_used_pct_before: float | None
    memory_used_pct_after_peak: float | None
    p99_before_s: float | None
    p99_after_s: float | None
    fragmented_bytes: int | None
    ok: bool | None
    says: str


def points(lines: Sequence[Line], samples: Sequence[Sample]) -> list[Point]:
    """Load and memory by time, from statistics lines and reads of /metrics; several engines are added, usage is the highest."""
    found = [
        Point(line.ts, line.source, *_numbers(line.message))
        for line in lines
        if line.event == "engine_stats"
    ]
    reads: dict[Time, list[Sample]] = {}
    for item in samples:
        if item.name in KV_USAGE | QUEUED | RUNS:
            reads.setdefault(item.ts, []).append(item)
    for ts, items in reads.items():
        usage = [item.value * 100.0 for item in items if item.name in KV_USAGE]
        found.append(Point(ts, items[0].source, _sum(items, RUNS), _sum(items, QUEUED), max(usage) if usage else None))
    return sorted(found, key=lambda point: point.ts)


@lru_cache(maxsize=1 << 15)
def _numbers(message: str) -> tuple[float | None, float | None, float | None]:
    """Running, waiting, usage; a line is looked at for every recovery that is near."""
    return _float(number(RUNNING, message)), _float(number(WAITING, message)), _usage(message)


def _sum(items: Sequence[Sample], names: frozenset[str]) -> float | None:
    values = [item.value for item in items if item.name in names]
    return sum(values) if values else None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _usage(message: str) -> float | None:
    match = USAGE.search(message)
    if match is None:
        return None
    return float(match[1]) if match[1] is not None else float(match[2]) * 100.0


def failed_pct(begin: Time, end: Time, requests: Sequence[Request]) -> tuple[float | None, str]:
    """Share of the work asked for in a stretch that failed; what clients gave up counts. And why it is not known."""
    found = [item for item in latency.within(requests, begin, end) if latency.is_work(item)]
    if any(item.proxied for item in found):
        found = [item for item in found if item.proxied]  # a proxy also sees what the engine was not there for
    if not found:
        return None, "no dated access log of that time"
    bad = sum(item.status is None or item.status >= 500 or item.status in (0, 408, 429, 499) or latency.unread(item) for item in found)
    return 100.0 * bad / len(found), ""


def queue_peak(begin: Time, until: Time | None, stats: Sequence[Point], requests: Sequence[Request]) -> int | None:
    """Most requests that waited, from the fault until half an hour after it was ready."""
    end = Time.max if until is None else until
    found = [point.waiting for point in stats if point.waiting is not None and begin <= point.ts <= end]
    found += [float(item.queued) for item in latency.within(requests, begin, end) if item.queued is not None]
    return int(max(found)) if found else None


def warm_at(fault: Time, ready: Time, until: Time | None, lines: Sequence[Line]) -> tuple[Line | None, str]:
    """First statistics line whose prefix hit rate is back at what it was, and why there is none."""
    rates = [(line, float(match[1])) for line in lines if line.event == "engine_stats" and (match := HIT_RATE.search(line.message)) is not None]
    earlier = [rate for line, rate in rates if line.ts <= fault]
    if not earlier:
        return None, "no prefix hit rate from before"
    if earlier[-1] <= 0:
        return None, "the prefix cache had no hits before"
    for line, rate in rates:
        if line.ts >= ready and (until is None or line.ts < until) and rate >= WARM_SHARE * earlier[-1]:
            return line, ""
    return None, f"the prefix hit rate did not come back to {earlier[-1]:.0f} %"


def second_look(fault: Time | None, ready: Time, until: Time | None, stats: Sequence[Point], lines: Sequence[Line], gave: "Given") -> Second | None:
    """Memory, latency and fragmentation after the first peak of traffic; None = no peak was seen."""
    end = later(ready, AFTER_S) if until is None else min(until, later(ready, AFTER_S))
    later_on = [point for point in stats if ready < point.ts <= end and point.running is not None]
    busiest = max((point.running or 0.0 for point in later_on), default=0.0)
    if busiest <= 0:
        return None
    peak = next(place for place, point in enumerate(later_on) if point.running == busiest)
    check = next((point for point in later_on[peak + 1 :] if (point.running or 0.0) <= busiest / 2), later_on[-1])
    used = max((point.usage_pct for point in later_on if point.ts <= check.ts and point.usage_pct is not None), default=None)
    earlier = [point.usage_pct for point in stats if fault is not None and later(fault, -latency.BEFORE_S) <= point.ts <= fault and point.usage_pct is not None]
    before_pct = max(earlier) if earlier else None
    ooms = [line for line in lines if line.event in ("oom", "memory_short") and ready < line.ts <= end]
    lost = [bytes_ for line in lines if ready < line.ts <= end and (bytes_ := fragmented(line.message)) is not None]
    p99_after, _ = latency.after(check.ts, until, gave.requests, gave.samples, whole=True)
    p99_before, _ = (None, "") if fault is None else latency.before(fault, gave.since, gave.requests, gave.samples)
    slow = p99_before is not None and p99_after is not None and p99_after.p99_s > SLOWER * p99_before.p99_s
    why = "memory ran out after it" if ooms else f"the pool was {used:.0f} % full" if used is not None and used > FULL_PCT else ""
    why = why or ("requests took more than twice as long as before" if slow else "")
    looked = used is not None and p99_after is not None and p99_before is not None
    return Second(
        check.ts, before_pct, used, None if p99_before is None else p99_before.p99_s, None if p99_after is None else p99_after.p99_s, max(lost) if lost else None,
        False if why else True if looked else None, why or ("as before" if looked else "not all of memory, and latency before and after, is known"),
    )  # fmt: skip


@dataclass(frozen=True)
class Given:
    """Requests and metrics of one capture, and since when the life that ended had been ready."""

    requests: Sequence[Request]
    samples: Sequence[Sample]
    since: Time | None


def fragmented(message: str) -> int | None:
    """Bytes that the allocator holds in pieces that fit nobody, as an out-of-memory message gives them."""
    match = FRAGMENTED.search(message)
    return None if match is None else int(float(match[1]) * UNITS[match[2]])


def switched(ready: Time, until: Time | None, events: Sequence[Event], requests: Sequence[Request]) -> tuple[Time, str, str] | None:
    """First success of a user after it was ready: time, source and basis; else what the router says it did."""
    end = later(ready, AFTER_S) if until is None else min(until, later(ready, AFTER_S))
    first = next((item for item in latency.of_users(latency.within(requests, ready, end)) if latency.is_work(item) and latency.succeeded(item)), None)
    if first is not None:
        return first.ts, first.source, "lines"
    told = next((event for event in events if event.kind == "traffic_switch" and ready <= event.ts <= end), None)
    return None if told is None else (told.ts, told.source, "events")


def span_s(begin: Time | None, end: Time | None) -> float | None:
    """Seconds between two moments, where both are known and in order."""
    return None if begin is None or end is None or end < begin else between_s(begin, end)
