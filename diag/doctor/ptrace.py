"""May the memory of other processes be read? Capability, Yama, user, namespaces and seccomp; whether it works, `stacks` tries."""

import os
from collections.abc import Iterator

from diag import procfs
from diag.doctor.ground import Check, Ground, has, is_contained, is_mapped
from diag.errors import CollectorError

ORDER = 20
CAPABILITY = "CAP_SYS_PTRACE"
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
FORBIDDEN, CHILDREN = 3, 1
FILTERED = "2"


def check(ground: Ground) -> Iterator[Check]:
    """One line, with all that was looked at."""
    yama, capable = scope(), has(CAPABILITY)
    where = f"uid {os.geteuid()}, {'has' if capable else 'without'} {CAPABILITY}, {_yama(yama)}{_confined()}"
    if yama == FORBIDDEN:
        yield Check("ptrace", False, f"Yama forbids it to everybody until the next boot ({where})", "grep -rn ptrace_scope /etc/sysctl.d /etc/sysctl.conf    # set it to 1 there, then reboot")
    elif not capable and yama is not None and yama >= CHILDREN:
        yield Check("ptrace", False, f"Yama allows it with {CAPABILITY} only ({where})", ground.with_rights(CAPABILITY))
    elif not capable and (other := _other_user(ground.pid)) is not None:
        yield Check("ptrace", False, f"pid {ground.pid} belongs to uid {other} ({where})", ground.with_rights(CAPABILITY))
    else:
        yield Check("ptrace", True, f"{'processes of all users' if capable else f'processes of uid {os.geteuid()} only'} ({where})")


def scope() -> int | None:
    """Yama's ptrace_scope; None = no Yama in this kernel."""
    try:
        return int(procfs.read(YAMA))
    except (CollectorError, ValueError):
        return None


def _yama(value: int | None) -> str:
    return "no Yama" if value is None else f"ptrace_scope {value}"


def _confined() -> str:
    filtered = procfs.status(os.getpid()).get("Seccomp") == FILTERED
    found = {"in a container": is_contained(), "in a user namespace": is_mapped(), "seccomp filter": filtered}
    return "".join(f", {name}" for name, so in found.items() if so)


def _other_user(pid: int | None) -> int | None:
    """The user of the target, when it is another one."""
    if pid is None:
        return None
    uid = int(procfs.status(pid)["Uid"].split()[0])
    return None if uid == os.geteuid() else uid
