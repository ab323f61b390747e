"""What py-spy's error output means: every failure has the same exit code, so its words and a look at /proc decide."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diag.parsers.stack_dumps import Failure

AS_ROOT = "run llmdiag as root, or as the owner of the process with CAP_SYS_PTRACE"
IN_CONTAINER = (
    "start the container with --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add), or run llmdiag as root on "
    "the host against the host's pid"
)
RETRY = frozenset(("torn",))
"""Kinds that another try may heal."""

_NOISE = re.compile(r"^\s*(\d+: |at |note: )|^(Stack backtrace|stack backtrace|Caused by):?\s*$")
_CAUSE = re.compile(r"^\s+(?:\d+: )?(?P<cause>.+)$")


@dataclass(frozen=True)
class Probe:
    """What /proc says of the process right after the failure; None where it was not asked."""

    exists: bool | None = None
    state: str | None = None
    tracer_pid: int | None = None
    parent_pid: int | None = None


def without_backtrace(lines: Iterable[str]) -> list[str]:
    """Error lines without what RUST_BACKTRACE=1 adds."""
    kept: list[str] = []
    for line in lines:
        if line.strip().lower().startswith("stack backtrace"):
            break
        if not line.startswith("note: ") and line.strip():
            kept.append(line.rstrip())
    return kept


def classify(error: str, probe: Probe | None = None) -> Failure:
    """Error output, and what /proc says -> what happened and what to do about it."""
    probe = probe or Probe()
    if probe.exists is False:
        return Failure("ended", "the process ended", "")
    if probe.state == "Z":
        parent = f"its parent, pid {probe.parent_pid}," if probe.parent_pid else "its parent"
        return Failure("zombie", "the process is a zombie: it has ended and has no stacks any more", f"{parent} must reap it")
    lines = without_backtrace(error.splitlines())
    text = "\n".join(lines)
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, text, re.IGNORECASE):
            return meaning(probe)
    return Failure("unknown", f"py-spy failed: {_summary(lines)}", "run py-spy dump --json --nonblocking on this pid by hand")


def _summary(lines: list[str]) -> str:
    """First line and last cause."""
    if not lines:
        return "without a word"
    causes = [match["cause"] for match in map(_CAUSE.match, lines[1:]) if match]
    return lines[0].removeprefix("Error: ") + (f" ({causes[-1]})" if causes else "")


def _eperm(probe: Probe) -> Failure:
    if probe.tracer_pid:
        return Failure(
            "traced", f"the process is already traced by pid {probe.tracer_pid}",
            "detach that tracer, or read it with py-spy dump --nonblocking",
        )
    return Failure(
        "traced", "the process could not be suspended: it is traced already, or ptrace is forbidden here",
        f"read it with py-spy dump --nonblocking, or {IN_CONTAINER}",
    )


def _not_found(probe: Probe) -> Failure:
    if probe.exists:
        return Failure("unknown", "py-spy could not open the process although it exists", AS_ROOT)
    return Failure("ended", "there was no such process (or it was a zombie) when the dump was taken", "look for the pid of the new process")


def _always(kind: str, reason: str, remedy: str) -> Callable[[Probe], Failure]:
    failure = Failure(kind, reason, remedy)
    return lambda probe: failure


_MEANINGS: tuple[tuple[str, Callable[[Probe], Failure]], ...] = (
    (r"running in a docker container|SYS_PTRACE capability", _always("denied", "py-spy may not trace inside this container", IN_CONTAINER)),
    (r"^Permission Denied: Try running again", _always("denied", "py-spy may not read this process (other user, or protected)", AS_ROOT)),
    (
        r"Permission denied \(os error 13\)",
        _always("denied", "py-spy may not read this process (CAP_SYS_PTRACE is missing)", f"{AS_ROOT}; in a container {IN_CONTAINER}"),
    ),
    (
        r"unexpected waitpid result.*SIGSTOP|WaitStatus.*Stopped",
        _always(
            "stopped", "the process is stopped (state T), which a blocking dump cannot read",
            "read it as it is with py-spy dump --nonblocking; kill -CONT lets it go on",
        ),
    ),
    (
        r"--nonblocking option",
        _always("usage", "native stacks cannot be read without stopping the process", "dump again with either --native or --nonblocking"),
    ),
    (
        r"UNW_E[A-Z]+|Failed to initialize unwinder|unwind",
        _always("native", "the native part of the stacks could not be unwound (common on aarch64)", "dump again without --native"),
    ),
    (
        r"Unsupported version of Python",
        _always("too new", "this py-spy does not know the Python version of the process", "install a newer py-spy: pip install -U py-spy"),
    ),
    (r"No such process \(os error 3\)|ESRCH", _always("ended", "the process ended while it was read", "look for the pid of the new process")),
    (r"No such file or directory \(os error 2\)", _not_found),
    (r"EPERM|Operation not permitted", _eperm),
    (
        r"Failed to find python version",
        _always("not python", "py-spy finds no Python in this process", "if it is a Python service, install a newer py-spy: pip install -U py-spy"),
    ),
    (
        r"Bad address|os error 14|Failed to copy|Failed to find a python interpreter|recursion depth|invalid utf|Input/output error",
        _always("torn", "the process changed while it was read", "it is busy, not hung; try again, or allow a short pause with --allow-pause"),
    ),
    (
        r"Broken pipe",
        _always("cut", "the output of py-spy was cut off", "write it to a file: py-spy dump --json --nonblocking --pid PID > FILE"),
    ),
    (
        r"panicked at|invalid pid|USAGE|Usage:",
        _always("usage", "py-spy was called in a way it does not understand", "py-spy dump --json --nonblocking --pid PID"),
    ),
)
