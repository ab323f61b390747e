"""One JSON object a line, as routers, proxies and services in Go, Rust or Node log, and Python's structured loggers: what it says, or the request it tells of. Pure.

    {"level":"warn","ts":1796007298.3,"caller":"proxy.go:88","msg":"backend gone","error":"dial tcp 10.0.0.4:8000: refused"}      zap, logrus, slog
    {"timestamp":"2026-11-30T02:52:45Z","level":"ERROR","fields":{"message":"backend gone"},"target":"router::proxy"}            tracing (Rust)
    {"event":"backend gone","level":"warning","timestamp":"2026-11-30 02:52:45","logger":"router"}                              structlog
    {"level":50,"time":1796007298312,"pid":71,"msg":"backend gone"}                                                              pino, bunyan
    {"start_time":"2026-11-30T02:52:45.120Z","method":"POST","path":"/v1/completions","response_code":200,"duration":2035}       Envoy

Keys are compared without regard to case, those of objects inside objects as `request.method`. A duration whose unit nothing tells is left out.
"""

import datetime
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

MAX_KEYS, MAX_DEPTH = 200, 3
TRACEBACK = "Traceback (most recent call last)"
ENDED = ("time", "ts", "timestamp", "@timestamp", "@t", "t", "datetime", "asctime", "time_iso8601", "time_local", "date")
STARTED = ("start_time", "starttime", "startutc", "startlocal")
LEVEL = ("level", "levelname", "severity", "lvl", "log.level", "log_level", "loglevel", "@l")
MESSAGE = ("msg", "message", "event", "fields.message", "short_message", "@m", "log", "line")
DETAIL = ("error", "err", "error.message", "err.message", "fields.error", "exception", "exc_info", "exc_text")
LOGGER = ("logger", "logger_name", "log.logger", "target", "name", "component", "caller", "module")
PID = ("pid", "process", "process.pid", "process_id")

METHOD = ("method", "request_method", "http_method", "http.method", "http.request.method", "request.method", "req.method", "requestmethod", "httprequest.requestmethod", "verb")
PATH = (
    "path", "uri", "url", "request_uri", "request_path", "http.path", "http.url", "http.target", "url.path", "request.uri", "request.path", "request.url", "req.url", "requestpath",
    "httprequest.requesturl",
)  # fmt: skip
STATUS = (
    "status", "status_code", "statuscode", "response_code", "response_status", "http_status", "http.status_code", "http.response.status_code", "response.status", "response.status_code",
    "res.statuscode", "downstreamstatus", "httprequest.status", "code",
)  # fmt: skip
CLIENT = (
    "client", "client_ip", "client_addr", "clientip", "remote_addr", "remote_ip", "remote", "downstream_remote_address", "clienthost", "client.ip", "request.remote_ip", "req.remoteaddress",
    "httprequest.remoteip",
)  # fmt: skip
BYTES = ("bytes_sent", "body_bytes_sent", "bytes_out", "response_size", "http.response.body.bytes", "downstreamcontentsize", "size")
AGENT = ("user_agent", "http_user_agent", "useragent", "user-agent", "user_agent.original", "httprequest.useragent", "req.headers.user-agent")
SECONDS: Mapping[str, float] = {
    "request_time": 1.0, "duration_s": 1.0, "duration_seconds": 1.0, "elapsed_s": 1.0, "elapsed_seconds": 1.0, "latency_s": 1.0, "latency_seconds": 1.0,
    "duration_ms": 1e-3, "durationms": 1e-3, "elapsed_ms": 1e-3, "latency_ms": 1e-3, "latencyms": 1e-3, "response_time_ms": 1e-3, "responsetime": 1e-3,
}  # fmt: skip
"""Names of durations that tell their unit, or that one writer alone uses."""
SPOKEN = ("duration", "latency", "elapsed", "latency_human", "httprequest.latency")
"""Durations that may be `1.2s` or `35.2ms`."""
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
LASTED = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|us|µs|μs|ns|s))+$")
LASTED_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|us|µs|μs|ns|s)")

LEVELS = {
    "trace": "DEBUG", "debug": "DEBUG", "verbose": "DEBUG", "info": "INFO", "information": "INFO", "notice": "INFO", "warn": "WARNING", "warning": "WARNING",
    "err": "ERROR", "error": "ERROR", "crit": "CRITICAL", "critical": "CRITICAL", "fatal": "CRITICAL", "panic": "CRITICAL", "dpanic": "CRITICAL", "alert": "CRITICAL",
    "emerg": "CRITICAL", "emergency": "CRITICAL",
}  # fmt: skip
PINO = {10: "DEBUG", 20: "DEBUG", 30: "INFO", 40: "WARNING", 50: "ERROR", 60: "CRITICAL"}
SYSLOG = {0: "CRITICAL", 1: "CRITICAL", 2: "CRITICAL", 3: "ERROR", 4: "WARNING", 5: "INFO", 6: "INFO", 7: "DEBUG"}
REQUEST = re.compile(r"(?P<method>[A-Z]{3,8}) (?P<target>\S+)(?: HTTP/[\d.]+)?$")
CACHE = re.compile(r"cache[._-]?(?:hit|status)$|x-cache$")
VERB, TARGET = re.compile(r"[A-Za-z]{3,8}$"), re.compile(r"/|https?://|\*$")
SCALES = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e8, 1.0))
"""Numbers from here on are times in such parts of a second since 1970; smaller ones are none."""


