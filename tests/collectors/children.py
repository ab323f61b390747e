"""Real child processes as patients: they say when they are ready, and they are gone after the test."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Child:
    """A running child and the facts it printed when it was ready."""

    process: subprocess.Popen[str]
    facts: dict[str, int]

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, text: str) -> None:
        """Write it one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def child(code: str, *arguments: object) -> Iterator[Child]:
    """`python -c code arguments`, which prints one JSON object when it is ready and then lives until it is killed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, "the child ended before it was ready"
        yield Child(process, json.loads(ready))
    finally:
        process.kill()
        process.communicate()
