"""Dump the stacks of many processes in the background: at most two py-spy at a time, without pausing anybody.

A dump of a process that runs on may fail or be torn: it is tried again until every stack reaches down to its thread's
entry. One try, then the next process has its turn.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from diag import procfs
from diag.errors import CollectorError, Garbled
from diag.instruments import dumper, ptrace_guard, thread_ids
from diag.instruments.thread_heat import Heat
from diag.live import Locals
from diag.parsers import pyspy
from diag.parsers.key_texts import CUT_STEP, MAX_CHARS, is_address, looks_like_key, text_of, was_cut
from diag.parsers.pyspy import JsonThread
from diag.parsers.pyspy_errors import RETRY, Probe, classify
from diag.parsers.stack_dumps import ENTRIES, Failure, outermost

WORKERS = 2
TRIES, LOCALS_TRIES = 10, 30
"""A spinning process moves while it is read: up to four in five dumps fail, and the keys are in those with locals."""
ENOUGH = 2
"""Samples with locals before the last one of a process that is hard to read: every try at the last may fail."""
HARD_TRIES = 6
KEY_TRIES = 12
"""A busy thread holds its key in part of a turn only: so often it is looked at again when none is seen."""
RETRY_PAUSE_S = 0.03
PLAIN_S, LOCALS_S, BLOCKING_S = 4.0, 10.0, 6.0
"""Patience with one dump."""


@dataclass(frozen=True)
class Taken:
    """One sample of one process: its threads (ids as the host sees them), or why there are none."""

    pid: int
    sample: int
    ts: float
    threads: Sequence[JsonThread]
    failure: Failure | None
    locals_read: bool
    tries: int
    seconds: float
    blocking: bool = False

    @property
    def torn(self) -> int:
        return sum(thread.torn for thread in self.threads)


@dataclass(frozen=True)
class Pause:
    """A tool stopped a process, for at most so long; `states` are its threads' before."""

    process: procfs.Identity
    states: dict[int, str]
    seconds: float


@dataclass
class _Merge:
    """The best of several tries at one sample: a whole stack is never replaced by a torn one, nor by one that shows fewer keys."""

    threads: dict[int, JsonThread] = field(default_factory=dict)

    def add(self, threads: Iterable[JsonThread]) -> None:
        for thread in threads:
            before = self.threads.get(thread.thread_id, thread)
            if before.torn or (not thread.torn and len(_keys(thread)) >= len(_keys(before))):
                self.threads[thread.thread_id] = thread

    @property
    def is_whole(self) -> bool:
        return bool(self.threads) and not any(thread.torn for thread in self.threads.values())


@dataclass
class _Job:
    """One sample of one process while it is being taken."""

    sample: int
    last: bool
    ts: float = 0.0
    started: float = 0.0
    tries: int = 0
    tries_left: int = TRIES
    depth: int = 0
    """How many `--locals`: 0 is a plain dump, which always comes first."""
    wants_locals: bool = False
    plain: _Merge = field(default_factory=_Merge)
    deep: _Merge = field(default_factory=_Merge)
    failure: Failure | None = None
    done: bool = False
    blocking: bool = False


@dataclass
class _Subject:
    """A process and what was learnt about it."""

    process: procfs.Identity
    heat: Heat
    inner: dict[int, int] | None = None
    """Thread ids inside its own PID namespace -> on the host; None when it shares ours."""
    due: deque[_Job] = field(default_factory=deque)
    job: _Job | None = None
    busy: bool = False
    locals_samples: int = 0
    shows_keys: bool = False
    """A sample of it showed a key."""
    locals_depth: int = 1
    hard: bool = False
    """A sample of it took many tries."""
    entries: dict[int, tuple[str, str] | None] = field(default_factory=dict)
    """Thread -> unknown outermost frame, as seen last: seen twice running, it is the thread's entry."""
    rooted: set[int] = field(default_factory=set)
    """Threads once seen down to a known entry: whatever ends elsewhere is torn."""


