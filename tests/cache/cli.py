"""`llmdiag` as a process: in a pipe, in the background, or before a person at a terminal of 80 columns."""

import fcntl
import os
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.run import Said
from tests.warm import WARM, tells_the_interpreter

DEADLINE_S = 60.0
PURGE = ("--purge", "--yes", "--pause", "0")


def start(*args: str, cwd: Path, **env: str) -> subprocess.Popen[str]:
    """Started, not waited for; no standard input, and no cache server named by the environment unless `env` does."""
    return subprocess.Popen(
        _command(args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=_environment(env)
    )


def ended(process: subprocess.Popen[str]) -> Said:
    """Wait for it. No command may end in a traceback."""
    out, err = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in err, err
    return Said(process.returncode, out, err)


def run(*args: str, cwd: Path, **env: str) -> Said:
    """The usual case: from start to end, with the imports behind it."""
    if tells_the_interpreter(env):
        return ended(start(*args, cwd=cwd, **env))
    said = WARM.call(args, cwd=cwd, env=_environment(env), deadline_s=DEADLINE_S)
    assert "Traceback" not in said.err, said.err
    return Said(said.code, said.out, said.err)


def run_all(*commands: tuple[str, ...], cwd: Path, **env: str) -> list[Said]:
    """Several that do not touch each other."""
    return [run(*command, cwd=cwd, **env) for command in commands]


def at_terminal(
    *args: str, cwd: Path, answer: str = "", before_answer: Callable[[], object] = lambda: None, columns: int = 80, **env: str
) -> tuple[int, str]:
    """Exit code and everything on the screen. `answer` is typed when the question is on it."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    process = subprocess.Popen(
        _command(args), stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env={**_environment(env), "TERM": "xterm-256color"},
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
    )  # fmt: skip
    os.close(theirs)
    screen, asked = b"", False
    deadline = time.monotonic() + DEADLINE_S
    try:
        while chunk := _read(ours, deadline):
            screen += chunk
            if answer and not asked and b"[y/N]: " in screen:
                asked = True
                _until_it_waits(process.pid, deadline)
                before_answer()
                os.write(ours, answer.encode())
    finally:
        os.close(ours)
        code = process.wait(timeout=DEADLINE_S)
    text = screen.decode().replace("\r\n", "\n")
    assert "Traceback" not in text, text
    return code, text


def without_control_codes(screen: str) -> str:
    """What is left to read when colours and cursor movements are taken out."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)


def _until_it_waits(pid: int, deadline: float) -> None:
    """A signal that comes after the question and before the read for its answer would be seen only after the read."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline, "it never waits for an answer"


def _read(descriptor: int, deadline: float) -> bytes:
    """The next bytes; none at the end."""
    readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    assert readable, "nothing more on the screen"
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: the other side is closed
        return b""


def _command(args: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "diag.cli", *args]


def _environment(env: dict[str, str]) -> dict[str, str]:
    dropped = ("LLMDIAG_REDIS_URL", "REDIS_URL", "COLUMNS", "NO_COLOR", "FORCE_COLOR")
    root = str(Path(__file__).parents[2])
    return {**{name: value for name, value in os.environ.items() if name not in dropped}, "PYTHONPATH": root, "LLMDIAG_STRICT": "1", **env}
