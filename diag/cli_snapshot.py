"""`llmdiag snapshot`: collect from a live service and diagnose it."""

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import cli_service, cli_watch, terminal
from diag.cli_completion import collector_names
from diag.cli_diagnosis import RULES, analyse, leave, show
from diag.cli_live import collecting
from diag.errors import BadInput, BundleError

if TYPE_CHECKING:
    from diag.collectors import Collector
    from diag.live import Options
    from diag.services.found import Found

NOTHING_PROVED, NOT_LOOKED = 0, 3


@click.command()
@cli_service.options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the bundle: a .zip file, or a folder for one.")
@click.option("--window", "window_s", type=click.FloatRange(0.5, 600), default=5.0, show_default=True, help="Sampling window in seconds.")
@click.option("--samples", type=click.IntRange(2, 100), default=5, show_default=True, help="Stack samples in the window.")
@click.option("--locals", "locals_", type=click.Choice(["keys", "all", "off"]), default="keys", show_default=True, help="Local variables to read.")
@click.option("--allow-pause", is_flag=True, help="Allow tools that stop the target for a moment.")
@click.option("--native", is_flag=True, help="Native frames too (needs --allow-pause).")
@click.option("--redis", "redis_urls", multiple=True, metavar="URL", help="Cache server to ask [env: LLMDIAG_REDIS_URL].")
@click.option("--log", "logs", multiple=True, type=click.Path(), help="Log file of the service (found by itself otherwise).")
@click.option("--bearer-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with the bearer token for /metrics.")
@click.option("--skip", multiple=True, metavar="COLLECTOR", shell_complete=collector_names, help="Do not run this collector.")
@click.option("--no-redact", is_flag=True, help="Keep secrets and prompts in the bundle.")
@cli_watch.options
@click.option("--collect-only", is_flag=True, help="Only write the bundle; analyze it elsewhere. The smallest footprint.")
@click.option("--dry-run", is_flag=True, help="Only list what would be read, and of which processes.")
@RULES
@terminal.format_option("text", "md", "json")
def snapshot(
    pids: Sequence[int], output: Path | None, form: str, rules_dir: Path | None, dry_run: bool, collect_only: bool, no_redact: bool, watch: bool, **asked: Any
) -> None:
    """Collect from a service and its whole process tree, diagnose, write a bundle.

    Name the service by PIDs (several: one bundle of all their trees), --port, --name, --unit or --container.
    Read-only and bounded. Exit: 0 clear, 1 matched, 2 error, 3 inconclusive; --collect-only 0; --watch 0 when nothing was proved in time.
    """
    find = cli_service.resolver(pids, asked)
    options, collectors = _options(asked), _collectors(asked["skip"])
    if not watch and any(_is_given(name) for name in ("watch_for_s", "watch_floor_s", "watch_interval_s")):
        raise click.UsageError("--watch-for, --watch-floor and --watch-interval go with --watch")
    if dry_run:
        _print_plan(find(), options, collectors, form)
        return
    service = find()
    about = {} if pids else {"found": service.says}
    if watch:
        _check_place(output)
        stall = cli_watch.wait_for_stall(service, None if pids else find, options.bearer, asked)
        if isinstance(stall, cli_watch.Nothing):
            _print_unproved(service, asked["watch_for_s"], form, looked=stall.looked)
            sys.exit(NOTHING_PROVED if stall.looked else NOT_LOOKED)
        service, about = stall.service, {**about, "armed": stall.says}
    bundle = _take(service, options, output, collectors, about, no_redact=no_redact, warm=not collect_only)
    if collect_only:
        _print_bundle(bundle, form)
        return
    with terminal.progress("analysing"):
        diagnoses = analyse([bundle], rules_dir)
    show(diagnoses, form, full=False)
    leave(diagnoses)


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _options(asked: Mapping[str, Any]) -> "Options":
    """What was asked for, checked before anything is collected. Raises BadInput."""
    from diag.cache.servers import connection
    from diag.live import Locals, Options

    if asked["native"] and not asked["allow_pause"]:
        raise BadInput("--native stops the target while it reads", hint="add --allow-pause if a pause of seconds is acceptable")
    for url in filter(None, (*asked["redis_urls"], os.environ.get(connection.URL_VARIABLE))):
        connection.name_of(url)
    bearer_file: Path | None = asked["bearer_file"]
    return Options(
        window_s=asked["window_s"], samples=asked["samples"], locals=Locals(asked["locals_"]), allow_pause=asked["allow_pause"],
        native=asked["native"], redis_urls=asked["redis_urls"], ports=asked["ports"], logs=asked["logs"], skip=frozenset(asked["skip"]),
        bearer=None if bearer_file is None else bearer_file.read_text().strip(),
    )


