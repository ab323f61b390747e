"""Starts, restarts, events and requests of one capture -> recoveries, each with its stages, its bottleneck and what came after."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from diag.recovery import aftermath, faults, latency
from diag.recovery.aftermath import Given, Second
from diag.recovery.facts import Around, Fact, facts
from diag.recovery.faults import Fault
from diag.recovery.latency import Latency
from diag.recovery.markers import OUTAGE, STAGES, VERSION
from diag.recovery.records import Event, Life, Line, Request, Sample, Stage, Start, Time
from diag.recovery.starts import starts
from diag.recovery.timing import BUILD, NOT_SEEN, engine_of, timed
from diag.restarts.records import between_s, later

NOBODY_ASKED = "nobody asked before: no request failed between ready and it"
RETRY_S = 5.0
"""Less is within a client's own retry."""
BEFORE_START_S, AFTER_START_S = 3.0, 180.0
"""A log may be ahead of the journal that tells of the same start, and imports take a while until the first line."""


@dataclass(frozen=True)
class Capture:
    """All that one capture tells, each in order of time."""

    lines: Sequence[Line] = ()
    events: Sequence[Event] = ()
    lives: Sequence[Life] = ()
    requests: Sequence[Request] = ()
    samples: Sequence[Sample] = ()


@dataclass(frozen=True)
class Recovery:
    """One recovery. Spans in seconds, times in UTC; None = not known."""

    source: str
    unit: str | None
    engine: str | None
    version: str | None
    fault: Fault
    how: str | None
    begun_at: Time | None
    started_at: Time | None
    ready_at: Time | None
    mttr_s: float | None
    mttr_from: str | None
    stages: tuple[Stage, ...]
    unattributed_s: float | None
    bottleneck: str | None
    lost_requests: int | None
    failed_pct: float | None
    queue_peak: int | None
    first: Latency | None
    before: Latency | None
    second: Second | None
    why: dict[str, str] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()


def recoveries(seen: Capture) -> list[Recovery]:
    """All of them in order of time. A start of which no end is seen is one too, and so is an end without a start."""
    pairs = _paired(starts(seen.lines), seen.lives)
    found = []
    for place, (life, start) in enumerate(pairs):
        until = next((moment for other in pairs[place + 1 :] if _same(life, start, other) and (moment := _begin(*other)) is not None), None)
        since = next((moment for other in reversed(pairs[:place]) if _same(life, start, other) and (moment := _back_at(*other)) is not None), None)
        found.append(_recovery(life, start, since, until, seen))
    return found


Pair = tuple[Life | None, Start | None]


def _paired(found: Sequence[Start], lives: Sequence[Life]) -> list[Pair]:
    """Each end with the start that came of it."""
    free = list(found)
    pairs: list[Pair] = []
    for life in lives:
        begun = life.restarted_at
        near = [] if begun is None else [start for start in free if -BEFORE_START_S <= between_s(begun, start.first.ts) <= AFTER_START_S]
        chosen = min(near, key=lambda start: abs(between_s(begun, start.first.ts))) if near and begun is not None else None
        if chosen is not None:
            free.remove(chosen)
        pairs.append((life, chosen))
    pairs += [(None, start) for start in free]
    return sorted(pairs, key=lambda pair: _begin(*pair) or Time.max)


def _same(life: Life | None, start: Start | None, other: Pair) -> bool:
    """Are both of one service, as far as is told?"""
    if life is not None and other[0] is not None and life.unit is not None and other[0].unit is not None:
        return life.unit == other[0].unit
    if start is not None and other[1] is not None:
        return start.first.file == other[1].first.file
    return True


def _begin(life: Life | None, start: Start | None) -> Time | None:
    moment = None if life is None else life.ended_at
    return moment if moment is not None or start is None else start.first.ts


def _ready(life: Life | None, start: Start | None) -> Time | None:
    if start is not None and start.ready is not None:
        return start.ready.ts
    return None if life is None else life.ready_at


def _back_at(life: Life | None, start: Start | None) -> Time | None:
    """When a new process was ready, or at least there."""
    ready = _ready(life, start)
    if ready is not None or start is None:
        return ready if ready is not None or life is None else life.restarted_at
    return start.first.ts


