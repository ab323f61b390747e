"""Was the engine working when somebody decided that it was dead?

The window is the decider's own: from the first failed look to the last, period x (strikes - 1) + timeout. A witness that moved in it, and not long
before the end, contradicts "hung"; one that says requests were running and nothing moved confirms it. Silence is neither:
vLLM does not write statistics while a long prompt is read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diag.restarts import watchdogs
from diag.restarts.records import Line, Restart, Time, WatchRule, between_s, later

UNKNOWN_WINDOW_S = 60.0
LEAST_WINDOW_S, MOST_WINDOW_S = 20.0, 1800.0
"""Statistics come every 10 s: a shorter window shows nothing."""
RECENT_LEAST_S, RECENT_MOST_S = 15.0, 60.0
"""What last moved longer before the end than half of the window, within these, may have stuck since: in doubt."""
FLAT_LINES = 3
RUNNING = re.compile(r"Running: (\d{1,9}) reqs|#running-req: (\d{1,9})")
KV_USAGE = re.compile(r"KV cache usage: ([\d.]+)%|token usage: ([\d.]+)")
KV_UNIT = re.compile(r"KV cache usage")
THROUGHPUTS = re.compile(r"(prompt|generation|gen) throughput(?: \(token/s\))?: ([\d.]+)")


@dataclass(frozen=True)
class Progress:
    """What one witness says of the window before one restart. `moved` None = it cannot tell."""

    window_s: float
    witness: str
    moved: bool | None
    says: str
    source: str


@dataclass(frozen=True)
class Stats:
    """A line of statistics in numbers."""

    ts: Time
    source: str
    running: int | None
    tokens_per_s: float
    kv_usage_pct: float | None
    batch: bool
    """A batch was run, whatever its speed."""


@dataclass(frozen=True)
class Answered:
    """A request of somebody else than a prober that was answered with success."""

    ts: Time
    path: str
    source: str


@dataclass(frozen=True)
class Counted:
    """A counter of progress at one read of the engine's metrics."""

    ts: Time
    series: str
    value: float
    source: str


def window_s(rule: WatchRule | None) -> float:
    """Seconds before the end in which its decider looked; of an unknown rule one minute."""
    if rule is not None and watchdogs.counts_errors(rule):
        return min(MOST_WINDOW_S, rule.period_s or UNKNOWN_WINDOW_S)
    if rule is None or (rule.period_s, rule.timeout_s) == (None, None):
        return UNKNOWN_WINDOW_S
    period_s, timeout_s, strikes = rule.period_s or 0.0, rule.timeout_s or 0.0, rule.strikes or 1
    looked = max(timeout_s * strikes, period_s * (strikes - 1) + timeout_s, period_s if strikes == 1 else 0.0)
    return min(MOST_WINDOW_S, max(LEAST_WINDOW_S, looked))


def recent_s(window: float) -> float:
    """How long before the end something must have moved to contradict "hung"."""
    return max(RECENT_LEAST_S, min(RECENT_MOST_S, window / 2))


def stats_of(line: Line) -> Stats:
    """A line of vLLM's or SGLang's statistics -> its numbers."""
    running, usage = RUNNING.search(line.message), KV_USAGE.search(line.message)
    share = None if usage is None else _number(usage[1] or usage[2])
    speed = sum(_number(value) or 0.0 for _, value in THROUGHPUTS.findall(line.message))
    if share is not None and KV_UNIT.search(line.message) is None:
        share *= 100
    count = None if running is None else int(running[1] or running[2])
    return Stats(line.ts, line.source, count, speed, share, line.message.startswith("Prefill batch"))


