"""What every thread does: spins, polls, waits, is stopped or stuck in the kernel; and what the busy ones wait on.

A full pass over all threads before the window and one after it, `tasks-0.jsonl` and `tasks-1.jsonl`:

    {"artefact":"threads","read":0,"ts":1796007298.3,"machine":"x86_64","ticks_per_s":100}
    {"pid":30339,"started":1796007203.1,"tid":30340,"ts":1796007298.31,"name":"python3","state":"S","ticks":[5,0],
     "sched":[51234567,80112,310],"switches":[300,10],"wchan":"futex_do_wait","syscall":"202 0x7fb5e114e6f0 0x80 0x2 …",
     "futex":["0x7fb5e114e6f0",2,30341]}

`ticks` is user and system CPU, `sched` ns on a CPU, ns waiting for one, and turns; `switches` voluntary and not; `futex`
the mutex it waits for: address, word, and the thread that holds it, read from the memory of the process. In between only
quick reads, equal ones counted together, `states.jsonl`: the state of each thread, and of the busiest the system call and
the peer of the socket it waits on:

    {"artefact":"threads","beats":21,"ts":1796007303.4}
    {"pid":30339,"started":1796007203.1,"tid":30339,"beat":1,"ts":1796007298.6,"no":45,"fd":9,"peer":"127.0.0.1:6379","hits":131}

Saved thread lists (`threads1.txt` with `t1`) and `top -H -b` are read too. Nothing here stops a thread.
"""

import heapq
import platform
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from diag import procfs
from diag.bundle import Door
from diag.errors import Absent, Denied, Garbled, Vanished
from diag.instruments import netns
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import sock_diag, sockets_proc, syscalls, thread_lists, thread_rows
from diag.parsers.thread_rows import Futex, Header, Look, Task
from diag.tables import Table

NAME = "threads"
FEEDS = ("threads", "thread_states")
NEEDS: tuple[str, ...] = ()
TABLES: tuple[Table, ...] = ()
BUDGET_S = 2.0
BUDGET_BYTES = 32 << 20
HINT = "llmdiag snapshot {pid}"

STATES_S, BUSY_S, CALLS_S = 0.003, 0.0015, 0.0035
"""What a beat may spend on quick state reads, on seeing who is busy, and on their system calls; with thousands of threads the
next beat goes on where this one ended."""
AT_LEAST = 32
"""Threads that are looked at in every beat, however slow the machine is."""
CALL_READS = 10
CALL_GAP_S = 0.0003
"""Per beat and busy thread: reads of its system call, and the pause between two."""
MAX_CALL_READS = 400
MAX_BUSY = 16
"""Threads whose system calls are read during the window."""
BUSY_SCORE = 2.0
"""Turns on a CPU plus milliseconds wanting one since the first pass that make a thread worth a closer look."""
PEERS_S = 0.003
"""Socket tables that took longer to read are not read again before the window is over."""
MACHINE = platform.machine()


@dataclass(frozen=True)
class _Key:
    """What makes two quick reads equal; `at` is the thread's place in the first pass."""

    at: int
    state: str | None = None
    no: int | None = None
    fd: int | None = None
    inode: int | None = None


def collect(patient: Patient, door: Door) -> Collecting:
    """Full pass, quick looks at every beat, full pass. Raises Vanished when there was no thread left to read."""
    first = _full_pass(door, 0, patient.pids)
    if not first:
        raise Vanished(f"process {patient.root_pid} ended before its threads could be read", hint="ps -ef shows whether it was restarted")
    looks = _Looks(first)
    try:
        while True:
            tick = yield
            looks.beat(tick.number)
            if tick.last:
                break
    finally:
        _full_pass(door, 1, _with_new(patient))
        looks.write(door)


