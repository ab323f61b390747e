"""llmdiag in a terminal of its own, as a person sees it."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

from tests.conftest import ROOT


def seen(*args: str, columns: int = 80, cwd: Path = ROOT, term: str = "dumb") -> str:
    """All that `llmdiag ARGS` writes to a terminal of that width, without colours and the blanks that fill lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "LLMDIAG_REDIS_URL", "REDIS_URL")}
    child = subprocess.Popen(
        [sys.executable, "-m", "diag.cli", *args], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd,
        env={**clean, "NO_COLOR": "1", "TERM": term, "PYTHONPATH": str(ROOT)},
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := _more(ours):
            shown += piece
    finally:
        os.close(ours)
        child.wait(60)
    return "\n".join(line.rstrip() for line in shown.decode().split("\n"))


def _more(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the last writer is gone
        return b""
