"""llmdiag in a process of its own that has its imports behind it, for tests that start it by the hundred.

One process imports everything and forks for every call. A call has its own limits, standard streams, folder and exit code, and goes
through the end of the interpreter, as any other does; what it does not go through is the start, which does not see the evidence.
"""

import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("diag.collectors", "diag.derive", "diag.report")
MODULES = ("pandas", "diag.analysis", "diag.cli", "diag.cli_cache", "diag.terminal")


@dataclass(frozen=True)
class Ended:
    """One call; a negative code is the signal that ended it."""

    code: int
    out: str
    err: str


@dataclass
class Warm:
    """Started by the first call. `close` it."""

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def call(self, args: Sequence[str | bytes | Path], *, memory_bytes: int = resource.RLIM_INFINITY, deadline_s: float = 120.0) -> Ended:
        """`llmdiag ARGS` with so much address space, and nothing to read on standard input. Raises TimeoutError."""
        process = self._process()
        assert process.stdin is not None and process.stdout is not None
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            places = [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in (out, err)]
            asked = {"args": [os.fsdecode(arg) for arg in args], "memory_bytes": memory_bytes, "streams": places}
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], deadline_s)[0]:
                self._end()
                raise TimeoutError(f"llmdiag {args} did not end within {deadline_s:.0f} s")
            code = int(process.stdout.readline())
            said = [stream.seek(0) or stream.read().decode() for stream in (out, err)]
        return Ended(code, *said)

    def close(self) -> None:
        if self.running:
            self._end()

    def _process(self) -> subprocess.Popen[bytes]:
        if not self.running:
            self.running.append(subprocess.Popen(
                [sys.executable, "-m", "tests.warm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True,
                env={**os.environ, "LLMDIAG_STRICT": "1", "PYTHONPATH": str(ROOT)},
            ))  # fmt: skip
        return self.running[0]

    def _end(self) -> None:
        """With the call that it may be in."""
        process = self.running.pop()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _serve() -> None:
    """One line asks for one call, one line answers with its exit code; the end of the input is the end."""
    for name in (*MODULES, *(f"{package}.{info.name}" for package in PACKAGES for info in pkgutil.iter_modules(importlib.import_module(package).__path__))):
        importlib.import_module(name)
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            _become(**json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _become(args: Sequence[str], memory_bytes: int, streams: Sequence[str]) -> None:
    """This process is llmdiag from now on."""
    reading, writing = os.pipe()
    os.close(writing)
    os.dup2(reading, 0)
    for number, place in enumerate(streams, 1):
        os.dup2(os.open(place, os.O_WRONLY), number)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    sys.argv = ["llmdiag", *args]
    from diag.cli import main

    main()


if __name__ == "__main__":
    _serve()
