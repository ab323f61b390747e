"""`ps` output with its header line (`ps aux`, `ps -ef`, any `-o` list) -> plain values.

      PID  PPID STAT %CPU   RSS ELAPSED COMMAND
    29677     1 Sl   11.6 631940    157 /opt/venv/bin/python3 /opt/venv/bin/vllm serve /models/tiny

Which columns there are is read from the header; what the command column is called differs by option.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

COMMANDS = ("COMMAND", "CMD", "ARGS")
THREAD_IDS = frozenset(("LWP", "TID", "SPID"))
OTHER_TOOLS = frozenset(("TIME+", "PRIO", "FD", "NODE", "DEVICE", "SHR", "NAME", "SWAPIN"))
"""Columns that only tools other than ps print beside PID and COMMAND."""
HEADING = re.compile(r"[%A-Z][%A-Z0-9_+-]*")
WEEKDAYS = frozenset(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"))
FOREST = re.compile(r"^[ |]*\\_ ")
LSTART = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}")
ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Process(NamedTuple):
    """One line; what the list has no column for is None."""

    line: int
    pid: int
    ppid: int | None
    state: str | None
    rss_bytes: int | None
    threads: int | None
    age_s: float | None
    uid: int | None
    command: str | None
    started: str | None = None
    """`Wed Jun 10 08:00:00 2026` (lstart), in the zone of whoever asked; other forms tell no date."""


def header(line: str) -> list[str] | None:
    """The columns, when this is the header line of a process list by ps."""
    names = line.split()
    if "PID" not in names or not any(name in COMMANDS for name in names) or OTHER_TOOLS.intersection(names):
        return None
    return names if all(HEADING.fullmatch(name) for name in names) else None


def is_list(head: str) -> bool:
    """A file that begins (a few lines of something else may come before) with a process list by ps."""
    lines = [line for line in head.splitlines() if line.strip()]
    for names, line in zip(map(header, lines[:8]), lines[1:], strict=False):
        if names is not None:
            return ((_cells(names, line) or {}).get("PID") or "").isdecimal()
    return False


def processes(lines: Iterable[tuple[int, str]]) -> Iterator[Process]:
    """Numbered lines -> processes. A header may come again (several lists in one file); lines that fit none are left out."""
    names: list[str] | None = None
    for number, line in lines:
        names = header(line) or names
        cells = _cells(names, line) if names is not None else None
        if cells is not None and cells.get("PID", "").isdecimal() and _is_process(cells):
            yield _process(number, cells)


def state(stat: str | None) -> str | None:
    """`Tl` -> `T`: only the first letter is the state."""
    return stat[0] if stat and stat[0].isalpha() else None


def seconds(elapsed: str | None) -> float | None:
    """`157`, `02:37`, `1-02:03:04` -> seconds."""
    if elapsed is None:
        return None
    if elapsed.isdecimal():
        return float(elapsed)
    found = ELAPSED.fullmatch(elapsed)
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _cells(names: Sequence[str], line: str) -> dict[str, str] | None:
    """Values by column; the command takes what the others leave, wherever its column is."""
    at = next(index for index, name in enumerate(names) if name in COMMANDS)
    left, rest = _take(names[:at], line)
    after = names[at + 1:]
    tail = rest.rsplit(None, len(after)) if after else [rest]
    if len(left) < at or len(tail) != len(after) + 1:
        return None
    return {**dict(zip(names[:at], left, strict=True)), **dict(zip(names[at:], tail, strict=True))}


def _take(names: Sequence[str], line: str) -> tuple[list[str], str]:
    """The cells of `names` from the left, and the rest. A start time with weekday (lstart) is five words."""
    taken, rest = [], line.lstrip()
    for name in names:
        words = 5 if name == "STARTED" and rest[:3] in WEEKDAYS else 1
        parts = rest.split(None, words)
        if len(parts) < words:
            break
        taken.append(" ".join(parts[:words]))
        rest = parts[words] if len(parts) > words else ""
    return taken, rest


def _is_process(cells: Mapping[str, str]) -> bool:
    """Not a thread of one (`ps -L`), not a kernel thread."""
    threads = [cells[name] for name in THREAD_IDS if name in cells]
    return all(tid == cells["PID"] for tid in threads) and cells["PID"] != "2" and cells.get("PPID") != "2"


def _process(number: int, cells: Mapping[str, str]) -> Process:
    command = FOREST.sub("", next(cells[name] for name in COMMANDS if name in cells)).strip()
    return Process(
        number, int(cells["PID"]), _number(cells.get("PPID")), state(cells.get("STAT") or cells.get("S")),
        _bytes(cells.get("RSS") or cells.get("RSZ")), _number(cells.get("NLWP") or cells.get("THCNT")),
        seconds(cells.get("ELAPSED")), _number(cells.get("UID")), command or None,
        started if (started := cells.get("STARTED", ""))[:3] in WEEKDAYS and LSTART.fullmatch(started) else None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _bytes(text: str | None) -> int | None:
    """Resident size in KiB, as ps counts; busybox may print `12m`."""
    if not text or not text.rstrip("kmgt").isdecimal():
        return None
    return int(text.rstrip("kmgt")) * UNITS.get(text[-1], 1 << 10)