def _collectors(skip: Sequence[str]) -> "tuple[Collector, ...]":
    """All of them; who analyses nothing imports nothing of the analysis. Raises BadInput for one to skip that there is not."""
    from diag import collectors

    found = collectors.discover()
    unknown = sorted(set(skip) - {module.NAME for module in found})
    if unknown:
        raise BadInput(f"no collector {', '.join(unknown)}", hint=f"collectors: {', '.join(module.NAME for module in found)}")
    return found


def _check_place(output: Path | None) -> None:
    """Before hours of waiting: may something be written there? Raises BundleError."""
    folder = Path() if output is None else output if output.is_dir() else output.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BundleError(f"a bundle cannot be written to {folder.absolute()}", hint="name a writable place with -o FILE; nothing was collected yet")
    if output is not None and output.is_file():
        raise BundleError(f"{output} exists already", hint="name another file with -o")


def _take(
    service: "Found", options: "Options", output: Path | None, collectors: "Sequence[Collector]", about: Mapping[str, str], *, no_redact: bool, warm: bool
) -> Path:
    """The bundle, written."""
    from diag import snapshot
    from diag.redact import Redactor

    named = output is not None and not output.is_dir()
    archive = output if output is not None and named else (output or Path()) / f"{snapshot.default_name(service.pids[0])}.zip"
    if archive.suffix != ".zip":
        archive = archive.with_name(archive.name + ".zip")
    with _beside(_warm_up if warm else lambda: None), collecting(f"snapshot of {service.named}") as shown:
        bundle, interrupted = snapshot.take(
            service.pids, options, archive, collectors, redactor=Redactor(enabled=not no_redact), show=shown,
            strict=os.environ.get("LLMDIAG_STRICT") == "1", numbered=not named, about=about,
        )
    terminal.note(f"bundle: {bundle}" + (" (stopped early, this is what there is)" if interrupted else ""))
    return bundle


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """Work in a thread of its own meanwhile. It is waited for: imports that the exit cuts off would end with a traceback of their own."""
    thread = threading.Thread(target=work, name="warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _warm_up() -> None:
    """Load during the window what the analysis needs after it: the person waits for both."""
    import duckdb
    import pandas as pd

    pd.DataFrame({"a": [1]})
    duckdb.connect(":memory:").close()


def _print_plan(service: "Found", options: "Options", collectors: "Sequence[Collector]", form: str) -> None:
    from diag import procfs, snapshot

    roots = list(dict.fromkeys(map(procfs.service_root, service.pids)))
    pids = procfs.trees(roots)
    live = [m for m in snapshot.in_order(collectors) if m.NAME not in options.skip and getattr(m, "LIVE", True)]
    named = snapshot.would_read(service.pids, options, live)
    rows: list[dict[str, Any]] = [
        {"collector": m.NAME, "reads": (m.__doc__ or "").strip().splitlines()[0], "feeds": ", ".join(m.FEEDS), "at most": f"{m.BUDGET_S:g} s, {m.BUDGET_BYTES >> 20} MiB"}
        for m in live
    ]
    if form == "json":
        plan = {"schema": "llmdiag.plan/1", "found": service.says, "pid": service.pids[0], "root_pid": roots[0], "root_pids": roots, "pids": pids, "collectors": [{**row, "named": named[row["collector"]]} for row in rows]}
        terminal.out(json.dumps(plan) + "\n")
        return
    root = f"service root{'s' if len(roots) > 1 else ''} {', '.join(map(str, roots))}"
    terminal.out_line(terminal.printable(f"Found: {service.says}"))
    terminal.out(f"Would read pid {', '.join(map(str, service.pids))}, {root}, processes {', '.join(map(str, pids))}; only /proc and open logs were looked at yet.\n")
    terminal.rows(["collector", "reads", "feeds", "at most"], rows)
    for name, lines in named.items():
        for line in lines:
            terminal.out_line(terminal.printable(f"{name}: {line}"))


def _print_bundle(bundle: Path, form: str) -> None:
    command = f"llmdiag analyze {shlex.quote(str(bundle))}"
    if form == "json":
        terminal.out(json.dumps({"schema": "llmdiag.collected/1", "bundle": str(bundle), "analyze": command}) + "\n")
        return
    terminal.out(f"{bundle}\n")
    terminal.note(f"nothing was analysed; on any machine: {command}")


def _print_unproved(service: "Found", for_s: float, form: str, *, looked: bool) -> None:
    says = f"no stall was proved in {for_s:g} s, {'and' if looked else 'as its metrics never told anything:'} no snapshot taken"
    if form == "json":
        terminal.out(json.dumps({"schema": "llmdiag.watch/1", "found": service.says, "proved": False, "looked": looked, "seconds": for_s}) + "\n")
        return
    terminal.note(terminal.printable(f"{says}: {service.says}"))
