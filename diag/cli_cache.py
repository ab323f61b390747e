"""`llmdiag scan-cache` and `llmdiag restore-cache`: parse, wire, print, exit codes."""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import cli_family, cli_offline, cli_purge, cli_scan, cli_script, cli_target, terminal
from diag.errors import BadInput, LlmdiagError

if TYPE_CHECKING:
    from diag.cache.purging.purge import Options, Plan, PurgeResult
    from diag.cache.purging.restore import RestoreResult
    from diag.cache.servers.connection import Client
    from diag.cache.values.keys import ScanResult

SHOWN = 10
FAMILIES_SHOWN = 30


@click.command("scan-cache")
@click.argument("target", required=False)
@click.option("--purge", "purging", is_flag=True, help="Delete the ghosts (shows the plan and asks; backup first).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also when the plan takes more than its caps allow.")
@click.option("--include", multiple=True, metavar="REASON", help="Also purge keys with this soft reason.")
@click.option("--keys-from", type=click.Path(path_type=Path, exists=True), help="Only keys named by this bundle or text file.")
@click.option("--pattern", help="Only keys that match this glob.")
@cli_target.options
@click.option("--marker", "markers", multiple=True, help="A further text that marks a placeholder.")
@click.option("--max-keys", type=click.IntRange(0), default=10_000, show_default=True, help="Refuse to purge more.")
@click.option("--backup", "backup_path", type=click.Path(path_type=Path, dir_okay=False), help="Where the backup goes.")
@cli_family.options
@cli_purge.options
@cli_script.option
@cli_scan.options
@click.option("--pause", "pause_s", type=click.FloatRange(0, 3600), default=1.0, show_default=True, help="Seconds until keys are read again before they go; those that changed stay.")
@terminal.format_option("text", "json")
def scan_cache(
    target: str | None, purging: bool, yes: bool, force: bool, include: tuple[str, ...], keys_from: Path | None, pattern: str | None,
    markers: tuple[str, ...], max_keys: int, backup_path: Path | None, pause_s: float, form: str, **asked: Any,
) -> None:
    """Find ghost keys in a Redis or Valkey server or an RDB or AOF file; with --purge delete them, backup first.

    Without TARGET: LLMDIAG_REDIS_URL, then REDIS_URL, then a server on 127.0.0.1:6379.
    Exit: 0 no ghosts left, 1 ghosts, 2 error.
    """
    from diag.cache import order
    from diag.cache.purging import acl, plan_file
    from diag.cache.scanning import named
    from diag.report import cache as report

    if math.isnan(pause_s):
        raise BadInput("--pause nan is no number of seconds", hint="for example --pause 1")
    stated = cli_family.begin(asked)
    file = cli_offline.wanted(target, asked, purging=purging)
    if file is not None:
        cli_scan.refuse(asked, "a file", kept=("out",))
        keys = None if keys_from is None else order.keys_from(keys_from, _held_keys)
        texts, databases = (*_checked(include, markers), *stated), cli_target.databases(asked)
        sys.exit(cli_offline.run(file, form=form, pattern=pattern, markers=texts, keys=keys, databases=databases, show=_show, out=asked["out"]))
    wish = cli_purge.wish(asked, purging=purging, force=force, pause_s=pause_s, narrowed=bool(include or pattern or keys_from))
    texts = (*_checked(include, markers), *stated)
    script_path = cli_script.wanted(asked, purging=purging)
    done: PurgeResult | None = None
    left = None
    client, shown = cli_target.choose(target, asked)
    try:
        _greet(client, shown, form)
        if wish.print_acl:
            cli_purge.print_acl(client, shown, pattern, form)
            return
        if purging and wish.plan_path is not None:
            result, plan = cli_purge.from_file(client, shown, wish.plan_path, max_keys)
        else:
            acl.may_scan(client, shown)
            result, sizes = _look(client, shown, keys_from, pattern, texts, cli_target.databases(asked), asked, purging=purging)
            result, plan = cli_purge.planned(client, shown, result, sizes, include=include, max_keys=max_keys, force=force)
            if wish.plan_path is not None:
                plan_file.write(wish.plan_path, plan)
        if form == "text":
            _show(result, plan)
            cli_purge.show_plan(plan)
        if script_path is not None:
            cli_script.write(client, plan, script_path, max_keys=max_keys, force=force, form=form)
        if purging:
            done = _purge(client, plan, backup_path, yes=yes, options=wish.options)
        if done is not None and done.error is None:
            left = named.ghosts_again(client, shown, plan.keys, markers=texts)
    except terminal.OutputLost as error:
        if not purging or done is not None:
            raise
        raise LlmdiagError("the output was closed before the plan could be shown: nothing was deleted", hint="let the plan be read, or send it to a file") from error
    except (KeyboardInterrupt, click.Abort) as error:
        if done is None:
            raise LlmdiagError("interrupted: nothing was deleted") from error
        raise LlmdiagError(f"interrupted after {done.deleted} keys were deleted", hint=cli_purge.undo(done, shown)) from error
    finally:
        client.close()
    if not result.keys and (pattern is not None or asked.get("families")):
        raise BadInput("no key matches what was asked for: nothing was looked at", hint="without --pattern and --family all keys are; the families are listed then")
    if form == "json":
        terminal.out(json.dumps(report.render(result, plan, done, left)) + "\n")
    elif done is not None:
        cli_purge.show_done(done, left, shown)
    elif not purging and script_path is None and plan.keys:
        terminal.out_line(f"dry run: --purge would delete {len(plan.keys)} keys, {plan.bytes} bytes, after a backup")
    if done is not None and done.error is not None:
        terminal.note(f"error: the purge stopped early: {done.error}")
        sys.exit(2)
    sys.exit(1 if report.ghosts_left(result, plan, left) else 0)


