"""What was seen around one recovery, each with its line: queues, preemptions, clients that left, the router, weights and compile caches.

A fact is a number with its raw line; what it means is the business of rules. Times in UTC, spans in seconds.
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diag.recovery import aftermath, latency
from diag.recovery.aftermath import Point
from diag.recovery.records import Event, Line, Request, Sample, Start, Time
from diag.restarts.records import between_s, later

BEFORE_S = latency.BEFORE_S
RUSH_S = 60.0
"""The backlog is there at once, or it was admitted gradually."""
NEAR_S = 2.0
"""Logs with whole seconds: the router writes that it switches, and the first user is there."""
SOON_S = 120.0
"""What the rush breaks breaks within two minutes."""
AFTER_S = 600.0
"""As long as the stretch before it that it is compared with."""
PREEMPTIONS = frozenset({"vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retracted_reqs", "sglang:num_retracted_reqs_total"})
TIMED_OUT = frozenset({0, 408, 499, 504})
GIVEN_UP = 499
NUMBER = re.compile(r"(\d+(?:\.\d+)?) ?%|\b(\d+(?:\.\d+)?)\b(?!.*\d)")
SIZE = re.compile(r"^(?:Model loading|Loading model weights) took (?P<gib>\d+(?:\.\d+)?) Gi?B|^Load weight end\..*\bmem usage=(?P<gb>\d+(?:\.\d+)?) ?GB")
READ = re.compile(r"^Loading weights took (?P<seconds>\d+(?:\.\d+)?) seconds")
DOWNLOAD = re.compile(r"^Time spent downloading weights for .*: (?P<seconds>\d+(?:\.\d+)?) seconds")
PREFETCHED = re.compile(r"^Prefetching checkpoint files into page cache finished in (?P<seconds>\d+(?:\.\d+)?) ?s")
FILESYSTEM = re.compile(r"^Filesystem type for checkpoints: (?P<name>[\w.-]*\w)")
NETWORK = re.compile(r"(?i)nfs|lustre|ceph|gluster|gpfs|beegfs|fuse|s3|smb|cifs|9p|virtiofs|efs|weka")
CACHED = re.compile(r"^Directly load (?:the compiled graph|AOT compilation)")
COMPILED = re.compile(r"^Compiling a graph for .*takes (?P<seconds>\d+(?:\.\d+)?) ?s")
CACHE_DIR = re.compile(r"^Using cache directory: (?P<path>\S+) for vLLM's torch\.compile")
SPEEDS = (
    (0.13, "no more than a network of 1 Gbit/s or a spinning disk gives"), (1.2, "what a network of 10 Gbit/s or a SATA disk gives at most"),
    (7.0, "what a local NVMe disk gives"),
)  # fmt: skip
MEMORY_SPEED = "what memory gives, so the reading is not what takes long"


@dataclass(frozen=True)
class Fact:
    """One thing that was seen. `value`: its number; None = it has none."""

    fact: str
    ts: Time | None
    value: float | None
    says: str
    source: str


@dataclass(frozen=True)
class Around:
    """One recovery and what its capture tells. `begin`: what its time is counted from; `until`: when the next one begins.

    `first`: a first start, before which nothing was served.
    """

    begin: Time | None
    ready: Time | None
    until: Time | None
    start: Start | None
    lines: Sequence[Line]
    stats: Sequence[Point]
    events: Sequence[Event]
    requests: Sequence[Request]
    samples: Sequence[Sample]
    first: bool = False

    def end(self, seconds: float) -> Time:
        """So long after it was ready, or until the next recovery begins."""
        last = later(self.ready or Time.min, seconds)
        return last if self.until is None else min(last, self.until)


def facts(seen: Around) -> list[Fact]:
    """All of them. Those about what came after need that it was ready, those about clients that they had been served before."""
    found = [*_weights(seen.start), *_compile(seen.start), *_back_off(seen)]
    if seen.ready is not None:
        found += [*_queue(seen, seen.ready), *_preempted(seen, seen.ready), *_router(seen, seen.ready), *_hit_rates(seen, seen.ready)]
        found += [] if seen.first else _clients(seen, seen.ready)
    return found


# --- the start ---


def _back_off(seen: Around) -> Iterator[Fact]:
    """A supervisor that waits on purpose, because it died before."""
    until = seen.ready or seen.until
    if seen.begin is None or until is None:
        return
    for event in seen.events:
        if event.kind == "back_off" and seen.begin <= event.ts <= until:
            yield Fact("back_off", event.ts, between_s(seen.begin, event.ts), event.detail, event.source)
            return


def _weights(start: Start | None) -> Iterator[Fact]:
    lines = () if start is None else start.lines
    sized = next(((line, match) for line in lines if (match := SIZE.search(line.message)) is not None), None)
    read = max((float(match["seconds"]) for line in lines if (match := READ.search(line.message)) is not None), default=None)
    if sized is not None:
        gib = float(sized[1]["gib"] or sized[1]["gb"])
        yield Fact("weights_gib", sized[0].ts, gib, f"{gib:.1f} GiB of weights in one process", sized[0].source)
        if read is not None and read > 0:
            rate = gib / read
            speed = next((says for most, says in SPEEDS if rate <= most), MEMORY_SPEED)
            yield Fact("weights_gib_per_s", sized[0].ts, rate, f"{gib:.1f} GiB in {read:.1f} s are {rate:.2g} GiB/s per process, {speed}", sized[0].source)
    for line in lines:
        if (match := DOWNLOAD.search(line.message)) is not None:
            yield Fact("weights_download_s", line.ts, float(match["seconds"]), f"{float(match['seconds']):.1f} s of it were a download", line.source)
        if (match := PREFETCHED.search(line.message)) is not None:
            yield Fact("weights_prefetch_s", line.ts, float(match["seconds"]), f"the files were first read into the page cache, in {float(match['seconds']):.1f} s", line.source)
        if (match := FILESYSTEM.search(line.message)) is not None:
            where = "a network file system" if NETWORK.search(match["name"]) else "a local file system"
            yield Fact("weights_on_network", line.ts, float(where == "a network file system"), f"the files lie on {match['name']}, {where}", line.source)


def _compile(start: Start | None) -> Iterator[Fact]:
    lines = () if start is None else start.lines
    cached = [line for line in lines if CACHED.search(line.message)]
    fresh = [(line, float(match["seconds"])) for line in lines if (match := COMPILED.search(line.message)) is not None]
    if cached:
        yield Fact("compile_cached", cached[0].ts, float(len(cached)), f"graphs that came from the cache: {len(cached)}", cached[0].source)
    if fresh:
        slowest = max(seconds for _, seconds in fresh)
        yield Fact("compiled", fresh[0][0].ts, float(len(fresh)), f"graphs that were compiled anew: {len(fresh)}, the slowest in {slowest:.1f} s", fresh[0][0].source)
    for line in lines:
        if (match := CACHE_DIR.search(line.message)) is not None:
            yield Fact("compile_cache_dir", line.ts, None, match["path"], line.source)
            return


# --- after it was ready ---


def _queue(seen: Around, ready: Time) -> Iterator[Fact]:
    """Most that waited before and right after, and how many ran then."""
    begin = seen.begin or ready
    yield from _peak("before", [point for point in seen.stats if later(begin, -BEFORE_S) <= point.ts <= begin])
    yield from _peak("after", [point for point in seen.stats if ready < point.ts <= seen.end(RUSH_S)])


def _peak(when: str, points: Iterable[Point]) -> Iterator[Fact]:
    known = [point for point in points if point.waiting is not None]
    if not known:
        return
    peak = max(known, key=lambda point: point.waiting or 0.0)
    yield Fact(f"waiting_{when}", peak.ts, peak.waiting, f"{peak.waiting:.0f} wait", peak.source)
    if peak.running is not None:
        yield Fact(f"running_{when}", peak.ts, peak.running, f"{peak.running:.0f} run", peak.source)


def _preempted(seen: Around, ready: Time) -> Iterator[Fact]:
    found = [line for line in seen.lines if line.event == "preemption" and ready <= line.ts <= seen.end(SOON_S)]
    reads = [item for item in seen.samples if item.name in PREEMPTIONS and ready <= item.ts <= seen.end(AFTER_S)]
    counted = max(reads, key=lambda item: item.value, default=None)  # a new process counts from zero
    if found:
        yield Fact("preempted", found[0].ts, float(len(found)), f"lines of preemption: {len(found)}, the first: {found[0].message}", found[0].source)
    elif counted is not None and counted.value > 0:
        yield Fact("preempted", counted.ts, counted.value, f"{counted.name} is {counted.value:.0f}", counted.source)


def _router(seen: Around, ready: Time) -> Iterator[Fact]:
    """What its log, and the proxy's, tell from ready until the first success of a user."""
    work = [item for item in latency.of_users(latency.within(seen.requests, ready, seen.end(aftermath.AFTER_S))) if latency.is_work(item)]
    answered = [(served_s(ready, item), item) for item in work if latency.succeeded(item)]
    began_s, first = min(answered, key=lambda pair: pair[0], default=(aftermath.AFTER_S, None))
    last = min(later(ready, began_s), seen.end(aftermath.AFTER_S))
    if first is not None:
        yield Fact("first_user", first.ts, began_s, f"the first request that was answered was let through {began_s:.1f} s after ready", first.source)
    if any(item.proxied for item in seen.requests):
        asked = [item for item in work if item.proxied and item.ts <= last and not latency.succeeded(item)]
        said = ", ".join(sorted({"clients that left" if given_up(item) else str(item.status or "no answer") for item in asked}))
        words = f"{len(asked)} requests failed in between: {said}" if asked else "no request failed in between"
        yield Fact("refused", asked[0].ts if asked else None, float(len(asked)), words, asked[0].source if asked else "")
    low = seen.begin or ready
    for event in seen.events:
        if event.kind in ("drain_done", "traffic_switch") and ready <= event.ts <= later(last, NEAR_S):
            after_s = between_s(ready, event.ts)
            yield Fact(event.kind, event.ts, after_s, f"{event.detail} ({after_s:.1f} s after ready)", event.source)
        elif event.kind in ("queue_released", "admitted_pct") and low <= event.ts <= seen.end(AFTER_S):
            yield Fact(event.kind, event.ts, _number(event), event.detail, event.source)


