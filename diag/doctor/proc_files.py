"""The files of /proc that not everybody may read, tried: system calls, kernel stacks, memory, scheduler counters."""

from collections.abc import Iterator

from diag import procfs
from diag.doctor.ground import Check, Ground
from diag.errors import CollectorError, Denied

ORDER = 40
WORD_BYTES = 8


def check(ground: Ground) -> Iterator[Check]:
    """What each of them tells stands in its line."""
    yield _file(ground, "syscall", "what a waiting thread waits for", "CAP_SYS_PTRACE")
    yield _file(ground, "stack", "where in the kernel a thread sleeps", "CAP_SYS_ADMIN")
    yield _memory(ground)
    yield _schedstat()


def _file(ground: Ground, name: str, tells: str, capability: str) -> Check:
    try:
        procfs.read(f"{procfs.place(ground.subject)}/{name}")
    except Denied as error:
        return Check(name, False, f"{error.message}: {tells} stays unknown", ground.with_rights(capability))
    except CollectorError:
        return Check(name, None, f"this kernel has no /proc/PID/{name}: {tells} stays unknown")
    return Check(name, True, f"readable: {tells}")


def _memory(ground: Ground) -> Check:
    tells = "who holds a lock"
    try:
        mapped = procfs.read(f"{procfs.place(ground.subject)}/maps", 4096).split(b"-")[0]
        found = procfs.memory(ground.subject, int(mapped or b"0", 16), WORD_BYTES)
    except Denied as error:
        return Check("memory", False, f"{error.message}: {tells} stays unknown", ground.with_rights("CAP_SYS_PTRACE"))
    except (CollectorError, ValueError):
        found = b""
    if len(found) < WORD_BYTES:
        return Check("memory", False, f"/proc/PID/mem of {ground.whose} gives nothing: {tells} stays unknown", ground.with_rights("CAP_SYS_PTRACE"))
    return Check("memory", True, f"readable: {tells}")


def _schedstat() -> Check:
    tells = "a spinning thread is told from a waiting one"
    try:
        cells = procfs.read("/proc/self/schedstat").split()
    except CollectorError:
        cells = []
    if cells and int(cells[0]) > 0:
        return Check("schedstat", True, f"counted: {tells}")
    return Check("schedstat", None, "this kernel keeps no run-queue times (CONFIG_SCHED_INFO): CPU time alone has to tell who spins")
