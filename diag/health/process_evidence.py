"""What the processes of a local engine do meanwhile: state, CPU time, and whether the main thread leaves its stack.

Nothing is stopped for it: /proc is read, and py-spy looks without pausing anybody. The main thread stands for a process,
as the loops of EngineCore, Worker and Scheduler run there. Its stack is cut at the first function that only waits: a
process that polls for work shows other lines every time, and has left nothing.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence

from diag import procfs
from diag.errors import Absent, CollectorError, Denied, Garbled, Vanished
from diag.health.listening import listeners
from diag.health.proof import ENGINE_ROLES, Look, ProcessEvidence, ProcessSeen
from diag.instruments import dumper
from diag.instruments.stack_sampler import Sampler, Taken
from diag.live import Locals
from diag.parsers.process_titles import SERVES, SPAWNED, role
from diag.parsers.pyspy import JsonFrame, JsonThread

STACKS_S = 4.0
"""Patience with the stacks of one look."""
MAX_STACKS = 64
MAX_LOOKS = 400
"""Kept while watching: what is older says nothing about now."""
WAITS = re.compile(
    r"(acquire_(read|write)|dequeue|enqueue|recv\w*|poll|select|epoll|wait\w*|sleep|sched_yield|get|get_nowait|get_input|get_output|"
    r"join|accept|read|readinto|acquire|result|run_until_complete|run_forever|process_input_queue_block|_process_input_queue)"
)
"""Functions in which a process waits for work or for somebody else, by the last part of their names."""


class Watch:
    """Looks at the service that `pid` belongs to. `close` ends what runs in the background."""

    def __init__(self, pid: int, *, stacks: bool = True, port: int | None = None) -> None:
        """`port`: where the backend of these processes listens on this machine; None = not on a port of it."""
        self.notes: list[str] = []
        self._port = port
        self._target: procfs.Identity | None = None
        self._root: procfs.Identity | None = None
        self._known: dict[procfs.Identity, str] = {}
        self._looks: list[Look] = []
        self._sampler: Sampler | None = None
        self._sampled: frozenset[procfs.Identity] = frozenset()
        self._sample = 0
        self._program = self._py_spy() if stacks else None
        try:
            self._target = procfs.identity(pid)
            self._root = procfs.identity(procfs.service_root(pid))
        except Vanished:
            self.notes.append(f"there is no process {pid}, and this run has not seen one: that proves nothing; give --pid of a process that lives")

    def look(self, patience_s: float = STACKS_S) -> None:
        """One look now; stacks that do not come within `patience_s` are left out."""
        ts, monotonic_s = time.time(), time.monotonic()
        found = self._now()
        stacks = self._stacks([who for who in found if found[who] in ENGINE_ROLES], monotonic_s + patience_s)
        owners = listeners(self._port, [who.pid for who in found])
        seen = [item for who, part in found.items() if (item := _seen(who, part, stacks.get(who.pid), owners.get(who.pid))) is not None]
        self._looks = [*self._looks, Look(tuple(seen), ts, monotonic_s)][-MAX_LOOKS:]

    def evidence(self) -> ProcessEvidence:
        """All looks so far."""
        return ProcessEvidence(tuple(self._looks), gone=_is_gone(self._target))

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def _py_spy(self) -> str | None:
        try:
            return dumper.executable()
        except Absent as error:
            self.notes.append(f"no stacks: {error.message}")
            return None

    def _now(self) -> Mapping[procfs.Identity, str]:
        """Processes of the service and their roles: those of the tree now, and those seen before that live on without it."""
        if self._root is None:
            return {}
        try:
            below = [procfs.identity(pid) for pid in procfs.tree(self._root.pid)] if procfs.is_same(self._root) else []
        except CollectorError:
            below = []
        for who in below:
            if who not in self._known:
                self._known[who] = self._role(who.pid)
        return {who: part for who, part in self._known.items() if procfs.is_same(who)}

    def _role(self, pid: int) -> str:
        """By its title; a nameless child of a part of the engine is a worker."""
        try:
            words, stat = procfs.argv(pid), procfs.stat(pid)
        except (Vanished, Denied, Garbled):
            return "other"
        part = role(" ".join(words), stat.comm)
        if part == "other" and SPAWNED.search(procfs.program(words)):
            parents = {known.pid: of for known, of in self._known.items()}
            return "worker" if parents.get(stat.ppid) in SERVES else "other"
        return part

    def _stacks(self, engine: Sequence[procfs.Identity], until: float) -> Mapping[int, str]:
        """pid -> what its main thread does, of those that could be read in time."""
        wanted = frozenset(engine[:MAX_STACKS])
        if self._program is None or not wanted:
            return {}
        if self._sampler is None or wanted != self._sampled:
            self.close()
            self._sampler, self._sampled = Sampler(self._program, wanted, Locals.OFF), wanted
        self._sample += 1
        self._sampler.ask(self._sample, last=False)
        self._sampler.wait(until)
        taken = [item for item in self._sampler.results() if item.sample == self._sample]
        self._note(taken)
        return {item.pid: text for item in taken if (text := _main_stack(item.pid, item.threads)) is not None}

    def _note(self, taken: Iterable[Taken]) -> None:
        for item in taken:
            if item.failure is not None and item.failure.kind not in ("ended", "torn", "behind"):
                text = f"no stack of process {item.pid}: {item.failure.reason}"
                if text not in self.notes:
                    self.notes.append(text)


def stack_text(frames: Iterable[JsonFrame]) -> str:
    """Frames, innermost first -> functions from the outermost one to the first that only waits."""
    names = []
    for frame in reversed(list(frames)):
        names.append(f"{frame.name} ({frame.short_filename or frame.filename})")
        if WAITS.fullmatch(frame.name.rpartition(".")[2]):
            return " > ".join(names)
    if names:
        names[-1] += f":{next(iter(frames)).line}"
    return " > ".join(names)


def _main_stack(pid: int, threads: Sequence[JsonThread]) -> str | None:
    """None where the main thread was not read whole."""
    main = next((thread for thread in threads if thread.os_thread_id == pid or thread.thread_name == "MainThread"), None)
    return None if main is None or main.torn or not main.frames else stack_text(main.frames)


def _seen(who: procfs.Identity, part: str, stack: str | None, listens: bool | None) -> ProcessSeen | None:
    try:
        stat = procfs.stat(who.pid)
        cpu_s = _cpu_s(who.pid, stat)
    except (Vanished, Denied, Garbled):
        return None
    return ProcessSeen(who.pid, part, stat.state, procfs.started_s(who.start_ticks), cpu_s, stack, listens)


def _cpu_s(pid: int, stat: procfs.Stat) -> float:
    """By the scheduler's counters of its threads; by the coarser ticks where the kernel keeps none, or threads ended."""
    ticks_s = (stat.user_ticks + stat.sys_ticks) / procfs.TICKS_PER_S
    try:
        ran_ns = sum(int(procfs.read(f"{procfs.place(pid, tid)}/schedstat", 256).split()[0]) for tid in procfs.tids(pid))
    except (Vanished, Denied, ValueError, IndexError):
        return ticks_s
    return max(ticks_s, ran_ns / 1e9)


def _is_gone(target: procfs.Identity | None) -> bool:
    """It ended: it was seen, and is no more, has another one with its pid, or is a zombie that nobody has collected."""
    if target is None:
        return False
    if not procfs.is_same(target):
        return True
    try:
        return procfs.stat(target.pid).state in ("Z", "X")
    except (Vanished, Garbled):
        return True
