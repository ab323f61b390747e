"""A child that does not outlive its parent, whatever ends that: `python tether.py PARENT COMMAND...` becomes the command.

Imports nothing but the standard library: it is run by its path, before any package can be found.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


def command(argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` as a child that ends with the thread that starts it; pid and output are its own."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid()), *argv]


def hold(parent: int) -> None:
    """SIGKILL for this process when its parent ends. Exits at once where that has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    hold(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
