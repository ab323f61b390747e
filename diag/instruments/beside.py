"""Tools of this host (nvidia-smi, dmesg, journalctl) run beside the sampling window.

They are started without waiting, their output is taken from the pipes at each beat, and they are gathered at the end.
A tool that hangs in a driver cannot even be killed: it gets SIGKILL, its pipes are closed, and llmdiag goes on.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from diag.errors import Absent, Denied, TimedOut

PIPE_BYTES = 1 << 20
"""Room in the pipe, so that a talkative tool does not stand still between two beats."""
POLL_S = 0.02
KILL_WAIT_S = 0.3


@dataclass
class Tool:
    """A running tool. `started` is the epoch time, `deadline` on the monotonic clock."""

    argv: tuple[str, ...]
    process: subprocess.Popen[bytes]
    started: float
    patience_s: float
    deadline: float
    limit: int
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    cut: bool = False
    """More output than `limit` bytes: the rest was not read."""


@dataclass(frozen=True)
class Output:
    """What a tool said."""

    code: int
    out: str
    err: str
    started: float
    cut: bool

    @property
    def complaint(self) -> str:
        """First line of what it complained about."""
        text = (self.err.strip() or self.out.strip()).splitlines()
        return text[0][:300] if text else f"exit code {self.code}"


def start(argv: Sequence[str], patience_s: float, limit: int = 4 << 20) -> Tool:
    """Start a tool found on PATH. Raises Absent (not there) or Denied (may not be run)."""
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise Absent(f"{argv[0]} is not on PATH", hint=f"install {argv[0]}, or run it elsewhere and give its saved output to analyze") from error
    except OSError as error:
        raise Denied(f"{argv[0]} cannot be run: {error.strerror}", hint="check its permissions") from error
    for stream in _pipes(process):
        os.set_blocking(stream.fileno(), False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return Tool(tuple(argv), process, time.time(), patience_s, time.monotonic() + patience_s, limit)


def drain(tool: Tool) -> bool:
    """Take what the tool has written so far, without waiting. Returns whether it is still running."""
    running = tool.process.poll() is None
    for stream, into in zip(_pipes(tool.process), (tool.out, tool.err), strict=True):
        while not stream.closed and len(into) <= tool.limit:
            try:
                piece = os.read(stream.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not piece:
                break
            into += piece
    if max(len(tool.out), len(tool.err)) > tool.limit:
        tool.cut = True
        return False
    return running


def gather(tool: Tool) -> Output:
    """Wait for the end of a tool, at most until its patience is over. Raises TimedOut; the tool is gone afterwards."""
    try:
        while drain(tool):
            left = tool.deadline - time.monotonic()
            if left <= 0:
                raise TimedOut(f"{tool.argv[0]} did not answer in {tool.patience_s:g} s")
            select.select([stream for stream in _pipes(tool.process) if not stream.closed], [], [], min(left, POLL_S))
            time.sleep(min(left, POLL_S) / 4)
        code = 0 if tool.cut else tool.process.wait()
        return Output(code, _text(tool.out), _text(tool.err), tool.started, tool.cut)
    finally:
        stop(tool)


def stop(tool: Tool) -> None:
    """End a tool and close its pipes; never blocks on one that a driver holds."""
    process = tool.process
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            # In uninterruptible sleep: nobody can wait for it. Forget it instead of being held as well.
            process.returncode = -signal.SIGKILL
    for stream in _pipes(process):
        stream.close()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdout is not None and process.stderr is not None
    return process.stdout, process.stderr


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace").replace("\0", "")
