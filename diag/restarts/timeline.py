"""Events of units and lines of engines -> restarts, one per end and start of one service.

Marks are walked in order of time. A unit goes down at the first mark of an end, and what follows until its next start
belongs to the same restart, however many journals tell of it. A line that sounds fatal is none while the engine goes on.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diag.restarts import initiators
from diag.restarts.records import Event, Line, Restart, Time, between_s, later

EARLY = re.compile(r"non-default args|server_args=|API server version|LLM server version|\bversion \d")
"""Of the lines of a start those that come first; the others (`Starting vLLM API server`) follow when the model is loaded, however long that takes."""
FINISHED = re.compile(r"Finished server process|Gracefully exiting")
STATS_NUMBERS = re.compile(r"throughput(?: \(token/s\))?: ([\d.]+)")
SAME_START_S = 120.0
LATE_NEWS_S = 3.0
STILL_ALIVE_S = 15.0
ALIGNED_S = 15.0
SAME_ASK_S = 2.0
"""So soon after each other two lines of one's asking are one."""
JOB_S = 600.0
RANKS = {"alive": 0, "down": 1, "start": 2, "ready": 3}
_SUFFIX = re.compile(r"\.service$")


@dataclass(frozen=True)
class _Mark:
    """Something at a moment: alive | down | start | ready."""

    ts: Time
    what: str
    told: Event | Line


@dataclass
class _Life:
    """Where a unit stands while its marks are walked."""

    unit: str | None
    found: list[Restart] = field(default_factory=list)
    open: Restart | None = None
    started: Time | None = None
    pid: int | None = None
    alive: bool = False

    def mark(self, mark: _Mark) -> None:
        match mark.what:
            case "alive":
                self._alive(mark)
            case "down":
                self._down(mark)
            case "start":
                self._start(mark)
            case "ready":
                self._ready(mark)

    def _alive(self, mark: _Mark) -> None:
        self.alive = True
        going = self.open
        if going is not None and going.restarted_at is None and not going.events and going.lines:
            deaths = [line for line in going.lines if line.event in initiators.DEATHS]
            if len(deaths) == len(going.lines) and between_s(deaths[-1].ts, mark.ts) > STILL_ALIVE_S:
                self.open = None

    def _down(self, mark: _Mark) -> None:
        going = self.open
        if going is not None and going.restarted_at is not None and not self._late_news(going, mark):
            self._close()
            going = None
        if going is None:
            going = self.open = Restart(self.unit, mark.told.source, started_at=self.started, pid=self.pid)
        _take(going, mark.told)

    def _late_news(self, going: Restart, mark: _Mark) -> bool:
        """Is a log a little behind the journal that told of the start already?"""
        return isinstance(mark.told, Line) and going.restarted_at is not None and bool(going.events) and between_s(going.restarted_at, mark.ts) <= LATE_NEWS_S

    def _start(self, mark: _Mark) -> None:
        going, told = self.open, mark.told
        early = isinstance(told, Event) or EARLY.search(told.message) is not None
        if going is not None and going.restarted_at is None:
            going.restarted_at = mark.ts
        elif going is not None and going.restarted_at is not None:
            same = between_s(going.restarted_at, mark.ts) <= SAME_START_S and going.ready_at is None
            if not same and early and (going.ready_at is not None or isinstance(told, Event)):
                self._close()
                self.open = Restart(self.unit, told.source, started_at=self.started, pid=self.pid, restarted_at=mark.ts)
            elif isinstance(told, Line):
                self.pid = told.pid if told.pid is not None else self.pid
                return
        elif self.alive and early and (self.started is None or between_s(self.started, mark.ts) > SAME_START_S):
            # it had been there, and it begins anew: how it ended is not told
            self.open = Restart(self.unit, told.source, started_at=self.started, pid=self.pid, restarted_at=mark.ts)
        elif self.started is not None and not early:
            return
        self.alive = True
        self.started, self.pid = (self.open.restarted_at if self.open is not None else mark.ts), told.pid
        if self.open is not None and isinstance(told, Event):
            self.open.events.append(told)

    def _ready(self, mark: _Mark) -> None:
        self.alive = True
        if self.open is not None and self.open.ready_at is None and (self.open.restarted_at is not None or self.open.events):
            self.open.ready_at = mark.ts

    def _close(self) -> None:
        if self.open is not None:
            self.found.append(self.open)
        self.open = None

    def end(self) -> list[Restart]:
        """All of them; a death of which only the log tells, and nothing came after it, counts as one too."""
        self._close()
        return self.found


