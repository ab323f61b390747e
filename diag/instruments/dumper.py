"""Run py-spy on one process: found, bounded in time and size, through a pipe, gone for certain afterwards."""

import contextlib
import os
import selectors
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from diag.errors import Absent

MAX_OUTPUT_BYTES = 128 << 20
STOP_CHECK_S = 0.05
NICE = 10
"""A dump that stops nobody is in no hurry; what it must not do is take a CPU away from the patient."""


@dataclass(frozen=True)
class Answer:
    """What one run of py-spy brought; `code` is None when it was killed at its deadline or because of its size."""

    code: int | None
    output: bytes
    error: str
    seconds: float


def executable() -> str:
    """py-spy beside the running Python, else on PATH. Raises Absent."""
    folders = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
    found = shutil.which("py-spy", path=os.pathsep.join(folders)) or shutil.which("py-spy")
    if found is None:
        raise Absent("py-spy, which reads the stacks, is not installed", hint="pip install py-spy into the environment of llmdiag")
    return found


def version(program: str) -> str | None:
    """`0.4.3`; None when it does not say. Raises Absent when it cannot be run at all."""
    try:
        answer = run((program, "--version"), 2.0, threading.Event())
    except OSError as error:
        raise Absent(f"{program} cannot be run: {error.strerror}", hint="pip install --force-reinstall py-spy") from error
    words = answer.output.decode("utf-8", "replace").split()
    return words[-1] if answer.code == 0 and words else None


def run(argv: Sequence[str], patience_s: float, stop: threading.Event, *, hurry: bool = False) -> Answer:
    """Run to the end, to the deadline, or until `stop` is set; always killed hard, never asked to leave.

    `hurry` is for dumps that stop the process: it stays stopped until the dump gets a CPU.

    A session of its own keeps Ctrl-C away from it: a tracer that is told to end politely can leave its target frozen.
    """
    started = time.monotonic()
    with subprocess.Popen(
        list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(),
        start_new_session=True,
    ) as process:
        if not hurry:
            _step_back(process.pid)
        try:
            output, error, complete = _drain(process, started + patience_s, stop)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    code = process.returncode if complete else None
    return Answer(code, output, error.decode("utf-8", "replace"), time.monotonic() - started)


def _step_back(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, max(NICE, os.getpriority(os.PRIO_PROCESS, pid)))


def _environment() -> dict[str, str]:
    """Nothing of llmdiag's own environment but PATH: py-spy needs none of it."""
    return {"PATH": os.environ.get("PATH", ""), "RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0", "NO_COLOR": "1", "LC_ALL": "C"}


def _drain(process: subprocess.Popen[bytes], until: float, stop: threading.Event) -> tuple[bytes, bytes, bool]:
    """Both outputs, and whether the process came to its end by itself."""
    assert process.stdout is not None and process.stderr is not None
    parts: dict[IO[bytes], list[bytes]] = {process.stdout: [], process.stderr: []}
    size = 0
    with selectors.DefaultSelector() as selector:
        for pipe in parts:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0 or stop.is_set() or size > MAX_OUTPUT_BYTES:
                return b"".join(parts[process.stdout]), b"".join(parts[process.stderr]), False
            for key, _ in selector.select(min(left, STOP_CHECK_S)):
                data = os.read(key.fd, 1 << 20)
                size += len(data)
                if data:
                    parts[key.fileobj].append(data)  # type: ignore[index]
                else:
                    selector.unregister(key.fileobj)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.0, until - time.monotonic()))
    return b"".join(parts[process.stdout]), b"".join(parts[process.stderr]), process.returncode is not None
