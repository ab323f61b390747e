"""Access lines of web servers -> rows of http_events.

    127.0.0.1:39218 - "GET /metrics HTTP/1.1" 200 OK                                             uvicorn
    10.0.0.9 - - [30/Nov/2026:02:52:45 +0000] "POST /v1/x HTTP/1.1" 499 0 "-" "curl/8.5" 45.002  aiohttp, nginx
    {"start_time": …, "method": "POST", "path": "/v1/x", "response_code": 200, "duration": 2035} Envoy, Caddy, Traefik … (log_json)
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from diag.parsers import log_heads
from diag.parsers.log_heads import MONTHS, Stamp

UVICORN = re.compile(r'^(?P<client>[^\s"]*) ?- "(?P<method>[A-Z]{3,8}) (?P<target>[^"]*?)(?: HTTP/[\d.]+)?" (?P<status>\d{3})(?:\s|$)')
COMMON = re.compile(
    r'^(?P<client>\S+) (?:\S+ \S+ )?\[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<clock>\d\d:\d\d:\d\d) (?P<zone>[+-]\d{4})\] '
    r'"(?P<method>[A-Z]{3,8}) (?P<target>[^" ]*)[^"]*" (?P<status>\d{3}) (?P<bytes>\d{1,15}|-)(?: "[^"]*" "(?P<agent>[^"]*)")?(?P<rest>.*)$'
)
SECONDS = re.compile(r'(?:^|\s|rt=|request_time=)(\d{1,9}\.\d{1,9})s?(?:\s|$)')


class Access(NamedTuple):
    """One request as a row without its time; `stamp` is the time the line itself carries."""

    row: Mapping[str, object]
    stamp: Stamp | None


def of(message: str) -> Access | None:
    """The request an access line tells of; None = it is no access line."""
    if match := UVICORN.match(message):
        return Access({**_request(match), "client": match["client"] or None}, None)
    if "] \"" in message and (match := COMMON.match(message)) and match["month"] in MONTHS:
        stamp = Stamp(int(match["year"]), MONTHS[match["month"]], int(match["day"]), match["clock"], "", match["zone"])
        seconds = SECONDS.search(match["rest"])
        agent = match["agent"]
        more = {
            "client": None if match["client"] == "-" else match["client"],
            "bytes": None if match["bytes"] == "-" else int(match["bytes"]),
            "user_agent": None if agent in (None, "", "-") else agent,
            "seconds": None if seconds is None else float(seconds[1]),
        }
        return Access({**_request(match), **more}, stamp)
    return None


def of_head(head: log_heads.Head) -> Access | None:
    """The same of a line that was taken apart: one of JSON tells it in keys."""
    if head.request is not None:
        return Access({**head.request, "path": _path(str(head.request["path"]))}, None)
    return of(head.message) if '"' in head.message else None


def of_line(line: str) -> Access | None:
    """The request a whole line tells of, whatever stands before it."""
    return of_head(log_heads.split(log_heads.clean(line))) if '"' in line else None


def _request(match: re.Match[str]) -> dict[str, object]:
    return {"method": match["method"], "path": _path(match["target"]), "status": int(match["status"])}


def _path(target: str) -> str:
    """`http://host:8000/v1/x?token=…` -> `/v1/x`"""
    path = target.split("?", 1)[0].split("#", 1)[0]
    if "://" in path:
        path = "/" + path.split("://", 1)[1].partition("/")[2]
    return path[:500]
