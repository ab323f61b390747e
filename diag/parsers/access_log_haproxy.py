"""HAProxy's HTTP log -> http_events, with how long each request waited and how it ended.

    … haproxy[14389]: 10.0.1.2:33317 [06/Feb/2026:12:14:14.655] api vllm/gpu-1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "POST /v1/x HTTP/1.1"

The five times are: until the request was whole, in the queue, to connect, to the first byte of the answer, in all (ms, -1 =
not reached). The flags say who ended it and when: `cD` the client's patience, `sH` the server's timeout, `SC` refused,
`sQ` patience in the queue, `CD` the client left. It is logged when it ends, so its time is the beginning plus all of it.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator

from diag.model import Row
from diag.parsers.event_rows import Said
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import MONTHS, Stamp

LINE = re.compile(
    r"(?:^|\s)(?P<client>[\da-fA-F.:]+|unix):\d+ \[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<clock>\d\d:\d\d:\d\d)\.(?P<fraction>\d{3})\] "
    r"(?P<front>\S+) (?P<backend>[^/\s]+)/(?P<server>\S+) (?P<times>(?:-?\d{1,10}/){4}\+?-?\d{1,10}) (?P<status>-?\d{1,3}) \+?(?P<bytes>\d{1,15}) "
    r"\S+ \S+ (?P<flags>[\w-]{4}) (?:\d+/){4}\+?\d+ (?P<server_queue>\d{1,9})/(?P<queue>\d{1,9})(?: \{(?P<headers>[^}]*)\})?(?: \{[^}]*\})? "
    r'"(?P<method>[A-Z]{3,8}|<BADREQ>) ?(?P<target>[^" ]*)'
)
AGENT = re.compile(r"(?:^|\|)(?P<agent>[\w.-]+/[\d.][^|]*)")


def looks_like_haproxy(head: str) -> bool:
    """Are most of the first lines HAProxy's? (Its start and stop notices stand between them.)"""
    lines = [line for line in head.splitlines() if line.strip()][:50]
    return bool(lines) and sum(LINE.search(line) is not None for line in lines) >= max(1, 0.5 * len(lines))


def rows(lines: Iterable[tuple[int, str]], at: Callable[[int], str], said: Said, clock: Clock) -> Iterator[Row]:
    """Lines -> http_events; lines of TCP listeners and notices are left out."""
    for number, line in lines:
        match = LINE.search(line) if '"' in line else None
        if match is None or match["month"] not in MONTHS:
            continue
        begun = clock.utc(Stamp(int(match["year"]), MONTHS[match["month"]], int(match["day"]), match["clock"], match["fraction"], None))
        _, queue_s, _, answer_s, all_s = (_seconds(part) for part in match["times"].split("/"))
        ts = begun if begun is None or all_s is None else begun + datetime.timedelta(seconds=all_s)
        said.seen(ts)
        status, agent = int(match["status"]), AGENT.search(match["headers"] or "")
        yield "http_events", {
            "ts": ts, "dated": True, "origin": "haproxy", "method": None if match["method"] == "<BADREQ>" else match["method"],
            "path": match["target"].split("?", 1)[0][:500] or None, "status": None if status < 100 else status, "client": match["client"],
            "seconds": all_s, "bytes": int(match["bytes"]), "user_agent": agent["agent"][:300] if agent else None,
            "backend": None if match["server"].startswith("<") else f"{match['backend']}/{match['server']}", "ended": match["flags"],
            "queue_s": queue_s, "first_byte_s": answer_s, "queued": int(match["server_queue"]) + int(match["queue"]), "source": at(number),
        }  # fmt: skip


def _seconds(text: str) -> float | None:
    """-1 = that stage was not reached."""
    number = int(text.lstrip("+"))
    return None if number < 0 else number / 1000