class Record(NamedTuple):
    """A line taken apart; None where it does not say. `time` is text as printed, or seconds since 1970."""

    message: str
    time: str | float
    level: str | None = None
    logger: str | None = None
    pid: int | None = None
    request: Mapping[str, object] | None = None
    """Columns of http_events, `path` with its query."""


def read(line: str) -> Record | None:
    """A line with a time and a message or a request; None for anything else."""
    if not line.startswith("{"):
        return None
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    flat: dict[str, object] = {}
    for name, value in _flat(data, "", 0):
        flat.setdefault(name, value)
    request = _request(flat)
    time, message = _time(flat, request), _message(flat)
    if time is None or not (request or message):
        return None
    level = next((told for name in LEVEL if (told := _level(flat.get(name))) is not None), None)
    return Record(message, time, level, _text(flat, LOGGER) or None, _whole(flat, PID), request)


def _flat(data: Mapping[str, object], before: str, depth: int) -> Iterator[tuple[str, object]]:
    """Keys in small letters, those of inner objects behind a dot."""
    for key, value in islice(data.items(), MAX_KEYS):
        name = f"{before}{key}".lower()
        if isinstance(value, dict) and depth < MAX_DEPTH:
            yield from _flat(value, f"{name}.", depth + 1)
        else:
            yield name, value


def _text(flat: Mapping[str, object], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := flat.get(name), str) and value), "")


def _whole(flat: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = flat.get(name)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 16:
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
            return value
    return None


def _message(flat: Mapping[str, object]) -> str:
    """What happened and, where another key tells it, why."""
    said, why = _on_one_line(_text(flat, MESSAGE)), _on_one_line(_text(flat, DETAIL))
    return said if not why or why in said else f"{said}: {why}" if said else why


def _on_one_line(text: str) -> str:
    """Of a traceback only its last line is kept."""
    before, _, traceback = text.partition(TRACEBACK)
    return " ".join(" ".join([*before.splitlines(), *traceback.strip().splitlines()[-1:]]).split())


def _level(value: object) -> str | None:
    if isinstance(value, str):
        return LEVELS.get(value.lower())
    return PINO.get(value, SYSLOG.get(value)) if isinstance(value, int) and not isinstance(value, bool) else None


def _time(flat: Mapping[str, object], request: Mapping[str, object] | None) -> str | float | None:
    """When it was written; of a line that only has its request's begin, when that was over."""
    told = next((time for name in ENDED if (time := _moment(flat.get(name))) is not None), None)
    if told is not None:
        return told
    begun = next((time for name in STARTED if (time := _moment(flat.get(name))) is not None), None)
    seconds = None if request is None else request.get("seconds")
    return begun if begun is None or not isinstance(seconds, float) else _after(begun, seconds)


def _moment(value: object) -> str | float | None:
    if isinstance(value, str):
        return value if value[:1].isdigit() and ":" in value else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return next((value * scale for least, scale in SCALES if least <= value < 1e19), None)
    return None


def _after(begun: str | float, seconds: float) -> str | float:
    if isinstance(begun, float):
        return begun + seconds
    try:
        return (datetime.datetime.fromisoformat(begun) + datetime.timedelta(seconds=seconds)).isoformat()
    except (ValueError, OverflowError):
        return begun


def _request(flat: Mapping[str, object]) -> dict[str, object] | None:
    """Path and status of an access line, and what else it tells (some gateways leave the method out); None = it is none."""
    method, target, status = _text(flat, METHOD), _text(flat, PATH), _whole(flat, STATUS)
    if not (method and target) and (match := REQUEST.match(_text(flat, ("request",)))) is not None:
        method, target = match["method"], match["target"]
    if not TARGET.match(target) or status is None or not 100 <= status <= 599:
        return None
    return {
        "method": method.upper() if VERB.match(method) else None, "path": target, "status": status, "client": _text(flat, CLIENT) or None, "bytes": _whole(flat, BYTES),
        "user_agent": _text(flat, AGENT) or None, "seconds": _seconds(flat), "cached": _cached(flat),
    }


def _cached(flat: Mapping[str, object]) -> bool | None:
    """What keys such as `cache_hit`, `x-cache` and `upstream_cache_status` say."""
    told = [str(value).lower() for name, value in flat.items() if CACHE.search(name) and isinstance(value, bool | str)]
    answers = {True: ("true", "hit", "1"), False: ("false", "miss", "0", "bypass", "expired")}
    return next((answer for answer, words in answers.items() if any(text.startswith(words) for text in told)), None)


def _seconds(flat: Mapping[str, object]) -> float | None:
    for name, unit in SECONDS.items():
        value = _number(flat.get(name))
        if value is not None:
            return value * unit
    spoken = next((match[0] for name in SPOKEN if (match := LASTED.match(str(flat.get(name)))) is not None), None)
    if spoken is not None:
        return sum(float(number) * UNITS[unit] for number, unit in LASTED_PART.findall(spoken))
    duration = flat.get("duration")
    if isinstance(duration, float):  # zap and what is built on it
        return duration
    if isinstance(duration, int) and "response_code" in flat:  # Envoy
        return duration * 1e-3
    if isinstance(duration, int) and "downstreamstatus" in flat:  # Traefik
        return duration * 1e-9
    return None


def _number(value: object) -> float | None:
    """A number, or the text of one, as nginx prints it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", value) else None
