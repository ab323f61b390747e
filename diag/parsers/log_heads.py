"""What stands before the message of a log line: who wrote it, when, how serious. Pure text -> Head.

    (APIServer pid=29677) INFO 11-30 02:52:45 [loggers.py:335] Engine 000: Avg prompt throughput: …      vLLM
    INFO 06-19 23:05:01 core.py:162] init engine took …                                                  vLLM 0.6
    [2026-11-30 02:52:45 TP0] Decode batch. #running-req: 4, …                                           SGLang
    INFO:     127.0.0.1:39218 - "GET /metrics HTTP/1.1" 200 OK                                           uvicorn
    2026-11-30 02:52:45,123 WARNING app.cache: retry 7                                                   logging
    [rank0]:[E1130 02:52:45.594 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught …                     torch

Before that, what a container runtime or a journal adds: `sglang-1  | `, `[pod/llm-0/server] `, RFC3339 with or without
`stdout F`, `Nov 30 02:52:45 host unit[123]: `, and docker's JSON lines. Lines that are JSON themselves: log_json.
"""

import datetime
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from diag.parsers import log_json

LEVELS = r"TRACE|DEBUG|INFO|WARNING|WARN|ERROR|EXCEPTION|CRITICAL|FATAL"
SAME_LEVEL = {"WARN": "WARNING", "FATAL": "CRITICAL", "TRACE": "DEBUG", "EXCEPTION": "ERROR"}
GLOG_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
MONTHS = {
    "Jan": 1, "Feb": 2, "Mar": 3, "Apr": 4, "May": 5, "Jun": 6, "Jul": 7, "Aug": 8, "Sep": 9, "Oct": 10, "Nov": 11, "Dec": 12,
}

_CLOCK = r"(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<frac>\d+))?"
_DATE = r"(?P<date>\d{4}-\d\d-\d\d)"

