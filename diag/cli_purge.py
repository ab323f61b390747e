"""What `scan-cache` says and asks around a purge: its options, the plan and its file, rights, the outcome."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import terminal
from diag.errors import BadInput

if TYPE_CHECKING:
    from diag.cache.purging.planning import Plan
    from diag.cache.purging.purge import Options, PurgeResult
    from diag.cache.servers.connection import Client
    from diag.cache.values.keys import ScanResult


@dataclass(frozen=True)
class Wish:
    """What was asked for beyond the scan."""

    plan_path: Path | None
    """Written by a dry run, carried out by a purge."""
    print_acl: bool
    options: "Options"


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a purge beside those that say what is scanned."""
    for option in reversed((
        click.option("--plan", "plan_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan there; with --purge: carry out exactly that plan."),
        click.option("--rate", default="5000,100MB", show_default=True, metavar="KEYS[,BYTES]", help="The most that is read again and deleted in a second."),
        click.option("--use-del", is_flag=True, help="Delete with DEL where UNLINK is denied."),
        click.option("--print-acl", is_flag=True, help="Only print the least rights that scan, purge and restore need on this server."),
    )):  # fmt: skip
        command = option(command)
    return command


def wish(asked: dict[str, Any], *, purging: bool, force: bool, pause_s: float, narrowed: bool) -> Wish:
    """BadInput: the options do not go together, or the plan has no place."""
    from diag.cache.purging import plan_file, purge, throttle

    path: Path | None = asked["plan_path"]
    if path is not None and purging and narrowed:
        raise BadInput("--purge --plan carries out that plan and scans nothing", hint="leave out --include, --pattern and --keys-from")
    if path is not None and not purging:
        plan_file.refuse_place(path)
    how = purge.Options(
        force=force, pause_s=pause_s, use_del=asked["use_del"], rate=throttle.rate_of(asked["rate"]), arguments=tuple(sys.argv[1:])
    )
    return Wish(path, asked["print_acl"], how)


def print_acl(client: "Client", shown: str, pattern: str | None, form: str) -> None:
    """One line a use, for an administrator to paste."""
    from diag.cache.purging import acl
    from diag.cache.servers import connection

    with connection.speaking(shown):
        lines = acl.lines(client, "*" if pattern is None else pattern)
    if form == "json":
        terminal.out(json.dumps({"schema": "llmdiag.acl/1", "target": shown, **lines}) + "\n")
        return
    for use, line in lines.items():
        terminal.out_line(f"# {use}\n{terminal.printable(line)}")


def planned(
    client: "Client", shown: str, result: "ScanResult", sizes: "dict[str, int] | None", *, include: Sequence[str], max_keys: int, force: bool
) -> "tuple[ScanResult, Plan]":
    """The plan of a scan, both halves of each pair or none; and the scan with what more was read for it."""
    from diag.cache.purging import pairs, planning

    ghosts = pairs.complete(client, shown, result.ghosts)
    odd = (*ghosts, *result.soft)
    partners = pairs.look_up(client, shown, odd)
    plan = planning.plan(odd, target=shown, sizes=sizes, include=include, max_keys=max_keys, partners=partners, force=force)
    return replace(result, ghosts=tuple(ghosts)), plan


def from_file(client: "Client", shown: str, path: Path, max_keys: int) -> "tuple[ScanResult, Plan]":
    """A plan that was written before, and its keys in place of what a scan finds."""
    from diag.cache.purging import plan_file
    from diag.cache.servers import connection

    plan = plan_file.read(path, shown, max_keys=max_keys)
    with connection.speaking(shown):
        return plan_file.as_scan(plan, connection.describe(client)), plan


def show_plan(plan: "Plan") -> None:
    """Per family: how many keys and bytes, why, and a few of them."""
    from diag.cache.purging import plan_file

    if not plan.keys:
        return
    found = [
        {
            "planned": family["family"], "keys": f"{family['keys']} of {'?' if family['of'] is None else family['of']}",
            "bytes": family["bytes"], "reasons": ", ".join(f"{name} {count}" for name, count in family["reasons"].items()),
            "samples": ", ".join(family["samples"]),
        }
        for family in plan_file.families(plan)
    ]  # fmt: skip
    terminal.rows(("planned", "keys", "bytes", "reasons", "samples"), found)


def show_done(done: "PurgeResult", left: int | None, shown: str) -> None:
    """The outcome, and how to undo it."""
    terminal.out_line(
        f"purge: {done.planned} planned, {done.deleted} deleted, {done.changed} changed meanwhile and kept, "
        f"{done.missing} gone already, {done.failed} failed"
    )
    for note in done.notes:
        terminal.out_line(f"note: {note}")
    if left:
        terminal.out_line(f"note: {left} of them are ghosts now: kept, or written anew")
    if done.audit is not None:
        terminal.out_line(f"log: {terminal.printable(done.audit)}")
    if done.backup is not None:
        terminal.out_line(undo(done, shown))


def undo(done: "PurgeResult", shown: str) -> str:
    """The command that brings everything back."""
    return f"undo: {shlex.join(['llmdiag', 'restore-cache', done.backup or '-', shown])}"

