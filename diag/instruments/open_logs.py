"""Log files that a process holds open for writing, for services whose stdout and stderr tell nothing.

A file counts as a log when its name says so (`engine.log`, `nohup.out`, `server_log.2`) and it holds text, or when it is
appended to or called `.txt` or `.jsonl` and its end reads like a log. Only /proc and the files themselves are read:

    /proc/29677/fd/3 -> /var/log/vllm/engine.log      /proc/29677/fdinfo/3: flags: 02102001 (write, append)
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diag import procfs
from diag.errors import CollectorError
from diag.parsers import engine_log

MAX_DESCRIPTORS = 10_000
"""Of one process; a server with more connections than that is searched in part."""
TAIL_BYTES = 64 << 10

NAMED = re.compile(r"(?:\.(?:log|out|err)|(?<![a-z])(?:logs?|stdout|stderr))(?![a-z])", re.I)
TEXTS = (".txt", ".jsonl")
DATA = (".aof", ".rdb")
"""Appended to, and no logs: the data of a cache server."""
NO_DISK = ("/dev/", "/proc/", "/sys/", "/memfd:")
LIBRARY = re.compile(r"/\.cache/|(?<![a-z])(?:nccl|flashinfer)(?![a-z])", re.I)
DELETED = " (deleted)"


class OpenLog(NamedTuple):
    """A log and how it can be opened; `of_library` = it tells of one library (NCCL, a kernel cache), not of the service."""

    opens: Path
    shown: str
    facts: os.stat_result
    of_library: bool


def held(pid: int) -> Iterator[OpenLog]:
    """Logs that `pid` holds open, by descriptor; none where that may not be seen. One that may not be read is told by its name."""
    for number in _descriptors(pid):
        opens = Path(f"/proc/{pid}/fd/{number}")
        try:
            shown = procfs.link(str(opens))
            if not shown.startswith("/") or shown.startswith(NO_DISK):
                continue
            facts, flags = opens.stat(), _flags(pid, number)
        except (CollectorError, OSError):
            continue
        if stat.S_ISREG(facts.st_mode) and flags & os.O_ACCMODE != os.O_RDONLY and _is_log(opens, shown, facts.st_size, flags):
            yield OpenLog(opens, shown, facts, LIBRARY.search(shown) is not None)


def _descriptors(pid: int) -> list[int]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - numbers, not places
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())[:MAX_DESCRIPTORS]


def _flags(pid: int, number: int) -> int:
    """How the descriptor was opened; 0 = to be read only, or not told."""
    lines = procfs.read(f"/proc/{pid}/fdinfo/{number}").decode("ascii", "replace")
    found = re.search(r"^flags:\s*([0-7]+)", lines, re.M)
    return int(found[1], 8) if found is not None else 0


def _is_log(opens: Path, shown: str, size: int, flags: int) -> bool:
    name = shown.removesuffix(DELETED).rpartition("/")[2]
    if name.lower().endswith(DATA):
        return False
    is_named = NAMED.search(name) is not None
    if not is_named and not flags & os.O_APPEND and not name.lower().endswith(TEXTS):
        return False
    try:
        with opens.open("rb") as stream:
            stream.seek(max(0, size - TAIL_BYTES))
            tail = stream.read(TAIL_BYTES)
    except OSError:
        return is_named
    if b"\0" in tail:
        return False
    text = tail.decode("utf-8", "replace")
    if is_named:
        return text.count("\ufffd") <= len(text) // 20
    last = "\n".join(text.splitlines()[-50:])
    return engine_log.looks_like_log(last, least=1)