def restarts(events: Sequence[Event], lines: Sequence[Line], known: frozenset[str]) -> list[Restart]:
    """All restarts in order of time. `known` = initiators that probe or have a rule."""
    own = sorted((event for event in events if event.kind in ("killing", "exit", "stop", "oom_kill", "start", "restart")), key=lambda event: event.ts)
    units = _units(own)
    placed = {unit: [event for event in own if event.unit is not None and name(event.unit) == unit] for unit in units}
    files = _files(lines, placed)
    found: list[Restart] = []
    for unit in [*units, *(None for _ in range(any(place is None for place in files.values())))]:
        mine = [line for line in lines if files[line.file] == unit]
        found += _of_unit(unit, placed.get(unit or "", []), mine)
    _kernel(found, events)
    _asks(found, [event for event in own if initiators.is_ask(event) or (event.unit is None and event.kind == "killing")], units)
    for restart in found:
        restart.events.sort(key=lambda event: event.ts)
        initiators.attribute(restart, known)
    kept = [restart for restart in found if not _is_a_job(restart) and restart.down_at is not None]
    return sorted(kept, key=lambda restart: restart.down_at or Time.min)


def name(unit: str) -> str:
    """`vllm.service` and `vllm` are the same unit."""
    return _SUFFIX.sub("", unit)


def progress(line: Line) -> bool:
    """Does a line of statistics show tokens, or a batch that ran?"""
    return line.message.startswith("Prefill batch") or any(float(number or 0) > 0 for number in STATS_NUMBERS.findall(line.message) if number.count(".") < 2)


def _units(events: Iterable[Event]) -> list[str]:
    """Units that were ended or started; a pod and its only container are one."""
    named = dict.fromkeys(name(event.unit) for event in events if event.unit is not None and event.origin != "dmesg" and not initiators.is_ask(event))
    return [unit for unit in named if not any(other.startswith(unit + "/") for other in named)]


def _files(lines: Sequence[Line], placed: Mapping[str, Sequence[Event]]) -> dict[str, str | None]:
    """Which unit each engine log belongs to: whose ends and starts are its own. None = to none of them."""
    moments: dict[str, list[Time]] = {}
    for line in lines:
        moments.setdefault(line.file, [])
        if line.event == "startup" or initiators.is_signal(line) or line.event in initiators.DEATHS:
            moments[line.file].append(line.ts)
    chosen: dict[str, str | None] = {}
    for file, own in moments.items():
        scores = {unit: sum(any(abs(between_s(event.ts, moment)) <= ALIGNED_S for moment in own) for event in events) for unit, events in placed.items()}
        best = max(scores, key=lambda unit: scores[unit], default=None)
        chosen[file] = best if best is not None and (scores[best] > 0 or len(placed) == 1) else None
    return chosen


def _of_unit(unit: str | None, events: Sequence[Event], lines: Sequence[Line]) -> list[Restart]:
    marks = [_Mark(event.ts, "down", event) for event in events if initiators.is_down(event)]
    marks += [_Mark(event.ts, "start", event) for event in events if event.kind == "start"]
    marks += [_Mark(event.ts, "down", event) for event in events if event.kind == "restart" and event.initiator in initiators.SUPERVISORS]
    for line in lines:
        what = _what(line)
        if what is not None:
            marks.append(_Mark(line.ts, what, line))
    life = _Life(unit)
    for mark in sorted(marks, key=lambda mark: (mark.ts, RANKS[mark.what])):
        life.mark(mark)
    return life.end()


def _what(line: Line) -> str | None:
    if line.event in initiators.DEATHS or initiators.is_signal(line) or (line.event == "shutdown_step" and FINISHED.search(line.message)):
        return "down"
    if line.event == "engine_stats":
        return "alive" if progress(line) else None
    return line.event if line.event == "ready" else "start" if line.event == "startup" else None


