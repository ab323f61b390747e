"""supervisord's own log -> how programs ended, who asked for it, and when they were started again.

    2026-01-01 00:00:00,123 INFO spawned: 'vllm' with pid 123
    2026-01-01 00:00:00,123 WARN exited: vllm (terminated by SIGKILL; not expected)         by itself; started again: supervisord
    2026-01-01 00:00:00,123 INFO waiting for vllm to stop                                   somebody asked (supervisorctl, XML-RPC)
    2026-01-01 00:00:00,123 WARN stopped: vllm (terminated by SIGTERM)
"""

import re
from collections.abc import Callable, Iterable, Iterator

from diag.parsers.event_rows import Event, Said, signal_of
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import Stamp

ASKED, AUTO, GAVE_UP, STOP_TIMEOUT = "supervisorctl", "supervisord", "supervisord (gave up)", "supervisord (stop timeout)"
MARKS = ("INFO spawned: '", "INFO waiting for ", "INFO success: ", "INFO stopped: ")
"""One of these stands in every log of supervisord that tells of a program."""
LINE = re.compile(r"(?P<date>\d{4}-\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d),(?P<fraction>\d{3}) (?P<level>[A-Z]{4}) (?P<message>.+)$")
MESSAGE = re.compile(
    r"^(?:spawned: '(?P<spawned>[^']+)' with pid (?P<pid>\d{1,10})"
    r"|exited: (?P<exited>\S+) \((?P<exit>exit status \d{1,3}|terminated by SIG\w+)[^;]*(?:; (?P<expected>not expected|expected))?\)"
    r"|stopped: (?P<stopped>\S+) \((?P<stop>exit status \d{1,3}|terminated by SIG\w+)[^)]*\)"
    r"|success: (?P<success>\S+) entered RUNNING state"
    r"|gave up: (?P<gave_up>\S+) entered FATAL state"
    r"|killing '(?P<killed>[^']+)' \((?P<killed_pid>\d{1,10})\) with SIG(?P<signal>\w+)"
    r"|waiting for (?P<waiting>.+?) to (?:stop|die)"
    r"|(?P<own>received SIG\w+ indicating (?:exit|restart) request|supervisord started with pid \d+))"
)
ENDED = re.compile(r"exit status (?P<status>\d+)|terminated by SIG(?P<signal>\w+)")


def looks_like_supervisord(head: str) -> bool:
    """Are most of the first lines supervisord's?"""
    lines = [line for line in head.splitlines() if line.strip()][:20]
    known = [match for line in lines if (match := LINE.search(line)) is not None]
    return len(known) >= 0.8 * len(lines) and any(MESSAGE.match(match["message"]) for match in known)


def events(lines: Iterable[tuple[int, str]], at: Callable[[int], str], said: Said, clock: Clock) -> Iterator[Event]:
    """Lines -> events in order; what others print between them is left out."""
    died: set[str] = set()
    asked: set[str] = set()
    for number, line in lines:
        found = LINE.search(line)
        match = MESSAGE.match(found["message"]) if found is not None else None
        if found is None or match is None:
            continue
        date = found["date"]
        ts = clock.utc(Stamp(int(date[:4]), int(date[5:7]), int(date[8:]), found["clock"], found["fraction"], None))
        said.seen(ts)
        for event in _events(match, died, asked):
            event.source, event.ts, event.detail = at(number), ts, found["message"]
            yield event


def _events(match: re.Match[str], died: set[str], asked: set[str]) -> Iterator[Event]:
    """`died`: ended by themselves and not started since; `asked`: somebody wants them to stop."""
    def event(kind: str, unit: str, initiator: str | None = None, *, code: int | None = None, pid: str | None = None) -> Event:
        return Event("", kind, "", None, unit, initiator, None if pid is None else int(pid), code)

    groups = match.groupdict()
    if unit := groups["spawned"]:
        by_itself, wanted = unit in died, unit in asked
        died.discard(unit)
        asked.discard(unit)
        if by_itself:
            yield event("restart", unit, AUTO)
        yield event("start", unit, AUTO if by_itself else ASKED if wanted else None, pid=groups["pid"])
    elif unit := groups["exited"]:
        died.add(unit)
        yield event("exit", unit, code=_code(groups["exit"]))
    elif unit := groups["stopped"]:
        asked.add(unit)
        yield event("exit", unit, ASKED, code=_code(groups["stop"]))
        yield event("stop", unit, ASKED)
    elif unit := groups["gave_up"]:
        died.discard(unit)
        yield event("stop", unit, GAVE_UP)
    elif unit := groups["killed"]:
        yield event("killing", unit, STOP_TIMEOUT, code=signal_of(groups["signal"]), pid=groups["killed_pid"])
    elif groups["waiting"]:
        for name in groups["waiting"].split(", "):
            if name not in asked:
                asked.add(name)
                yield event("killing", name, ASKED)
    elif groups["own"]:
        kind = "start" if groups["own"].startswith("supervisord") else "killing"
        yield event(kind, "supervisord")


def _code(text: str | None) -> int | None:
    found = ENDED.search(text or "")
    if found is None:
        return None
    if found["status"] is not None:
        return int(found["status"])
    number = signal_of(found["signal"])
    return None if number is None else 128 + number