class Sampler:
    """Two threads that take what is due. `close` ends them and whatever they run."""

    def __init__(self, program: str, processes: Iterable[procfs.Identity], which_locals: Locals, *, allow_pause: bool = False) -> None:
        self.pauses: queue.SimpleQueue[Pause] = queue.SimpleQueue()
        self._program = program
        self._locals = which_locals
        self._allow_pause = allow_pause
        self._subjects = {process.pid: _Subject(process, Heat(process.pid)) for process in processes}
        self._turns: queue.SimpleQueue[_Subject | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pausing = threading.Lock()
        self._stop = threading.Event()
        self._until = float("inf")
        self._broken: BaseException | None = None
        for subject in self._subjects.values():
            subject.heat.look()
        self._threads = [threading.Thread(target=self._work, name=f"stacks-{number}", daemon=True) for number in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    def ask(self, sample: int, *, last: bool) -> None:
        """A sample of every process is due; what has not been started for the one before is given up."""
        with self._lock:
            for subject in self._subjects.values():
                while subject.due:
                    given_up = subject.due.popleft()
                    failure = Failure("behind", "the dumps take longer than the time between two samples", "give a longer window")
                    self._results.put(Taken(subject.process.pid, given_up.sample, time.time(), (), failure, False, 0, 0.0))
                subject.due.append(_Job(sample, last))
                if not subject.busy:
                    subject.busy = True
                    self._turns.put(subject)

    def results(self) -> list[Taken]:
        """What has come in since the last call. An error in the background comes out here."""
        if self._broken is not None:
            raise self._broken
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def wait(self, until: float) -> bool:
        """Wait for what is due, at most until this monotonic time; dumps that run longer are killed. True = all done."""
        self._until = until
        while self._busy() and time.monotonic() < until:
            self._stop.wait(0.01)
        return not self._busy()

    def has_reserve(self) -> bool:
        """Do earlier samples of all busy processes hold what the last one is for? Then it need not be waited for long."""
        busy = [subject for subject in self._subjects.values() if subject.heat.hot]
        return bool(busy) and all(map(_in_reserve, busy))

    def hot(self) -> list[int]:
        """Processes with a busy thread, so far."""
        return [subject.process.pid for subject in self._subjects.values() if subject.heat.hot]

    def close(self) -> None:
        """End the threads and kill what they run."""
        self._stop.set()
        for _ in self._threads:
            self._turns.put(None)
        for thread in self._threads:
            thread.join()

    def _busy(self) -> bool:
        with self._lock:
            return any(subject.busy for subject in self._subjects.values())

    def _work(self) -> None:
        while (subject := self._turns.get()) is not None and not self._stop.is_set():
            try:
                self._turn(subject)
            except BaseException as error:
                self._broken = error
                raise

    def _turn(self, subject: _Subject) -> None:
        """One try for one process; then it goes to the end of the line, or is done."""
        job = subject.job or self._begin(subject)
        self._try(subject, job)
        over = self._stop.is_set() or time.monotonic() >= self._until
        if job.done or over or subject.due:
            self._finish(subject, job)
            subject.job = None
        with self._lock:
            # only now: whoever waits for this process waits for its result too
            subject.busy = (subject.job is not None or bool(subject.due)) and not over
            more = subject.busy
        if more:
            if subject.job is not None and self._turns.empty():
                self._stop.wait(RETRY_PAUSE_S)
            self._turns.put(subject)

    def _begin(self, subject: _Subject) -> _Job:
        with self._lock:
            job = subject.job = subject.due.popleft()
        job.ts, job.started = time.time(), time.monotonic()
        subject.heat.look()
        job.wants_locals = subject.heat.hot and self._locals is not Locals.OFF and (
            job.last or subject.locals_samples < (ENOUGH if subject.hard else 1)
        )
        return job

    def _try(self, subject: _Subject, job: _Job) -> None:
        patience = min(LOCALS_S if job.depth else PLAIN_S, self._until - time.monotonic())
        threads, failure = self._dump(subject, ("--nonblocking", *("--locals",) * job.depth), patience)
        merge = job.deep if job.depth else job.plain
        merge.add(threads)
        job.tries += 1
        job.tries_left -= 1
        job.failure = failure
        torn = not merge.is_whole if failure is None else failure.kind in RETRY
        if job.depth and not torn and _may_show_keys(subject, job):
            torn = not any(_keys(thread) for thread in merge.threads.values() if not thread.torn and thread.active)
        if not torn or job.tries_left == 0:
            self._next_step(subject, job, merge)

    def _next_step(self, subject: _Subject, job: _Job, merge: _Merge) -> None:
        """Plain, then with locals, then with longer texts where a key was cut."""
        if merge.threads and job.depth == 0 and job.wants_locals:
            job.depth, job.tries_left = subject.locals_depth, LOCALS_TRIES
        elif job.depth == 1 and any(map(_has_cut_key, merge.threads.values())):
            job.depth = subject.locals_depth = MAX_CHARS // CUT_STEP
            job.tries_left = LOCALS_TRIES
        else:
            job.done = True

    def _finish(self, subject: _Subject, job: _Job) -> None:
        best = job.deep if job.deep.threads and not _adds_nothing(subject, job) else job.plain
        if self._allow_pause and not best.is_whole and (job.failure is None or job.failure.kind in RETRY):
            best = self._dump_paused(subject, job) or best
        subject.locals_samples += job.deep.is_whole
        subject.shows_keys = subject.shows_keys or any(map(_keys, job.deep.threads.values()))
        subject.hard = subject.hard or job.tries > HARD_TRIES
        failure = None if best.threads else job.failure
        self._results.put(Taken(
            subject.process.pid, job.sample, job.ts, tuple(best.threads.values()), failure, best is job.deep and bool(job.deep.threads), job.tries,
            round(time.monotonic() - job.started, 4), job.blocking,
        ))

    def _dump(self, subject: _Subject, options: Sequence[str], patience_s: float) -> tuple[list[JsonThread], Failure | None]:
        """One run of py-spy -> threads with host ids and torn ones marked, or what went wrong."""
        pid = subject.process.pid
        argv = (self._program, "dump", "--json", *options, "--pid", str(pid))
        try:
            answer = dumper.run(argv, patience_s, self._stop, hurry="--nonblocking" not in options)
        except OSError as error:
            return [], Failure("unknown", f"py-spy cannot be started: {error.strerror}", "free some memory or processes and try again")
        if answer.code is None:
            return [], Failure("timeout", f"py-spy did not finish within {patience_s:.1f} s", "take the snapshot again when the machine is less busy")
        if answer.code != 0:
            return [], classify(answer.error, probe(subject.process))
        if not procfs.is_same(subject.process):
            return [], Failure("ended", "the process ended while it was read", "")
        try:
            threads = pyspy.decode(answer.output, "the output of py-spy")
        except Garbled as error:
            return [], Failure("torn", error.message, error.hint)
        for thread in threads:
            self._resolve(subject, thread)
            thread.torn = _is_torn(subject, thread)
        return threads, None

    def _dump_paused(self, subject: _Subject, job: _Job) -> _Merge | None:
        """A dump that stops the process for the time it takes, when that was allowed and is safe."""
        with self._pausing:
            pause = self.pause(subject.process)
            if isinstance(pause, Failure):
                return None
            started = time.monotonic()
            threads, failure = self._dump(subject, ("--locals",) * job.depth, BLOCKING_S)
            self.pauses.put(Pause(pause.process, pause.states, time.monotonic() - started))
        job.blocking = True
        job.tries += 1
        if failure is not None:
            return None
        merge = job.deep if job.depth else job.plain
        merge.threads.clear()
        merge.add(threads)
        return merge

    def pause(self, process: procfs.Identity) -> Pause | Failure:
        """The states to compare with afterwards, or why the process must not be stopped."""
        try:
            reason = ptrace_guard.refusal(process.pid)
            states = ptrace_guard.states(process.pid)
        except CollectorError as error:
            return Failure("ended", error.message, error.hint)
        if reason is not None:
            return Failure("guarded", f"it was not stopped for a dump: {reason}", "")
        return Pause(process, states, 0.0)

    def native(self, pid: int) -> Taken:
        """Python and native stacks of one process. Stops it for the time it takes; called between samples only."""
        subject = self._subjects[pid]
        ts, started = time.time(), time.monotonic()
        pause = self.pause(subject.process)
        if isinstance(pause, Failure):
            return Taken(pid, -1, ts, (), pause, False, 0, 0.0)
        threads, failure = self._dump(subject, ("--native",), BLOCKING_S)
        seconds = time.monotonic() - started
        self.pauses.put(Pause(pause.process, pause.states, seconds))
        return Taken(pid, -1, ts, threads, failure, False, 1, round(seconds, 4), True)

    def _resolve(self, subject: _Subject, thread: JsonThread) -> None:
        """Give a thread its id on this host, and its activity by our own look where py-spy cannot know it."""
        pid = subject.process.pid
        inner = thread.os_thread_id
        if inner is None:
            inner = thread_ids.of_pthread(pid, thread.thread_id)
        try:
            if subject.inner is None:
                subject.inner = dict(thread_ids.by_inner_id(pid)) if thread_ids.in_other_namespace(pid) else {}
            if subject.inner and inner not in subject.inner:
                subject.inner |= thread_ids.by_inner_id(pid)
            if not subject.inner and thread.os_thread_id is not None:
                return
            tid = subject.inner.get(inner, -1) if subject.inner and inner is not None else inner
            if tid is None or tid < 1:
                thread.os_thread_id, thread.active = None, None
                return
            thread.active = procfs.stat(pid, tid).state == "R"
            thread.os_thread_id = tid
        except CollectorError:
            return


def probe(process: procfs.Identity) -> Probe:
    """What /proc says of a process that could not be dumped."""
    try:
        stat = procfs.stat(process.pid)
        if stat.start_ticks != process.start_ticks:
            return Probe(exists=False)
        tracer = int(procfs.status(process.pid).get("TracerPid", "0"))
    except CollectorError:
        return Probe(exists=False)
    return Probe(True, stat.state, tracer, stat.ppid)


def _is_torn(subject: _Subject, thread: JsonThread) -> bool:
    (found,) = pyspy.from_json([thread], str)
    entry = outermost(found)
    if entry is not None and entry[0] in ENTRIES:
        subject.rooted.add(thread.thread_id)
        return False
    if thread.thread_id in subject.rooted:
        return True
    before = subject.entries.get(thread.thread_id, ("", ""))
    subject.entries[thread.thread_id] = entry
    return before != entry


def _in_reserve(subject: _Subject) -> bool:
    """Do earlier samples hold what the last one is for?"""
    return subject.locals_samples >= ENOUGH and subject.shows_keys


def _adds_nothing(subject: _Subject, job: _Job) -> bool:
    """A last sample that happened to show no key: two earlier ones that do say more, and its plain stacks stay."""
    return job.last and _in_reserve(subject) and bool(job.plain.threads) and not any(map(_keys, job.deep.threads.values()))


def _may_show_keys(subject: _Subject, job: _Job) -> bool:
    """Is one more look for a key worth its time? A key that is not in an earlier sample proves nothing in the last."""
    if job.last and subject.locals_samples and not subject.shows_keys:
        return False
    return job.tries <= KEY_TRIES


def _keys(thread: JsonThread) -> set[str]:
    """Key-like texts among its locals; empty in a dump without locals."""
    texts = (text_of(local.repr) for frame in thread.frames for local in frame.locals or () if local.repr)
    return {text for text in texts if text is not None and looks_like_key(text) and not is_address(text)}


def _has_cut_key(thread: JsonThread) -> bool:
    printed = (local.repr for frame in thread.frames for local in frame.locals or () if local.repr and was_cut(local.repr))
    return any(looks_like_key(text_of(text) or "") for text in printed)
