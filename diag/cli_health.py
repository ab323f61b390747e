"""`llmdiag health`: parse, wire, print, exit codes."""

import json
import math
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import terminal
from diag.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Group

    from diag.cache.interrupts import Stop
    from diag.health.budget import Budget
    from diag.health.checking import Checked, Checker, Settings
    from diag.health.polling import Backend
    from diag.health.process_evidence import Watch
    from diag.health.recording import Recorder
    from diag.repro.http_post import Wire

EXEC_PROBE = "--exec-probe"
KEY_VARIABLE = "LLMDIAG_API_KEY"
UNPROVED = 3
SPARE_S = 10.0
"""On top of what a check may take, before an exec probe is given up."""
SCHEMES = ("http://", "https://", "unix:")


class Number(click.FloatRange):
    """A range that NaN is not in: click takes it for one that is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is no number", param, ctx) if math.isnan(found) else found


@click.command("health")
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option("--proxy", "proxies", multiple=True, metavar="URL", help="A proxy or router: only asked which models it lists (repeatable).")
@click.option("--reads", type=click.IntRange(2, 10_000), default=3, show_default=True, help="Reads of /metrics.")
@click.option("--interval", "interval_s", type=Number(0.01, 86_400), default=10.0, show_default=True, help="Seconds between them.")
@click.option("--timeout", "timeout_s", type=Number(0.05, 3600), default=5.0, show_default=True, help="Seconds for one whole read.")
@click.option("--no-probe", is_flag=True, help="Never send a request, not even to an idle engine.")
@click.option("--probe-timeout", "probe_timeout_s", type=Number(0.05, 3600), help="Seconds an idle engine has for one short answer (as many as --floor otherwise: what it does may hide behind a stale gauge; a first compilation takes up to 70). No answer in less than --floor proves nothing.")
@click.option("--model", help="Model to ask (the first that /v1/models lists otherwise).")
@click.option("--pid", type=click.IntRange(1), help="Any living process of the one local backend: what its processes do counts as evidence. It is gone only when it was seen first.")
@click.option("--floor", "floor_s", type=Number(0.05, 86_400), default=300.0, show_default=True, help="Seconds that a busy engine may show no progress, at least; when given, a queue that admits nobody too.")
@click.option("--patience", "patience_s", type=Number(0, 86_400), default=0.0, show_default=True, help="Go on reading for so many seconds while a backend is busy and nothing is proved; a queue that admits nobody has to stand as long, or as --floor.")
@click.option("--prompt-tokens", type=click.IntRange(1), help="Length of the longest prompt in flight: makes the floor higher where it has to be.")
@click.option("--scale", type=Number(0.01, 1000), default=1.0, show_default=True, help="How long a prompt takes against a 27B model on one card: 0.3 for 8B, 3 for 70B.")
@click.option("--bearer-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with the bearer token [env: LLMDIAG_API_KEY].")
@click.option("--insecure", is_flag=True, help="Do not check TLS certificates.")
@click.option("--record", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Keep the reads, redacted, to judge them again.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--textfile", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write the verdicts for Prometheus' node exporter.")
@click.option(EXEC_PROBE, "exec_probe", is_flag=True, help="For Kubernetes: 0 for all that was not proved, usage errors included.")
@click.option("--deadline", "deadline_s", type=Number(0.1, 86_400), metavar="S", help="Give up after so many seconds, with nothing proved.")
@terminal.format_option("text", "json")
def health(
    targets: Sequence[str], proxies: Sequence[str], no_probe: bool, pid: int | None, floor_s: float, prompt_tokens: int | None, scale: float,
    bearer_file: Path | None, insecure: bool, record: Path | None, watch: bool, textfile: Path | None, exec_probe: bool, deadline_s: float | None,
    form: str, **asked: Any,
) -> None:
    """Is an engine stuck, or only busy? Compares reads of its own /metrics and sends no request while anything runs.

    \b
    TARGET is one of
      http://HOST:PORT, unix:/SOCKET   a backend (with a path if that is not
                                       /metrics)
      DIR                              recorded reads, or saved answers of
                                       /metrics
      FILE FILE...                     saved answers of one backend, oldest first

    A token counter that stands still proves nothing: a long prompt looks like that. Stalled is only what shows no
    progress by any witness for longer than the budget, or whose processes prove it; admission-stalled, where requests wait
    for a place and none runs or is admitted for two comparisons and 10 s (--patience or --floor: for as long as those say).
    Give backends, never a load balancer: that is for --proxy.

    \b
    Exit: 0 progressing, idle, starting, sleeping, restarted
          1 stalled, admission-stalled, or gone with its processes (--pid)
          3 busy-unproven, mixed-backends, no-metrics, unreadable, unreachable
          2 usage or error; of several backends 1 before 3 before 0
    """
    from diag.health.budget import Budget
    from diag.health.checking import Settings
    from diag.health.polling import backend_of
    from diag.repro.http_post import Wire

    budget = Budget(
        floor_s=floor_s, scale=scale, prompt_tokens=prompt_tokens, probe_s=asked["probe_timeout_s"], admission_s=_admission_s(floor_s, asked["patience_s"]),
    )
    asked["probe_timeout_s"] = floor_s if asked["probe_timeout_s"] is None else asked["probe_timeout_s"]
    settings = Settings(probe=not no_probe, budget=budget, **asked)
    if asked["probe_timeout_s"] < floor_s and not no_probe and not exec_probe:
        terminal.note(f"--probe-timeout {asked['probe_timeout_s']:g}: an idle engine that does not answer in that time is not proved stuck; that takes --floor ({floor_s:g} s) without an answer")
    token = _token(bearer_file)
    urls, paths = _sorted(targets)
    backends = [*(backend_of(url, token) for url in urls), *(backend_of(url, token, proxy=True) for url in proxies)]
    _check_usage(backends, paths, pid, record, watch)
    with _limited(deadline_s, exec_probe, settings):
        recorded = _judged(paths, budget)
        if not backends:
            code = _emit(recorded, None, form, textfile, exec_probe)
        else:
            from diag.health.polling import MAX_BODY_BYTES

            wire = Wire(verify=not insecure, max_body_bytes=MAX_BODY_BYTES)
            code = _live(wire, backends, settings, recorded, pid, _recorder(record, token), watch, form, textfile, exec_probe)
    sys.exit(code)


def _admission_s(floor_s: float, patience_s: float) -> float:
    """Who gives a floor or has patience wants no verdict about a queue sooner than that."""
    from diag.health.budget import ADMISSION_S

    if _is_given("floor_s"):
        return floor_s
    return max(ADMISSION_S, min(patience_s, floor_s)) if patience_s else ADMISSION_S


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _sorted(targets: Sequence[str]) -> tuple[list[str], list[Path]]:
    """(backends, what is on disk). Raises BadInput for what is neither."""
    urls, paths = [], []
    for target in targets:
        is_url = target.startswith(SCHEMES)
        if not is_url and os.path.lexists(target):
            paths.append(Path(target))
        elif is_url or (":" in target and "/" not in target.partition(":")[0]):
            urls.append(target)
        else:
            raise BadInput(f"{terminal.printable(target)}: no such file or folder, and no URL", hint="for example http://127.0.0.1:8000, or a folder of --record")
    return urls, paths


def _check_usage(backends: "Sequence[Backend]", paths: Sequence[Path], pid: int | None, record: Path | None, watch: bool) -> None:
    if not backends and not paths:
        raise click.UsageError("name at least one TARGET or --proxy")
    read = [backend for backend in backends if not backend.proxy]
    if len({backend.url for backend in backends}) < len(backends):
        raise click.UsageError("one backend is named twice")
    if pid is not None and len(read) != 1:
        raise click.UsageError("--pid speaks for one backend: name exactly one")
    if (record is not None or watch) and not read:
        raise click.UsageError("--record and --watch are for backends that are read now")


def _token(path: Path | None) -> str | None:
    """Of the file, else of the environment. Raises BadInput, which does not show it."""
    try:
        token = (os.environ.get(KEY_VARIABLE, "") if path is None else path.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}", hint="a text file that holds the token and nothing else") from error
    if token and not (token.isascii() and token.isprintable()):
        raise BadInput("the bearer token holds characters that no HTTP header has", hint=f"check {path or KEY_VARIABLE}: the token and nothing else")
    return token or None


def _recorder(folder: Path | None, token: str | None) -> "Recorder | None":
    from diag.health.recording import Recorder

    return None if folder is None else Recorder(folder, token)


def _judged(paths: Sequence[Path], budget: "Budget") -> "list[Checked]":
    """Folders one by one, files together."""
    from diag.health import recorded
    from diag.health.checking import Checked

    found = [item for path in paths if path.is_dir() for item in recorded.judged(path, budget)]
    files = [path for path in paths if not path.is_dir()]
    if files:
        found.append(recorded.judged_files(files, budget))
    return [Checked(item.name, "recorded", item.verdict, notes=(f"{item.reads} reads",)) for item in found]


def _live(
    wire: "Wire", backends: "Sequence[Backend]", settings: "Settings", recorded: "list[Checked]", pid: int | None, recorder: "Recorder | None",
    watch: bool, form: str, textfile: Path | None, exec_probe: bool,
) -> int:
    from diag.cache import interrupts
    from diag.health.checking import Checker

    processes = _processes(pid, backends)
    try:
        with interrupts.wished() as stop:
            checker = Checker(wire, backends, settings, stop, watch=processes, recorder=recorder)
            if watch:
                return _watched(checker, recorded, settings.interval_s, form, textfile, stop)
            if not exec_probe and not sys.stderr.isatty():
                terminal.note(_plan(settings, backends))
            with terminal.progress("health") as told:
                checked = checker.once(told)
    finally:
        if processes is not None:
            processes.close()
    return _emit([*recorded, *checked], settings.interval_s, form, textfile, exec_probe)


def _plan(settings: "Settings", backends: "Sequence[Backend]") -> str:
    """What takes so long, for whoever sees no bar."""
    if all(backend.proxy for backend in backends):
        return "only proxies are named: they are asked which models they list, and no engine is judged"
    return f"reading /metrics {settings.reads} times, {settings.interval_s:g} s apart: {(settings.reads - 1) * settings.interval_s:g} s"


def _processes(pid: int | None, backends: "Sequence[Backend]") -> "Watch | None":
    from diag.health.listening import local_port
    from diag.health.process_evidence import Watch

    if pid is None:
        return None
    place = next(backend.place for backend in backends if not backend.proxy)
    return Watch(pid, port=None if place.unix else local_port(place.host, place.port))


def _emit(checked: "Sequence[Checked]", interval_s: float | None, form: str, textfile: Path | None, exec_probe: bool) -> int:
    from diag.health import textfile as prometheus
    from diag.health.verdict import worst
    from diag.report import health as report

    if textfile is not None:
        prometheus.write(textfile, checked)
    if form == "json":
        terminal.out(json.dumps(report.render(checked, interval_s), allow_nan=False) + "\n")
        return worst([item.verdict for item in checked])
    for item in checked:
        terminal.out_line(terminal.printable(report.first_line(item)))
        if item.verdict.engines:
            terminal.rows(report.COLUMNS, [report.engine_row(engine) for engine in item.verdict.engines])
        for line in report.details(item):
            terminal.out_line(terminal.printable(line))
        if command := _proving(item):
            terminal.out_line(f"  this goes on until it is proved or over: {terminal.printable(command)}")
    closing = report.closing(checked)
    if closing and not exec_probe:
        terminal.out_line(closing)
    return worst([item.verdict for item in checked])


AGAIN = ("pid", "floor_s", "prompt_tokens", "scale", "interval_s", "timeout_s", "bearer_file", "insecure")
"""Options that a check which goes on longer needs as well."""


def _proving(item: "Checked") -> str:
    """The command that reads on until the budget of a busy engine is over; "" where more reads prove nothing, or have been made."""
    from diag.health.polling import backend_of

    asked = click.get_current_context()
    limits = [engine.budget_s for engine in item.verdict.engines if engine.state == item.verdict.state == "busy-unproven" and engine.flat_s is not None and engine.budget_s is not None]
    if item.source != "live" or not limits or (item.verdict.probe is not None and item.verdict.probe.sent):
        return ""
    patience_s = math.ceil(max(limits) + asked.params["interval_s"])
    if asked.params["patience_s"] >= patience_s:
        return ""
    target = next(text for text in asked.params["targets"] if text.startswith(SCHEMES) or not os.path.lexists(text) if backend_of(text).url == item.url)
    words = ["llmdiag", "health", target, "--patience", str(patience_s)]
    for option in asked.command.params:
        value = asked.params[option.name or ""]
        if option.name in AGAIN and _is_given(option.name):
            words += [option.opts[0]] if value is True else [option.opts[0], f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _watched(checker: "Checker", recorded: "list[Checked]", interval_s: float, form: str, textfile: Path | None, stop: "Stop") -> int:
    """Until Ctrl-C: a table that is redrawn in a terminal, else a line a backend and round. The exit code is that of the last round."""
    from diag.health import textfile as prometheus
    from diag.health.verdict import worst
    from diag.report import health as report

    code = 0
    with _screen(form) as draw:
        for fresh in checker.watching():
            checked = [*recorded, *fresh]
            code = worst([item.verdict for item in checked])
            if textfile is not None:
                prometheus.write(textfile, checked)
            if form == "json":
                terminal.out(json.dumps(report.render(checked, interval_s), allow_nan=False) + "\n")
            elif not draw(checked):
                for item in checked:
                    terminal.out(f"{report.clock()} {terminal.printable(report.first_line(item))}\n")
    return code


@contextmanager
def _screen(form: str) -> Iterator[Any]:
    """A function that draws a round where a person watches a terminal that can be redrawn, and says whether it did."""
    console = terminal.console()
    if form == "json" or not sys.stdout.isatty() or console.is_dumb_terminal:
        yield lambda checked: False
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(checked: "Sequence[Checked]") -> bool:
            live.update(_table(checked), refresh=True)
            return True

        yield draw


def _table(checked: "Sequence[Checked]") -> "Group":
    from rich.console import Group
    from rich.text import Text

    from diag.report import health as report
    from diag.report.grid import grid
    from diag.report.inert import inert

    width = terminal.width()
    parts: list[Any] = [Text(f"{report.clock()}  Ctrl-C ends")]
    for item in checked:
        parts.append(Text(inert(report.first_line(item), 400), style=report.STYLES.get(item.verdict.exit, "")))
        rows = [report.engine_row(engine) for engine in item.verdict.engines]
        if rows:
            parts += list(grid(list(report.COLUMNS), [[str(row[column]) for column in report.COLUMNS] for row in rows], width))
    return Group(*parts)


@contextmanager
def _limited(deadline_s: float | None, exec_probe: bool, settings: "Settings") -> Iterator[None]:
    """Ends the process when it takes too long: an exec probe that is killed by Kubernetes counts as a failure of the engine."""
    if deadline_s is None and exec_probe:
        deadline_s = settings.longest_s + SPARE_S
    if deadline_s is None:
        yield
        return

    def give_up() -> None:
        terminal.note(f"not finished within {deadline_s:g} s: nothing is proved")
        os._exit(0 if exec_probe else UNPROVED)

    timer = threading.Timer(deadline_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