@click.command("restore-cache")
@click.argument("backup", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("target")
@cli_target.credentials_option
@terminal.format_option("text", "json")
def restore_cache(backup: Path, target: str, form: str, **asked: Any) -> None:
    """Put purged keys back; a newer value wins. Exit: 0, or 2 when some failed."""
    from diag.cache.purging import restore
    from diag.report import cache as report

    client, shown = cli_target.choose(target, asked)
    try:
        with terminal.progress(f"restoring to {shown}"):
            result = restore.restore(client, shown, backup)
    except KeyboardInterrupt as error:
        raise LlmdiagError("interrupted: some keys are back", hint="run it again; what is back stays as it is") from error
    finally:
        client.close()
    if form == "json":
        terminal.out(json.dumps(report.restored(result)) + "\n")
    else:
        _show_restored(result)
    sys.exit(2 if result.failed else 0)


def _checked(include: Sequence[str], markers: Sequence[str]) -> tuple[bytes, ...]:
    """The marker texts as bytes. BadInput: one would fit every value, or a reason is none."""
    from diag.cache.values.verdicts import SOFT

    unknown = sorted(set(include) - set(SOFT))
    if unknown:
        raise BadInput(f"--include {unknown[0]}: no such soft reason", hint=f"soft reasons: {', '.join(SOFT)}")
    if "" in markers:
        raise BadInput("--marker is empty: every value would contain it", hint="give the text that your service writes")
    return tuple(os.fsencode(text) for text in markers)


def _greet(client: "Client", shown: str, form: str) -> None:
    """What was chosen, before anything else is said."""
    from diag.cache.servers import connection

    with connection.speaking(shown):
        found = connection.describe(client)
    counts = ", ".join(f"db {number}: {'unknown' if keys is None else keys} keys" for number, keys in sorted(found.databases.items()))
    who = f"{found.product or 'unknown product'} {found.version or ''}".rstrip()
    say = terminal.note if form == "json" else terminal.out_line
    say(f"{shown} ({who}, role {found.role or 'unknown'}); {counts or 'no keys'}")


def _look(
    client: "Client", shown: str, keys_from: Path | None, pattern: str | None, markers: tuple[bytes, ...], databases: tuple[int, ...] | None,
    asked: Mapping[str, Any], *, purging: bool,
) -> "tuple[ScanResult, dict[str, int] | None]":
    """Scan everything, or judge just the keys that were named. Family sizes are known only after a whole scan."""
    from diag.cache import order
    from diag.cache.scanning import named

    if keys_from is None:
        return cli_scan.look(client, shown, asked, pattern=pattern, markers=markers, databases=databases, purging=purging)
    cli_scan.refuse(asked, "just the keys that --keys-from names")
    with terminal.progress(f"scanning {shown}"):
        retried: list[bytes] = []

        def held(bundle: Path) -> list[bytes]:
            retried.extend(_held_keys(bundle))
            return retried

        wanted = order.keys_from(keys_from, held)
        return named.judge_named(client, shown, wanted, databases=databases, markers=markers, retried=retried), None


def _held_keys(bundle: Path) -> list[bytes]:
    """Keys that stuck threads of a bundle hold, as long as the stack showed them whole."""
    from diag import evidence

    sql = "SELECT DISTINCT h.key FROM held_keys h JOIN cache_loops l USING (bundle, capture, host, pid, tid) WHERE NOT h.cut AND h.left_in IS NULL"
    rows, _ = evidence.open_paths([bundle]).rows(sql, "--keys-from", 1000)
    if not rows:
        raise BadInput(f"{bundle}: no stuck thread holds a key", hint="scan without --keys-from, or name the keys in a text file")
    return [str(row["key"]).encode() for row in rows]


def _show(result: "ScanResult", plan: "Plan") -> None:
    from diag.cache.scanning.how import LENGTHS_ONLY
    from diag.report import cache as report

    terminal.out_line(f"{result.keys} keys, {result.bytes / 1e6:.1f} MB in {result.seconds:.1f} s")
    if result.families:
        terminal.rows(report.FAMILY_COLUMNS, [report.family_row(family) for family in result.families[:FAMILIES_SHOWN]])
    odd = (*result.ghosts, *result.soft)
    if odd:
        terminal.rows(report.KEY_COLUMNS, [report.key_row(item, plan) for item in odd[:SHOWN]])
    if len(odd) > SHOWN:
        terminal.out_line(f"… and {len(odd) - SHOWN} more; --format json shows all")
    for warning in report.warnings(result, plan):
        terminal.out_line(f"note: {warning}")
    if not result.ghosts and LENGTHS_ONLY not in result.warnings:
        terminal.out_line(f"no ghosts among the {result.keys - result.unknown} keys that were judged" if result.unknown else "no ghosts")


def _purge(client: "Client", plan: "Plan", backup_path: Path | None, *, yes: bool, options: "Options") -> "PurgeResult | None":
    """None: a person said no."""
    from diag.cache.purging import backup, purge

    path = backup_path or backup.default_path()
    if plan.keys:
        purge.check(client, plan, path, options=options)
        if not yes and not sys.stdin.isatty():
            raise BadInput("nothing was deleted: there is no terminal to ask at", hint="look at the plan, then use --yes")
        if not yes and not click.confirm(f"Delete {len(plan.keys)} keys ({plan.bytes} bytes) after a backup to {path}?", err=True):
            terminal.note("nothing was deleted")
            return None
    return purge.purge(client, plan, path, options=options)


def _show_restored(result: "RestoreResult") -> None:
    terminal.out_line(
        f"{result.restored} restored, {result.kept_newer} kept as the server has them now, "
        f"{result.expired} expired meanwhile, {len(result.failed)} failed"
    )
    for failure in result.failed:
        terminal.out_line(f"  line {failure.line}: {failure.key_hex or 'key unknown'}: {failure.why}")
