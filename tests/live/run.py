"""Run llmdiag as a person would, and read what it says."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.warm import WARM, tells_the_interpreter


@dataclass(frozen=True)
class Said:
    """What one call of llmdiag left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


def llmdiag(*args: str, cwd: Path | None = None, deadline_s: float = 120.0, **env: str) -> Said:
    """`llmdiag ARGS` in a process of its own with its imports behind it; no cache server and no width in its environment unless `env` has them."""
    clean = {name: value for name, value in os.environ.items() if name not in ("LLMDIAG_REDIS_URL", "REDIS_URL", "COLUMNS")}
    said = (_started if tells_the_interpreter(env) else _warm)(args, cwd or Path.cwd(), deadline_s, {**clean, "LLMDIAG_STRICT": "1", **env})
    assert "Traceback" not in said.err, said.err
    return said


def _warm(args: tuple[str, ...], cwd: Path, deadline_s: float, env: dict[str, str]) -> Said:
    """Forked from a process that has its imports behind it."""
    return Said(**vars(WARM.call(args, deadline_s=deadline_s, cwd=cwd, env=env)))


def _started(args: tuple[str, ...], cwd: Path, deadline_s: float, env: dict[str, str]) -> Said:
    """From the very start: what the environment tells the interpreter is seen."""
    done = subprocess.run([sys.executable, "-m", "diag.cli", *args], capture_output=True, text=True, timeout=deadline_s, check=False, cwd=cwd, env=env)
    return Said(done.returncode, done.stdout, done.stderr)


def snapshot(pid: int, bundle: Path, *args: str, **env: str) -> Said:
    """`llmdiag snapshot PID -o BUNDLE --format json ARGS`"""
    return llmdiag("snapshot", str(pid), "-o", str(bundle), "--format", "json", *args, **env)
