"""nginx's access log (combined, with or without times after it) -> http_events; 499 = the client left before the answer.

    10.0.0.9 - - [30/Nov/2026:02:52:45 +0000] "POST /v1/x HTTP/1.1" 499 0 "-" "curl/8.5" 45.002
    10.0.0.9 - - [30/Nov/2026:02:52:45 +0000] "POST /v1/x HTTP/1.1" 200 91 "-" "curl/8.5" rt=1.204 uct="0.001" uht="0.400" urt="1.203" ua="10.0.0.7:8000"
    10.0.0.9 - - [30/Nov/2026:02:52:45 +0000] "POST /v1/x HTTP/1.1" 200 91 "-" "curl/8.5" 812 1.204 [llm-8000] [] 10.0.0.7:8000 91 1.203 200 4f6e   ingress
"""

import re
from collections.abc import Callable, Iterable, Iterator

from diag.model import Row
from diag.parsers import log_access
from diag.parsers.event_rows import Said
from diag.parsers.log_clock import Clock

NGINX = re.compile(r'^\S+ - \S.*? \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "')
LINE = re.compile(r'\S+ - \S.*? \[\d\d/[A-Z][a-z]{2}/\d{4}:[^\]]+\] ".*$')
INGRESS = re.compile(r"^ ?\d+ (?P<all>\d+\.\d+) \[[^\]]*\] \[[^\]]*\] (?P<backend>\S+) \S+ (?P<first>\S+) \S+ \S+\s*$")
TOTAL = re.compile(r'\b(?:rt|request_time|req_time)[=:]"?(\d+\.\d+)')
FIRST = re.compile(r'\b(?:uht|upstream_header_time)[=:]"?(\d+\.\d+)')
BACKEND = re.compile(r'(?:\b(?:ua|us|upstream|upstream_addr)[=:]"?|\s)(?P<backend>\d+\.\d+\.\d+\.\d+:\d+|unix:\S+)')
LEFT = 499


def looks_like_nginx(head: str) -> bool:
    """Are nearly all of the first lines in the combined format, with nginx's two dashes or a user name?"""
    lines = [line for line in head.splitlines() if line.strip()][:50]
    return bool(lines) and sum(NGINX.match(line) is not None for line in lines) >= 0.8 * len(lines)


def rows(lines: Iterable[tuple[int, str]], at: Callable[[int], str], said: Said, clock: Clock) -> Iterator[Row]:
    """Lines -> http_events; what is no access line is left out."""
    for number, line in lines:
        found = LINE.search(line)
        access = log_access.of(found.group()) if found is not None else None
        if access is None or access.stamp is None:
            continue
        ts = clock.utc(access.stamp)
        said.seen(ts)
        match = log_access.COMMON.match(found.group()) if found is not None else None
        rest = match["rest"] if match is not None else ""
        yield "http_events", {
            **access.row, **_times(rest), "ts": ts, "dated": True, "origin": "nginx",
            "ended": "client left" if access.row["status"] == LEFT else None, "source": at(number),
        }  # fmt: skip


def _times(rest: str) -> dict[str, object]:
    """What stands after the user agent: seconds in all and until the first byte, and who answered."""
    if match := INGRESS.match(rest):
        backend = match["backend"]
        return {"seconds": float(match["all"]), "backend": None if backend == "-" else backend}
    total, first, backend_of = TOTAL.search(rest), FIRST.search(rest), BACKEND.search(rest)
    plain = log_access.SECONDS.search(rest)
    seconds = float(total[1]) if total else float(plain[1]) if plain else None
    return {
        "seconds": seconds, "first_byte_s": float(first[1]) if first else None, "backend": backend_of["backend"] if backend_of else None,
    }  # fmt: skip
