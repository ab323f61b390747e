"""The options of `scan-cache` that say how a live scan is done: pace, share, processes, where its rows go, where it goes on."""

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import terminal
from diag.errors import BadInput, LlmdiagError

if TYPE_CHECKING:
    from diag.cache.scanning.how import How
    from diag.cache.scanning.resume import Saved, Stopped
    from diag.cache.servers.connection import Client
    from diag.cache.values.keys import ScanResult

OPTIONS = ("gentle", "per_family", "lengths", "workers", "out", "resume")


def options(command: Any) -> Any:
    """--gentle, --sample, --lengths, --workers, --out, --resume."""
    for option in (
        click.option("--resume", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE", help="Go on where an interrupted scan stopped."),
        click.option("--out", type=click.Path(path_type=Path), metavar="FILE.parquet", help="Write a row for every key, for `llmdiag query` and `analyze`."),
        click.option("--workers", type=click.IntRange(0, 8), help="Further processes that read and judge (default: one, if it pays)."),
        click.option("--lengths", is_flag=True, help="Names, TTL and lengths only: reads no value, finds no ghost."),
        click.option("--sample", "per_family", type=click.IntRange(20), metavar="N", help="Look at N keys of each family only."),
        click.option("--gentle", is_flag=True, help="Small bites and at most 6,000 keys a second, for a server that is busy."),
    ):
        command = option(command)
    return command


def look(
    client: "Client", shown: str, asked: Mapping[str, Any], *, pattern: str | None, markers: tuple[bytes, ...], databases: tuple[int, ...] | None,
    purging: bool = False,
) -> "tuple[ScanResult, dict[str, int]]":
    """Scan as asked; the result, and the number of keys of each family. Ctrl-C leaves a file to go on from."""
    from diag.cache import interrupts
    from diag.cache.scanning import resume, rows_file, topology
    from diag.cache.servers.connection import Elsewhere

    how = _how(asked, purging=purging)
    begin = None if asked["resume"] is None else _begin(asked["resume"], shown, pattern, markers, databases)
    glob = None if pattern is None else os.fsencode(pattern)
    if begin is not None:
        if isinstance(client, Elsewhere):
            raise BadInput("--resume: a scan of a cluster, or through Sentinels, cannot be resumed", hint="scan it from the beginning")
        how = replace(how, begin=begin, values=begin.values, per_family=begin.per_family)
        glob, markers = begin.pattern, tuple(begin.markers)
    with ExitStack() as open_now:
        rows = open_now.enter_context(rows_file.RowsFile(asked["out"])) if asked["out"] is not None else None
        progress = open_now.enter_context(terminal.progress(f"scanning {shown}"))
        stop = open_now.enter_context(interrupts.wished())
        how = replace(how, stop=stop.is_set)
        how.watch.show = progress
        try:
            result = topology.scan(
                client, shown, glob, databases=databases, markers=markers, each=None if rows is None else rows.add,
                again=None if rows is None else rows.forget, how=how,
            )  # fmt: skip
        except resume.Stopped as stopped:
            raise _leave(stopped, shown, asked) from stopped
        if stop.is_set():
            raise LlmdiagError("interrupted: nothing was deleted")
    return result, {family.family: family.keys for family in result.families}


def refuse(asked: Mapping[str, Any], where: str, *, kept: tuple[str, ...] = ()) -> None:
    """BadInput: an option of a whole live scan where there is none."""
    given = [name for name in OPTIONS if name not in kept and asked.get(name)]
    if given:
        name = {"per_family": "sample"}.get(given[0], given[0])
        raise BadInput(f"--{name} is for the scan of a whole live server, not {where}", hint=f"leave --{name} out")


def _how(asked: Mapping[str, Any], *, purging: bool) -> "How":
    from diag.cache.scanning import pace
    from diag.cache.scanning.how import How

    if asked["lengths"] and purging:
        raise BadInput("--lengths reads no values: it finds nothing to purge", hint="leave --lengths out")
    if asked["lengths"] and asked["per_family"]:
        raise BadInput("--lengths reads no values, of which --sample could be", hint="use one of them")
    return How(
        pace=pace.gentle() if asked["gentle"] else pace.Pace(), values=not asked["lengths"], per_family=asked["per_family"],
        workers=asked["workers"],
    )  # fmt: skip


def _begin(path: Path, shown: str, pattern: str | None, markers: tuple[bytes, ...], databases: tuple[int, ...] | None) -> "Saved":
    """BadInput: the file is of another scan."""
    from diag.cache.scanning import resume

    saved = resume.read(path)
    if saved.target != shown:
        raise BadInput(f"{path} is of a scan of {saved.target[:200]}", hint=f"name that server: llmdiag scan-cache {shlex.quote(saved.target[:200])}")
    if pattern is not None or markers or databases is not None:
        raise BadInput("--resume goes on with the --pattern, --marker and --db it began with", hint="leave them out")
    return saved


def _leave(stopped: "Stopped", shown: str, asked: Mapping[str, Any]) -> LlmdiagError:
    """The error to end with, once the file is written."""
    from diag.cache.scanning import resume

    path = asked["resume"] or Path(f"llmdiag-scan-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json")
    resume.write(path, stopped.saved)
    again = ["llmdiag", "scan-cache", shown, "--resume", str(path)]
    kept = "" if asked["out"] is None else f"; {asked['out']} has the rows so far, name another file for the others"
    return LlmdiagError(stopped.message, hint=f"go on with: {shlex.join(again)}{kept}")
