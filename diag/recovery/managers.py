"""Who should have taken over when an engine was down, and was he there: outages and signs of life of managers and watchdogs. Pure.

A manager counts as gone when its own unit ended and was not started again while the engine was down, and as silent when by
its own rule it should have acted and its log has no line of that time.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diag.recovery.records import Event, Life, Time
from diag.restarts.records import WatchRule, between_s, later

WATCHES = re.compile(r"(?i)watch-?dog|health-?check|auto-?heal|keep-?alive|fail-?over|guardian|(?:^|[^a-z])monit(?:[^a-z]|$)")
LEADS = re.compile(r"(?i)manager|supervis|controller|operator|orchestrat|launcher")
OF_ENGINES = re.compile(r"(?i)engine|vllm|sglang|llm|gpu|npu|model|memory|infer|serving|worker|dynamo|mindie|triton|(?:^|[^a-z])gms(?:[^a-z]|$)")
DOWN = frozenset({"exit", "stop", "killing", "oom_kill", "segfault"})
GAVE_UP = ("systemd (start limit)", "supervisord (gave up)")
SOON_S = 120.0
"""An outage that was over sooner needs no explanation; a manager that ended this much later had no time to act."""
REGULAR = 2.5
"""So many times longer than its runs are apart it may be silent: jobs of timers end all the time."""


@dataclass(frozen=True)
class Outage:
    """From the end of an engine until somebody acted, or the evidence ends (`acted_at` None)."""

    unit: str | None
    begin: Time
    end: Time
    acted_at: Time | None
    by: str | None
    what: str
    source: str

    @property
    def seconds(self) -> float:
        return between_s(self.begin, self.end)


@dataclass(frozen=True)
class Manager:
    """One who could have taken over in an outage. `absent` None = what he was doing is not told."""

    name: str
    absent: bool | None
    gone_at: Time | None
    gone_how: str | None
    last_at: Time | None
    patience_s: float | None
    says: str
    source: str


def outages(lives: Sequence[tuple[Life, str | None]], last: Time | None) -> list[Outage]:
    """Ends that nobody wanted, with who they were asked by. `last`: when the evidence ends. Stops by people and rollouts are none."""
    found = []
    for life, who in lives:
        if (life.how == "external" and who != "watchdog") or (life.unit is not None and _leads(life.unit)):
            continue
        ends = [moment for moment in ((life.died_at, life.stopped_at) if life.how != "external" else (life.stopped_at or life.killed_at,)) if moment is not None]
        if not ends:
            continue
        begin = min(ends)
        acts = [moment for moment in (life.killed_at, life.restarted_at) if moment is not None and moment > begin]
        acted = min(acts) if acts else None
        end = acted or last
        if end is not None and end >= begin:
            found.append(Outage(life.unit, begin, end, acted, life.initiator if acted is not None else None, life.detail, life.source))
    return found


def managers(outage: Outage, events: Sequence[Event], rules: Mapping[str, WatchRule], mapped: frozenset[str]) -> list[Manager]:
    """Everybody who is known to watch, in one outage. `mapped`: initiators whose own log is in the evidence."""
    names: dict[str, str] = {}
    for name in [*rules, *mapped, *(event.unit for event in events if event.unit is not None and _leads(event.unit))]:
        if not _same(name, outage.unit):
            names.setdefault(_short(name), name)
    return [found for name in names.values() if (found := _manager(name, outage, events, rules.get(name), name in mapped)) is not None]


def unattended(outage: Outage, found: Sequence[Manager]) -> bool | None:
    """It lasted, and of those who could have taken over all that is told is that they were not there. None: nothing is told of anybody."""
    there = [not manager.absent for manager in found if manager.absent is not None]
    return False if outage.seconds < SOON_S or any(there) else True if there else None


def _manager(name: str, outage: Outage, events: Sequence[Event], rule: WatchRule | None, mapped: bool) -> Manager | None:
    own = [event for event in events if _same(event.unit, name) and event.origin != "map"]
    signs = [event for event in events if _same(event.initiator, name) and event.initiator != event.unit]
    patience = None if rule is None or rule.period_s is None else rule.period_s * ((rule.strikes or 1) + 1) + (rule.timeout_s or 0.0)
    before = [event for event in (*own, *signs) if event.ts <= outage.end]
    last = max(before, key=lambda event: event.ts, default=None)
    gone = _gone(own, outage)
    if gone is not None:
        how = gone.detail or gone.kind
        return Manager(name, True, gone.ts, how, None if last is None else last.ts, patience, f"it ended {_ago(gone.ts, outage)}: {how}", gone.source)
    during = [event for event in (*signs, *own) if outage.begin < event.ts <= outage.end]
    if during:
        return Manager(name, False, None, None, during[-1].ts, patience, f"it was there: {during[0].detail or during[0].kind}", during[0].source)
    if outage.acted_at is not None and _same(outage.by, name):
        return Manager(name, False, None, None, outage.acted_at, patience, "it acted", outage.source)
    if mapped and patience is not None and outage.seconds > patience:
        seen = "its log has no line before either" if last is None else f"its last line is {_ago(last.ts, outage)}"
        source = outage.source if last is None else last.source
        return Manager(name, True, None, None, None if last is None else last.ts, patience, f"by its rule it acts within {patience:.0f} s, and it wrote nothing; {seen}", source)
    if last is None:
        return None
    return Manager(name, None, None, None, last.ts, patience, "whether it was there is not told", last.source)


def _gone(own: Sequence[Event], outage: Outage) -> Event | None:
    """The end of its unit that was not followed by a start as long as the engine was down."""
    ordered = sorted((event for event in own if event.ts <= outage.end), key=lambda event: event.ts)
    begun = [event.ts for event in ordered if event.kind == "start"]
    ends = [event for event in ordered if event.kind in DOWN and not (event.kind == "exit" and event.code == 0)]
    if begun and ends and begun[-1] > ends[-1].ts:
        return None
    ends = [event for event in ends if not begun or event.ts >= begun[-1]]
    if not ends or ends[0].ts > later(outage.begin, SOON_S):
        return None
    gaps = [between_s(first, second) for first, second in pairwise(begun)]
    if gaps and between_s(ends[-1].ts, outage.end) < REGULAR * statistics.median(gaps):
        return None
    told = [event for event in ends if event.initiator not in GAVE_UP]
    return (told or ends)[0]


def _ago(moment: Time, outage: Outage) -> str:
    seconds = between_s(moment, outage.begin)
    return f"{seconds:.0f} s before the engine was down" if seconds >= 0 else f"{-seconds:.0f} s after the engine was down"


def _leads(unit: str) -> bool:
    return WATCHES.search(unit) is not None or (LEADS.search(unit) is not None and OF_ENGINES.search(unit) is not None)


def _short(name: str) -> str:
    return name.removesuffix(".service")


def _same(name: str | None, other: str | None) -> bool:
    return name is not None and other is not None and _short(name) == _short(other)
