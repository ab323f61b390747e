"""Attaches to a process as a debugger does, and leaves it so."""

import ctypes
import os
import signal
import sys

PTRACE_ATTACH = 16


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_ATTACH, int(sys.argv[1]), None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    signal.pause()


if __name__ == "__main__":
    main()
