"""`llmdiag doctor`: what this machine allows, on one screen."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diag import terminal

if TYPE_CHECKING:
    from diag.doctor import Check

SCHEMA = "llmdiag.doctor/1"
TAGS = {True: "[ok]", False: "[!!]", None: "[--]"}
STYLES = {True: "green", False: "bold red", None: "dim"}
NAME_CELLS = 14


@click.command()
@click.argument("pid", required=False, type=click.IntRange(1))
@terminal.format_option("text", "json")
def doctor(pid: int | None, form: str) -> None:
    """What this machine allows llmdiag to see, and how to fix the rest.

    Tries it on a child of its own, or on PID (nothing is stopped). Exit: 0, 1 something is missing, 2 error.
    """
    from diag import doctor, procfs

    target = None if pid is None else procfs.existing(pid)
    with terminal.progress("doctor") as told:
        found = list(doctor.run(target, Path.cwd(), told))
    if form == "json":
        terminal.out(json.dumps({"schema": SCHEMA, "checks": [{"name": c.name, "ok": c.ok, "says": c.says, "fix": c.fix} for c in found]}) + "\n")
    else:
        for check in found:
            _show(check)
        _close(found)
    sys.exit(1 if any(check.ok is False for check in found) else 0)


def _show(check: "Check") -> None:
    """`[ok] name   what is so`, long lines broken below each other; the command to fix it stays whole."""
    from rich.text import Text

    from diag.report.inert import inert
    from diag.report.layout import wrapped

    console = terminal.console()
    indent = len(TAGS[True]) + 1 + NAME_CELLS
    first, *others = wrapped(inert(check.says, 2000), max(20, terminal.width() - indent - 1))
    console.print(Text.assemble((TAGS[check.ok], STYLES[check.ok]), f" {check.name:<{NAME_CELLS}}{first}"), soft_wrap=True)
    for line in others:
        console.print(Text(" " * indent + line), soft_wrap=True)
    if check.fix and check.ok is not True:
        console.print(Text(f"{' ' * (len(TAGS[True]) + 1)}fix: {inert(check.fix, 2000)}"), soft_wrap=True)


def _close(found: "list[Check]") -> None:
    missing = [check.name for check in found if check.ok is False]
    terminal.out_line(f"missing: {', '.join(missing)}" if missing else "nothing is missing")
