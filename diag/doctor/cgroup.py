"""Limits of memory and CPU, and who was killed for the first: the cgroup of the service, v1 or v2."""

from collections.abc import Iterator

from diag import procfs
from diag.doctor.ground import Check, Ground
from diag.errors import CollectorError
from diag.parsers import cgroups

ORDER = 50
EVENTS = {True: "memory.oom_control", False: "memory.events"}
"""Where kills are counted: v1, v2."""


def check(ground: Ground) -> Iterator[Check]:
    """The file with the kills is read; the others lie beside it."""
    pid = ground.subject
    try:
        groups = cgroups.places(procfs.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace"), procfs.read("/proc/self/mountinfo").decode("utf-8", "replace"))
    except CollectorError as error:
        yield Check("cgroup", False, f"{error.message}: limits and kills stay unknown", ground.with_rights("CAP_SYS_PTRACE"))
        return
    group = groups.get("memory")
    if group is None:
        yield Check("cgroup", False, "no cgroup file system is mounted here: limits and kills stay unknown", "docker run -v /sys/fs/cgroup:/sys/fs/cgroup:ro …")
        return
    file = group.mount / group.path.lstrip("/") / EVENTS[group.is_v1]
    version = "v1" if group.is_v1 else "v2"
    try:
        procfs.read(str(file))
    except CollectorError:
        if group.path == "/":
            yield Check("cgroup", True, f"{version}, the root group: it has no limits, and kills are in the kernel log")
        else:
            yield Check("cgroup", False, f"{version}, {file} cannot be read: limits and kills stay unknown", "sudo llmdiag snapshot PID    # on the host")
        return
    yield Check("cgroup", True, f"{version}, {file.name} is readable: limits, throttling, kills")
