"""One engine at all reads -> its state. Pure: the same for live polling, recorded reads and --watch.

What counts: a counter that rose, a KV usage above its maximum since the last output, an idle loop that turned. What does not:
a counter that stood still (a long prefill looks like that), a gauge that says 0 (it may be stale), one comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from diag.health import proof
from diag.health.budget import Budget
from diag.health.proof import ProcessEvidence
from diag.health.reads import Read, elapsed_s
from diag.health.track import Point

State = Literal[
    "progressing", "busy-unproven", "stalled", "admission-stalled", "idle-proven", "idle-unproven", "starting", "sleeping",
    "restarted", "mixed-backends", "no-metrics", "unreadable", "unreachable",
]
NEEDED = 2
"""Comparisons that must be flat, and independent witnesses that must stand still, before anything is called stalled."""
WINDOW = 3
"""Reads that a verdict shows and that progress must be seen in: two comparisons."""


@dataclass(frozen=True)
class ProbeResult:
    """What became of the one short question to an idle engine.

    `reads_before`: how many reads had been made when it was sent; the reads after it say whether it met a busy engine after all.
    """

    sent: bool
    ok: bool | None = None
    """False: it reached the engine and came to nothing. None: not sent, or refused before it got there (401, 404, 429)."""
    seconds: float | None = None
    """Until the answer, or the end of patience."""
    status: int | None = None
    reads_before: int | None = None


@dataclass(frozen=True)
class EngineState:
    """Verdict about one engine. `flat_s` is how long no witness moved while it was busy; None = not known or not so."""

    engine: str | None
    state: State
    reason: str
    running: float | None = None
    waiting: float | None = None
    tokens_per_s: float | None = None
    steps_per_s: float | None = None
    witnesses: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Per witness its value at the first and at the last of the reads that were compared."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Witnesses that were higher in between than at both ends, and how high."""
    flat_s: float | None = None
    budget_s: float | None = None


@dataclass(frozen=True)
class Asked:
    """What else is known when an engine is judged."""

    evidence: ProcessEvidence | None
    budget: Budget
    probe: ProbeResult | None
    alone: bool
    """The only engine of its backend: then processes and probe speak for it."""
    after_probe: int
    """Points made after the probe was sent."""


@dataclass(frozen=True)
class Flat:
    """The stretch up to the last read in which the engine was busy and no witness moved."""

    comparisons: int
    seconds: float | None
    """None = the reads carry no times."""
    first: Read