def served_s(ready: Time, request: Request) -> float:
    """Seconds from ready until a request was let through, a long answer left out: after its time in the queue, where a proxy kept it."""
    end_s = between_s(ready, request.ts)
    begin_s = end_s - (request.seconds or 0.0) + (request.queue_s or 0.0)
    if begin_s < 0 and not request.queue_s:  # it waited where nothing is logged: its first byte is the latest that it can be
        begin_s = end_s if request.first_byte_s is None or request.seconds is None else end_s - request.seconds + request.first_byte_s
    return max(0.0, begin_s)


def _number(event: Event) -> float | None:
    """The code, else a percentage, else the last number of the line; a line begins with its time."""
    if event.code is not None:
        return float(event.code)
    match = NUMBER.search(event.detail)
    return None if match is None else float(match[1] or match[2])


def _clients(seen: Around, ready: Time) -> Iterator[Fact]:
    """Requests that clients gave up, before and after, how long they had waited, and how long the others waited."""
    begin = seen.begin or ready
    known = [item for item in seen.requests if item.proxied]
    before = [item for item in latency.within(known, later(begin, -BEFORE_S), begin) if latency.is_work(item)]
    after = [item for item in latency.within(known, ready, seen.end(SOON_S)) if latency.is_work(item)]
    if not known:
        return
    for when, items in (("before", before), ("after", after)):
        gone = [item for item in items if given_up(item)]
        if items:
            share = 100.0 * len(gone) / len(items)
            where = gone[0] if gone else items[0]
            yield Fact(f"left_{when}", where.ts, float(len(gone)), f"clients gave up {len(gone)} of {len(items)} requests", where.source)
            yield Fact(f"left_{when}_pct", where.ts, share, f"{share:.0f} % of {len(items)} requests", where.source)
    waits = [item.seconds for item in after if given_up(item) and item.seconds is not None]
    if waits:
        patience = statistics.median(waits)
        yield Fact("patience_s", None, patience, f"half of those clients had waited {patience:.1f} s at most", next(item.source for item in after if given_up(item)))
    unread = [item for item in after if latency.unread(item)]
    if unread:
        yield Fact("answered_for_nobody", unread[0].ts, float(len(unread)), f"the engine answered {len(unread)} requests whose clients had left", unread[0].source)
    longest = max(((wait, item) for item in after if latency.succeeded(item) and (wait := waited_s(item)) is not None), key=lambda pair: pair[0], default=None)
    if longest is not None:
        yield Fact("waited_s", longest[1].ts, longest[0], f"a request that was answered had waited {longest[0]:.1f} s", longest[1].source)
    yield from _timed_out(seen, ready, after)


