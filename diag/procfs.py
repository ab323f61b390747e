"""What Linux tells about other processes without touching them: read-only `/proc`, one function a fact.

Every function raises `Vanished` when the process or thread is gone and `Denied` when this user may not look. Nothing
here stops, signals or traces anyone.
"""

import datetime
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from diag.errors import BadInput, Denied, Garbled, Vanished

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
MAPS_BYTES = 4 << 20
"""How much of a process's memory map is searched for an embedded Python."""

OUTSIDE = frozenset((
    "init", "systemd", "systemd-run", "tini", "dumb-init", "catatonit", "docker-init", "s6-svscan", "s6-supervise", "runsv",
    "supervisord", "monit", "pm2", "containerd-shim", "containerd-shim-runc-v2", "containerd", "conmon", "runc", "crun",
    "docker", "dockerd", "podman", "kubelet", "bash", "sh", "dash", "zsh", "fish", "ksh", "ash", "busybox", "login", "su",
    "sudo", "runuser", "setpriv", "sshd", "sshd-session", "tmux", "tmux: server", "screen", "script", "cron", "crond", "atd",
    "slurmstepd", "raylet", "timeout", "nohup", "xargs", "make", "watch", "gdb", "strace",
))
"""Parents that start services but are no part of them."""

SERVICE_CHILD = re.compile(
    r"^\S+::(?!APIServer|http_se)|^VllmWorker|^multiprocessing\.(spawn|forkserver|resource_tracker|semaphore_tracker)|"
    r"^-c from multiprocessing\.(spawn|forkserver|resource_tracker|semaphore_tracker) |--multiprocessing-fork|"
    r"^gunicorn: worker|^mindie_llm_backend_connector|^text-generation-(router|server)"
)
"""Programs (see `program`) that only ever run below the process that answers for the service."""

SERVICE_PARENT = re.compile(
    r"^\S+::|^vllm( |$)|^vllm\.entrypoints|^sglang( |\.|$)|^(uvicorn|gunicorn|hypercorn|granian|daphne)\b|^torchrun\b|"
    r"^torch\.distributed\.(run|launch)|^(accelerate|deepspeed|mpirun|orterun|lmdeploy|trtllm-serve|tritonserver|aphrodite)\b|"
    r"^mindieservice_daemon|^text-generation-launcher|^dynamo[. -]"
)
"""Programs whose children are part of their service whatever they are called."""

PYTHON = re.compile(r"^python(\d+(\.\d+)*)?[a-z]*$")
_VALUE_OPTIONS = frozenset(("-W", "-X", "--check-hash-based-pycs"))


class Stat(NamedTuple):
    """`/proc/PID/stat`. Times are clock ticks, `start_ticks` since boot."""

    pid: int
    comm: str
    state: str
    ppid: int
    session: int
    user_ticks: int
    sys_ticks: int
    threads: int
    start_ticks: int
    rss_pages: int


class Identity(NamedTuple):
    """One life of one process: a pid is used again, the pair never is."""

    pid: int
    start_ticks: int


