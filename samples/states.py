"""Labs of this folder in the state that their rule knows: what resample.py records and the tests take snapshots of.

    with states.entered("lock-cycle/incident") as lab:
        subprocess.run(["llmdiag", "snapshot", str(lab.pid)])
"""

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from diag import labs, procfs
from diag.instruments import freezer

HERE = Path(__file__).parent
WAIT_S = 30.0
LIMIT_BYTES = 64 << 20
MUTEX_WAIT = re.compile(r"^(?:202|98) 0x[0-9a-f]+ 0x(?:0|80) 0x2 ")
TRUNCATED_CALL = "call(" + ",".join("abcdefghijklmnopqrstuvwxyz123456789")


@contextlib.contextmanager
def entered(name: str) -> Iterator[labs.Lab]:
    """The lab of `RULE/STATE`, once it is in that state; gone at the end."""
    rule, _, state = name.partition("/")
    arguments, enter = STATES[rule][state]
    with tempfile.TemporaryDirectory() as folder, labs.start_lab(HERE / LAB_OF.get(rule, rule) / "lab.py", *arguments, log=Path(folder) / "lab.log") as lab:
        lab.get("/health")
        waiting = enter(lab)
        try:
            yield lab
        finally:
            if isinstance(waiting, contextlib.ExitStack):
                waiting.close()
            del waiting


def _released(lab: labs.Lab) -> object:
    lab.get("/release")
    return labs.wait_until(lambda: any("nanosleep" in wchan for wchan in _each(lab.pid, "wchan")), WAIT_S)


def _swapped(waiting: int) -> Callable[[labs.Lab], object]:
    def enter(lab: labs.Lab) -> object:
        stuck = lab.get_later("/swap")
        labs.wait_until(lambda: sum(MUTEX_WAIT.match(call) is not None for call in _each(lab.pid, "syscall")) == waiting, WAIT_S)
        return stuck

    return enter


def _parsing(lab: labs.Lab) -> object:
    stuck = lab.get_later(f"/parse?text={TRUNCATED_CALL}")
    labs.wait_until(lambda: labs.is_hot(lab.pid), WAIT_S)
    return stuck


def _poisoned(lab: labs.Lab) -> object:
    stuck = [lab.get_later("/poison"), lab.get_later("/step")]
    labs.wait_until(lambda: "RuntimeError" in lab.log.read_text(), WAIT_S)
    return stuck


def _asking_redis(lab: labs.Lab) -> object:
    stuck = lab.get_later("/embedding")
    port = int(lab.redis.rpartition(":")[2].partition("/")[0])
    labs.wait_until(lambda: labs.backlog(port) >= 1, WAIT_S)
    return stuck


def _asked_of_engine(query: str, then: Callable[[labs.Lab], object]) -> Callable[[labs.Lab], object]:
    """A request that the lab of lost-worker-reply does not answer, and how one sees that it is where it shall be."""

    def enter(lab: labs.Lab) -> object:
        stuck = lab.get_later(f"/generate?{query}")
        labs.wait_until(lambda: then(lab), WAIT_S)
        return stuck

    return enter


def _after_signal(number: int, state: str) -> Callable[[labs.Lab], object]:
    """One worker gets a signal, then there is something to do."""

    def enter(lab: labs.Lab) -> object:
        worker = _called(lab, "Worker_TP1")
        os.kill(worker, number)
        labs.wait_until(lambda: procfs.stat(worker).state == state, WAIT_S)
        stuck = lab.get_later("/generate")
        labs.wait_until(lambda: lab.metrics()["vllm:num_requests_running"] == 1, WAIT_S)
        return stuck

    return enter


def _observed(lab: labs.Lab) -> object:
    lab.get("/observe")
    core = _called(lab, "EngineCore")
    labs.wait_until(lambda: all(procfs.stat(core, tid).state == "t" for tid in procfs.tids(core)), WAIT_S)
    stuck = lab.get_later("/generate")
    labs.wait_until(lambda: lab.metrics()["vllm:num_requests_running"] == 1, WAIT_S)
    return stuck


def _traced(lab: labs.Lab) -> object:
    lab.get("/observe?stop=0")
    labs.wait_until(lambda: procfs.status(_called(lab, "EngineCore"))["TracerPid"] != "0", WAIT_S)
    return lab.get("/generate")


def _out_of_memory(lab: labs.Lab) -> object:
    """One worker gets a small memory limit of its own, and then asks for more. The group may go as soon as the worker is dead."""
    worker, group = _called(lab, "Worker_TP1"), _group_of("memory") / f"llmdiag-lab-{lab.pid}"
    group.mkdir()
    try:
        (group / ("memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes")).write_text(str(LIMIT_BYTES))
        (group / "cgroup.procs").write_text(str(worker))
        return _asked_of_engine("grow=1", lambda lab: procfs.stat(worker).state == "Z")(lab)
    finally:
        labs.wait_until(lambda: not (group / "cgroup.procs").read_text(), WAIT_S)
        group.rmdir()


def _stopped_while_it_waits(lab: labs.Lab) -> object:
    """The core is stopped where it waits for its workers, and the answer comes after that."""
    core = _called(lab, "EngineCore")
    stuck = lab.get_later("/generate?compute=1")
    labs.wait_until(lambda: labs.is_hot(_called(lab, "Worker_TP1")), WAIT_S)
    os.kill(core, signal.SIGSTOP)
    labs.wait_until(lambda: procfs.stat(core).state == "T", WAIT_S)
    return stuck


