"""An init of its own, named tini: starts what a line of its standard input says, and gets whoever loses its parent.

Standard library only: with such a name the interpreter finds no virtual environment.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys

SUBREAPER, NAME, KILLED_WITH_PARENT = 36, 15, 1


def main() -> None:
    """Reads lines until there are no more; collects the dead."""
    prctl = ctypes.CDLL(None).prctl
    prctl(SUBREAPER, 1, 0, 0, 0)
    prctl(NAME, b"tini", 0, 0, 0)
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    for line in sys.stdin:
        wanted = json.loads(line)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            prctl(NAME, b"starter", 0, 0, 0)
            prctl(KILLED_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            if os.fork() == 0:
                os.setsid()
                os.execv(sys.argv[1], ["VLLM::EngineCore", "-c", wanted["code"], wanted["path"]])
            if wanted["owned"]:
                signal.pause()
            os._exit(0)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