def moves(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """For each pair of neighbours the witnesses that moved between them."""
    found: list[tuple[str, ...]] = []
    top = dict(points[0].levels) if points else {}
    for before, after in pairwise(points):
        rose, output = _rises(before, after)
        grew = [name for name, value in after.levels.items() if value > top.get(name, value)]
        for name, value in after.levels.items():
            top[name] = value if output else max(value, top.get(name, value))
        found.append((*rose, *grew))
    return found


@lru_cache(maxsize=4096)
def _rises(before: Point, after: Point) -> tuple[tuple[str, ...], bool]:
    """Counters that rose between two reads, and whether that was output or a request ended: blocks are freed then."""
    rose = tuple(name for name, value in after.counters.items() if value > before.counters.get(name, value))
    finished = after.finished is not None and before.finished is not None and after.finished > before.finished
    fewer = after.running is not None and before.running is not None and after.running < before.running
    return rose, finished or fewer or any(after.found[name].witness.output for name in rose)


def judge_engine(engine: str | None, points: Sequence[Point], asked: Asked) -> EngineState:
    """All reads of one engine by one process -> its state."""
    found = moves(points)
    last = points[-1]
    shown = points[-WINDOW:]
    known = {
        "running": last.running, "waiting": last.waiting, "witnesses": _shown(shown), "peaks": _peaks(shown),
        "tokens_per_s": _rate(shown, "chunk_tokens", "tokens"), "steps_per_s": _rate(shown, "steps"),
    }
    state, reason, stretch, budget_s = _state(points, found, asked)
    return EngineState(engine, state, reason, **known, flat_s=None if stretch is None else stretch.seconds, budget_s=budget_s)  # type: ignore[arg-type]


Said = tuple[State, str, Flat | None, float | None]


def _state(points: Sequence[Point], found: Sequence[tuple[str, ...]], asked: Asked) -> Said:
    last = points[-1]
    recent = found[-(WINDOW - 1):]
    if last.asleep:
        return "sleeping", "it says that it is put to sleep", None, None
    if last.not_ready:
        return "starting", "it says that its model is not ready yet", None, None
    dead = proof.halted(asked.evidence)
    if dead is not None and found and not found[-1] and _speaks(asked, points):
        return "stalled", f"no witness moved since the read before, and {dead}", _flat(points, found), None
    moved = [name for names in recent for name in names]
    queued = points[-NEEDED - 1:]
    if len(queued) > NEEDED and all(point.running == 0 and point.waiting for point in queued):
        moved = [name for name in moved if _speaks_of_work(name, last)]
    if moved:
        return "progressing", _moved(moved, found), None, None
    if last.running is None and last.in_flight is None:
        return "no-metrics", "it has no gauge of running requests, and nothing it counts moved", None, None
    if last.running == 0 and last.waiting:
        return _admission(points, found, asked)
    if last.busy:
        return _busy(points, found, asked)
    return _idle(points, found, asked)


def _speaks_of_work(name: str, point: Point) -> bool:
    """Those that wait are asked about again at every turn of the scheduler: that admits nobody."""
    return name not in point.found or point.found[name].witness.unit != "requests"


def _admission(points: Sequence[Point], found: Sequence[tuple[str, ...]], asked: Asked) -> Said:
    """Requests wait and none runs. Who waits for KV of another node, or for a LoRA slot, is not waiting to be admitted."""
    last, limit = points[-1], asked.budget.admission_s
    what = f"{last.waiting:g} requests wait and none runs"
    others = [f"{value:g} for {last.found[name].witness.why} ({name})" for name, value in last.deferred.items() if value]
    if not last.unadmitted:
        return "busy-unproven", f"{what}: {', '.join(others)}; that is no admission stall, and what they wait for may lie outside of this engine", _flat(points, found), None
    since = len(points) - 1
    while since > 0 and points[since - 1].running == 0 and points[since - 1].unadmitted and not any(_speaks_of_work(name, points[since]) for name in found[since - 1]):
        since -= 1
    stretch = _stretch(points, since)
    told = f"{what}{', of them ' if others else ''}{', '.join(others)}"
    if stretch.comparisons >= NEEDED and (stretch.seconds is None or round(stretch.seconds, 1) >= limit):
        return "admission-stalled", f"{told}, at {stretch.comparisons + 1} reads; nothing was admitted {_since(stretch)}", stretch, limit
    return "busy-unproven", f"{told}, {_since(stretch)}; that is proof after {NEEDED} comparisons over {limit:g} s", stretch, limit


def _speaks(asked: Asked, points: Sequence[Point]) -> bool:
    """May the processes speak for this engine: it is busy, or the only one and looked at twice."""
    looks = 0 if asked.evidence is None else len(asked.evidence.looks)
    return points[-1].busy or (asked.alone and looks >= NEEDED)


def _moved(moved: Sequence[str], found: Sequence[tuple[str, ...]]) -> str:
    names = ", ".join(dict.fromkeys(moved))
    return f"{names} moved" if found[-1] else f"{names} moved, though not between the last two reads"


def _flat(points: Sequence[Point], found: Sequence[tuple[str, ...]]) -> Flat:
    """Since the last movement, or since it became busy if that was later: a request that just came has its own time."""
    since = max((number + 1 for number, names in enumerate(found) if names), default=0)
    busy = len(points) - 1
    while busy > 0 and points[busy - 1].busy:
        busy -= 1
    return _stretch(points, max(since, busy))


def _stretch(points: Sequence[Point], since: int) -> Flat:
    reads = [point.read for point in points[since:]]
    steps = [elapsed_s(before, after) for before, after in pairwise(reads)]
    known = [step for step in steps if step is not None]
    seconds = sum(known) if known and len(known) == len(steps) else None
    return Flat(len(steps), seconds, reads[0])


def _busy(points: Sequence[Point], found: Sequence[tuple[str, ...]], asked: Asked) -> Said:
    last, budget = points[-1], asked.budget
    stretch = _flat(points, found)
    held, past = _held(points[-stretch.comparisons - 1:]), _past_prefill(points[-stretch.comparisons - 1:])
    limit = budget.seconds(held, past_prefill=past)
    says = budget.says(held, past_prefill=past)
    what = _holding(last)
    flat = _standing(last)
    if stretch.comparisons == 0:
        return "busy-unproven", f"{what}; one read compares with nothing", stretch, limit
    if len(flat) < NEEDED:
        return "busy-unproven", f"{what}; {_those(flat)} did not move, which proves nothing alone", stretch, limit
    still = f"{what}; {_those(flat)} did not move {_since(stretch)}"
    works = proof.works(asked.evidence)
    allowed = limit if works is None else 2 * limit
    if stretch.seconds is not None and stretch.comparisons >= NEEDED:
        frozen = proof.frozen_s(asked.evidence)
        if stretch.seconds > allowed:
            return "stalled", f"{still}, more than the budget of {says}{'' if works is None else ', twice over'}", stretch, limit
        if frozen is not None and frozen[0] >= budget.frozen_s and stretch.seconds >= budget.frozen_s:
            return "stalled", f"{still}, and {frozen[1]}", stretch, limit
    if works is not None and (stretch.seconds is None or stretch.seconds <= limit):
        return "progressing", f"{still}, but {works}; budget {says}", stretch, limit
    if stretch.seconds is None and works is None and stretch.comparisons >= NEEDED and (past or _in_prefill(last, flat)):
        return "stalled", f"{still}; the reads carry no times, so that comparisons are counted instead of seconds", stretch, limit
    return "busy-unproven", f"{still}; that is proof after {says}", stretch, limit


def _idle(points: Sequence[Point], found: Sequence[tuple[str, ...]], asked: Asked) -> Said:
    last, probe = points[-1], asked.probe
    before = points[-2] if len(points) > 1 else None
    turned = [name for name, value in last.idle_loop.items() if before is not None and value > before.idle_loop.get(name, value)]
    if turned and last.idle:
        return "idle-proven", f"no request runs or waits, and {', '.join(turned)} rose: its loop turns", None, None
    hidden = _hidden(points, asked)
    if hidden is not None and (probe is None or not probe.sent):
        return hidden
    if probe is None or not probe.sent or not asked.alone:
        why = "it is not the only engine here, so that one answer would not tell whose" if probe is not None and probe.sent else \
            "its gauges say so, and they may be stale"
        return "idle-unproven", f"no request runs or waits: {why}", None, None
    took = "" if probe.seconds is None else f" after {probe.seconds:.1f} s"
    if probe.ok:
        return "idle-proven", f"no request runs or waits, and it answered a short question{took}", None, None
    if probe.ok is None:
        told = "what came back to a short question proves nothing about the engine" if probe.status in (None, 200) else \
            f"it answered a short question with HTTP {probe.status}, which is no silence and no sign of health"
        return "idle-unproven", f"no request runs or waits; {told}", None, None
    return _unanswered(points, found, asked)


def _hidden(points: Sequence[Point], asked: Asked) -> Said | None:
    """Gauges are set when a step is over: one that takes long may hide behind zeros. Until the budget nobody may ask it anything."""
    computes = proof.computes(asked.evidence) if asked.alone and points[-1].idle else None
    works = proof.works(asked.evidence)
    limit = asked.budget.seconds()
    if computes is None or computes[0] > (limit if works is None else 2 * limit):
        return None
    what = f"its gauges say idle, and yet {computes[1]}: a step that has not reported yet"
    stretch = Flat(len(points) - 1, computes[0], points[-1].read)
    if works is not None:
        return "progressing", f"{what}, and {works}", stretch, limit
    return "busy-unproven", f"{what}; it may be asked after {asked.budget.says()}", stretch, limit


def _unanswered(points: Sequence[Point], found: Sequence[tuple[str, ...]], asked: Asked) -> Said:
    """An idle engine left the question unanswered: a hang behind stale gauges, or a first step that takes long.

    Only the time in which the question stood counts: gauges of an idle engine do not move before or after it either.
    """
    limit = asked.budget.silence_s()
    since = max(0, len(points) - asked.after_probe - 1)
    moved = max((number + 1 for number, names in enumerate(found) if names), default=0)
    stretch = _stretch(points, max(since, moved))
    waited = 0.0 if asked.probe is None else asked.probe.seconds or 0.0
    what = f"its gauges say idle, and yet it left a short question unanswered for {waited:.1f} s"
    if asked.after_probe > 0 and len(points) > NEEDED and waited >= limit and not any(found[-NEEDED:]):
        return "stalled", f"{what}; nothing moved, and that is as long as the {limit:g} s it has", stretch, limit
    return "busy-unproven", f"{what}; that is proof after {limit:g} s in which nothing moves", stretch, limit


def _held(points: Sequence[Point]) -> float | None:
    """The most tokens that the KV cache held in these reads; None = not known."""
    counted = [point.held_tokens for point in points if point.held_tokens is not None]
    shares = [
        value * point.capacity_tokens for point in points if point.capacity_tokens is not None
        for name, value in point.levels.items() if point.found[name].witness.unit == "share"
    ]
    return max((*counted, *shares), default=None)


def _past_prefill(points: Sequence[Point]) -> bool:
    """Every running request has had its first token, by the engine's own counters, at each of these reads."""
    return all(
        point.first_token is not None and point.finished is not None and point.running is not None
        and not point.waiting and not point.in_flight and point.first_token - point.finished >= point.running
        for point in points
    )


def _standing(point: Point) -> list[str]:
    """The witnesses it has: counters and levels, without those that were never switched on."""
    return [
        name for name, value in (*point.counters.items(), *point.levels.items())
        if not (point.found[name].witness.optional and value == 0)
    ]


def _in_prefill(point: Point, names: Sequence[str]) -> bool:
    """One of them moves in a prefill and has moved already, so that its standing still says something."""
    return any(point.found[name].witness.in_prefill and {**point.counters, **point.levels}[name] > 0 for name in names)


def _holding(point: Point) -> str:
    parts = [f"{value:g} requests {word}" for value, word in ((point.running, "run"), (point.waiting, "wait")) if value]
    if point.in_flight and not point.running:
        parts.append(f"{point.in_flight:g} are in flight at its HTTP server")
    return " and ".join(parts)


def _those(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "no witness there is"


def _since(stretch: Flat) -> str:
    compared = f"{stretch.comparisons} comparison{'' if stretch.comparisons == 1 else 's'}"
    return f"in {compared}" if stretch.seconds is None else f"in {compared} over {stretch.seconds:.0f} s"


def _shown(points: Sequence[Point]) -> Mapping[str, tuple[float, float]]:
    first, last = points[0], points[-1]
    values = {**last.counters, **last.levels, **last.idle_loop}
    earlier = {**first.counters, **first.levels, **first.idle_loop}
    return {name: (earlier.get(name, value), value) for name, value in values.items()}


def _peaks(points: Sequence[Point]) -> Mapping[str, float]:
    highest = {name: max(point.levels.get(name, value) for point in points) for name, value in points[-1].levels.items()}
    return {name: value for name, value in highest.items() if value > max(points[-1].levels[name], points[0].levels.get(name, value))}


def _rate(points: Sequence[Point], *units: str) -> float | None:
    """Per second between the first and the last of these reads, by the first unit that is counted; None = not known."""
    seconds = _stretch(points, 0).seconds
    if seconds is None or seconds <= 0:
        return None
    first, last = points[0], points[-1]
    for unit in units:
        deltas = [
            value - first.counters[name] for name, value in last.counters.items()
            if name in first.counters and last.found[name].witness.unit == unit and not (last.found[name].witness.optional and value == 0)
        ]
        if deltas:
            return sum(deltas) / seconds
    return None
