"""What was found, and the error where it is not one service."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diag import procfs
from diag.errors import BadInput, CollectorError
from diag.redact import Redactor

MOST_SHOWN = 10
MOST_CHARS = 100


@dataclass(frozen=True)
class Found:
    """`pids`: one or more processes of the service, whose trees are all of it. `says`: how they were found."""

    pids: tuple[int, ...]
    says: str

    @property
    def named(self) -> str:
        """`pid 4121, vllm serve (listens on port 8000)`: the service first, then how it was found."""
        how, found, whose = self.says.partition(": pid ")
        return f"pid {whose} ({how})" if found else self.says


def one_service(pids: Iterable[int], says: str) -> Found:
    """The service that these processes belong to. Raises BadInput, which lists them, when they belong to several."""
    found = roots(pids)
    if len(found) > 1:
        raise BadInput(f"{len(found)} services fit, not one ({says})", hint=f"name one of them: llmdiag snapshot PID\n{listed(found)}")
    return Found(tuple(found), f"{says}: {told(found[0])}")


def all_of(pids: Iterable[int], says: str) -> Found:
    """Whatever runs in a unit or container belongs together, be it several services. Raises Vanished."""
    found = roots(pids)
    return Found(tuple(found), f"{says}: {'; '.join(map(told, found))}")


def roots(pids: Iterable[int]) -> list[int]:
    """The processes that answer for the services of these, without those that run below another of them. Raises Vanished."""
    tops = list(dict.fromkeys(procfs.service_root(pid) for pid in pids))
    below = {pid for top in tops for pid in procfs.tree(top) if pid != top}
    return [top for top in tops if top not in below]


def past_wrappers(pid: int) -> list[int]:
    """What runs below init, shells and supervisors that only start a service; the process itself when nothing does."""
    try:
        if not _is_wrapper(pid):
            return [pid]
        children = [child for child in procfs.tree(pid) if procfs.stat(child).ppid == pid]
    except CollectorError:
        return [pid]
    return [deeper for child in children for deeper in past_wrappers(child)] or [pid]


def told(pid: int) -> str:
    """`pid 4121, vllm serve /models/x`: secrets in arguments masked."""
    try:
        command = " ".join(Redactor().argv(procfs.program(procfs.argv(pid)).split())) or procfs.stat(pid).comm
    except CollectorError:
        command = "gone meanwhile"
    return f"pid {pid}, {command if len(command) <= MOST_CHARS else command[:MOST_CHARS] + '…'}"


def listed(pids: Sequence[int]) -> str:
    """Indented lines, one a process."""
    lines = [f"    {told(pid)}" for pid in pids[:MOST_SHOWN]]
    more = len(pids) - MOST_SHOWN
    return "\n".join([*lines, *([f"    and {more} more"] if more > 0 else [])])


def _is_wrapper(pid: int) -> bool:
    name = procfs.program(procfs.argv(pid)).partition(" ")[0]
    return name in procfs.OUTSIDE or procfs.stat(pid).comm in procfs.OUTSIDE
