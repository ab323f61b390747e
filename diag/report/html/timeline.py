"""Moments on a line: where each mark stands, with long stretches in which nothing happened cut out. Pure arithmetic."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diag.plots import Lane, Mark, Timeline

WIDTH = 960.0
LANE, TRACK, AXIS = 46.0, 18.0, 34.0
BREAK, LEAST, TICK = 70.0, 56.0, 96.0
"""Room of a cut, of the shortest stretch, and of the label of a tick."""
CUT_SHARE, CUT_S = 0.12, 30.0
"""What is cut: a stretch without a mark of this share of the whole, and so long at least."""
EDGE = 4.0
"""What a mark at either end needs."""
NEAR = 3.0
"""Marks that are closer than this are drawn as one."""
MAX_LISTED = 400
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
HEIGHTS = {"bad": TRACK, "warn": 13.0, "good": 9.0, "calm": 6.0}


@dataclass(frozen=True)
class Box:
    """One or several marks as a box."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    about: str


@dataclass(frozen=True)
class Drawn:
    """A lane: its name, the line that it stands on, its boxes."""

    name: str
    y: float
    base: float
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Tick:
    """A time on the axis."""

    x: float
    label: str
    anchor: str


@dataclass(frozen=True)
class Cut:
    """A stretch that is left out."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Everything that has a place."""

    width: float
    height: float
    lanes: tuple[Drawn, ...]
    ticks: tuple[Tick, ...]
    cuts: tuple[Cut, ...]
    count: int
    """Marks."""
    title: str


@dataclass(frozen=True)
class _Stretch:
    """Times that are drawn to scale, from x on."""

    from_s: float
    to_s: float
    x: float
    width: float

    def at(self, time_s: float) -> float:
        span = self.to_s - self.from_s
        return self.x + (self.width / 2 if span <= 0 else self.width * (time_s - self.from_s) / span)


def chart(timeline: Timeline) -> Chart:
    """Lanes -> a chart of WIDTH units."""
    times = sorted({time for lane in timeline.lanes for mark in lane.marks for time in (mark.at_s, mark.until_s) if time is not None})
    stretches = _stretches(times)
    lanes = tuple(_lane(lane, number, stretches) for number, lane in enumerate(timeline.lanes))
    cuts = tuple(Cut(second.x - BREAK / 2, duration(second.from_s - first.to_s)) for first, second in pairwise(stretches))
    count = sum(len(lane.marks) for lane in timeline.lanes)
    title = f"{count} moments from {moment(times[0])} to {moment(times[-1])}"
    return Chart(WIDTH, LANE * len(lanes) + AXIS, lanes, tuple(_ticks(stretches)), cuts, count, title)


def _stretches(times: Sequence[float]) -> list[_Stretch]:
    """Each as wide as it is long, and wide enough to be seen."""
    least_s = max(CUT_S, CUT_SHARE * (times[-1] - times[0]))
    bounds, start = [], times[0]
    for before, after in pairwise(times):
        if after - before > least_s:
            bounds.append((start, before))
            start = after
    bounds.append((start, times[-1]))
    room = WIDTH - 2 * EDGE - BREAK * (len(bounds) - 1) - LEAST * len(bounds)
    total_s = sum(to - start for start, to in bounds)
    found: list[_Stretch] = []
    x = EDGE
    for start, to in bounds:
        width = LEAST + (room * (to - start) / total_s if total_s > 0 else room / len(bounds))
        found.append(_Stretch(start, to, x, width))
        x += width + BREAK
    return found


def _lane(lane: Lane, number: int, stretches: Sequence[_Stretch]) -> Drawn:
    base = LANE * (number + 1) - 6
    boxes = [_box(mark, base, stretches) for mark in lane.marks]
    spans, points = [box for box in boxes if box.width > NEAR], [box for box in boxes if box.width <= NEAR]
    name = f"{lane.name} ({lane.left_out} more are not shown)" if lane.left_out else lane.name
    return Drawn(name, base - TRACK - 6, base, (*spans, *_together(points)))


def _box(mark: Mark, base: float, stretches: Sequence[_Stretch]) -> Box:
    height = HEIGHTS.get(mark.tone, 6.0)
    x = _x(mark.at_s, stretches)
    to = x if mark.until_s is None else _x(mark.until_s, stretches)
    until = "" if mark.until_s is None else f" until {moment(mark.until_s)} ({duration(mark.until_s - mark.at_s)})"
    return Box(x - NEAR / 2, base - height, max(NEAR, to - x), height, mark.tone, f"{moment(mark.at_s)}{until} {mark.text[:200]}")


def _together(boxes: Sequence[Box]) -> Iterator[Box]:
    """Points of one tone that would lie on each other."""
    group: dict[str, list[Box]] = {}
    for box in boxes:
        mine = group.setdefault(box.tone, [])
        if mine and box.x - mine[-1].x > NEAR:
            yield _one(mine)
            mine.clear()
        mine.append(box)
    yield from (_one(mine) for mine in group.values() if mine)


def _one(boxes: Sequence[Box]) -> Box:
    first, last = boxes[0], boxes[-1]
    if len(boxes) == 1:
        return first
    return Box(first.x, first.y, last.x - first.x + NEAR, first.height, first.tone, f"{len(boxes)} times, first: {first.about}")


def _x(time_s: float, stretches: Sequence[_Stretch]) -> float:
    stretch = next((item for item in stretches if time_s <= item.to_s), stretches[-1])
    return stretch.at(time_s)


def _ticks(stretches: Sequence[_Stretch]) -> Iterator[Tick]:
    """Round times where there is room for them; of a short stretch its beginning."""
    for stretch in stretches:
        span_s, most = stretch.to_s - stretch.from_s, int(stretch.width // TICK)
        step_s = next((step for step in STEPS_S if most and span_s / step <= most), STEPS_S[-1])
        first = -(-stretch.from_s // step_s) * step_s
        times = [first + step_s * number for number in range(most + 1) if first + step_s * number <= stretch.to_s] if most and span_s >= step_s else []
        for time_s in times or [stretch.from_s]:
            x = stretch.at(time_s)
            anchor = "start" if x < TICK / 2 else "end" if x > WIDTH - TICK / 2 else "middle"
            yield Tick(x, moment(time_s)[11:19], anchor)


def in_order(timeline: Timeline) -> list[tuple[Mark, str]]:
    """Marks and their lanes, in order of time; of very many the worst."""
    every = [(mark, lane.name) for lane in timeline.lanes for mark in lane.marks]
    kept = sorted(every, key=lambda item: list(HEIGHTS).index(item[0].tone) if item[0].tone in HEIGHTS else len(HEIGHTS))[:MAX_LISTED]
    return sorted(kept, key=lambda item: item[0].at_s)


def moment(time_s: float) -> str:
    """To the second, UTC."""
    return f"{datetime.datetime.fromtimestamp(time_s, datetime.UTC):%Y-%m-%d %H:%M:%S}Z"


def duration(seconds: float) -> str:
    """Two units at most: 12 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    whole = round(seconds)
    for name, size, below, least in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // least
            return f"{whole // size} {name}{f' {rest} {below}' if rest else ''}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
