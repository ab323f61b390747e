"""What the live collector knew of the logs it copied: `index.json` beside `0-server.log`, `1-vllm.service.journal`, …

    {"artefact":"logs","logs":[{"n":0,"kind":"file","file":"/var/log/vllm/server.log","mtime":1796007298.3, …}]}
"""

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from diag.errors import BadInput, Garbled
from diag.model import Artefact
from diag.parsers.bounds import Count, Epoch
from diag.parsers.engine_log import Origin
from diag.parsers.log_clock import zone_of

INDEX = "index.json"


class Log(msgspec.Struct, omit_defaults=True):
    """One log; `n` is the number its artefact's name begins with. Times are epoch seconds; `zone` None = not known."""

    n: Count
    kind: str
    file: str
    collected_at: Epoch
    mtime: Epoch | None = None
    inode: int | None = None
    size: int | None = None
    cut: bool = False
    pids: list[Count] = []
    roles: dict[int, str] = {}
    ns_pids: dict[int, Count] = {}
    zone: str | None = None
    offset: str | None = None
    """Of that zone at the time of collection, as `+0100`: for machines that do not know the zone."""


class _Index(msgspec.Struct):
    artefact: str
    logs: list[Log]


def as_json(logs: Sequence[Log]) -> object:
    """Plain values for `door.json`."""
    return msgspec.to_builtins(_Index("logs", list(logs)), str_keys=True)


def read(artefact: Artefact) -> Iterator[tuple[tuple[str, str], Log]]:
    """((folder, number), log) of each log. Raises Garbled when it is damaged."""
    try:
        index = msgspec.json.decode(artefact.bytes(), type=_Index)
    except msgspec.MsgspecError as error:
        raise Garbled(f"{artefact.path} is not an index of logs: {error}", hint="give the log files without it") from error
    folder = artefact.path.rpartition("/")[0]
    for log in index.logs:
        yield (folder, str(log.n)), log


def zone(log: Log | None) -> str | None:
    """What completes the times of a log: its zone, else its offset; None = has to be assumed."""
    for name in () if log is None else (log.zone, log.offset):
        with contextlib.suppress(BadInput):
            if name is not None:
                zone_of(name)
                return name
    return None


def origin(artefact: Artefact, log: Log | None) -> Origin:
    """What the parser may know of a log; None = a loose file, of which nothing is known."""
    if log is None:
        return Origin(artefact.path, artefact.at)
    return Origin(log.file, artefact.at, log.pids, log.roles, log.ns_pids, log.mtime, log.collected_at, log.cut)
