"""What a check is given, and what it says."""

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diag import procfs
from diag.collectors.gpu import HOST_PIDS
from diag.errors import CollectorError

CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYSLOG": 34}
"""Bits in /proc/PID/status (linux/capability.h)."""
WHOLE_RANGE = 4294967295
"""Length of the one line of uid_map where no user namespace was made."""


@dataclass(frozen=True)
class Check:
    """One line. `ok`: True, False = something is missing, None = not there and not needed, or it cannot be told.

    `fix` is a command to run, "" where there is nothing to do.
    """

    name: str
    ok: bool | None
    says: str
    fix: str = ""


@dataclass(frozen=True)
class Ground:
    """Where to look. `pid`: the service that was asked for; `own`: a sleeping Python child of llmdiag."""

    pid: int | None
    own: int
    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def subject(self) -> int:
        """Whom rights are tried on."""
        return self.own if self.pid is None else self.pid

    @property
    def whose(self) -> str:
        return "an own child" if self.pid is None else f"pid {self.pid}"

    def with_rights(self, capability: str) -> str:
        """The command that has this capability, as exact as it can be: in a container only who starts it can give it."""
        target = "PID" if self.pid is None else str(self.pid)
        if has(capability):
            return "sudo llmdiag snapshot PID    # on the host: the process has rights, or a namespace, that are not ours here"
        if "KUBERNETES_SERVICE_HOST" in self.environment:
            return "kubectl debug -it POD --image=IMAGE --target=CONTAINER --profile=sysadmin -- llmdiag snapshot PID"
        if is_contained() or os.geteuid() == 0:
            return f"docker run --cap-add {capability.removeprefix('CAP_')} …    # or on the host: sudo llmdiag snapshot PID"
        return f'sudo env "PATH=$PATH" {shlex.quote(shutil.which("llmdiag") or "llmdiag")} snapshot {target}'


def has(capability: str) -> bool:
    """Is it in effect for llmdiag itself?"""
    return bool(int(procfs.status(os.getpid()).get("CapEff", "0"), 16) >> CAPABILITIES[capability] & 1)


def is_contained() -> bool:
    """Not in the PID namespace that every Linux starts with."""
    try:
        return procfs.link("/proc/self/ns/pid") != HOST_PIDS
    except CollectorError:
        return True


def is_mapped() -> bool:
    """In a user namespace: root of it is nobody outside."""
    try:
        cells = procfs.read("/proc/self/uid_map").split()
    except CollectorError:
        return False
    return [int(cell) for cell in cells] != [0, 0, WHOLE_RANGE]
