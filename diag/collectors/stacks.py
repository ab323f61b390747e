"""What every Python thread is doing: its stack, several times over the window, and the keys a busy one holds.

Taken with `py-spy dump --json --nonblocking`, which stops nobody. Local variables are read in the first and the last
sample only, of processes with a busy thread only, and by default only texts that look like cache keys are kept. One
artefact per process and sample, `30339-00.json`, and `dumps.jsonl`, which says what became of every dump:

    {"artefact":"stacks","read":0,"ts":1796007298.3,"tool":"py-spy","version":"0.4.3","pid":30339,"started":1796007241.2,
     "threads":[{"thread_id":140354071295680,"thread_name":"MainThread","os_thread_id":30339,"active":false,"owns_gil":false,
       "frames":[{"name":"Condition.wait","filename":"/usr/local/lib/python3.11/threading.py","line":327}, ...]}]}

Saved output of py-spy (text, JSON), faulthandler, pystack, gdb, strace and perf is read too. A process that is not
Python has no Python stacks: that is no gap in the evidence.
"""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from diag import procfs
from diag.bundle import Door
from diag.errors import Absent, CollectorError, Denied, Garbled, TimedOut, Vanished
from diag.instruments import dumper, ptrace_guard
from diag.instruments.stack_sampler import Pause, Sampler, Taken
from diag.live import Collecting, Locals, Options, Patient
from diag.model import Artefact, Row
from diag.parsers import pyspy, stack_artefacts
from diag.parsers.key_texts import looks_like_key, text_of
from diag.parsers.pyspy import JsonFrame, JsonThread
from diag.parsers.stack_artefacts import Attempt, OneSample
from diag.parsers.stack_dumps import Failure
from diag.parsers.stack_formats import format_of
from diag.redact import Redactor
from diag.tables import Table

NAME = "stacks"
FEEDS = ("stack_frames", "stack_locals", "stack_dumps")
NEEDS: tuple[str, ...] = ()
BESIDE = ("logs",)
"""Logs in which an engine's watchdog wrote dumps."""
BUDGET_S = 15.0
BUDGET_BYTES = 96 << 20
HINT = "llmdiag snapshot {pid}"

FINISH_S, FINISH_PER_PROCESS_S, RESERVE_S = 2.5, 0.75, 1.2
"""Patience with the last sample, after the window; and where earlier ones hold what it is for."""
BEAT_PATIENCE_S = 0.005
"""How long artefacts are written at one beat."""

TABLES: tuple[Table, ...] = stack_artefacts.TABLES

_ERRORS: dict[str, type[CollectorError]] = {
    "denied": Denied, "traced": Denied, "guarded": Denied, "ended": Vanished, "zombie": Vanished, "timeout": TimedOut, "behind": TimedOut,
    "too new": Absent, "not python": Absent,
}


def collect(patient: Patient, door: Door) -> Collecting:
    """Samples at the beats that ask for one; the last is waited for after the window."""
    run = _Run(door, patient.options)
    processes = run.pythons(patient.pids)
    if processes:
        program = dumper.executable()
        run.version = dumper.version(program)
        sampler = Sampler(program, processes, patient.options.locals, allow_pause=patient.options.allow_pause)
        try:
            while True:
                tick = yield
                if tick.sample is not None:
                    sampler.ask(tick.sample, last=tick.last)
                    run.asked += 1
                run.take_in(sampler, BEAT_PATIENCE_S)
                if tick.last:
                    break
            patience_s = RESERVE_S if sampler.has_reserve() else FINISH_S
            sampler.wait(time.monotonic() + patience_s + FINISH_PER_PROCESS_S * (len(processes) - 1))
            run.take_in(sampler, float("inf"))
            run.take_native(sampler)
        finally:
            # Ctrl-C comes here too: what there is is kept, and nobody is left stopped
            sampler.close()
            run.take_in(sampler, float("inf"))
            run.watch_paused()
            run.write_index()
        run.hot = set(sampler.hot())
    else:
        run.write_index()
    run.conclude(patient)


def recognise(name: str, head: bytes) -> bool:
    """Saved stacks, strace or perf output, or an artefact of this collector."""
    return certain(name, head) or format_of(name, head.decode("utf-8", "replace")) is not None