def _recovery(life: Life | None, start: Start | None, since: Time | None, until: Time | None, seen: Capture) -> Recovery:
    about = _begin(life, start) or Time.min
    lines = _lines_of(start, life, _near(seen.lines, about, until))
    fault = faults.fault_of(life, since, seen.events, lines) if life is not None else _no_end()
    ready = _ready(life, start)
    if ready is not None and until is not None and ready > until:
        ready = None
    built = _built(life, start, seen.events)
    known_start = [moment for moment in (built[0].ts, None if life is None else life.restarted_at, None if start is None else start.first.ts) if moment is not None]
    begun = min(known_start) if known_start else None
    begin, whence = _first_of((fault.ts, "fault"), (fault.command_at if life is not None else None, "command"), (None if life is None else life.stopped_at, "stop"), (begun, "start"))
    mttr = aftermath.span_s(begin, ready)
    stages = [*_down(life, fault, begun, seen.events), *built, *_back(fault, begin, ready, until, lines, seen)]
    stats = aftermath.points(lines, seen.samples)
    about_it = tuple(facts(Around(begin, ready, until, start, lines, stats, seen.events, seen.requests, seen.samples, fault.cause == "start")))
    unasked = _nobody_asked(about_it)
    stages = [replace(row, why=NOBODY_ASKED) if unasked and row.stage == "traffic_switched" and row.seconds is not None else row for row in stages]
    rows = tuple(sorted(stages, key=lambda row: STAGES.index(row.stage)))
    known = {row.stage: row.seconds for row in rows if row.seconds is not None}
    left = None if mttr is None else mttr - sum(seconds for stage, seconds in known.items() if stage in OUTAGE)
    rest = None if left is None else max(0.0, round(left, 6))
    why: dict[str, str] = {}
    if left is not None and left < -1.5:
        why["unattributed_s"] = f"stages overlap by {-left:.1f} s"
    failed, why["failed_pct"] = (None, "no end is seen") if life is None or begin is None else aftermath.failed_pct(begin, ready or until or Time.max, seen.requests)
    first, why["first_request"] = (None, "it never was ready") if ready is None else latency.after(ready, until, seen.requests, seen.samples)
    earlier, why["before"] = (None, "no end is seen") if life is None or begin is None else latency.before(begin, since, seen.requests, seen.samples)
    second = None if ready is None else aftermath.second_look(fault.ts or begin if life is not None else None, ready, until, stats, lines, Given(seen.requests, seen.samples, since))
    if second is None:
        why["second_check"] = "it never was ready" if ready is None else "no traffic after it is in the evidence"
    if life is None:
        why["mttr_s"] = "it never was ready in the evidence" if mttr is None else "counted from the start: what was before it is not in the evidence"
    elif mttr is None:
        why["mttr_s"] = "no start that became ready is seen after it"
    if life is None or life.lost_requests is None:
        why["requests_lost"] = "no end is seen" if life is None else "nothing tells"
    queue = None if begin is None else aftermath.queue_peak(begin, _until(ready, until), stats, seen.requests)
    if queue is None:
        why["queue_peak"] = "no statistics of that time"
    version = next((match[1] for line in (start.lines if start is not None else ()) if (match := VERSION.search(line.message)) is not None), None)
    return Recovery(
        start.first.source if life is None and start is not None else life.source if life is not None else "", None if life is None else life.unit,
        None if start is None else engine_of(start.lines), version, fault, None if life is None else life.how, begin, begun, ready, mttr,
        None if mttr is None else whence, rows, rest, _bottleneck(known, rest, switch=not unasked and not _let_through(about_it)), None if life is None else life.lost_requests, failed, queue, first, earlier, second,
        {key: text for key, text in why.items() if text}, about_it,
    )  # fmt: skip


def _until(ready: Time | None, until: Time | None) -> Time | None:
    if ready is None:
        return until
    return later(ready, aftermath.AFTER_S) if until is None else min(until, later(ready, aftermath.AFTER_S))


def _no_end() -> Fault:
    return Fault("start", None, None, "", faults.SAYS["start"], None, None, None, None)


def _first_of(*moments: tuple[Time | None, str]) -> tuple[Time | None, str | None]:
    known = [(moment, name) for moment, name in moments if moment is not None]
    return min(known, key=lambda item: item[0]) if known else (None, None)


def _near(lines: Sequence[Line], about: Time, until: Time | None) -> Sequence[Line]:
    """Lines from well before a moment until the next recovery begins; they are in order of time."""
    low = bisect_left(lines, later(about, -2 * faults.LOOK_BACK_S), key=lambda line: line.ts) if about != Time.min else 0
    return lines[low:] if until is None else lines[low : bisect_right(lines, until, key=lambda line: line.ts)]


def _lines_of(start: Start | None, life: Life | None, lines: Sequence[Line]) -> list[Line]:
    """Of several engines' logs that of this one, where it is known which."""
    files = {line.file for line in lines}
    if len(files) < 2:
        return list(lines)
    own = start.first.file if start is not None else next((line.file for line in lines if life is not None and line.source == life.source), None)
    return [line for line in lines if own is None or line.file == own]


def _built(life: Life | None, start: Start | None, events: Sequence[Event]) -> list[Stage]:
    if start is not None:
        at = life.restarted_at if life is not None else _started(start, events)
        by = next((event.source for event in events if event.kind == "start" and event.ts == at), "") if at is not None else ""
        return timed(start, at, by)
    rows = [Stage(stage, None, None, None, "", "no start is seen" if life is None or life.restarted_at is None else "no engine log of this start") for stage in BUILD]
    if life is not None and life.restarted_at is not None:
        rows[0] = Stage("process", life.restarted_at, None, None, life.source, "no engine log of this start")
    return rows


def _started(start: Start, events: Sequence[Event]) -> Time | None:
    """When a journal says that it was started, where it tells of one service only."""
    begun = [event for event in events if event.kind == "start" and -AFTER_START_S <= between_s(start.first.ts, event.ts) <= BEFORE_START_S]
    return begun[-1].ts if begun and len({event.unit for event in begun}) == 1 else None


