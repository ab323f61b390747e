"""`llmdiag snapshot`: collect from a live service and diagnose it."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import click

from diag import terminal
from diag.cli_diagnosis import RULES, analyse, leave, show
from diag.errors import BadInput


@click.command()
@click.argument("pid", type=int)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the bundle: a .zip file, or a folder for one.")
@click.option("--window", "window_s", type=click.FloatRange(0.5, 600), default=5.0, show_default=True, help="Sampling window in seconds.")
@click.option("--samples", type=click.IntRange(2, 100), default=5, show_default=True, help="Stack samples in the window.")
@click.option("--locals", "locals_", type=click.Choice(["keys", "all", "off"]), default="keys", show_default=True, help="Local variables to read.")
@click.option("--allow-pause", is_flag=True, help="Allow tools that stop the target for a moment.")
@click.option("--native", is_flag=True, help="Native frames too (needs --allow-pause).")
@click.option("--redis", "redis_urls", multiple=True, metavar="URL", help="Cache server to ask [env: LLMDIAG_REDIS_URL].")
@click.option("--port", "ports", multiple=True, type=int, help="HTTP port of the service (found by itself otherwise).")
@click.option("--log", "logs", multiple=True, type=click.Path(), help="Log file of the service (found by itself otherwise).")
@click.option("--bearer-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with the bearer token for /metrics.")
@click.option("--skip", multiple=True, metavar="COLLECTOR", help="Do not run this collector.")
@click.option("--no-redact", is_flag=True, help="Keep secrets and prompts in the bundle.")
@click.option("--dry-run", is_flag=True, help="Only list what would be read.")
@RULES
@terminal.format_option("text", "md", "json")
def snapshot(pid: int, output: Path | None, form: str, rules_dir: Path | None, dry_run: bool, no_redact: bool, bearer_file: Path | None, **asked: Any) -> None:
    """Collect from PID and its whole process tree, diagnose, write a bundle.

    Read-only and bounded. Exit: 0 clear, 1 matched, 2 error, 3 inconclusive.
    """
    from diag import evidence, snapshot
    from diag.cache.servers import connection
    from diag.live import Locals, Options
    from diag.redact import Redactor

    options = Options(
        window_s=asked["window_s"], samples=asked["samples"], locals=Locals(asked["locals_"]), allow_pause=asked["allow_pause"],
        native=asked["native"], redis_urls=asked["redis_urls"], ports=asked["ports"], logs=asked["logs"], skip=frozenset(asked["skip"]),
        bearer=None if bearer_file is None else bearer_file.read_text().strip(),
    )
    collectors = evidence.collectors_of(evidence.Extras())
    unknown = sorted(options.skip - {module.NAME for module in collectors})
    if unknown:
        raise BadInput(f"no collector {', '.join(unknown)}", hint=f"collectors: {', '.join(module.NAME for module in collectors)}")
    for url in filter(None, (*options.redis_urls, os.environ.get(connection.URL_VARIABLE))):
        connection.name_of(url)  # raises BadInput before anything is collected
    if options.native and not options.allow_pause:
        raise BadInput("--native stops the target while it reads", hint="add --allow-pause if a pause of seconds is acceptable")
    if dry_run:
        _print_plan(pid, options, form)
        return
    named = output is not None and not output.is_dir()
    archive = output if output is not None and named else (output or Path()) / f"{snapshot.default_name(pid)}.zip"
    if archive.suffix != ".zip":
        archive = archive.with_name(archive.name + ".zip")
    warm_up = threading.Thread(target=_warm_up, name="warm-up", daemon=True)
    warm_up.start()
    try:
        with terminal.progress(f"snapshot of pid {pid}") as progress:
            bundle, interrupted = snapshot.take(
                pid, options, archive, collectors, redactor=Redactor(enabled=not no_redact), progress=progress,
                strict=os.environ.get("LLMDIAG_STRICT") == "1", numbered=not named,
            )
    finally:
        warm_up.join()  # imports that the exit cuts off would end with a traceback of their own
    terminal.note(f"bundle: {bundle}" + (" (stopped early, this is what there is)" if interrupted else ""))
    with terminal.progress("analysing"):
        diagnoses = analyse([bundle], rules_dir)
    show(diagnoses, form, full=False)
    leave(diagnoses)


def _warm_up() -> None:
    """Load during the window what the analysis needs after it: the person waits for both."""
    import duckdb
    import pandas as pd

    pd.DataFrame({"a": [1]})
    duckdb.connect(":memory:").close()


def _print_plan(pid: int, options: Any, form: str) -> None:
    from diag import evidence, procfs, snapshot

    root = procfs.service_root(pid)
    pids = procfs.tree(root)
    chosen = [m for m in snapshot.in_order(evidence.collectors_of(evidence.Extras())) if m.NAME not in options.skip]
    rows = [
        {"collector": m.NAME, "reads": (m.__doc__ or "").strip().splitlines()[0], "feeds": ", ".join(m.FEEDS), "at most": f"{m.BUDGET_S:g} s, {m.BUDGET_BYTES >> 20} MiB"}
        for m in chosen
    ]
    if form == "json":
        terminal.out(json.dumps({"schema": "llmdiag.plan/1", "pid": pid, "root_pid": root, "pids": pids, "collectors": rows}) + "\n")
        return
    terminal.out(f"Would read pid {pid}, service root {root}, processes {', '.join(map(str, pids))}; nothing was read yet.\n")
    terminal.rows(["collector", "reads", "feeds", "at most"], rows)