CLEAN = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""ANSI colours and titles, and control characters other than the tab."""

COMPOSE = re.compile(r"^[A-Za-z0-9][\w.\-]* +\| ?")
POD = re.compile(r"^\[pod/[^\]\s]+\] ")
ISO = re.compile(rf"^{_DATE}[T ]{_CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d)?(?:\s|$)")
COMMON = re.compile(rf"^(?P<day>\d\d)/(?P<month>[A-Z][a-z]{{2}})/(?P<year>\d{{4}}):{_CLOCK} (?P<zone>[+-]\d{{4}})$")
CRI = re.compile(r"^(?:stdout|stderr) [FP] ")
UNIT = re.compile(r"^\S+ (?P<unit>[\w.@:/\\-]+?)\[(?P<pid>\d{1,10})\]: ")
SYSLOG = re.compile(rf"^(?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d{{1,2}}) {_CLOCK} \S+ (?P<unit>[\w.@/\\-]+?)(?:\[(?P<pid>\d{{1,10}})\])?: ")

WHO = re.compile(r"^\((?P<who>[A-Za-z][\w:.\-]*)(?:\([^)]*\))?(?: rank=\d+)? pid=(?P<pid>\d{1,10})(?:, ip=[^)]*)?\) ?")
RANK = re.compile(r"^\[(?P<who>rank\d+)\]: ?")
VLLM_BODY = rf"(?P<level>{LEVELS}) +(?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} (?:\[(?P<logger>[^\]\s]+)\]|(?P<old>[\w./]+:\d+)\])(?: |$)"
VLLM = re.compile("^" + VLLM_BODY)
VLLM_INSIDE = re.compile(r"(?:\([A-Za-z][\w:.\-]* pid=\d{1,10}\) )?" + VLLM_BODY)
SGLANG = re.compile(
    rf"^\[{_DATE}[T ]{_CLOCK}(?P<ranks>(?: [A-Z][A-Z_]*\d+)*)\] ?(?:(?P<level>{LEVELS})(?::\s*|\s+)(?:(?P<logger>[\w./]+\.py:\d+): )?)?"
)
GLOG = re.compile(rf"^\[?(?P<letter>[IWEF])(?P<month>\d\d?)(?P<day>\d\d) {_CLOCK}(?: +\d+)? (?P<logger>[\w./\-]+:\d+)\](?: |$)")
UVICORN = re.compile(rf"^(?P<level>{LEVELS}):\s+")
BASIC = re.compile(rf"^(?P<level>{LEVELS}):(?P<logger>[\w.\-]+):")
AFTER_DATE = (
    re.compile(rf"^\s*- (?P<logger>\S+) - (?P<level>{LEVELS}) - "),
    re.compile(rf"^\s*(?:[-|] *)?\[?(?P<level>{LEVELS})\]?\s*(?:[-|:]\s*|\s)(?:\[?(?P<logger>[\w.:<>/\-]*\w)\]?(?::\s| - ))?"),
)
PY_WARNING = re.compile(r"^(?P<logger>[^\s:][^:]*\.py:\d+): (?=\w*Warning: )")
NCCL = re.compile(r"^\S+?:(?P<pid>\d{1,10}):\d+ \[\w+\] (?:[\w./]+:\d+ )?(?=NCCL (?P<level>WARN|INFO|TRACE|ERROR)\b)")

ROLES = (
    (re.compile(r"^api_?server", re.I), "api_server"),
    (re.compile(r"^engine_?core", re.I), "engine_core"),
    (re.compile(r"worker|^rank\d", re.I), "worker"),
    (re.compile(r"scheduler|^(?:[A-Z]+_)?(?:TP|PP|DP|EP)\d", re.I), "scheduler"),
    (re.compile(r"detokenizer", re.I), "detokenizer"),
    (re.compile(r"router", re.I), "router"),
    (re.compile(r"coordinator|manager", re.I), "manager"),
)

SUPERVISOR = re.compile(r"^(?:spawned|exited|stopped|success|gave up|waiting for|killing|supervisord started|reaped|Set uid|RPC interface)\b")


class Stamp(NamedTuple):
    """A time as printed: what the line did not say is None."""

    year: int | None
    month: int
    day: int
    clock: str
    fraction: str
    zone: str | None


class Head(NamedTuple):
    """A line taken apart. `kind` is the format (`raw` = none known)."""

    kind: str
    message: str
    level: str | None = None
    logger: str | None = None
    who: str | None = None
    pid: int | None = None
    stamp: Stamp | None = None
    outer: int | None = None
    """Pid that a journal wrote before the line: keeps writers apart."""
    request: Mapping[str, object] | None = None
    """The request that a line of JSON tells of, in columns of http_events."""

    @property
    def role(self) -> str | None:
        """Role of the writer, from the name it prints."""
        if self.who is None:
            return None
        return next((role for pattern, role in ROLES if pattern.search(self.who)), None)


def clean(line: str) -> str:
    """Without colours, NULs and other control characters; tabs stay."""
    return CLEAN.sub("", line)


def split(line: str) -> Head:
    """One cleaned line -> Head. Every text is a line: what has no known head is `raw`, whole."""
    rest, stamp, outer = _unwrap(line)
    if rest.startswith("{") and (record := log_json.read(rest)) is not None:
        return _of_record(record, stamp, outer)
    who, pid, rest = _writer(rest)
    head = _known(rest, stamp)
    if head is None and who is None and "pid=" in rest and (match := VLLM_INSIDE.search(rest)):
        # A progress bar without a line end, and the next writer right behind it.
        who, pid, rest = _writer(rest[match.start():])
        head = _known(rest, stamp)
    if head is None:
        return Head("raw", rest, None, None, who, pid if pid is not None else outer, stamp, outer)
    kind, message, level, logger, tag, own_pid, own_stamp = head
    chosen = stamp if stamp is not None and (stamp.zone is not None or own_stamp is None) else own_stamp
    found = own_pid if own_pid is not None else pid if pid is not None else outer
    return Head(kind, message, SAME_LEVEL.get(level, level) if level else None, logger, who or tag, found, chosen, outer)


def _of_record(record: log_json.Record, stamp: Stamp | None, outer: int | None) -> Head:
    """A line of JSON: its message may be a whole line of an engine."""
    who, pid, rest = _writer(clean(record.message))
    own = stamp_of(record.time)
    chosen = own if own is not None and (own.zone is not None or stamp is None or stamp.zone is None) else stamp
    known = _known(rest, chosen)
    kind, message, level, logger, tag, own_pid, inner = known or ("json", rest, record.level, record.logger, None, None, None)
    if known is None and record.level is None and record.request is None:
        kind = "raw"
    found = next((one for one in (own_pid, pid, record.pid, outer) if one is not None), None)
    level = level or record.level
    return Head(kind, message, SAME_LEVEL.get(level, level) if level else None, logger or record.logger, who or tag, found, chosen or inner, outer, record.request)


def stamp_of(time: str | float) -> Stamp | None:
    """A time by itself, as text or in seconds since 1970; None = no such time."""
    if isinstance(time, str):
        if match := ISO.match(time):
            return _iso(match, match["zone"])
        if (match := COMMON.match(time)) and match["month"] in MONTHS:
            return Stamp(int(match["year"]), MONTHS[match["month"]], int(match["day"]), match["time"], match["frac"] or "", match["zone"])
        return None
    try:
        at = datetime.datetime.fromtimestamp(time, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return Stamp(at.year, at.month, at.day, f"{at:%H:%M:%S}", f"{at.microsecond:06d}", "Z")


def is_engine_line(line: str) -> bool:
    """Does the line have a head that engines and their web servers write (not only a date)?"""
    head = split(clean(line))
    return head.kind not in ("raw", "warning") and not (head.kind == "logging" and SUPERVISOR.match(_with_logger(head)))


def _with_logger(head: Head) -> str:
    return head.message if head.logger is None else f"{head.logger}: {head.message}"


def _unwrap(line: str) -> tuple[str, Stamp | None, int | None]:
    """Take off what runtimes and journals put before a line -> (rest, their time, their pid)."""
    if line.startswith('{"log":'):
        return _docker_json(line)
    if " | " in line[:100] or line.endswith(" |"):
        line = COMPOSE.sub("", line, count=1)
    if line.startswith("[pod/"):
        line = POD.sub("", line, count=1)
    if line[:2] == "20" and (match := ISO.match(line)):
        stamp = _iso(match, match["zone"])
        rest = line[match.end():]
        if (inner := CRI.match(rest)) is not None:
            return rest[inner.end():], stamp, None
        if stamp.zone is not None and (unit := UNIT.match(rest)) is not None:
            return rest[unit.end():], stamp, int(unit["pid"])
        return rest, stamp, None
    if line[3:4] == " " and (match := SYSLOG.match(line)) and match["month"] in MONTHS:
        stamp = Stamp(None, MONTHS[match["month"]], int(match["day"]), match["time"], match["frac"] or "", None)
        return line[match.end():], stamp, int(match["pid"]) if match["pid"] else None
    return line, None, None


def _docker_json(line: str) -> tuple[str, Stamp | None, int | None]:
    try:
        record = json.loads(line)
        text, time = record["log"], ISO.match(str(record.get("time", "")))
    except (ValueError, KeyError, TypeError, RecursionError):
        return line, None, None
    if not isinstance(text, str):  # an object, of a format that log_json knows
        return line, None, None
    return clean(text.rstrip("\r\n")), _iso(time, time["zone"]) if time else None, None


def _iso(match: re.Match[str], zone: str | None) -> Stamp:
    date = match["date"]
    return Stamp(int(date[:4]), int(date[5:7]), int(date[8:10]), match["time"], match["frac"] or "", zone)


def _writer(rest: str) -> tuple[str | None, int | None, str]:
    """`(EngineCore pid=7) (RayWorker pid=9) …` -> the innermost writer, its pid, what follows."""
    who: str | None = None
    pid: int | None = None
    while rest[:1] == "(" and (match := WHO.match(rest)):
        who, pid, rest = match["who"], int(match["pid"]), rest[match.end():]
    if rest.startswith("[rank") and (match := RANK.match(rest)):
        who, rest = match["who"], rest[match.end():]
    return who, pid, rest


_Found = tuple[str, str, str | None, str | None, str | None, int | None, Stamp | None]


def _known(rest: str, outer: Stamp | None) -> _Found | None:
    """(kind, message, level, logger, rank tag, pid, stamp) of the first format that fits."""
    first = rest[:1]
    if first == "[" and (match := SGLANG.match(rest)):
        return "sglang", rest[match.end():], match["level"], match["logger"], match["ranks"].strip() or None, None, _iso(match, None)
    if first in "[IWEF" and (match := GLOG.match(rest)):
        return "glog", rest[match.end():], GLOG_LEVEL[match["letter"]], match["logger"], None, None, _short(match)
    if first.isupper():
        if match := VLLM.match(rest):
            return "vllm", rest[match.end():], match["level"], match["logger"] or match["old"], None, None, _short(match)
        if match := UVICORN.match(rest):
            return "uvicorn", rest[match.end():], match["level"], None, None, None, None
        if match := BASIC.match(rest):
            return "logging", rest[match.end():], match["level"], match["logger"], None, None, None
    if outer is not None:
        for pattern in AFTER_DATE:
            if match := pattern.match(rest):
                return "logging", rest[match.end():], match["level"], match["logger"], None, None, None
    if " NCCL " in rest and (match := NCCL.match(rest)):
        return "nccl", rest[match.end():], match["level"], None, None, int(match["pid"]), None
    if "Warning: " in rest and (match := PY_WARNING.match(rest)):
        return "warning", rest[match.end():], "WARNING", match["logger"], None, None, None
    return None


def _short(match: re.Match[str]) -> Stamp:
    return Stamp(None, int(match["month"]), int(match["day"]), match["time"], match["frac"] or "", None)
