"""Recordings of perf: `perf report --stdio` and `perf script`: where CPU time goes, per function.

    # Samples: 4K of event 'cpu-clock'
    # Overhead  Command  Shared Object         Symbol
    # ........  .......  ....................  ...................................
        94.43%  python   libz.so.1.2.13        [.] crc32_z

and of `perf script` one block per sample, innermost function first:

    python 15391/15403  4089.621093: cpu-clock:
                    3e64 crc32_z (/usr/lib/x86_64-linux-gnu/libz.so.1.2.13)
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from diag.model import Row
from diag.tables import Table, table

HOT_FUNCTIONS = table(
    "hot_functions",
    "Functions by their share of all samples that perf took, innermost frame only",
    "pid BIGINT: process id as the host sees it; NULL = the recording does not say",
    "started_at TIMESTAMP: start of the process; identity is (host, pid, started_at); NULL = the pid is not known",
    "tid BIGINT: thread id as the host sees it; NULL = the report is of all threads",
    "comm VARCHAR: kernel name of the thread or process; NULL = the report does not show it",
    "func VARCHAR: function, or address where perf knows no name",
    "object VARCHAR: shared object; NULL = the report does not show it",
    "share_pct DOUBLE: share of all samples of the recording",
    "samples BIGINT: samples; NULL = the report does not show them",
    "event VARCHAR: what was sampled; NULL = the report does not show it",
)

REPORT_HEAD = re.compile(r"^# *(Overhead|Children) ")
DOTS = re.compile(r"^# *\.+( +\.+)*\s*$")
EVENT = re.compile(r"^# Samples: .* of events? '(.+)'")
SAMPLE = re.compile(
    r"^(?P<comm>\S.*?)\s+(?:(?P<pid>\d{1,10})/\s*)?(?P<tid>\d{1,10})\s+(?:\[\d+\]\s+)?(?P<time>\d+\.\d+):\s+(?:\d+\s+)?(?P<event>\S.*?):\s*"
    r"(?P<inline>[0-9a-f]+ .*)?$"
)
STACK = re.compile(r"^\s+([0-9a-f]+) (.+?) \((.*)\)\s*$")
_SYMBOL = re.compile(r"^\[\S\] ")
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")


def report_rows(lines: Iterable[tuple[int, str]], source: Callable[[int], str], pid: int | None = None) -> Iterator[Row]:
    """Lines of `perf report --stdio` -> rows of hot_functions. Callers below a row (`--12%--foo`) are passed over."""
    names: list[str] = []
    head, event = "", None
    for number, line in lines:
        if (match := EVENT.match(line)) is not None:
            event, names = match[1], []
        elif REPORT_HEAD.match(line):
            head = line
        elif head and DOTS.match(line):
            names = _column_names(head, line)
        elif names and re.match(r"^ +\d+\.\d+%", line):
            cells = _cells(line, len(names))
            row = _report_row(dict(zip(names, cells, strict=True)), pid) if len(cells) == len(names) else {}
            if row.get("share_pct"):
                yield "hot_functions", {**row, "event": event, "source": source(number)}


def script_rows(lines: Iterable[tuple[int, str]], source: Callable[[int], str], pid: int | None = None) -> Iterator[Row]:
    """Lines of `perf script` -> rows of hot_functions, most sampled first."""
    counts: Counter[tuple[int | None, int, str, str, str, str | None]] = Counter()
    places: dict[object, int] = {}
    sample: re.Match[str] | None = None
    for number, line in lines:
        if (match := SAMPLE.match(line)) is not None:
            sample = match
            if match["inline"]:
                line = "  " + match["inline"]
        if sample is None or (leaf := STACK.match(line)) is None:
            continue
        address, symbol, shared = leaf[1], _OFFSET.sub("", leaf[2]), leaf[3].rpartition("/")[2]
        process = pid if sample["pid"] is None else int(sample["pid"])
        func = f"0x{address}" if symbol == "[unknown]" else symbol
        key = (process, int(sample["tid"]), sample["comm"], sample["event"], func, _object(shared))
        counts[key] += 1
        places.setdefault(key, number)
        sample = None
    for key, hits in counts.most_common():
        process, tid, comm, event, func, shared_object = key
        yield "hot_functions", {
            "pid": process, "tid": tid, "comm": comm, "func": func, "object": shared_object, "samples": hits, "event": event,
            "share_pct": round(100.0 * hits / counts.total(), 3), "source": source(places[key]),
        }


def is_report(head: str) -> bool:
    """The beginning of `perf report --stdio`?"""
    lines = head.splitlines()
    return any(REPORT_HEAD.match(line) for line in lines) and any(DOTS.match(line) for line in lines)


def script_lines(lines: Iterable[str]) -> Iterator[bool]:
    """For each line that is not blank: is it part of `perf script` output?"""
    inside = False
    for line in lines:
        if line.strip():
            starts = SAMPLE.match(line) is not None
            inside = starts or (inside and STACK.match(line) is not None)
            yield inside


def _column_names(head: str, dots: str) -> list[str]:
    """Names above the dotted line, which shows where each column is."""
    spans = [match.span() for match in re.finditer(r"\.+", dots)]
    ends = [start for start, _ in spans[1:]] + [len(head) + 1]
    return [head[start:end].strip() for (start, _), end in zip(spans, ends, strict=True)]


def _cells(line: str, columns: int) -> list[str]:
    """Cells are padded apart by two spaces or more; the last one, the symbol, may hold anything."""
    return re.split(r"\s{2,}", line.strip(), maxsplit=columns - 1)


def _report_row(cells: dict[str, str], pid: int | None) -> dict[str, object]:
    share = re.fullmatch(r"(\d{1,3}\.\d{1,9})%", cells.get("Self", cells.get("Overhead", "")))
    numbered = re.match(r"^(\d{1,10}):(.*)$", cells.get("Pid:Command", ""))
    samples = cells.get("Samples", "")
    return {
        "pid": int(numbered[1]) if numbered else pid, "comm": numbered[2] if numbered else cells.get("Command"),
        "func": _SYMBOL.sub("", cells["Symbol"]).strip() if "Symbol" in cells else None, "object": _object(cells.get("Shared Object")),
        "share_pct": float(share[1]) if share else None, "samples": int(samples) if samples.isdecimal() and len(samples) < 16 else None,
    }


def _object(shared: str | None) -> str | None:
    return None if shared is None or shared.startswith("[unknown]") else shared


TABLES: tuple[Table, ...] = (HOT_FUNCTIONS,)
