"""`scan-cache --script DIR`: the option, what forbids it, and what is said when the folder is there."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from diag import terminal
from diag.errors import BadInput

if TYPE_CHECKING:
    from diag.cache.purging.planning import Plan
    from diag.cache.servers.connection import Client

def option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--script DIR"""
    return click.option(
        "--script", "script_path", type=click.Path(path_type=Path), metavar="DIR",
        help="Delete nothing: write the purge as scripts for redis-cli into this new folder, to review and run.",
    )(command)  # fmt: skip


def wanted(asked: Mapping[str, Any], *, purging: bool) -> Path | None:
    """The folder, if one was asked for. BadInput: together with --purge, or something is there. LlmdiagError: no place."""
    from diag.cache.purging import script

    folder = cast(Path | None, asked["script_path"])
    if folder is not None and purging:
        raise BadInput("--script writes a purge for later, --purge does it now", hint="use one of them")
    if folder is not None:
        script.refuse_place(folder)
    return folder


def write(client: "Client", plan: "Plan", folder: Path, *, max_keys: int, force: bool, form: str) -> None:
    """Write the folder and say how to go on. A plan without keys writes nothing."""
    from diag.cache.purging import script

    say = terminal.note if form == "json" else terminal.out_line
    if not plan.keys:
        say(f"nothing to purge: {folder} was not written")
        return
    written = script.write(client, plan, folder, max_keys=max_keys, force=force)
    changed = f" ({written.changed} changed meanwhile and left out)" if written.changed else ""
    where = shlex.quote(str(folder / "purge.sh"))
    say(f"wrote {written.keys} keys to {folder}{changed}; nothing was deleted")
    say(f"read {where}, look with: sh {where}, delete with: sh {where} --apply")