def judge(
    restart: Restart, rule: WatchRule | None, lines: Sequence[Line], answered: Sequence[Answered], counted: Sequence[Counted]
) -> list[Progress]:  # fmt: skip
    """What each witness says of the window before an end from outside; none where there is no witness."""
    end = restart.killed_at
    if end is None:
        return []
    # a life that began inside of the window is all that there is to look at
    window = window_s(rule)
    begin = later(end, -window)
    if restart.started_at is not None:
        begin = max(begin, restart.started_at)
    found = [
        _by_stats([stats_of(line) for line in lines if line.event == "engine_stats" and line.ts <= end], begin, end, window),
        _by_answers([item for item in answered if begin <= item.ts <= end], end, window),
        _by_counters([item for item in counted if begin <= item.ts <= end], end, window),
    ]
    return [item for item in found if item is not None]


def _by_stats(stats: Sequence[Stats], begin: Time, end: Time, window: float) -> Progress | None:
    inside = [item for item in stats if item.ts >= begin]
    before = [item for item in stats if item.ts < begin][-1:]
    earlier: list[Stats | None] = [*before, *inside] if before else [None, *inside]
    moved = [item for previous, item in zip(earlier, inside, strict=False) if _moves(previous, item)]
    if moved:
        last = moved[-1]
        ago = between_s(last.ts, end)
        pace = f"{last.tokens_per_s:.1f} tokens/s" if last.tokens_per_s > 0 else "KV usage rising" if not last.batch else "a batch was run"
        says = f"{pace}, {_running(last)} running, {ago:.0f} s before; it moved in {len(moved)} of {len(inside)} lines of statistics"
        if ago <= recent_s(window):
            return Progress(window, "engine_stats", True, says, last.source)
        return Progress(window, "engine_stats", None, f"{says}; silent since, so it may have stuck meanwhile", last.source)
    busy = [item for item in inside if (item.running or 0) > 0]
    if len(busy) >= FLAT_LINES:
        says = f"{_running(busy[-1])} running, and neither tokens nor KV usage moved in {len(busy)} lines of statistics"
        return Progress(window, "engine_stats", False, says, busy[-1].source)
    last_known = (inside or before)[-1:]
    if not last_known:
        return None
    idle = last_known[0].running == 0
    says = "nothing was running, which is no sign of health or sickness" if idle else "too few lines of statistics in the window to tell"
    return Progress(window, "engine_stats", None, says, last_known[0].source)


def _moves(earlier: Stats | None, item: Stats) -> bool:
    if item.tokens_per_s > 0 or item.batch:
        return True
    return earlier is not None and None not in (earlier.kv_usage_pct, item.kv_usage_pct) and (item.kv_usage_pct or 0) > (earlier.kv_usage_pct or 0)


def _running(item: Stats) -> str:
    return "an unknown number" if item.running is None else str(item.running)


def _by_answers(answered: Sequence[Answered], end: Time, window: float) -> Progress | None:
    if not answered:
        return None
    last = max(answered, key=lambda item: item.ts)
    ago = between_s(last.ts, end)
    says = f"{len(answered)} requests of others were answered, the last one ({last.path}) {ago:.0f} s before"
    return Progress(window, "answers", True if ago <= recent_s(window) else None, says, last.source)


def _by_counters(counted: Sequence[Counted], end: Time, window: float) -> Progress | None:
    series: Mapping[str, list[Counted]] = {name: [item for item in counted if item.series == name] for name in {item.series for item in counted}}
    compared = {name: sorted(items, key=lambda item: item.ts) for name, items in series.items() if len(items) > 1}
    if not compared:
        return None
    for name, items in sorted(compared.items()):
        rises = [after for earlier, after in pairwise(items) if after.value > earlier.value]
        if rises:
            ago = between_s(rises[-1].ts, end)
            return Progress(window, "metrics", True if ago <= recent_s(window) else None, f"{name} rose, the last time {ago:.0f} s before", rises[-1].source)
    name, items = next(iter(sorted(compared.items())))
    return Progress(window, "metrics", None, f"no counter rose in {len(items)} reads; alone that is no proof of a hang", items[-1].source)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
