"""`scan-cache FILE`: what a file is asked, what it is not, and what is said of it."""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag import terminal
from diag.errors import BadInput, LlmdiagError
from diag.loose import shown

if TYPE_CHECKING:
    from diag.cache.purging.planning import Plan
    from diag.cache.values.keys import ScanResult

SERVER_ONLY = {"plan_path": "--plan", "print_acl": "--print-acl", "script_path": "--script", "credentials_file": "--credentials-file"}


def wanted(target: str | None, asked: Mapping[str, Any], *, purging: bool) -> Path | None:
    """The file or folder that TARGET is; None: it is a server. BadInput: it is a file, and asked what only a server can."""
    from diag.cache.offline import target as offline

    if target is None or not offline.is_path(target):
        return None
    path = Path(target)
    if purging:
        raise BadInput(f"{shown(path)} is a file: nothing in it can be purged", hint=f"name the server: {_by_server(path)}")
    refused = [option for name, option in SERVER_ONLY.items() if asked.get(name)]
    if refused:
        raise BadInput(f"{refused[0]} needs a server, and {shown(path)} is a file", hint="leave it out, or name redis://HOST:PORT")
    return path


def run(
    path: Path, *, form: str, pattern: str | None, markers: Sequence[bytes], keys: Sequence[bytes] | None, databases: Sequence[int] | None,
    show: "Callable[[ScanResult, Plan], None]", out: Path | None = None,
) -> int:  # fmt: skip
    """Scan it, show what was found, write all rows to `out`; the exit code."""
    from diag.cache.offline.contents import describe
    from diag.cache.offline.scan import scan
    from diag.cache.purging import planning
    from diag.cache.scanning import rows_file
    from diag.report import cache as report

    (terminal.note if form == "json" else terminal.out_line)(describe(path))
    glob = None if pattern is None else os.fsencode(pattern)
    try:
        with ExitStack() as open_now:
            rows = None if out is None else open_now.enter_context(rows_file.RowsFile(out))
            progress = open_now.enter_context(terminal.progress(f"scanning {shown(path)}"))
            tick: Callable[[int, float], None] = lambda count, part: progress(f"{count} keys", part)  # noqa: E731
            result = scan(path, pattern=glob, keys=keys, markers=markers, databases=databases, tick=tick, each=None if rows is None else rows.add)
    except KeyboardInterrupt as error:
        raise LlmdiagError("interrupted: the file is as it was") from error
    plan = planning.plan((), target=result.target)
    if form == "json":
        terminal.out(json.dumps(report.render(result, plan, None, None)) + "\n")
    else:
        show(result, plan)
        if result.ghosts:
            terminal.out_line(f"to purge them where they live: {_by_server(path)}")
    return 1 if result.ghosts else 0


def _by_server(path: Path) -> str:
    """How the keys found in a file are purged on a server, which judges them again."""
    pick = """jq -r '.ghosts[] | select(.purgeable) | "hex:" + .key_hex'"""
    return (
        f"llmdiag scan-cache {shlex.quote(shown(path))} --format json | {pick} > keys.txt; llmdiag scan-cache redis://HOST:PORT --keys-from keys.txt --purge"
    )