def _down(life: Life | None, fault: Fault, begun: Time | None, events: Sequence[Event]) -> list[Stage]:
    """detect, stop, reclaim: before the new process."""
    if life is None:
        return [Stage(stage, None, None, None, "", "no end is seen before this start") for stage in ("detect", "stop", "reclaim")]
    detect_s = aftermath.span_s(fault.ts, fault.command_at)
    silent_s = aftermath.span_s(fault.ts, begun)
    unseen = "no command to restart is seen" + ("" if silent_s is None else f"; {silent_s:.1f} s until the first line of the new process are not attributed")
    why = "nothing was wrong before the command" if fault.cause == "external-stop" else NOT_SEEN if fault.ts is None else unseen
    detect = Stage("detect", fault.ts, detect_s, None if detect_s is None else "lines", fault.source, "" if detect_s is not None else why)
    idle_s = aftermath.span_s(life.stopped_at, fault.command_at) if fault.ts is None and life.how in ("self", "auto", "unknown") else None
    if idle_s is not None:
        detect = Stage("detect", life.stopped_at, idle_s, "events", life.source, "from its end: why it ended is not told")
    return [detect, _stop(life, fault), _reclaim(life, fault, begun, events)]


def _stop(life: Life, fault: Fault) -> Stage:
    over = life.stopped_at is not None and fault.command_at is not None and life.stopped_at < fault.command_at
    if life.killed_at is None or (over and life.how != "external"):
        return Stage("stop", life.stopped_at, None, None, life.source, "it ended by itself" if life.how in ("self", "auto") else "nobody is seen to stop it")
    seconds = aftermath.span_s(life.killed_at, life.stopped_at)
    if seconds is None:
        return Stage("stop", life.killed_at, None, None, life.source, "when the process was gone is not told")
    return Stage("stop", life.killed_at, seconds, "events", life.source)


def _reclaim(life: Life, fault: Fault, begun: Time | None, events: Sequence[Event]) -> Stage:
    """Only what lies between the end of the old process and the new one, so that nothing is counted twice."""
    low = life.stopped_at or fault.command_at or fault.ts
    done = [event for event in events if event.kind == "reclaim_done" and low is not None and event.ts >= low and (life.ready_at is None or event.ts <= life.ready_at)]
    if not done or low is None:
        return Stage("reclaim", None, None, None, "", "no record that memory was reclaimed")
    began = [event.ts for event in events if event.kind == "reclaim_start" and event.ts <= done[0].ts and event.ts >= (life.killed_at or low)]
    begin = max(began[0], low) if began else low
    end = done[0].ts if begun is None else min(done[0].ts, begun)
    seconds = aftermath.span_s(begin, end)
    return Stage("reclaim", begin, seconds if seconds is not None else 0.0, "events", done[0].source, "" if done[0].ts == end else "it went on while the new process began")


def _back(fault: Fault, begin: Time | None, ready: Time | None, until: Time | None, lines: Sequence[Line], seen: Capture) -> list[Stage]:
    """traffic_switched and warm: after it was ready."""
    if ready is None:
        return [Stage(stage, None, None, None, "", "it never was ready") for stage in ("traffic_switched", "warm")]
    told = aftermath.switched(ready, until, seen.events, seen.requests)
    if told is None:
        first = Stage("traffic_switched", None, None, None, "", "no dated access log, no record of the router" if not seen.requests else "no user was answered after it")
    else:
        first = Stage("traffic_switched", ready, aftermath.span_s(ready, told[0]), told[2], told[1])
    if fault.cause == "start" or begin is None:
        return [first, Stage("warm", None, None, None, "", "no end is seen before this start")]
    line, why = aftermath.warm_at(begin, ready, until, lines)
    warm = Stage("warm", ready, None, None, "", why) if line is None else Stage("warm", ready, aftermath.span_s(ready, line.ts), "lines", line.source)
    return [first, warm]


def _nobody_asked(found: Sequence[Fact]) -> bool:
    """Was the first user served late because none came? Nothing failed until then, and no router was slow."""
    asked = [fact.value for fact in found if fact.fact == "refused"]
    if _let_through(found):
        return False
    slow = any(fact.fact in ("drain_done", "traffic_switch") and fact.value is not None and fact.value > RETRY_S for fact in found)
    return asked == [0.0] and not slow


def _let_through(found: Sequence[Fact]) -> bool:
    """Was the first user let through at once, however long the answer took?"""
    return any(fact.fact == "first_user" and fact.value is not None and fact.value <= RETRY_S for fact in found)


def _bottleneck(known: dict[str, float], rest: float | None, *, switch: bool) -> str | None:
    """The longest of what kept users waiting (`switch`: the router did); what no line covers, where that is longer than anything else."""
    found = {stage: seconds for stage, seconds in known.items() if stage in OUTAGE or (stage == "traffic_switched" and switch)}
    if rest is not None:
        found["unattributed"] = rest
    longest = max(found, key=lambda stage: found[stage], default=None)
    return None if longest is None or found[longest] <= 0 else longest