def _take(restart: Restart, told: Event | Line) -> None:
    if isinstance(told, Line):
        restart.lines.append(told)
        if FINISHED.search(told.message):
            restart.stopped_at = told.ts
        return
    restart.events.append(told)
    if told.kind in ("exit", "stop"):
        restart.stopped_at = told.ts if restart.stopped_at is None or told.kind == "exit" else restart.stopped_at
    if told.kind == "exit" and told.code is not None and restart.code is None:
        restart.code = told.code
    if told.pid is not None and told.kind in ("exit", "killing"):
        restart.pid = restart.pid if restart.pid is not None else told.pid


def _kernel(found: Sequence[Restart], events: Iterable[Event]) -> None:
    """What the kernel said of memory and devices belongs to the end that followed it, unless it names somebody else's process."""
    for event in events:
        if event.kind not in initiators.DEVICE_KINDS and event.kind != "oom_kill":
            continue
        for restart in found:
            end = restart.down_at or min(_moments(restart), default=None)
            if event in restart.events or end is None:
                continue
            ago = between_s(event.ts, end)
            pids = {line.pid for line in restart.lines if line.pid is not None} | {told.pid for told in restart.events if told.pid is not None}
            mine = event.pid in pids if event.pid is not None and pids else restart.code in (None, initiators.KILLED) or event.kind != "oom_kill"
            if mine and -initiators.TIE_S <= ago <= (initiators.KERNEL_BEFORE_S if event.kind != "oom_kill" else initiators.TIE_S * 3):
                restart.events.append(event)
                break


def _asks(found: list[Restart], asks: Iterable[Event], units: Sequence[str]) -> None:
    """Who says that it restarts belongs to the end next to it; where no end is told, the saying is all there is."""
    spans = [_span(restart) for restart in found]  # ten thousand restarts are looked at for each of ten thousand asks
    for ask in asks:
        near = []
        # a command returns, and docker says `restart`, when the start is done
        begin, end = later(ask.ts, -initiators.NEAR_AFTER_S), later(ask.ts, initiators.NEAR_BEFORE_S)
        for place in [place for place, (first, last) in enumerate(spans) if first <= end and last >= begin]:
            restart = found[place]
            if ask.unit is not None and restart.unit is not None and len(units) > 1 and name(ask.unit) in units and name(ask.unit) != restart.unit:
                continue
            if _asked_before(restart, ask):
                continue
            near.append((min(abs(between_s(ask.ts, moment)) for moment in _moments(restart)), place))
        if near:
            place = min(near)[1]
            found[place].events.append(ask)
            spans[place] = _span(found[place])
        elif ask.kind == "restart":
            unit = name(ask.unit) if ask.unit is not None else units[0] if len(units) == 1 else None
            found.append(Restart(unit, ask.source, events=[ask]))
            spans.append((ask.ts, ask.ts))


def _asked_before(restart: Restart, ask: Event) -> bool:
    """Of a restart of which nothing but the asking is told: did the same one ask for it already? Then this is the next one, however soon."""
    if ask.kind != "restart" or restart.lines or any(not initiators.is_ask(event) for event in restart.events):
        return False
    return any(event.initiator == ask.initiator and abs(between_s(event.ts, ask.ts)) > SAME_ASK_S for event in restart.events)


def _span(restart: Restart) -> tuple[Time, Time]:
    moments = _moments(restart)
    return min(moments), max(moments)


def _moments(restart: Restart) -> list[Time]:
    known = [event.ts for event in restart.events] + [line.ts for line in restart.lines]
    return known if restart.restarted_at is None else [*known, restart.restarted_at]


def _is_a_job(restart: Restart) -> bool:
    """What ends soon, by itself, and is started again by nobody who restarts services, is a job of a timer; a container that waits to be started again is none."""
    if restart.lines or restart.how == "external" or restart.who == "supervisor":
        return not restart.lines and restart.how == "auto" and restart.code == 0
    life_s = between_s(restart.started_at, restart.stopped_at) if restart.started_at is not None and restart.stopped_at is not None else None
    container = any(event.origin == "kubernetes" for event in restart.events)
    return restart.code == 0 or (life_s is not None and life_s <= JOB_S and not container)