def _timed_out(seen: Around, ready: Time, after: Sequence[Request]) -> Iterator[Fact]:
    late = [item for item in after if ((item.status or 0) in TIMED_OUT or given_up(item))]
    if late:
        yield Fact("timed_out", late[0].ts, float(len(late)), f"{len(late)} requests timed out or were given up within {SOON_S:.0f} s", late[0].source)


def given_up(request: Request) -> bool:
    """Did the client leave before the answer? nginx's 499; HAProxy's flags begin with C, or c where its patience ended."""
    return request.status == GIVEN_UP or (request.ended is not None and len(request.ended) == 4 and request.ended[0] in "Cc" and (request.status != 200 or latency.unread(request)))


def waited_s(request: Request) -> float | None:
    """In the proxy's queue where it tells, else until the first byte of the answer; None = not logged."""
    return request.queue_s if request.queue_s else request.first_byte_s


def _hit_rates(seen: Around, ready: Time) -> Iterator[Fact]:
    begin = seen.begin or ready
    rates = [(line, float(match[1])) for line in seen.lines if line.event == "engine_stats" and (match := aftermath.HIT_RATE.search(line.message)) is not None]
    before = [pair for pair in rates if later(begin, -BEFORE_S) <= pair[0].ts <= begin]
    after = [pair for pair in rates if ready < pair[0].ts <= seen.end(SOON_S)]
    for when, found in (("before", before[-1:]), ("after", after[:1])):
        for line, rate in found:
            yield Fact(f"hit_rate_{when}", line.ts, rate, f"prefix hit rate {rate:.1f} %", line.source)
