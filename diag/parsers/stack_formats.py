"""Which tool wrote a saved file of stacks, system calls or hot functions, and which process its name tells."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from diag.parsers import engine_log, faulthandler, gdb_bt, perf, pyspy, pystack, strace
from diag.parsers.log_prefix import without_prefix

HEAD_LINES = 400
SHARE = 0.3
"""Of its first lines so many must belong to the format, unless the first one already does."""

Marks = Callable[[Iterable[str]], Iterator[bool]]
Anchor = Callable[[str], object]


def _py_spy_anchor(line: str) -> object:
    return pyspy.THREAD.match(line) or (pyspy.ERROR.match(line) and _SAYS_PY_SPY.search(line)) or pyspy.PYTHON.match(line)


_SAYS_PY_SPY = re.compile(
    r"^\s*(Error: (Failed to (get|find|suspend|create|copy|lock|open)|Unsupported version of Python|No such process|Bad address|"
    r"Permission denied|Operation not permitted|EPERM|ESRCH|Broken pipe)|Permission Denied: Try running)"
)

# format -> (is this line one that only this format has?, which lines belong to it?)
_TEXTS: Mapping[str, tuple[Anchor, Marks]] = {
    "py-spy": (_py_spy_anchor, pyspy.stack_lines),
    "faulthandler": (faulthandler.THREAD.match, faulthandler.stack_lines),
    "pystack": (lambda line: pystack.THREAD.match(line) or pystack.FAILED.match(line), pystack.stack_lines),
    "gdb": (lambda line: gdb_bt.THREAD.match(line) or gdb_bt.TRACEBACK.match(line) or line.startswith("#0 "), gdb_bt.stack_lines),
    "strace": (lambda line: next(strace.trace_lines([line]), False), strace.trace_lines),
    "perf script": (perf.SAMPLE.match, perf.script_lines),
}
_DATED = re.compile(r"(?<!\d)20\d\d[-_.]?\d\d[-_.]?\d\d(?:[T_-]?\d\d[-_.:]?\d\d(?:[-_.:]?\d\d)?)?Z?(?!\d)")
_PIDS = (
    re.compile(r"(?i:(?<![a-z])pid)[-_.=]?(\d{1,7})(?!\d)"),  # hang.pid-7.txt
    re.compile(r"^[A-Za-z][A-Za-z_-]*?[-_.](\d{3,7})(?=\D|$)"),  # pyspy-30484-1.json, stacks_30484.txt - but not pyspy-1.txt, the first of several
    re.compile(r"^[A-Za-z][A-Za-z_-]*?[-_.](\d{1,7})[-_.]\d+(?=\D|$)"),  # pyspy-88-1.json
)
_ALONE = re.compile(r"(?<![A-Za-z0-9])[1-9]\d{2,6}(?![A-Za-z0-9])")
"""4121.faulthandler, worker-tp0-4121.txt: the only number of its kind."""


def format_of(name: str, head: str) -> str | None:
    """`py-spy json`, one of the text formats, or None: by content; a name alone convinces nobody."""
    if pyspy.looks_like_json(head) or (head.strip() == "[]" and "spy" in name):
        return "py-spy json"
    if perf.is_report(head):
        return "perf report"
    if engine_log.looks_like_log(head):
        return None  # a dump inside an engine's log stays part of that log: log_dumps reads it there
    lines = [line for line in head.splitlines()[:HEAD_LINES] if line.strip()]
    for found, (anchor, marks) in _TEXTS.items():
        if any(anchor(without_prefix(line)) for line in lines):
            belongs = list(marks(lines))
            if belongs[0] or sum(belongs) >= SHARE * len(belongs):
                return found
    return None


def pid_in(name: str) -> int | None:
    """The process that a file name tells, if it does; dates and times in it are none."""
    bare = _DATED.sub("", name)
    told = next((int(match[1]) for pattern in _PIDS if (match := pattern.search(bare)) is not None), None)
    alone = set(_ALONE.findall(bare))
    return told if told is not None or len(alone) != 1 else int(alone.pop())


def order_in(path: str) -> tuple[object, ...]:
    """Sorts `pyspy-7-2` before `pyspy-7-10`; files that differ only in their ending are equal."""
    stem = PurePosixPath(path).with_suffix("").as_posix()
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", stem))
