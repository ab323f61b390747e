"""What each process of the service is there for: by its title where that says so, else by what its threads run.

A forked process keeps its parent's frames below its own, so the innermost telling frame of a stack is the one that counts.
Stacks and sockets are used where they are there; a title needs neither.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from diag.looks import Look, looks
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("processes",)
WANTS = ("stacks", "sockets")
GIVES: tuple[Table, ...] = (
    table(
        "process_roles",
        "One row per process: what it is there for, and what says so",
        "pid BIGINT: process", "ppid BIGINT: its parent", "started_at TIMESTAMP: start of the process",
        "role VARCHAR: api_server engine_core worker scheduler detokenizer router cache_server manager watchdog other",
        "said_by VARCHAR: title | stack | nothing",
        "cmd VARCHAR: command line or title, redacted",
        "state VARCHAR: R S D T t Z X at the last read",
    ),
)

PROCESS = ["bundle", "host", "capture", "pid", "started_at"]
READ = [*PROCESS, "ppid", "state", "source", "role", "cmd"]
TELLING: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("engine_core", re.compile(r"(^|/)vllm/v1/engine/core\.py$")),
    ("worker", re.compile(r"(^|/)vllm/(\w+/)*executor/\w+\.py:(worker_busy_loop|_run_worker_process)$")),
    ("scheduler", re.compile(r"(^|/)sglang/srt/managers/scheduler\.py$")),
    ("detokenizer", re.compile(r"(^|/)sglang/srt/managers/detokenizer_manager\.py$")),
    ("api_server", re.compile(r"(^|/)(uvicorn|hypercorn|gunicorn)/(\w+/)*\w+\.py$|(^|/)aiohttp/web(_\w+)?\.py$")),
    ("api_server", re.compile(r"(^|/)(http/server|wsgiref/\w+|grpc/_server|grpc/aio/_server)\.py$|(^|/)grpc/_cython/(\w+/)*server\.pyx")),
)
"""File (or file:function) of a frame -> role. Where threads of a process tell different roles, the first of this list is it."""
RANKS = tuple(dict.fromkeys(role for role, _ in TELLING))

SERVES = re.compile(r"(^|/)(uvloop/\w+|asyncio/(base_events|runners)|socketserver|tornado/(ioloop|platform/\w+)|trio/_core/_run)\.py$")
"""An event loop or server that waits: in the main thread of a process with a port that listens, it answers requests."""


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """processes (+ stacks, sockets) -> process_roles."""
    import pandas as pd

    rows = frames["processes"]
    if rows.empty:
        return {}
    stacks = _by_stack(looks(frames.get("stacks")), frames.get("sockets"))
    ordered = rows.sort_values("read", kind="stable", na_position="first")
    reads: dict[Identity, list[tuple[object, ...]]] = {}
    for read in zip(*(ordered[name] for name in READ), strict=True):
        reads.setdefault(_identity(read[: len(PROCESS)]), []).append(read)
    return {"process_roles": pd.DataFrame([_row(who, found, stacks) for who, found in reads.items()])}


Identity = tuple[object, ...]
Said = tuple[str, str]
"""Role, and the source of what says so."""


def _row(who: Identity, reads: list[tuple[object, ...]], stacks: Mapping[Identity, Said]) -> dict[str, object]:
    """Reads of one process (columns READ), first to last -> what it is."""
    *process, ppid, state, source, _, _ = reads[-1]
    titles = [role for *_, role, _ in reads if isinstance(role, str) and role != "other"]
    commands = [cmd for *_, cmd in reads if isinstance(cmd, str)]
    row = dict(zip(PROCESS, process, strict=True)) | {"ppid": ppid, "state": state, "source": source, "cmd": commands[-1] if commands else None}
    if titles:
        return {**row, "role": titles[-1], "said_by": "title"}
    found = stacks.get(who) or stacks.get((*who[:-1], None))
    if found is None:
        return {**row, "role": "other", "said_by": "nothing"}
    return {**row, "role": found[0], "said_by": "stack", "source": found[1]}


def _by_stack(seen: Sequence[Look], sockets: "pd.DataFrame | None") -> dict[Identity, Said]:
    """Process -> role that its stacks tell, and the frame that says so."""
    whole = [look for look in seen if look.whole is not False]
    roles: dict[Identity, Said] = {}
    for who, role, source in _innermost(whole, _told):
        if who not in roles or RANKS.index(role) < RANKS.index(roles[who][0]):
            roles[who] = (role, source)
    ports = _listening(sockets)
    main = [look for look in whole if (look.tid is not None and look.tid == look.pid) or look.thread == "MainThread"]  # metrics have threads of their own
    for who, role, source in _innermost(main, _serves):
        if who[:-1] in ports:
            roles.setdefault(who, (role, source))
    return roles


def _innermost(seen: Sequence[Look], tell: Callable[[str, str], str | None]) -> Iterator[tuple[Identity, str, str]]:
    """Process, role and source of the innermost frame of each stack that tells a role; those whose frame lies innermost first."""
    told = {look.packed: _first(look, tell) for look in {look.packed: look for look in seen}.values()}
    telling = [(found, look) for look in seen if (found := told[look.packed]) is not None]
    for (depth, role), look in sorted(telling, key=lambda item: item[0][0]):
        yield (look.bundle, look.host, look.capture, look.pid, look.started_at), role, look.source(depth)


def _first(look: Look, tell: Callable[[str, str], str | None]) -> tuple[int, str] | None:
    return next(((depth, role) for depth, frame in enumerate(look.stack) if (role := tell(frame.file, frame.func)) is not None), None)


def _told(file: str, func: str) -> str | None:
    return next((role for role, pattern in TELLING if pattern.search(file) or pattern.search(f"{file}:{func}")), None)


def _serves(file: str, _func: str) -> str | None:
    return "api_server" if SERVES.search(file) else None


def _listening(sockets: "pd.DataFrame | None") -> set[Identity]:
    """Processes with a TCP port that listens."""
    if sockets is None or sockets.empty:
        return set()
    rows = sockets[(sockets["state"] == "LISTEN") & sockets["lport"].notna()]
    return {_identity(process) for process in zip(*(rows[name] for name in PROCESS[:-1]), strict=True)}


def _identity(cells: "Iterable[object]") -> Identity:
    """Values that make two rows the same process; missing ones are None, whatever pandas has for them."""
    import pandas as pd

    return tuple(None if pd.isna(cell) else cell for cell in cells)  # type: ignore[call-overload]
