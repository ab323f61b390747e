"""The commands: parse, wire, print, exit codes. The only place that prints.

Heavy imports happen inside the commands, so that `--help` stays fast.
"""

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import __version__, terminal
from diag.cli_cache import restore_cache, scan_cache
from diag.errors import BadInput, LlmdiagError

if TYPE_CHECKING:
    from diag.model import Diagnosis

EXIT = {"clear": 0, "matched": 1, "inconclusive": 3}
ERROR = 2
INTERRUPTED = 130

PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False))
DATE = click.option("--date", metavar="YYYY[-MM-DD]", help="When loose logs that print no year begin.")
ZONE = click.option("--tz", metavar="ZONE", help="Zone of loose logs that print none: UTC, +02:00, Europe/Berlin.")
RULES = click.option("--rules", "rules_dir", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Use the rules of this folder.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="llmdiag")
def cli() -> None:
    """Find out why an LLM inference service plays dead, answers rubbish or keeps being restarted.

    \b
    llmdiag snapshot PID      collect from a live service and diagnose it
    llmdiag analyze PATH...   the same from a bundle or loose evidence files
    llmdiag report PATH       a runbook report to attach to a ticket
    llmdiag scan-cache        find ghost keys in Redis or Valkey
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise BadInput("the current folder was deleted", hint="cd to one that exists, and try again") from error


@cli.command()
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
        diagnoses = _analyse([bundle], rules_dir)
    _show(diagnoses, form, full=False)
    _leave(diagnoses)


@cli.command()
@PATHS
@click.option("--explain", metavar="RULE", help="Why this rule matched or did not.")
@DATE
@ZONE
@RULES
@terminal.format_option("text", "md", "json")
def analyze(paths: tuple[Path, ...], explain: str | None, date: str | None, tz: str | None, rules_dir: Path | None, form: str) -> None:
    """Diagnose bundles, bundle folders or loose evidence files, in any mix.

    Exit: 0 clear, 1 matched, 2 error, 3 inconclusive.
    """
    with terminal.progress("analysing"):
        diagnoses = _analyse(paths, rules_dir, date, tz)
    if explain is not None:
        _explain(diagnoses, explain, form)
    else:
        _show(diagnoses, form, full=False)
    _leave(diagnoses)


@cli.command()
@PATHS
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to this file.")
@DATE
@ZONE
@RULES
@terminal.format_option("text", "md", "json")
def report(paths: tuple[Path, ...], output: Path | None, date: str | None, tz: str | None, rules_dir: Path | None, form: str) -> None:
    """A full runbook report to attach to a ticket.

    Exit: 0 clear, 1 matched, 2 error, 3 inconclusive.
    """
    with terminal.progress("analysing"):
        diagnoses = _analyse(paths, rules_dir, date, tz)
    if output is None:
        _show(diagnoses, form, full=True)
    else:
        terminal.write(output, _rendered(diagnoses, form, full=True))
        terminal.note(f"report: {output}")
    _leave(diagnoses)


@cli.command()
@PATHS
@click.argument("sql")
@terminal.format_option("text", "csv", "parquet", "json")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write (needed for parquet).")
def query(paths: tuple[Path, ...], sql: str, form: str, output: Path | None) -> None:
    """One SELECT over the evidence tables (at most 1,000 rows); `schema` lists the tables."""
    from diag import jail

    if form == "parquet" and output is None:
        raise BadInput("parquet is a binary format", hint="name a file with -o rows.parquet")
    answer = jail.query(paths, sql)
    if answer.more:
        terminal.note(f"{jail.MAX_ROWS} rows and more; narrow the query to see the rest")
    if form == "text":
        terminal.rows(answer.columns, answer.rows, null="NULL", output=output)
        if not answer.rows and output is None:
            terminal.out_line("0 rows")
        return
    import pandas as pd

    frame = pd.DataFrame(answer.rows, columns=answer.columns, dtype=object)  # otherwise a NULL makes 1 into 1.0
    match form:
        case "parquet":
            _save_parquet(frame, output)
        case "csv":
            terminal.emit(frame.to_csv(index=False), output)
        case _:
            terminal.emit(json.dumps({"schema": "llmdiag.rows/1", "columns": answer.columns, "rows": answer.rows, "more": answer.more}, default=str) + "\n", output)


@cli.command()
@click.argument("table", required=False)
@terminal.format_option("text", "json")
def schema(table: str | None, form: str) -> None:
    """The data dictionary: every evidence table, view and derivation with its columns and units."""
    from diag import evidence

    extras = evidence.Extras()
    loaded = evidence.load([], evidence.collectors_of(extras), extras)
    abouts = _abouts()
    if table is not None and table not in loaded.columns:
        raise BadInput(f"no table {table!r}", hint="llmdiag schema lists them")
    names = [table] if table is not None else sorted(loaded.columns)
    if form == "json":
        terminal.out(json.dumps({"schema": "llmdiag.tables_of_evidence/1", "tables": [
            {"name": name, "about": abouts.get(name, ""), "rests_on": sorted(loaded.bases[name]),
             "columns": [{"name": c.name, "type": c.type, "about": c.about, "null": c.null or "unknown"} for c in loaded.columns[name].values()]}
            for name in names]}) + "\n")
        return
    console = terminal.console()
    for name in names:
        console.print(f"[bold]{name}[/bold]  {_markup(abouts.get(name, ''))}")
        for column in loaded.columns[name].values():
            null = f" [NULL = {column.null}]" if column.null else ""
            console.print(f"  {column.name:<18}{column.type:<11}{_markup(column.about + null)}", highlight=False)


@cli.group("rules")
def rules_group() -> None:
    """The catalogue of incident signatures; check your own."""


@rules_group.command("list")
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@terminal.format_option("text", "json")
def rules_list(folder: Path | None, form: str) -> None:
    """All rules with severity and title."""
    from diag import rules

    found = rules.load(folder or rules.shipped())
    if form == "json":
        terminal.out(json.dumps([{"id": r.id, "severity": r.severity, "title": r.title, "explains": r.explains} for r in found]) + "\n")
        return
    terminal.rows(["id", "severity", "title"], [{"id": r.id, "severity": r.severity, "title": r.title} for r in found])


@rules_group.command("show")
@click.argument("rule")
@click.option("--rules", "folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of the rules.")
def rules_show(rule: str, folder: Path | None) -> None:
    """One rule as it is written."""
    from diag import rules

    place = (folder or rules.shipped()) / f"{rule}.toml"
    try:
        text = place.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"no rule {rule!r}", hint="llmdiag rules list shows them") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {place}: {error}", hint="a rule is a UTF-8 TOML file") from error
    terminal.out(text)


@rules_group.command("test")
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@terminal.format_option("text", "json")
def rules_test(folder: Path | None, form: str) -> None:
    """Run the samples that each rule names. Exit: 0 all as expected, 1 not, 2 error."""
    from diag import ruletest

    results = ruletest.run(folder)
    if form == "json":
        terminal.out(json.dumps([result.__dict__ for result in results]) + "\n")
    else:
        terminal.rows(["ok", "rule", "sample", "expect", "got", "note"], [{**r.__dict__, "ok": "ok" if r.ok else "FAIL"} for r in results])
    sys.exit(0 if all(result.ok for result in results) else 1)


@cli.command()
@click.argument("rule")
@click.option("--no-ghost", is_flag=True, help="Plant nothing: the diagnosis must be clear.")
@click.option("--keep", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Keep the bundle in this folder.")
@click.option("--dry-purge", is_flag=True, hidden=True, help="Plan the purge only: the demo must then fail.")
def demo(rule: str, no_ghost: bool, keep: Path | None, dry_purge: bool) -> None:
    """Reproduce an incident live on this machine, diagnose it and heal it.

    RULE is a rule id or a unique beginning of one, e.g. ghost-key.
    """
    from diag import demo as demos

    name = demos.find(rule)
    _end_well_on(signal.SIGTERM, signal.SIGHUP)
    console = terminal.console()
    for number, step in enumerate(demos.run(name, demos.Settings(ghost=not no_ghost, purge=not dry_purge, keep=keep)), 1):
        console.print(f"[bold cyan]{number:>2}[/bold cyan] [bold]{_markup(step.title)}[/bold]")
        for line in step.seen.splitlines():
            console.print(f"   {line}", markup=False, soft_wrap=True)


def _end_well_on(*signals: signal.Signals) -> None:
    """The first of them unwinds, so that labs, servers and folders go too; further ones do not disturb that."""
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup stays nohup

    def leave(*_: object) -> None:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(ERROR)

    for number in heard:
        signal.signal(number, leave)


def _warm_up() -> None:
    """Load during the window what the analysis needs after it: the person waits for both."""
    import duckdb
    import pandas as pd

    pd.DataFrame({"a": [1]})
    duckdb.connect(":memory:").close()


def _analyse(paths: Sequence[Path], rules_dir: Path | None, date: str | None = None, tz: str | None = None) -> "list[Diagnosis]":
    from diag import analysis, jail, rules
    from diag.sources import Dates

    dates = Dates(None if date is None else _year(date), tz)
    if rules_dir is not None and not analysis.is_own(rules_dir, rules.shipped()):
        diagnoses = jail.analyse(paths, rules_dir, dates)
    else:
        diagnoses = analysis.analyse(paths, rules.load(rules.shipped()), dates=dates)
    _say_if_blind(diagnoses)
    return diagnoses


def _say_if_blind(diagnoses: "list[Diagnosis]") -> None:
    """An empty folder, or one full of something else, is not a service in good health."""
    if any(item.status != "skipped" for diagnosis in diagnoses for item in diagnosis.collected):
        return
    names = [str(name) for diagnosis in diagnoses for name in diagnosis.subject.get("unrecognised") or ()]  # type: ignore[attr-defined]
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    what = f"not recognised: {listed}" if names else "there is no file in it"
    terminal.note(terminal.printable(f"nothing could be looked at: {what}; give bundles, /metrics texts, engine logs, py-spy dumps, ps, top, ss, dmesg"))


def _year(date: str) -> int:
    import re

    found = re.fullmatch(r"(\d{4})(-\d\d-\d\d)?", date)
    if found is None:
        raise BadInput(f"--date {date}: not a date", hint="give YYYY or YYYY-MM-DD")
    return int(found[1])


def _show(diagnoses: "list[Diagnosis]", form: str, *, full: bool) -> None:
    from diag.report import text

    if form != "text":
        terminal.out(_rendered(diagnoses, form, full=full))
        return
    console = terminal.console()
    for diagnosis in diagnoses:
        console.print(text.render(diagnosis, full=full, width=terminal.width()), end="", soft_wrap=True, highlight=False)


def _rendered(diagnoses: "list[Diagnosis]", form: str, *, full: bool) -> str:
    from diag import analysis
    from diag.report import json_, markdown, text

    if form == "json":
        document = json_.render(analysis.best(diagnoses))
        if len(diagnoses) > 1:
            document["captures"] = [json_.render(diagnosis) for diagnosis in diagnoses]
        return json.dumps(document, default=str) + "\n"
    if form == "md":
        return markdown.render_all(diagnoses)
    return "".join(text.render(diagnosis, full=full).plain for diagnosis in diagnoses)


def _explain(diagnoses: "list[Diagnosis]", rule: str, form: str) -> None:
    from diag.report import explain

    found = [explain.facts(diagnosis, rule) for diagnosis in diagnoses]
    if any(item is None for item in found):
        raise BadInput(f"no rule {rule!r}", hint="llmdiag rules list shows them")
    if form == "json":
        terminal.out(json.dumps(found[0] if len(found) == 1 else found, default=str) + "\n")
        return
    console = terminal.console()
    for item in found:
        console.print(explain.render(item or {}), end="", soft_wrap=True, highlight=False)


def _leave(diagnoses: "list[Diagnosis]") -> None:
    from diag import analysis

    sys.exit(EXIT[analysis.best(diagnoses).verdict])


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


def _abouts() -> dict[str, str]:
    from diag import evidence, tables

    extras = evidence.Extras()
    declared = tables.merged(t for c in evidence.collectors_of(extras) for t in c.TABLES)
    derived = {t.name: t.about for module in evidence.derivations_of(extras).values() for t in module.GIVES}
    return {name: t.about for name, t in declared.items()} | derived | {name: v.about for name, v in evidence.views_of(extras).items()}


def _markup(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _save_parquet(frame: Any, output: Path | None) -> None:
    import duckdb

    if output is None:
        return
    connection = duckdb.connect(":memory:")
    connection.register("rows", frame)
    try:
        connection.execute(f"COPY rows TO '{str(output).replace(chr(39), chr(39) * 2)}' (FORMAT parquet)")
    except duckdb.Error as error:
        raise BadInput(f"cannot write {output}: {error}", hint="name a writable file with -o") from error


cli.add_command(scan_cache)
cli.add_command(restore_cache)


def main() -> None:
    """Entry point: every expected error becomes two lines on stderr and exit code 2; Ctrl-C is 130."""
    terminal.steady_streams()
    try:
        code = _run()
        sys.stdout.flush()
    except terminal.OutputLost as error:
        terminal.silence(sys.stdout)
        code = ERROR
        if error.args[0] != errno.EPIPE:
            terminal.note(f"error: cannot write the output: {error.args[1]}\n  free some space, or send it elsewhere")
    sys.exit(code)


def _run() -> int:
    """The command of the command line, and its exit code."""
    try:
        code = cli.main(standalone_mode=False)  # a number after --help and --version, else None
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # click takes it for a lost stdout and says 1: "matched"
            terminal.note("error: a connection was closed while something was sent through it\n  try again")
            return ERROR
        code = left.code
    except LlmdiagError as error:
        terminal.note(f"error: {terminal.printable(str(error))}")
        return ERROR
    except click.ClickException as error:
        return _usage(error)
    except (click.Abort, KeyboardInterrupt):
        terminal.note("interrupted")
        return INTERRUPTED
    except MemoryError:
        terminal.note("error: the evidence needs more memory than this process may have\n  give less of it at a time, or raise the limit")
        return ERROR
    return code if isinstance(code, int) else 0


def _usage(error: click.ClickException) -> int:
    try:
        error.show()
    except OSError:  # stderr is full or gone
        terminal.silence(sys.stderr)
    return ERROR


if __name__ == "__main__":
    main()
