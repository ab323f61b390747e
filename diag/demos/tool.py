"""The tool as a person would call it, and a lab as a client would: a demo knows nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diag import labs, tether
from diag.demos.steps import DemoFailed

ANSWER_S = 30.0


def snapshot(pid: int, bundle: Path) -> dict[str, Any]:
    """The diagnosis of a live process; its bundle stays."""
    return answer_of(["snapshot", str(pid), "-o", str(bundle), "--format", "json"], (0, 1, 3))


def report(bundle: Path) -> str:
    """The text a person reads."""
    return llmdiag(["analyze", str(bundle)], (0, 1, 3))


def answer_of(args: Sequence[str], allowed: Sequence[int]) -> dict[str, Any]:
    """The JSON of one command. Raises DemoFailed when it ends otherwise than `allowed`."""
    found: dict[str, Any] = json.loads(llmdiag(args, allowed))
    return found


def llmdiag(args: Sequence[str], allowed: Sequence[int]) -> str:
    """The tool as a person would call it; the server is found by itself, not told by the environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("LLMDIAG_REDIS_URL", "REDIS_URL")}
    done = subprocess.run(tether.command([sys.executable, "-P", "-m", "diag.cli", *args]), capture_output=True, text=True, timeout=120, env=env, check=False)
    if done.returncode not in allowed:
        raise DemoFailed(f"llmdiag {' '.join(args)} ended with {done.returncode}", hint=done.stderr.strip()[-500:])
    return done.stdout


def expect(ask: Callable[[], labs.Answer], status: int) -> str:
    """Ask until the answer has this status. Raises DemoFailed, TimeoutError."""
    answer = labs.wait_until(lambda: _answer(ask, status), ANSWER_S)
    if answer is None:
        raise DemoFailed(f"no answer with status {status}")
    return f"{answer.status} {answer.body[:60].decode('utf-8', 'replace')}"


def _answer(ask: Callable[[], labs.Answer], status: int) -> labs.Answer | None:
    found = ask()
    return found if found.status == status else None
