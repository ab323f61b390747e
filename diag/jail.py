"""Strangers' SQL (rules of `--rules DIR`, `query`) runs in a child process with little memory and a deadline.

The DuckDB connection is locked, but it can still allocate and loop: only a process can be bounded from outside.
"""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from diag import tether
from diag.errors import LlmdiagError, RuleError, SqlError
from diag.model import Diagnosis
from diag.sources import Dates

DEADLINE_S = 60.0
MEMORY_BYTES = 6 << 30
"""Address space, not resident memory: DuckDB, pandas and numpy reserve about 3 GiB of it before the first row."""
MAX_ROWS = 1_000
NOW = "now: "
"""Before what the child is about to run, a line of its stderr: where it stood when it was stopped."""
LOADING = "loading the evidence"


# rules/cpu-spin.toml, as the engine names every rule
RULE_FILE = re.compile(r"(?<![\w./-])rules/([\w.-]+\.toml)\b")


class Rows(msgspec.Struct, frozen=True):
    """Answer of one query."""

    columns: list[str]
    rows: list[dict[str, object]]
    more: bool


def query(
    paths: Sequence[Path], sql: str, dates: Dates | None = None, *, deadline_s: float = DEADLINE_S, memory_bytes: int = MEMORY_BYTES
) -> Rows:
    """Run one SELECT over the evidence in a child. At most 1,000 rows. Raises SqlError."""
    request = {"do": "query", "paths": [str(p) for p in paths], "sql": sql, "dates": asdict(dates or Dates())}
    answer = _run(request, deadline_s, memory_bytes)
    return msgspec.json.decode(answer, type=Rows)


def analyse(
    paths: Sequence[Path], rules: Path, dates: Dates | None = None, *, pictures: bool = True, deadline_s: float = DEADLINE_S,
    memory_bytes: int = MEMORY_BYTES,
) -> list[Diagnosis]:
    """Run a stranger's rules over the evidence in a child. Raises RuleError, SqlError naming the rule and the signal."""
    request = {"do": "analyse", "paths": [str(p) for p in paths], "rules": str(rules), "dates": asdict(dates or Dates()), "pictures": pictures}
    try:
        answer = _run(request, deadline_s, memory_bytes)
    except LlmdiagError as error:
        raise type(error)(RULE_FILE.sub(lambda found: str(rules / found[1]), error.message), hint=error.hint) from error
    return msgspec.json.decode(answer, type=list[Diagnosis])


def _run(request: Mapping[str, object], deadline_s: float, memory_bytes: int) -> bytes:
    # -P: a file of the current folder is evidence, never a module
    command = [sys.executable, "-P", "-m", "diag.jail", str(memory_bytes), str(int(deadline_s) + 5), str(os.getpid())]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        answer, noise = child.communicate(json.dumps(request).encode(), timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        child.kill()
        _, noise = child.communicate()
        raise _broken(request, noise, f"did not end within {deadline_s:.0f} s and was stopped") from error
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode == 0:
        return answer
    if child.returncode == 3:
        said = json.loads(answer)
        raise SqlError(said["message"], hint=said["hint"])
    last = [line for line in _lines(noise) if not line.startswith(NOW)][-1:] or [f"exit {child.returncode}"]
    what = f"needs more than {memory_bytes >> 20} MiB" if last[0].startswith("MemoryError") else f"broke its bounds (memory {memory_bytes >> 20} MiB): {last[0]}"
    raise _broken(request, noise, what)


def _broken(request: Mapping[str, object], noise: bytes, what: str) -> LlmdiagError:
    """The error of a child that had to be stopped: where it stood, and what helps there."""
    now = [line.removeprefix(NOW) for line in _lines(noise) if line.startswith(NOW)][-1:] or [LOADING]
    if now[0] == LOADING:
        return SqlError(f"{LOADING} {what}", hint="give less of it at a time")
    if request["do"] == "query":
        return SqlError(f"the query {what}", hint="narrow it, or join fewer tables")
    return RuleError(f"{now[0]} {what}", hint="make that SQL or text smaller; llmdiag rules test FOLDER tries it on the samples")


def _lines(noise: bytes) -> list[str]:
    return noise.decode("utf-8", "replace").strip().splitlines()


def _child(request: Mapping[str, Any]) -> bytes:
    from diag import analysis, evidence, rules

    paths = [Path(str(path)) for path in request["paths"]]
    extras = evidence.Extras(watch=_say_now, spill=False, wary=True)  # a query that is stopped leaves no gigabytes in the current folder
    if request["do"] == "analyse":
        found = rules.load(Path(str(request["rules"])))
        diagnoses = analysis.analyse(paths, found, extras, Dates(**request["dates"]), pictures=bool(request["pictures"]))
        return msgspec.json.encode(diagnoses, enc_hook=str)
    answer = evidence.open_paths(paths, extras=extras, dates=Dates(**request["dates"])).find(str(request["sql"]), "query", MAX_ROWS)
    return msgspec.json.encode(Rows(list(answer.columns), answer.rows, answer.more), enc_hook=str)


def _say_now(what: str) -> None:
    sys.stderr.write(f"{NOW}{what}\n")
    sys.stderr.flush()


def _main(memory_bytes: int, cpu_s: int, parent: int) -> int:
    tether.hold(parent)
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CPU, cpu_s * 2)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        answer = _child(json.loads(sys.stdin.buffer.read()))
    except LlmdiagError as error:
        sys.stdout.write(json.dumps({"message": error.message, "hint": error.hint}))
        return 3
    sys.stdout.buffer.write(answer)
    return 0


def _limit(kind: int, most: int) -> None:
    """Never above a limit that is there already: it may not be raised."""
    hard = resource.getrlimit(kind)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bound, bound))


if __name__ == "__main__":
    sys.exit(_main(*map(int, sys.argv[1:])))