def certain(name: str, head: bytes) -> bool:
    """JSON of py-spy or of this collector: nothing else begins like it."""
    text = head.decode("utf-8", "replace")
    return text.startswith((stack_artefacts.SAMPLE_HEAD, stack_artefacts.INDEX_HEAD)) or pyspy.looks_like_json(text)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Artefacts -> rows. Dumps without a sample number are numbered per process in the order of their names."""
    return stack_artefacts.rows_of(artefacts)


@dataclass
class _Run:
    """What one live collection has seen of its processes."""

    door: Door
    options: Options
    version: str | None = None
    asked: int = 0
    good: dict[int, int] = field(default_factory=dict)
    with_locals: set[int] = field(default_factory=set)
    hot: set[int] = field(default_factory=set)
    failures: dict[int, Failure] = field(default_factory=dict)
    starts: dict[int, float] = field(default_factory=dict)
    index: list[Attempt] = field(default_factory=list)
    waiting: deque[Taken] = field(default_factory=deque)
    paused: list[tuple[Pause, float]] = field(default_factory=list)

    def pythons(self, pids: Iterable[int]) -> list[procfs.Identity]:
        """The processes that have Python stacks; what the others are is written down."""
        found = []
        for pid in pids:
            try:
                process = procfs.identity(pid)
                self.starts[pid] = procfs.started_s(process.start_ticks)
                if _may_be_python(pid):
                    found.append(process)
                else:
                    self._not_read(pid, Failure("not python", "not a Python process: it has no Python stacks", ""))
            except Vanished:
                self._not_read(pid, _gone(pid))
            except Denied as error:
                self._not_read(pid, Failure("denied", error.message, error.hint))
        return found

    def take_in(self, sampler: Sampler, patience_s: float) -> None:
        """Write what has come in, and look after processes that a dump had stopped.

        Within the window no longer than a moment: redaction takes its time, and other collectors wait.
        """
        self.waiting.extend(sampler.results())
        until = time.monotonic() + patience_s
        while self.waiting and time.monotonic() < until:
            self._write(self.waiting.popleft())
        while not sampler.pauses.empty():
            pause = sampler.pauses.get()
            self.door.side_effect("pause_ms", round(pause.seconds * 1000, 1))
            self.paused.append((pause, time.monotonic() + ptrace_guard.WATCH_S))
        self._repair()

    def watch_paused(self) -> None:
        """What was stopped is watched for some seconds: a stop may go off late."""
        while self.paused:
            self._repair()
            time.sleep(0.05)

    def take_native(self, sampler: Sampler) -> None:
        """One dump with native frames per process, after all samples: it stops the process, so only when that was allowed."""
        if not self.options.native:
            return
        if not self.options.allow_pause:
            self.door.note("stack_frames.native", "skipped", "native stacks stop the process: add --allow-pause")
            return
        for pid in sorted(self.good):
            taken = sampler.native(pid)
            self._write(dataclasses.replace(taken, sample=self.options.samples), is_sample=False)
            if taken.failure is not None:
                self.door.note("stack_frames.native", "partial", f"pid {pid}: {taken.failure}")

    def write_index(self) -> None:
        """What became of every dump."""
        self.door.side_effect("pause_ms", 0)
        head = Attempt(artefact="stacks-index", ts=round(time.time(), 3), version=self.version)
        self.door.jsonl("dumps.jsonl", map(msgspec.to_builtins, [head, *self.index]))

    def conclude(self, patient: Patient) -> None:
        """Notes, and the error when nothing at all could be read."""
        if self.options.locals is Locals.OFF:
            self.door.note("stack_locals", "skipped", "local variables were not read: --locals off")
        gaps = {pid: failure for pid, failure in self.failures.items() if self._is_gap(pid, failure, patient)}
        gaps |= self._too_few(patient)
        for pid, failure in gaps.items():
            self.door.note("stack_frames", "partial", f"pid {pid}: {failure}")
        for pid in sorted((self.hot - self.with_locals) & set(self.good)):
            if self.options.locals is not Locals.OFF:
                why = f": {self.failures[pid]}" if pid in self.failures else ""
                self.door.note("stack_locals", "partial", f"pid {pid}: its local variables could not be read in any try{why}")
        if gaps and not self.good:
            pid, failure = next(iter(gaps.items()))
            raise _ERRORS.get(failure.kind, Garbled)(f"pid {pid}: {failure.reason}", hint=failure.remedy)

    def _is_gap(self, pid: int, failure: Failure, patient: Patient) -> bool:
        """Is something missing that was there to be read? Children that ended have no stacks; the patient should have."""
        if failure.kind in ("ended", "zombie"):
            return pid in (*patient.targets, *patient.roots)
        return pid not in self.good and not (failure.kind == "not python" and not failure.remedy)

    def _too_few(self, patient: Patient) -> dict[int, Failure]:
        """Processes of which fewer than two samples came in though more were due."""
        few = [pid for pid, good in self.good.items() if good < 2 <= self.asked and pid not in self.failures]
        words = f"only one of {self.asked} samples could be taken"
        return {pid: Failure("behind", words, "give a longer window, or look when the machine is less busy") for pid in few}

    def _not_read(self, pid: int, failure: Failure) -> None:
        self.failures[pid] = failure
        self.index.append(Attempt(ts=time.time(), pid=pid, started=self.starts.get(pid), outcome=failure.kind, reason=str(failure)))

    def _write(self, taken: Taken, *, is_sample: bool = True) -> None:
        failure = taken.failure
        self.index.append(Attempt(
            ts=taken.ts, pid=taken.pid, started=self.starts.get(taken.pid), sample=taken.sample, outcome=failure.kind if failure else "ok",
            reason=None if failure is None else str(failure), threads=len(taken.threads), torn=taken.torn, tries=taken.tries,
            seconds=taken.seconds, locals=taken.locals_read, blocking=taken.blocking, version=self.version,
        ))
        if failure is not None:
            if failure.kind != "behind":
                self.failures[taken.pid] = failure
            return
        if is_sample:
            self.good[taken.pid] = self.good.get(taken.pid, 0) + 1
        if taken.locals_read:
            self.with_locals.add(taken.pid)
        threads = list(taken.threads)
        if taken.locals_read and self.options.locals is Locals.KEYS:
            threads = [_with_keys_only(thread, self.door.redact) for thread in threads]
        ours = OneSample(
            "stacks", taken.sample, taken.ts, "py-spy", taken.pid, threads, self.version, self.starts.get(taken.pid),
            self.options.locals.value if taken.locals_read else None, taken.blocking,
        )
        self.door.json(f"{taken.pid}-{taken.sample:02d}.json", msgspec.to_builtins(ours))

    def _repair(self) -> None:
        for pause, until in list(self.paused):
            done = ptrace_guard.repair(pause.process, pause.states)
            if done is not None:
                self.door.side_effect("sigcont_sent", 1)
                self.door.side_effect("sigcont", done)
            if time.monotonic() > until:
                self.paused.remove((pause, until))


def _may_be_python(pid: int) -> bool:
    """Is it Python? What may not be looked at is left to py-spy to judge. Raises Vanished, for zombies too."""
    try:
        return procfs.is_python(pid)
    except Denied:
        return True


def _gone(pid: int) -> Failure:
    with contextlib.suppress(CollectorError):
        stat = procfs.stat(pid)
        if stat.state == "Z":
            remedy = f"its parent, pid {stat.ppid}, must reap it"
            return Failure("zombie", "the process is a zombie: it has ended and has no stacks any more", remedy)
        if procfs.argv(pid) == []:
            return Failure("not python", "a kernel thread: it has no Python stacks", "")
    return Failure("ended", "the process ended before its stacks could be read", "")


def _with_keys_only(thread: JsonThread, redact: Redactor) -> JsonThread:
    """Of the local variables, those that look like cache keys and like no secret."""
    return msgspec.structs.replace(thread, frames=[_frame_with_keys(frame, redact) for frame in thread.frames])


def _frame_with_keys(frame: JsonFrame, redact: Redactor) -> JsonFrame:
    kept = []
    for local in frame.locals or ():
        text = None if local.repr is None else text_of(local.repr)
        if local.repr is not None and text is not None and looks_like_key(text) and redact.pair(local.name, local.repr) == local.repr:
            kept.append(local)
    return msgspec.structs.replace(frame, locals=kept or None)
