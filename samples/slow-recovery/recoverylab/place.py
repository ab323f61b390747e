"""What every process of the lab knows: where its files are, which set-up is played, and that it does not outlive its parent."""

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recoverylab.clock import Clock, Log

PR_SET_PDEATHSIG = 1
MODEL, UNIT = "toy-8b", "vllm"
SLOTS = 8
BLOCKS, BLOCK_BYTES, BLOCK_GIB = 128, 1 << 20, 0.5
"""The device: so many blocks of so many bytes, each told as so much in the logs (64 GiB in all)."""
WANTED = 0.9
"""Share of the device that an engine wants, as --gpu-memory-utilization."""


@dataclass(frozen=True)
class Setup:
    """One way to set all of it up. Times in lab seconds."""

    heartbeat: bool
    """1 s, two misses; else a probe every PERIOD_S with STRIKES."""
    reclaim_on_death: bool
    """The holder sees by itself that a borrower died; else the manager has to say so."""
    wait_reclaim: bool
    """The manager waits for the record that memory was reclaimed before it starts a new engine."""
    warm_cache: bool
    """The compile cache outlives the engine."""
    drain: bool
    """The router waits for the end of the old server's grace period; else it switches on ready."""
    share: bool
    """The router admits 30 % of the queue first; else all of it."""
    abort_on_close: bool
    """The router forgets requests whose client left."""


BAD = Setup(False, False, False, False, drain=True, share=False, abort_on_close=False)
GOOD = Setup(True, True, True, True, drain=False, share=True, abort_on_close=True)


@dataclass(frozen=True)
class Place:
    """`run`: the lab's own files (ports, clock, weights, caches), no evidence. `logs`: the evidence."""

    clock: Clock
    logs: Path
    run: Path
    ledger: Path
    setup: Setup

    def log(self, name: str) -> Log:
        return Log(self.logs / name, self.clock)

    def remember(self, who: str, what: str, **more: object) -> None:
        """A line of the ledger: what is true, said by who did it."""
        now_s = more.pop("second", self.clock.now_s)
        assert isinstance(now_s, float)
        line = {"second": round(now_s, 3), "ts": self.clock.at(now_s).isoformat(timespec="milliseconds"), "who": who, "what": what, **more}
        Log(self.ledger, self.clock).line(json.dumps(line))

    def tell(self, name: str, **what: object) -> None:
        """A small file for the others, there whole or not at all."""
        half = self.run / f"{name}.{os.getpid()}"
        half.write_text(json.dumps(what))
        half.replace(self.run / name)

    def told(self, name: str) -> dict[str, Any]:
        """What somebody told; {} = nothing yet."""
        try:
            found: dict[str, Any] = json.loads((self.run / name).read_text())
        except FileNotFoundError:
            return {}
        return found

    def command(self, script: str, *args: str) -> list[str]:
        """The command line of another process of the lab, which ends when this one does."""
        given = json.dumps({
            "clock": str(self.clock), "logs": str(self.logs), "run": str(self.run), "ledger": str(self.ledger), "setup": asdict(self.setup), "parent": os.getpid(),
        })  # fmt: skip
        return [sys.executable, str(Path(__file__).with_name(script)), given, *args]


def begin() -> tuple[Place, list[str]]:
    """In a new process of the lab: its place and further words; from now on it ends with its parent."""
    given = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != given["parent"]:
        os._exit(1)
    place = Place(Clock.of(given["clock"]), Path(given["logs"]), Path(given["run"]), Path(given["ledger"]), Setup(**given["setup"]))
    return place, sys.argv[2:]
