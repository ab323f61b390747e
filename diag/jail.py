"""Strangers' SQL (rules of `--rules DIR`, `query`) runs in a child process with little memory and a deadline.

The DuckDB connection is locked, but it can still allocate and loop: only a process can be bounded from outside.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from diag.errors import LlmdiagError, SqlError
from diag.model import Diagnosis
from diag.sources import Dates

DEADLINE_S = 60.0
MEMORY_BYTES = 6 << 30
"""Address space, not resident memory: DuckDB, pandas and numpy reserve about 3 GiB of it before the first row."""
MAX_ROWS = 1_000


class Rows(msgspec.Struct, frozen=True):
    """Answer of one query."""

    columns: list[str]
    rows: list[dict[str, object]]
    more: bool


def query(paths: Sequence[Path], sql: str, *, deadline_s: float = DEADLINE_S, memory_bytes: int = MEMORY_BYTES) -> Rows:
    """Run one SELECT over the evidence in a child. At most 1,000 rows. Raises SqlError."""
    answer = _run({"do": "query", "paths": [str(p) for p in paths], "sql": sql}, deadline_s, memory_bytes)
    return msgspec.json.decode(answer, type=Rows)


def analyse(
    paths: Sequence[Path], rules: Path, dates: Dates | None = None, *, deadline_s: float = DEADLINE_S, memory_bytes: int = MEMORY_BYTES
) -> list[Diagnosis]:
    """Run a stranger's rules over the evidence in a child."""
    answer = _run({"do": "analyse", "paths": [str(p) for p in paths], "rules": str(rules), "dates": asdict(dates or Dates())}, deadline_s, memory_bytes)
    return msgspec.json.decode(answer, type=list[Diagnosis])


def _run(request: Mapping[str, object], deadline_s: float, memory_bytes: int) -> bytes:
    command = [sys.executable, "-m", "diag.jail", str(memory_bytes), str(int(deadline_s) + 5)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        answer, noise = child.communicate(json.dumps(request).encode(), timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        raise SqlError(f"the query did not end within {deadline_s:.0f} s and was stopped", hint="narrow it, or join fewer tables") from error
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode == 0:
        return answer
    if child.returncode == 3:
        said = json.loads(answer)
        raise SqlError(said["message"], hint=said["hint"])
    last = noise.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit {child.returncode}"]
    raise SqlError(f"the query broke its bounds (memory {memory_bytes >> 20} MiB): {last[0]}", hint="narrow it, or join fewer tables")


def _child(request: Mapping[str, Any]) -> bytes:
    from diag import analysis, evidence, rules

    paths = [Path(str(path)) for path in request["paths"]]
    if request["do"] == "analyse":
        return msgspec.json.encode(analysis.analyse(paths, rules.load(Path(str(request["rules"]))), dates=Dates(**request["dates"])), enc_hook=str)
    found, more = evidence.open_paths(paths).rows(str(request["sql"]), "query", MAX_ROWS)
    columns = list(found[0]) if found else []
    return msgspec.json.encode(Rows(columns, found, more), enc_hook=str)


def _main(memory_bytes: int, cpu_s: int) -> int:
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CPU, cpu_s * 2)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        answer = _child(json.loads(sys.stdin.buffer.read()))
    except LlmdiagError as error:
        sys.stdout.write(json.dumps({"message": error.message, "hint": error.hint}))
        return 3
    except MemoryError:
        sys.stdout.write(json.dumps({"message": f"the query needs more than {memory_bytes >> 20} MiB", "hint": "narrow it"}))
        return 3
    sys.stdout.buffer.write(answer)
    return 0


def _limit(kind: int, most: int) -> None:
    """Never above a limit that is there already: it may not be raised."""
    hard = resource.getrlimit(kind)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bound, bound))


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), int(sys.argv[2])))
