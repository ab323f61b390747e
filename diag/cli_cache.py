"""`llmdiag scan-cache` and `llmdiag restore-cache`: parse, wire, print, exit codes."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diag import terminal
from diag.errors import BadInput

if TYPE_CHECKING:
    from diag.cache.connection import Client
    from diag.cache.keys import CacheKey, ScanResult
    from diag.cache.purge import Plan, PurgeResult

PAUSE_S = 1.0
SHOWN = 10


@click.command("scan-cache")
@click.argument("target", required=False)
@click.option("--purge", "purging", is_flag=True, help="Delete the ghosts (shows the plan and asks; backup first).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also when the plan takes more than its caps allow.")
@click.option("--include", multiple=True, metavar="REASON", help="Also purge keys with this soft reason.")
@click.option("--keys-from", type=click.Path(path_type=Path, exists=True), help="Only keys named by this bundle or text file.")
@click.option("--pattern", help="Only keys that match this glob.")
@click.option("--marker", "markers", multiple=True, help="A further text that marks a placeholder.")
@click.option("--max-keys", type=int, default=10_000, show_default=True, help="Refuse to purge more.")
@click.option("--backup", "backup_path", type=click.Path(path_type=Path, dir_okay=False), help="Where the backup goes.")
@terminal.format_option("text", "json")
def scan_cache(
    target: str | None, purging: bool, yes: bool, force: bool, include: tuple[str, ...], keys_from: Path | None, pattern: str | None,
    markers: tuple[str, ...], max_keys: int, backup_path: Path | None, form: str,
) -> None:
    """Find ghost keys in a Redis or Valkey server; with --purge delete them, backup first.

    Without TARGET: LLMDIAG_REDIS_URL, then REDIS_URL, then a server on 127.0.0.1:6379.
    Exit: 0 no ghosts left, 1 ghosts, 2 error.
    """
    from diag.cache import order, purge
    from diag.report import cache as report

    client, shown = order.choose(target)
    try:
        say = terminal.note if form == "json" else terminal.out_line
        _greet(client, shown, say)
        result, sizes = _look(client, shown, keys_from, pattern, tuple(m.encode() for m in markers))
        plan = purge.plan((*result.ghosts, *result.soft), target=shown, sizes=sizes, include=include, max_keys=max_keys)
        if form == "text":
            _show(result, plan)
        done = _purge(client, plan, backup_path, yes=yes, force=force) if purging else None
    finally:
        client.close()
    if form == "json":
        terminal.out(json.dumps(report.render(result, plan, done)) + "\n")
    elif done is not None:
        _show_done(done, shown)
    sys.exit(_exit_code(result, plan, done))


@click.command("restore-cache")
@click.argument("backup", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("target")
@terminal.format_option("text", "json")
def restore_cache(backup: Path, target: str, form: str) -> None:
    """Put purged keys back; a newer value wins. Exit: 0, or 2 when some failed."""
    from diag.cache import order, restore
    from diag.report import cache as report

    client, shown = order.choose(target)
    try:
        result = restore.restore(client, shown, backup)
    finally:
        client.close()
    if form == "json":
        terminal.out(json.dumps(report.restored(result)) + "\n")
    else:
        terminal.out(
            f"{result.restored} restored, {result.kept_newer} kept because a newer value exists, "
            f"{result.expired} expired meanwhile, {len(result.failed)} failed\n"
        )
        for failure in result.failed:
            terminal.out(f"  line {failure.line}: {failure.key_hex}: {failure.why}\n")
    sys.exit(2 if result.failed else 0)


def _greet(client: "Client", shown: str, say: "object") -> None:
    from diag.cache import server

    found = server.describe(client)
    databases = ", ".join(f"db {number}: {keys} keys" for number, keys in sorted(found.databases.items())) or "no keys"
    text = f"{shown} ({found.product} {found.version}, {found.role}); {databases}"
    if callable(say):
        say(text)


def _look(
    client: "Client", shown: str, keys_from: Path | None, pattern: str | None, markers: tuple[bytes, ...]
) -> "tuple[ScanResult, dict[str, int] | None]":
    """Scan everything, or judge just the keys that were named. Family sizes are known only after a whole scan."""
    from diag.cache import named, order, server

    with terminal.progress(f"scanning {shown}") as progress:
        if keys_from is None:
            seen = [0]

            def each(row: "CacheKey") -> None:
                seen[0] += 1
                if seen[0] % 1000 == 0:
                    progress(f"{seen[0]} keys", 0.5)

            result = server.scan(client, shown, pattern, markers=markers, each=each)
            return result, {f.family: f.keys for f in result.families} if pattern is None else None
        wanted = order.keys_from(keys_from, _held_keys)
        return named.judge_named(client, shown, wanted, markers=markers), None


def _held_keys(bundle: Path) -> list[bytes]:
    """Keys that stuck threads of a bundle hold, as long as the stack showed them whole."""
    from diag import evidence

    sql = "SELECT DISTINCT h.key FROM held_keys h JOIN cache_loops l USING (bundle, capture, host, pid, tid) WHERE NOT h.cut AND h.left_in IS NULL"
    rows, _ = evidence.open_paths([bundle]).rows(sql, "--keys-from", 1000)
    if not rows:
        raise BadInput(f"{bundle}: no stuck thread holds a key", hint="scan without --keys-from, or name the keys in a text file")
    return [str(row["key"]).encode() for row in rows]


def _show(result: "ScanResult", plan: "Plan") -> None:
    terminal.out_line(f"{result.keys} keys, {result.bytes / 1e6:.1f} MB in {result.seconds:.1f} s")
    table = [
        {
            "family": f.family, "keys": f.keys, "MB": f"{f.bytes / 1e6:.2f}", "holds": f"{f.codec or '?'} {f.dtype or ''} {f.shape or ''}".strip(),
            "ghosts": f.ghosts, "reasons": ", ".join(f"{name} {count}" for name, count in f.reasons.items()) or "-",
        }
        for f in result.families[:30]
    ]
    terminal.rows(["family", "keys", "MB", "holds", "ghosts", "reasons"], table)
    worst = [
        {"db": k.db, "key": k.key or f"hex:{k.key_hex}", "bytes": k.bytes, "why": ", ".join(k.reasons) + (f" ({k.detail})" if k.detail else ""),
         "purge": "yes" if k in plan.keys else f"--include {k.include}" if k.include else "no"}
        for k in (*result.ghosts, *result.soft)[:SHOWN]
    ]
    if worst:
        terminal.rows(["db", "key", "bytes", "why", "purge"], worst)
    more = len(result.ghosts) + len(result.soft) - SHOWN
    if more > 0:
        terminal.out_line(f"… and {more} more; --format json shows all")
    for warning in (*result.warnings, *plan.refusals):
        terminal.out_line(f"note: {warning}")
    if not result.ghosts:
        terminal.out_line("no ghosts")


def _purge(client: "Client", plan: "Plan", backup_path: Path | None, *, yes: bool, force: bool) -> "PurgeResult":
    from diag.cache import backup, purge

    if plan.keys and not yes and not _confirmed(plan):
        raise BadInput("not confirmed: nothing was deleted", hint="answer y, or use --yes in scripts")
    return purge.purge(client, plan, backup_path or backup.default_path(), force=force, pause_s=PAUSE_S)


def _confirmed(plan: "Plan") -> bool:
    if not sys.stdin.isatty():
        return False
    return click.confirm(f"Delete {len(plan.keys)} keys ({plan.bytes} bytes) after a backup?", err=True)


def _show_done(done: "PurgeResult", shown: str) -> None:
    terminal.out_line(
        f"purge: {done.planned} planned, {done.deleted} deleted, {done.changed} changed meanwhile and kept, "
        f"{done.missing} gone already, {done.failed} failed"
    )
    if done.backup is not None:
        terminal.out_line(f"undo: llmdiag restore-cache {done.backup} {shown}")
    if done.error is not None:
        terminal.note(f"error: {done.error}")


def _exit_code(result: "ScanResult", plan: "Plan", done: "PurgeResult | None") -> int:
    """The server as it is left."""
    if done is not None and done.error is not None:
        return 2
    left = len(result.ghosts)
    if done is not None and done.failed == 0:
        left -= sum(1 for item in plan.keys if item.verdict == "ghost")
    return 1 if left > 0 else 0