def read(path: str, limit: int = 1 << 20) -> bytes:
    """A file below /proc, whole up to `limit` bytes. Raises Vanished or Denied."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _named(error, path) from error
    try:
        data = os.read(descriptor, min(limit, 1 << 16))
        while len(data) < limit and (more := os.read(descriptor, min(limit - len(data), 1 << 16))):
            data += more
        return data
    except OSError as error:
        raise _named(error, path) from error
    finally:
        os.close(descriptor)


def place(pid: int, tid: int | None = None) -> str:
    """Folder of a process, or of one of its threads."""
    return f"/proc/{pid}" if tid is None else f"/proc/{pid}/task/{tid}"


def stat(pid: int, tid: int | None = None) -> Stat:
    return parse_stat(read(f"{place(pid, tid)}/stat").decode("utf-8", "replace"))


def parse_stat(text: str) -> Stat:
    """One stat line; the name in parentheses may hold spaces, parentheses and line ends. Raises Garbled."""
    head, _, tail = text.rpartition(")")
    pid, _, comm = head.partition("(")
    cells = tail.split()
    try:
        return Stat(
            int(pid), comm, cells[0], int(cells[1]), int(cells[3]), int(cells[11]), int(cells[12]), int(cells[17]),
            int(cells[19]), int(cells[21]),
        )
    except (ValueError, IndexError) as error:
        raise Garbled(f"not a stat line of /proc: {text[:80]!r}") from error


def status(pid: int, tid: int | None = None) -> Mapping[str, str]:
    """`Name: value` lines, values stripped."""
    return parse_status(read(f"{place(pid, tid)}/status").decode("utf-8", "replace"))


def parse_status(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def argv(pid: int) -> list[str]:
    """Command line; empty for zombies and kernel threads. A title set over it comes as one argument."""
    data = read(f"{place(pid)}/cmdline").rstrip(b"\0")
    return [part.decode("utf-8", "replace") for part in data.split(b"\0")] if data else []


def environ(pid: int) -> dict[str, str]:
    """Environment as it was when the program was started. Raw: redact before it goes anywhere."""
    pairs = (part.decode("utf-8", "replace").partition("=") for part in read(f"{place(pid)}/environ").split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def exe(pid: int) -> str:
    """Path of the executable, ` (deleted)` at the end when it was replaced. Raises Vanished for zombies."""
    return link(f"{place(pid)}/exe")


def link(path: str) -> str:
    """Where a link below /proc points: `socket:[123]` for a descriptor. Raises Vanished or Denied."""
    try:
        return os.readlink(path)  # noqa: PTH115 - read many times a second while sampling
    except OSError as error:
        raise _named(error, path) from error


def memory(pid: int, address: int, size: int) -> bytes:
    """A few bytes of a process's memory, read beside it: nothing stops. Fewer when not mapped; raises Vanished or Denied."""
    path = f"{place(pid)}/mem"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _named(error, path) from error
    try:
        return os.pread(descriptor, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(descriptor)


def tids(pid: int) -> list[int]:
    """Threads of a process, main thread first."""
    return sorted(_numbers(f"{place(pid)}/task"), key=lambda tid: (tid != pid, tid))


def shows_descriptors(pid: int) -> bool:
    """May this user see what the descriptors of a process are? True for one that has ended: nothing is hidden then."""
    try:
        for number in _numbers(f"{place(pid)}/fd"):
            link(f"{place(pid)}/fd/{number}")  # the folder can often be listed where its links cannot be read
            break
    except Denied:
        return False
    except Vanished:
        return True
    return True


def pids() -> list[int]:
    """All processes this user can see."""
    return sorted(_numbers("/proc"))


@functools.cache
def boot_s() -> int:
    """Boot time in epoch seconds, as the kernel states it."""
    for line in read("/proc/stat", 16 << 20).splitlines():
        if line.startswith(b"btime "):
            return int(line.split()[1])
    raise Garbled("/proc/stat has no btime line")


def started_s(start_ticks: int) -> float:
    """Start in clock ticks since boot -> epoch seconds."""
    return round(boot_s() + start_ticks / TICKS_PER_S, 2)


def started_at(pid: int) -> datetime.datetime:
    """When the process was started (UTC, without zone)."""
    return utc(started_s(stat(pid).start_ticks))


def utc(epoch_s: float) -> datetime.datetime:
    """Epoch seconds -> UTC without zone, as the evidence tables have it."""
    return datetime.datetime.fromtimestamp(epoch_s, datetime.UTC).replace(tzinfo=None)


def identity(pid: int) -> Identity:
    return Identity(pid, stat(pid).start_ticks)


def is_same(known: Identity) -> bool:
    """Is this still the process it was? False when it ended, also if its pid is in use again."""
    try:
        return identity(known.pid) == known
    except Vanished:
        return False


def leader(pid_or_tid: int) -> int:
    """The process a thread id belongs to; a pid is its own. Raises Vanished."""
    return int(status(pid_or_tid)["Tgid"])


def existing(pid_or_tid: int) -> int:
    """The process that a person named. Raises Vanished, which says what to do."""
    try:
        return leader(pid_or_tid)
    except Vanished as error:
        raise Vanished(f"there is no process {pid_or_tid}", hint="ps -ef shows what runs; a service that was restarted has a new pid") from error


def is_python(pid: int) -> bool:
    """A CPython process, by its executable or a libpython it has mapped. Raises Vanished or Denied."""
    name = exe(pid).removesuffix(" (deleted)").rpartition("/")[2]
    return bool(PYTHON.match(name)) or b"libpython" in read(f"{place(pid)}/maps", MAPS_BYTES)


def program(words: Sequence[str]) -> str:
    """What a command line runs: `vllm serve /models/x …`, `vllm.entrypoints.api_server …`, `-c code`, a title.

    The interpreter, its options and folders are left out, so that a pattern can be anchored at the start.
    """
    if not words:
        return ""
    name = words[0] if "::" in words[0] else _base(words[0])
    rest = list(words[1:])
    if not PYTHON.match(name):
        return " ".join([name, *rest])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-c":
            return " ".join(["-c", *rest])
        if option == "-m" and rest:
            return " ".join(rest)
        if option in _VALUE_OPTIONS and rest:
            rest.pop(0)
    return " ".join([_base(rest[0]), *rest[1:]]) if rest else name


def is_kernel_thread(pid: int) -> bool:
    """Has it no memory of its own, though it lives, and is it a child of the kernel's? Raises Vanished."""
    facts = status(pid)
    return "VmSize" not in facts and facts.get("State", "Z")[:1] not in ("Z", "X") and facts.get("PPid") in ("0", "2")


def service_root(pid: int) -> int:
    """The process that answers for the service `pid` belongs to: for a Worker its API server, else `pid` itself.

    Climbs while the process is by its name a part of something (engine core, worker, multiprocessing child, a copy
    of its parent that was never exec'ed) and the parent is no shell, init, container shim or supervisor. A thread id
    is taken for its process. Raises Vanished when there is no such process.
    """
    current = existing(pid)
    if is_kernel_thread(current):
        raise BadInput(f"pid {pid} is a kernel thread: it belongs to no service", hint="ps -ef shows the service's own processes")
    face = _face(current)
    for _ in range(64):
        try:
            parent = _face(face.ppid) if face.ppid > 0 else None
        except (Vanished, Denied):
            break
        if parent is None or not _is_part_of(face, parent):
            break
        current, face = face.ppid, parent
    return current


def tree(root: int) -> list[int]:
    """`root` and everything below it, parents before children; llmdiag itself is left out. Raises Vanished."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        try:
            children.setdefault(stat(pid).ppid, []).append(pid)
        except (Vanished, Denied, Garbled):
            continue
    stat(root)
    return list(_below(root, children))


def trees(roots: Sequence[int]) -> list[int]:
    """All of several trees, those that are gone left out. Raises Vanished when none is left."""
    found: dict[int, None] = {}
    gone: Vanished | None = None
    for root in roots:
        try:
            found |= dict.fromkeys(tree(root))
        except Vanished as error:
            gone = error
    if not found and gone is not None:
        raise gone
    return list(found)


def _below(root: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    waiting, own = [root], os.getpid()
    while waiting:
        pid = waiting.pop(0)
        yield pid
        waiting += [child for child in children.get(pid, ()) if child != own]


class _Face(NamedTuple):
    """What is needed to tell whether a process is part of its parent's service."""

    comm: str
    ppid: int
    exe: str | None
    program: str
    command: str


def _face(pid: int) -> _Face:
    facts, words = stat(pid), argv(pid)
    path: str | None
    try:
        path = exe(pid)
    except (Vanished, Denied):
        path = None
    return _Face(facts.comm, facts.ppid, path, program(words), " ".join(words))


def _is_part_of(child: _Face, parent: _Face) -> bool:
    if _base(parent.program.partition(" ")[0]) in OUTSIDE or parent.comm in OUTSIDE:
        return False
    if SERVICE_PARENT.match(parent.program):
        return True
    known = child.exe is not None and parent.exe is not None
    same_program = child.exe == parent.exe if known else child.comm.split(":")[0] == parent.comm.split(":")[0]
    never_execed = child.command == parent.command
    return same_program and (never_execed or bool(SERVICE_CHILD.search(child.program or child.comm)))


def _base(path: str) -> str:
    return path.rpartition("/")[2] if path.startswith(("/", ".", "~")) or "/" in path.partition(" ")[0] else path


def _numbers(folder: str) -> Iterator[int]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - Path.iterdir builds a Path per thread: ten times slower
    except OSError as error:
        raise _named(error, folder) from error
    return (int(name) for name in names if name.isdecimal())


def _named(error: OSError, path: str) -> Vanished | Denied:
    if isinstance(error, PermissionError):
        return Denied(f"{path}: {error.strerror}", hint="run llmdiag as the user of that process with CAP_SYS_PTRACE, or as root")
    return Vanished(f"{Path(path).parent} went away while it was read ({error.strerror})")


__all__ = [
    "Identity", "Stat", "argv", "boot_s", "environ", "exe", "existing", "identity", "is_python", "is_same", "leader", "link",
    "memory", "parse_stat", "parse_status", "pids", "place", "program", "read", "service_root", "shows_descriptors", "started_at", "started_s",
    "stat", "status", "tids", "tree", "trees", "utc",
]
