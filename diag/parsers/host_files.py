"""Texts of /proc and of a cgroup -> host_facts. Limits are the tightest of the group and its parents.

    memory.max `max`  ·  cpu.max `200000 100000`  ·  memory.events `oom_kill 3`  ·  v1: memory.limit_in_bytes, cpu.cfs_quota_us, …
"""

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from diag.errors import Garbled
from diag.model import Artefact, Row
from diag.parsers.bounds import Count, Epoch

NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 says "no limit" with a number close to the largest one."""

MEMINFO = {
    "MemTotal": "mem_total_bytes", "MemAvailable": "mem_available_bytes", "SwapTotal": "swap_total_bytes", "SwapFree": "swap_free_bytes",
}
LIMITS = {"memory.max": "cgroup_memory_limit_bytes", "memory.high": "cgroup_memory_high_bytes", "pids.max": "cgroup_pids_limit",
          "memory.limit_in_bytes": "cgroup_memory_limit_bytes"}
USES = {"memory.current": "cgroup_memory_used_bytes", "memory.usage_in_bytes": "cgroup_memory_used_bytes", "pids.current": "cgroup_pids_used",
        "memory.failcnt": "cgroup_memory_limit_hits"}
KEYED = {
    ("memory.events", "oom_kill"): ("cgroup_oom_kills", 1.0), ("memory.events", "oom"): ("cgroup_oom_events", 1.0),
    ("memory.events", "max"): ("cgroup_memory_limit_hits", 1.0), ("memory.events", "high"): ("cgroup_memory_high_hits", 1.0),
    ("memory.oom_control", "oom_kill"): ("cgroup_oom_kills", 1.0), ("memory.oom_control", "under_oom"): ("cgroup_under_oom", 1.0),
    ("cpu.stat", "nr_periods"): ("cgroup_cpu_periods", 1.0), ("cpu.stat", "nr_throttled"): ("cgroup_cpu_throttled_periods", 1.0),
    ("cpu.stat", "throttled_usec"): ("cgroup_cpu_throttled_s", 1e-6), ("cpu.stat", "throttled_time"): ("cgroup_cpu_throttled_s", 1e-9),
    ("vmstat", "oom_kill"): ("oom_kills", 1.0),
}


class Read(NamedTuple):
    """One file read. `level` counts cgroups upwards from the target's own (0)."""

    file: str
    text: str
    level: int = 0


class Fact(NamedTuple):
    """`value` None and `text` `none` = no limit."""

    name: str
    value: float | None
    text: str | None


class _Line(msgspec.Struct):
    """One line of facts.jsonl."""

    read: Count
    ts: Epoch
    file: str
    raw: str
    level: Count = 0


def rows(artefact: Artefact) -> Iterator[Row]:
    """facts.jsonl (its first line says what it is) -> host_facts. Raises Garbled, naming the line."""
    reads: dict[int, list[_Line]] = {}
    for number, text in artefact.lines():
        if number == 1:
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise Garbled(f"{artefact.at(number)} is not a fact: {error}", hint="collect again") from error
        reads.setdefault(line.read, []).append(line)
    for read, lines in reads.items():
        ts = datetime.datetime.fromtimestamp(lines[0].ts, datetime.UTC).replace(tzinfo=None)
        for fact in facts([Read(line.file, line.raw, line.level) for line in lines]):
            yield "host_facts", {
                "read": read, "ts": ts, "fact": fact.name, "value": fact.value, "text": fact.text,
                "source": artefact.key(f"{read}.{fact.name}"),
            }


def facts(files: Sequence[Read]) -> Iterator[Fact]:
    """All facts of one read of the host."""
    for item in files:
        if item.level == 0:
            yield from _simple(item)
    for name in dict.fromkeys(LIMITS.values()):
        found = [_limit(item.text) for item in files if LIMITS.get(item.file) == name]
        if found:
            yield _tightest(name, found)
    quotas = list(_cpu_limits(files))
    if quotas:
        yield _tightest("cgroup_cpu_limit_cpus", quotas)


def _simple(item: Read) -> Iterator[Fact]:
    name, text = item.file, item.text
    words = text.split()
    if name == "meminfo":
        for key, value in re.findall(r"^(\w+): +(\d{1,18}) kB", text, re.M):
            if key in MEMINFO:
                yield Fact(MEMINFO[key], float(value) * 1024, None)
    elif name == "loadavg" and len(words) >= 3:
        yield from (Fact(fact, _number(word), None) for fact, word in zip(("load_1m", "load_5m", "load_15m"), words, strict=False))
    elif name in ("cpus", "cpus_allowed"):
        yield Fact(name, float(_cpus(text)), None)
    elif name.startswith("pressure."):
        if match := re.search(r"^some avg10=([\d.]+)", text, re.M):
            yield Fact(f"{name.removeprefix('pressure.')}_pressure_pct", float(match[1]), None)
    elif name == "shm" and len(words) == 2:
        yield from (Fact(fact, _number(word), None) for fact, word in zip(("shm_total_bytes", "shm_free_bytes"), words, strict=True))
    elif name in ("uptime_s", "cgroup_version") and words:
        yield Fact(name, _number(words[0]), None)
    elif name in ("kernel", "cgroup_path"):
        yield Fact(name, None, text.strip())
    elif name in USES:
        yield Fact(USES[name], _number(text), None)
    for key, value in re.findall(r"^(\w+) (\d{1,20})$", text, re.M):
        if (name, key) in KEYED:
            fact, factor = KEYED[name, key]
            yield Fact(fact, float(value) * factor, None)


def _cpu_limits(files: Sequence[Read]) -> Iterator[float | None]:
    periods = {item.level: _number(item.text) for item in files if item.file == "cpu.cfs_period_us"}
    for item in files:
        if item.file == "cpu.max":
            quota, _, period = item.text.strip().partition(" ")
            limit, per = _limit(quota), _number(period)
        elif item.file == "cpu.cfs_quota_us":
            limit, per = _number(item.text), periods.get(item.level)
        else:
            continue
        yield None if limit is None or limit < 0 or not per else limit / per


def _tightest(name: str, limits: Sequence[float | None]) -> Fact:
    finite = [limit for limit in limits if limit is not None]
    return Fact(name, min(finite), None) if finite else Fact(name, None, "none")


def _limit(text: str) -> float | None:
    value = _number(text)
    return None if value is None or value >= NO_LIMIT_BYTES else value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cpus(text: str) -> int:
    """`0-3,8` -> 5"""
    return sum(int(match[2] or match[1]) - int(match[1]) + 1 for match in re.finditer(r"\b(\d{1,6})(?:-(\d{1,6}))?\b", text))
