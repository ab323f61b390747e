"""Orphans that hold device memory, as a script to review that ends them after checks of its own.

The script takes pids, start times and ports as numbers, and names of programs without anything a shell knows; whatever else the evidence says of a process stands in comments,
in printable ASCII. It changes nothing without `--apply`, and never ends what it could not check.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import FunctionLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from diag import __version__
from diag.errors import BadInput, LlmdiagError

TOLERANCE_S = 2
"""`ps` prints whole seconds, and a kernel's boot time may move by one; a pid is not used again so soon after its own start."""
WAIT_S = 20
SHOWN_CHARS = 120
NAME_CHARS = 200
MAX_PID = 1 << 22
PORT = re.compile(r"(?:^|\s)--port[ =](\d{1,5})(?=\s|$)")
SQL = """
SELECT DISTINCT h.host, h.pid, h.started_at, h.cmd, h.used_bytes, h.gpu, h.says, h.source
FROM memory_holders h WHERE h.kind = 'orphan' ORDER BY h.host, h.pid"""
"""Which processes are orphans, over the evidence tables."""


@dataclass(frozen=True)
class Orphan:
    """A process that nobody owns. `started_at` naive UTC, None = not in the evidence: then the script only names it."""

    pid: int
    started_at: datetime | None
    cmd: str
    used_bytes: int | None
    gpu: int | None
    why: str
    source: str
    host: str | None = None

    @property
    def name(self) -> str:
        """First word of its command line without folders; "" = not told. A process of another name is somebody else."""
        words = self.cmd.split()
        return words[0].rpartition("/")[2] if words else ""

    @property
    def port(self) -> int | None:
        """Port of its /metrics, where its command line names one."""
        match = PORT.search(self.cmd)
        return int(match[1]) if match is not None and 0 < int(match[1]) < 65536 else None


def of_rows(rows: Iterable[Mapping[str, Any]]) -> list[Orphan]:
    """Rows of SQL -> orphans, one per host and pid; what has no proper pid is left out."""
    found: dict[tuple[str | None, int], Orphan] = {}
    for row in rows:
        pid, host = int(row["pid"]), str(row["host"] or "")
        if not 1 < pid <= MAX_PID:
            continue
        item = Orphan(
            pid, row["started_at"], str(row["cmd"] or ""), None if row["used_bytes"] is None else int(row["used_bytes"]), None if row["gpu"] is None else int(row["gpu"]),
            str(row["says"] or ""), str(row["source"] or ""), host if host not in ("", "unknown") else None,
        )  # fmt: skip
        known = found.get((item.host, pid))
        if known is None or (known.started_at is None and item.started_at is not None):
            found[item.host, pid] = item
    return list(found.values())


def refuse_place(path: Path) -> None:
    """BadInput: there is something at this place already. LlmdiagError: no file can be made there."""
    if os.path.lexists(path):
        raise BadInput(f"--orphans-script {path}: there is something already", hint="name a new file")
    if not path.absolute().parent.is_dir():
        raise LlmdiagError(f"--orphans-script {path} cannot be written: no such folder", hint="choose another place")


def script(orphans: Sequence[Orphan], name: str = "end-orphans.sh") -> str:
    """The text of the script. BadInput: the evidence is of several hosts, and pids of one mean nothing on another."""
    hosts = {item.host for item in orphans if item.host is not None}
    if len(hosts) > 1:
        raise BadInput(f"orphans on {len(hosts)} hosts: {', '.join(sorted(map(_shown, hosts)))}", hint="write a script for each host, from its own evidence")
    host = next(iter(hosts), "")
    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(_template), undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, trim_blocks=True,
        block_start_string="<%", block_end_string="%>", variable_start_string="<{", variable_end_string="}>", comment_start_string="<!#", comment_end_string="#!>",
    )  # fmt: skip
    facts = {
        "name_quoted": shlex.quote(_shown(name)), "version": __version__, "created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "host_shown": _shown(host) or "(not named)", "host_quoted": shlex.quote(_shown(host)), "wait_s": WAIT_S, "tolerance_s": TOLERANCE_S,
        "listed": [_listed(item) for item in orphans],
    }  # fmt: skip
    return environment.get_template("end-orphans.sh.j2").render(facts)


def write(orphans: Sequence[Orphan], path: Path) -> None:
    """Write the script, for its owner only, all of it or nothing. BadInput, LlmdiagError: the place, or several hosts."""
    refuse_place(path)
    text = script(orphans, path.name)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o700)
    except OSError as error:
        raise LlmdiagError(f"--orphans-script {path} cannot be written: {error.strerror}", hint="choose another place") from error
    try:
        with os.fdopen(handle, "w", encoding="ascii", newline="\n") as out:
            out.write(text)
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise LlmdiagError(f"--orphans-script {path} cannot be written: {error.strerror}", hint="choose another place") from error
        raise


def _listed(item: Orphan) -> dict[str, str]:
    """What goes into the script: numbers, and one line of comment."""
    started = "-" if item.started_at is None else f"{item.started_at.replace(tzinfo=UTC).timestamp():.2f}"
    held = "device memory of unknown size" if item.used_bytes is None else f"{item.used_bytes / (1 << 30):.1f} GiB"
    parts = [_shown(item.cmd) or "(no name)", held + ("" if item.gpu is None else f" on device {item.gpu}")]
    parts += ["start not told" if item.started_at is None else f"started {item.started_at:%Y-%m-%d %H:%M:%S}Z", _shown(item.why), f"({_shown(item.source)})"]
    word = re.sub(r"[^A-Za-z0-9_.:+@-]", "?", item.name)[:NAME_CHARS]
    name = "-" if not item.cmd.strip() else "?" if word in ("", "-") else word  # nothing is called "?": it is kept
    return {"pid": str(item.pid), "started": started, "port": "-" if item.port is None else str(item.port), "name": name, "comment": "; ".join(parts)}


def _shown(text: str) -> str:
    """Printable ASCII of one line, not too long: nothing in it ends a comment or moves a cursor."""
    kept = "".join(char if 32 <= ord(char) < 127 else "?" for char in text)
    return kept if len(kept) <= SHOWN_CHARS else kept[: SHOWN_CHARS - 3] + "..."


def _template(name: str) -> str:
    return (resources.files("diag.recovery") / "script_templates" / name).read_text(encoding="utf-8")
