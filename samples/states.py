"""Labs of this folder in the state that their rule knows: what resample.py records and the tests take snapshots of.

    with states.entered("lock-cycle/incident") as lab:
        subprocess.run(["llmdiag", "snapshot", str(lab.pid)])
"""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from diag import labs

HERE = Path(__file__).parent
WAIT_S = 30.0
MUTEX_WAIT = re.compile(r"^(?:202|98) 0x[0-9a-f]+ 0x(?:0|80) 0x2 ")
TRUNCATED_CALL = "call(" + ",".join("abcdefghijklmnopqrstuvwxyz123456789")


@contextlib.contextmanager
def entered(name: str) -> Iterator[labs.Lab]:
    """The lab of `RULE/STATE`, once it is in that state; gone at the end."""
    rule, _, state = name.partition("/")
    arguments, enter = STATES[rule][state]
    with tempfile.TemporaryDirectory() as folder, labs.start_lab(HERE / rule / "lab.py", *arguments, log=Path(folder) / "lab.log") as lab:
        lab.get("/health")
        waiting = enter(lab)
        yield lab
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


def _each(pid: int, name: str) -> list[str]:
    """A file of every thread in /proc, as far as it can be read."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found.append((task / name).read_text())
    return found


STATES: dict[str, dict[str, tuple[tuple[str, ...], Callable[[labs.Lab], object]]]] = {
    "gil-held-in-native-call": {"incident": ((), _released), "lock-released": (("--polite",), _released)},
    "lock-cycle": {"incident": ((), _swapped(2)), "one-waits": (("--ordered",), _swapped(1))},
    "regex-backtracking": {"incident": ((), _parsing)},
    "dead-loop-live-process": {"incident": ((), _poisoned)},
    "redis-dependency-stall": {"incident": ((), _asking_redis), "waits-and-serves": (("--in-thread",), _asking_redis)},
}
"""Rule -> state -> (options of its lab, how to bring it about); what that returns is kept until the end."""
