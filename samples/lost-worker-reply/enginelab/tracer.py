"""Attaches to all threads of a process, as a debugger does, and leaves it so.

    python tracer.py PID 1     # stops them
    python tracer.py PID 0     # lets them run, as strace does
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    request = PTRACE_ATTACH if sys.argv[2] == "1" else PTRACE_SEIZE
    for task in Path(f"/proc/{int(sys.argv[1])}/task").iterdir():
        if libc.ptrace(request, int(task.name), None, None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    signal.pause()


if __name__ == "__main__":
    main()