def _paused(lab: labs.Lab) -> object:
    """All processes in a control group with the name of a container's, frozen."""
    group = _group_of("freezer") / f"docker-{hashlib.sha256(str(lab.pid).encode()).hexdigest()}.scope"
    stuck, end = lab.get_later("/generate?compute=1"), contextlib.ExitStack()
    labs.wait_until(lambda: labs.is_hot(_called(lab, "Worker_TP1")), WAIT_S)
    before = _group_of("freezer") / "cgroup.procs"
    group.mkdir()
    is_v1 = (group / "freezer.state").exists()
    switch = group / ("freezer.state" if is_v1 else "cgroup.freeze")
    end.callback(group.rmdir)
    end.callback(lambda: [before.write_text(str(pid)) for pid in procfs.tree(lab.pid)])
    end.callback(switch.write_text, "THAWED" if is_v1 else "0")
    end.callback(lambda: stuck)
    for pid in procfs.tree(lab.pid):
        (group / "cgroup.procs").write_text(str(pid))
    switch.write_text("FROZEN" if is_v1 else "1")
    labs.wait_until(lambda: freezer.frozen_by(lab.pid) is not None, WAIT_S)
    return end


def _group_of(controller: str) -> Path:
    """The control group of this process for one controller, of either version."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {names: path.lstrip("/") for _, names, path in lines}
    return Path("/sys/fs/cgroup", controller, own[controller]) if controller in own else Path("/sys/fs/cgroup", own.get("", ""))


def can_enter(name: str) -> bool:
    """Whether this machine lets a test make the control group that `RULE/STATE` needs, and reads the kernel's log where it counts."""
    if name not in NEED_GROUPS:
        return True
    controller, files = NEED_GROUPS[name]
    group = _group_of(controller) / f"llmdiag-probe-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return False
    there = any((group / file).exists() for file in files)
    group.rmdir()
    return there and (controller != "memory" or subprocess.run(["dmesg"], capture_output=True, check=False).returncode == 0)


def _called(lab: labs.Lab, name: str) -> int:
    """The process of a lab that calls itself so."""
    return next(pid for pid in procfs.tree(lab.pid) if name in Path(f"/proc/{pid}/cmdline").read_text())


def _each(pid: int, name: str) -> list[str]:
    """A file of every thread in /proc, as far as it can be read."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found.append((task / name).read_text())
    return found


LAB_OF = dict.fromkeys(
    ("worker-dead-or-stopped", "process-stopped", "scheduler-stall", "observer-is-the-incident", "collective-desync", "oom-killed", "kv-connector-hang", "grammar-compile-stall"),
    "lost-worker-reply",
)
"""Rules whose states are those of another rule's lab."""
STATES: dict[str, dict[str, tuple[tuple[str, ...], Callable[[labs.Lab], object]]]] = {
    "gil-held-in-native-call": {"incident": ((), _released), "lock-released": (("--polite",), _released)},
    "lock-cycle": {"incident": ((), _swapped(2)), "one-waits": (("--ordered",), _swapped(1))},
    "regex-backtracking": {"incident": ((), _parsing)},
    "dead-loop-live-process": {"incident": ((), _poisoned)},
    "lost-worker-reply": {
        "incident": ((), _asked_of_engine("drop=1", lambda lab: "an answer is lost" in lab.log.read_text())),
        "worker-computes": ((), _asked_of_engine("compute=1", lambda lab: labs.is_hot(_called(lab, "Worker_TP1")))),
    },
    "worker-dead-or-stopped": {
        "incident": ((), _after_signal(signal.SIGSTOP, "T")),
        "incident-killed": ((), _after_signal(signal.SIGKILL, "Z")),
        "incident-in-the-kernel": ((), _asked_of_engine("stuck=1", lambda lab: procfs.stat(_called(lab, "Worker_TP1")).state == "D")),
    },
    "process-stopped": {"incident-core": ((), _stopped_while_it_waits), "incident-paused": ((), _paused)},
    "collective-desync": {"incident": (("--collective",), _asked_of_engine("absent=1", lambda lab: "stays away" in lab.log.read_text()))},
    "oom-killed": {"incident": ((), _out_of_memory)},
    "scheduler-stall": {"incident": ((), _asked_of_engine("unsplittable=9000", lambda lab: labs.is_hot(_called(lab, "EngineCore"))))},
    "kv-connector-hang": {"incident": ((), _asked_of_engine("transfer=1", lambda lab: lab.log.read_text().count("blocks are moved") == 2))},
    "grammar-compile-stall": {
        "incident": ((), _asked_of_engine("grammar=40", lambda lab: labs.is_hot(_called(lab, "EngineCore")))),
        "small-grammar": ((), lambda lab: lab.get("/generate?grammar=6")),
    },
    "observer-is-the-incident": {"incident": ((), _observed), "runs-traced": ((), _traced)},
    "redis-dependency-stall": {"incident": ((), _asking_redis), "waits-and-serves": (("--in-thread",), _asking_redis)},
}
"""Rule -> state -> (options of its lab, how to bring it about); what that returns is kept until the end, a stack of things to do is done then."""
NEED_TORCH = frozenset({"collective-desync"})
"""Rules whose labs need torch: entered by the tests where it is installed, and not recorded."""
NEED_GROUPS = {
    "oom-killed/incident": ("memory", ("memory.max", "memory.limit_in_bytes")),
    "process-stopped/incident-paused": ("freezer", ("cgroup.freeze", "freezer.state")),
}
"""States that need a control group of their own -> controller, a file that it has where it is of use: entered where `can_enter`."""
