"""llmdiag in a process of its own that has its imports behind it, for tests that start it by the hundred.

One process imports everything and forks for every call. A call has its own limits, standard streams, folder, environment and exit code,
and goes through the end of the interpreter, as any other does; what it does not go through is the start, which does not see the evidence.
"""

import atexit
import contextlib
import gc
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
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIBRARIES = (
    "pandas", "pandas.core.methods.to_dict", "sqlglot.dialects.duckdb", "sqlglot.generators.duckdb", "sqlglot.parsers.duckdb",
    "sqlglot.optimizer.annotate_types", "sqlglot.optimizer.simplify", "encodings.unicode_escape",
)  # fmt: skip
READ_AT_THE_START = ("LANG", "LC_", "PYTHON", "TERM")
"""Beginnings of names of the environment that count before the first line of llmdiag runs: who sets one needs a process of his own."""


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
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def call(
        self, args: Sequence[str | bytes | Path], *, memory_bytes: int = resource.RLIM_INFINITY, deadline_s: float = 120.0,
        cwd: Path | None = None, env: Mapping[str, str] | None = None,
    ) -> Ended:
        """`llmdiag ARGS` with so much address space, and nothing to read on standard input. Raises TimeoutError.

        Without `cwd` and `env` it is in the folder of the project and has the environment of the tests.
        """
        given = {**(os.environ if env is None else env), "LLMDIAG_STRICT": "1", "PYTHONPATH": str(ROOT)}
        with self.one_at_a_time, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self._process()
            assert process.stdin is not None and process.stdout is not None
            places = [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in (out, err)]
            asked = {
                "args": [os.fsdecode(arg) for arg in args], "memory_bytes": memory_bytes, "streams": places, "cwd": str(cwd or ROOT), "env": given,
            }
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


WARM = Warm()
"""For whoever needs no other; it ends with the tests."""
atexit.register(WARM.close)


def tells_the_interpreter(env: Mapping[str, str]) -> bool:
    return any(name.startswith(READ_AT_THE_START) for name in env)


def _serve() -> None:
    """One line asks for one call, one line answers with its exit code; the end of the input is the end."""
    package = importlib.import_module("diag")
    found = [info.name for info in pkgutil.walk_packages(package.__path__, "diag.")]
    for name in (*LIBRARIES, *found):
        with contextlib.suppress(ModuleNotFoundError):  # an extra that is not installed: who needs it says so
            importlib.import_module(name)
    _read_rules_and_views()
    gc.collect()
    gc.freeze()  # else the end of every call walks, and so copies, all that is imported: that costs more than most calls
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            _become(**json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _read_rules_and_views() -> None:
    """The syntax trees of what is shipped; llmdiag remembers what it has read."""
    from diag import evidence, lineage, rules
    from diag.report import sections

    for name, view in evidence.views_of(evidence.Extras()).items():
        lineage.reads(view.sql, f"views/{name}.sql")
    for rule in rules.load(rules.shipped()):
        for sign in rule.signals:
            where = f"rules/{rule.id}.toml: signal {sign.id}"
            lineage.reads(sign.sql, where)
            if sign.near is not None:
                lineage.reads(sign.near, f"{where} (near)")
    for module in sections.discover():
        for name, sql in module.READS.items():
            lineage.reads(sql, f"section {module.__name__}: {name}")  # type: ignore[attr-defined]


def _become(args: Sequence[str], memory_bytes: int, streams: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
    """This process is llmdiag from now on."""
    reading, writing = os.pipe()
    os.close(writing)
    os.dup2(reading, 0)
    for number, place in enumerate(streams, 1):
        os.dup2(os.open(place, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    sys.argv = ["llmdiag", *args]
    from diag.cli import main

    main()


if __name__ == "__main__":
    _serve()