def recognise(name: str, head: bytes) -> bool:
    """A saved thread list, the time file beside it, `top` in batch mode, or an artefact of this collector."""
    text = head.decode("utf-8", "replace")
    return (
        text.startswith(thread_rows.ARTEFACT) or thread_lists.is_tasks(text)
        or thread_lists.is_time(name, text) or thread_lists.is_top(text)
    )


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Full passes and saved lists -> threads, quick reads -> thread_states."""
    yield from thread_rows.rows(artefacts)


def _with_new(patient: Patient) -> list[int]:
    """The processes seen at the start and those that came since."""
    try:
        return list(dict.fromkeys([*patient.pids, *procfs.trees(patient.roots)]))
    except Vanished:
        return list(patient.pids)


def _full_pass(door: Door, read: int, pids: Iterable[int]) -> list[Task]:
    """Every thread of every process into one artefact; what may not be read is noted once."""
    header = Header(NAME, time.time(), read, procfs.TICKS_PER_S)
    found: list[Task] = []
    denied: dict[str, list[Denied]] = {}
    for pid in pids:
        try:
            started = procfs.started_s(procfs.stat(pid).start_ticks)
            found += _with_owners([task for tid in procfs.tids(pid) if (task := _task(pid, started, tid, denied)) is not None])
        except (Vanished, Garbled):
            continue
        except Denied as error:
            denied.setdefault("threads", []).append(error)
    for table, errors in denied.items() if read == 0 else ():
        status = "partial" if table == "threads" else "failed"
        door.note(table, status, f"not allowed for {len(errors)} threads, e.g. {errors[0].message}; {errors[0].hint}")
    door.jsonl(f"tasks-{read}.jsonl", [msgspec.to_builtins(line) for line in (header, *found)])
    return found


def _task(pid: int, started: float, tid: int, denied: dict[str, list[Denied]]) -> Task | None:
    """One thread, or None when it is gone."""
    folder = procfs.place(pid, tid)
    try:
        stat = procfs.stat(pid, tid)
        now = time.time()
        status = procfs.status(pid, tid)
    except (Vanished, Garbled):
        return None
    wchan, call = _text(f"{folder}/wchan", "threads.wchan", denied), _text(f"{folder}/syscall", "threads.syscall", denied)
    if wchan == "0" and call is None and "threads.syscall" in denied:
        wchan = None  # the kernel says 0 to those who may not know
        denied.setdefault("threads.wchan", []).append(denied["threads.syscall"][-1])
    return Task(
        pid, started, tid, now, stat.comm, stat.state, (stat.user_ticks, stat.sys_ticks), _sched(pid, tid),
        _switches(status), int(status["NSpid"].split()[-1]) if "NSpid" in status else None, wchan, call,
        _futex(pid, call or "", denied),
    )


def _futex(pid: int, call: str, denied: dict[str, list[Denied]]) -> Futex | None:
    """The mutex a thread waits for; its owner still as the process itself knows it."""
    found = syscalls.call(call)
    address = None if found is None else syscalls.mutex(found, MACHINE)
    if address is None:
        return None
    try:
        lock = syscalls.lock(procfs.memory(pid, address, syscalls.MUTEX_BYTES))
    except Vanished:
        return None
    except Denied as error:
        denied.setdefault("threads.futex_owner_tid", []).append(error)
        lock = None
    return (hex(address), None, None) if lock is None else (hex(address), lock.word, lock.owner)


def _with_owners(tasks: Sequence[Task]) -> Iterator[Task]:
    """Owners of mutexes as the host knows them; one that is no living thread of this process is none."""
    outer: Mapping[int | None, int] = {task.ns_tid or task.tid: task.tid for task in tasks}
    for task in tasks:
        if task.futex is None:
            yield task
        else:
            address, word, owner = task.futex
            yield msgspec.structs.replace(task, futex=(address, word, outer.get(owner)))


def _text(path: str, column: str, denied: dict[str, list[Denied]]) -> str | None:
    try:
        return procfs.read(path, 512).decode("ascii", "replace").strip() or None
    except Vanished:
        return None
    except Denied as error:
        denied.setdefault(column, []).append(error)
        return None


def _sched(pid: int, tid: int) -> tuple[int, int, int] | None:
    """(ns on a CPU, ns waiting for one, turns); None where the kernel does not count."""
    try:
        run, wait, turns = procfs.read(f"{procfs.place(pid, tid)}/schedstat", 256).split()
        return int(run), int(wait), int(turns)
    except (Vanished, Denied, ValueError):
        return None


def _switches(status: Mapping[str, str]) -> tuple[int, int] | None:
    try:
        return int(status["voluntary_ctxt_switches"]), int(status["nonvoluntary_ctxt_switches"])
    except (KeyError, ValueError):
        return None


class _Looks:
    """Quick reads between the passes: cheap, bounded, counted rather than kept."""

    def __init__(self, first: Sequence[Task]) -> None:
        self._tasks = first
        self._seen: dict[_Key, tuple[int, float, int]] = {}
        self._reads: Counter[int] = Counter()
        self._score: dict[int, float] = {}
        self._next_state = self._next_score = 0
        self._beats = 0
        self._peers = _Peers({task.pid for task in first})

    def beat(self, number: int) -> None:
        """All states, and several looks at what the busy threads are waiting in."""
        self._beats = number + 1
        self._next_score = self._each(self._next_score, BUSY_S, self._rate)
        busy = [at for at in self._busiest() if self._reads[at] + CALL_READS <= MAX_CALL_READS]
        until = time.monotonic() + CALLS_S
        for turn in range(CALL_READS if busy else 0):
            if turn and time.monotonic() > until:
                break
            for at in busy:
                self._look_at_call(at)
            time.sleep(CALL_GAP_S)
        self._next_state = self._each(self._next_state, STATES_S, self._look_at_state)
        self._peers.keep_up()

    def write(self, door: Door) -> None:
        """Equal reads as one line each; sockets are named now, when all are known."""
        self._peers.keep_up(whatever_it_takes=True)
        lines: list[dict[str, object]] = [{"artefact": NAME, "beats": self._beats, "ts": time.time()}]
        for key, (hits, ts, beat) in self._seen.items():
            task = self._tasks[key.at]
            peer = None if key.inode is None else self._peers.name(task.pid, key.inode)
            look = Look(task.pid, task.started, task.tid, beat, ts, hits, key.state, key.no, key.fd, peer)
            lines.append(msgspec.to_builtins(look))
        door.jsonl("states.jsonl", lines)

    def _each(self, start: int, patience_s: float, look: Callable[[int], None]) -> int:
        """`look` at every thread once, or at as many as `patience_s` allows. Returns where to go on."""
        until = time.monotonic() + patience_s
        for step in range(len(self._tasks)):
            at = (start + step) % len(self._tasks)
            if step >= AT_LEAST and time.monotonic() > until:
                return at
            look(at)
        return start

    def _rate(self, at: int) -> None:
        """How busy since the first pass: turns on a CPU and milliseconds on or waiting for one."""
        task = self._tasks[at]
        now = _sched(task.pid, task.tid)
        if now is not None and task.sched is not None:
            run, wait, turns = (after - before for after, before in zip(now, task.sched, strict=True))
            self._score[at] = turns + (run + wait) / 1e6

    def _busiest(self) -> list[int]:
        busy = (at for at, score in self._score.items() if score >= BUSY_SCORE)
        return heapq.nlargest(MAX_BUSY, busy, key=self._score.__getitem__)

    def _look_at_state(self, at: int) -> None:
        task = self._tasks[at]
        try:
            self._count(_Key(at, procfs.stat(task.pid, task.tid).state))
        except (Vanished, Denied, Garbled):
            return

    def _look_at_call(self, at: int) -> None:
        task = self._tasks[at]
        self._reads[at] += 1
        try:
            found = syscalls.call(procfs.read(f"{procfs.place(task.pid, task.tid)}/syscall", 512).decode("ascii", "replace"))
            fd = None if found is None else syscalls.descriptor(found, MACHINE)
            if found is not None and (address := syscalls.poll_list(found, MACHINE)) is not None:
                fd = syscalls.polled(procfs.memory(task.pid, address, 8))
        except (Vanished, Denied):
            return
        inode = None if fd is None else self._peers.inode(task.pid, fd)
        self._count(_Key(at, None, None if found is None else found.number, fd, inode))

    def _count(self, key: _Key) -> None:
        hits, ts, first = self._seen.get(key) or (0, time.time(), self._beats - 1)
        self._seen[key] = (hits + 1, ts, first)


class _Peers:
    """What the sockets of some processes are connected to, from the kernel's tables; each network is read once, then on demand."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._network = {pid: netns.of(pid) for pid in pids}
        self._remote: dict[tuple[int | None, int], str] = {}
        self._unknown: dict[tuple[int | None, int], int] = {}
        self._cost_s = 0.0
        for pid in {network: pid for pid, network in self._network.items()}.values():
            self._learn(pid)

    def inode(self, pid: int, fd: int) -> int | None:
        """The socket behind a descriptor; None when it is something else or closed by now."""
        try:
            target = procfs.link(f"{procfs.place(pid)}/fd/{fd}")
        except (Vanished, Denied):
            return None
        if not target.startswith("socket:["):
            return None
        inode = int(target[8:-1])
        if (self._network.get(pid), inode) not in self._remote:
            self._unknown[(self._network.get(pid), inode)] = pid
        return inode

    def keep_up(self, *, whatever_it_takes: bool = False) -> None:
        """Read the tables again when a socket turned up that is not in them yet."""
        if self._unknown and (whatever_it_takes or self._cost_s < PEERS_S):
            for pid in {network: pid for (network, _), pid in self._unknown.items()}.values():
                self._learn(pid)
            self._unknown.clear()

    def name(self, pid: int, inode: int) -> str:
        """`ip:port` or the path of a unix socket; its inode where that is all there is."""
        remote = self._remote.get((self._network.get(pid), inode), f"socket:[{inode}]")
        if remote[0] in "/@s":
            return remote
        host, port = sockets_proc.address(remote)
        return f"{host}:{port}"

    def _learn(self, pid: int) -> None:
        started = time.monotonic()
        network = self._network.get(pid)
        for table in ("tcp", "tcp6"):
            for row in sockets_proc.tcp(_net(pid, table)):
                if row.state != "LISTEN":
                    self._remote[(network, row.inode)] = row.remote
        paths = {row.inode: row.path for row in sockets_proc.unix(_net(pid, "unix"))}
        for facts in _unix_peers(pid):
            path = paths.get(facts.peer) if facts.peer is not None else None
            if path is not None:
                self._remote[(network, facts.inode)] = path
        self._cost_s = time.monotonic() - started


def _net(pid: int, table: str) -> list[str]:
    try:
        return procfs.read(f"{procfs.place(pid)}/net/{table}", 64 << 20).decode("utf-8", "replace").splitlines()
    except (Vanished, Denied):
        return []


def _unix_peers(pid: int) -> list[sock_diag.Facts]:
    """Unix sockets with the inode of their other end; empty where the kernel has no socket monitor."""
    found: list[sock_diag.Facts] = []
    try:
        with netns.open_socket(pid, socket.AF_NETLINK, socket.SOCK_DGRAM, sock_diag.PROTOCOL) as link:
            link.settimeout(0.2)
            link.sendall(sock_diag.all_unix())
            while True:
                for facts in sock_diag.answers(link.recv(256 << 10)):
                    if facts is None:
                        return found
                    found.append(facts)
    except (Denied, Absent, Vanished, OSError):
        return found
