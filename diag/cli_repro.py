"""`llmdiag repro-prefix`: parse, wire, print, exit codes."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import terminal
from diag.errors import BadInput, BundleError

if TYPE_CHECKING:
    from diag.cache.interrupts import Stop
    from diag.repro.client import Endpoint
    from diag.repro.prompts import Prompt
    from diag.repro.record import Run, Settings
    from diag.repro.verdict import Verdict

KEY_VARIABLE = "LLMDIAG_API_KEY"
NOTE_EVERY_S = 30.0
"""How often is said how far it is, where no person watches a bar."""
WATCH_S = 0.2
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models")
SAMPLES = 3
"""Variants of each prompt and arm that --dry-run shows."""


@click.command("repro-prefix")
@click.argument("url")
@click.argument("prompts_path", metavar="PROMPTS.jsonl", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--model", help="Model to ask (the first that /v1/models lists otherwise).")
@click.option("--limit", type=click.IntRange(10, 1_000_000), default=2000, show_default=True, help="Requests at most, all arms together.")
@click.option("--minutes", type=click.FloatRange(0.01, 100_000), default=30.0, show_default=True, help="Minutes at most.")
@click.option("--fills", type=click.FloatRange(0.1, 1000), default=10.0, show_default=True, help="Go on until new blocks have filled the cache this often, and ten times as many re-asks used it.")
@click.option("--control", type=click.IntRange(0, 1_000_000), default=50, show_default=True, help="Variants of the control arm.")
@click.option("--every", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Variants between re-asks at first; in the pressure arm it then adapts.")
@click.option("--rate", type=click.FloatRange(0.01, 10_000), default=2.0, show_default=True, help="Requests per second at most.")
@click.option("--concurrency", type=click.IntRange(1, 64), default=1, show_default=True, help="Variants at a time; re-asks are always alone.")
@click.option("--max-tokens", type=click.IntRange(1, 4096), default=64, show_default=True, help="Length of the answers.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Makes the same variants again; sent with the requests too.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 3600), default=120.0, show_default=True, help="Seconds for one answer.")
@click.option("--metrics-url", metavar="URL", help="Where the counters are, if not at /metrics of URL.")
@click.option("--api-key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with the bearer token [env: LLMDIAG_API_KEY].")
@click.option("--insecure", is_flag=True, help="Do not check the TLS certificate.")
@click.option("--no-answers", is_flag=True, help="Keep the texts of answers out of the output (those of prompts never are in it).")
@click.option("--dry-run", is_flag=True, help="Show some variants; send nothing.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON document to this file too; llmdiag analyze reads it.")
@terminal.format_option("text", "json")
def repro_prefix(
    url: str, prompts_path: Path, model: str | None, metrics_url: str | None, api_key_file: Path | None, insecure: bool, no_answers: bool,
    dry_run: bool, output: Path | None, form: str, **asked: Any,
) -> None:
    """Does the prefix cache of an OpenAI-compatible endpoint answer with blocks of somebody else?

    Asks the failing prompts of PROMPTS.jsonl again and again at temperature 0, between variants of them: first such that
    fill no new blocks, then such that fill the cache and evict. Each line is {"prompt": "..."} or {"messages": [...]},
    with "expect" (text or regular expression) if the right answer is known. It costs the endpoint load: see --rate.

    A failure counts when it is there again on asking again, and gone with the cache bypassed. Ctrl-C or SIGTERM ends with
    what was seen so far, and its exit code; a second one at once, with 130.

    Exit: 0 no failure though the hit path was exercised in a full cache, 1 reproduced, 2 error, 3 not exercised.
    """
    from diag.cache import interrupts
    from diag.repro import prompts as files
    from diag.repro import verdict as verdicts
    from diag.repro.http_post import Wire, place_of
    from diag.repro.record import Settings

    place = place_of(url)
    _refuse_path(place.prefix, url)
    counters_at = None if metrics_url is None else place_of(metrics_url)
    prompts = files.read(prompts_path)
    token = _token(api_key_file)
    settings = Settings(**asked)
    if dry_run:
        _show_variants(prompts, settings, form)
        return
    if output is not None:
        _check_writable(output)
    from diag.repro.client import Endpoint

    wire = Wire(verify=not insecure)
    metrics_path = None if counters_at is None or not counters_at.prefix else ""
    endpoint = Endpoint(place, wire, settings.timeout_s, token, counters_at, metrics_path)
    with interrupts.wished(signal.SIGTERM) as stop, _watched(stop, wire.stop):
        run = _run(endpoint, model, prompts, settings, stop)
    verdict = verdicts.judge(run)
    _emit(run, verdict, prompts, output, form, answers=not no_answers)
    sys.exit(verdict.exit_code)


def _refuse_path(prefix: str, url: str) -> None:
    """The address of one kind of question instead of the base that both kinds and the list of models are under."""
    if prefix.endswith(PATHS):
        raise BadInput(f"{terminal.printable(url)} is the path of one kind of question", hint="give the base URL: http://HOST:PORT, or with /v1")


def _token(path: Path | None) -> str | None:
    """Of the file, else of the environment. Raises BadInput, which does not show it."""
    try:
        token = (os.environ.get(KEY_VARIABLE, "") if path is None else path.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}", hint="a text file that holds the token and nothing else") from error
    if token and not (token.isascii() and token.isprintable()):
        raise BadInput("the bearer token holds characters that no HTTP header has", hint=f"check {path or KEY_VARIABLE}: the token and nothing else")
    return token or None


def _check_writable(path: Path) -> None:
    """Before the first request: an hour of questions must not end at a read-only folder."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            return
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            pass
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror}", hint="name a writable file with -o; nothing was sent yet") from error


@contextlib.contextmanager
def _watched(stop: "Stop", act: Any) -> Iterator[None]:
    """Act as soon as somebody wishes to stop: the thread that hears the signal may be waiting for an answer."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if stop.wait(WATCH_S):
                act()
                return

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run(endpoint: "Endpoint", model: str | None, prompts: "Sequence[Prompt]", settings: "Settings", stop: "Stop") -> "Run":
    from diag.repro.experiment import Experiment

    models = endpoint.models() if model is None else []
    if model is None and not models:
        raise BadInput(f"{endpoint.place.shown}/v1/models lists no model", hint="name one with --model")
    chosen = model or str(models[0]["id"])
    if len(models) > 1:
        terminal.note(terminal.printable(f"model {chosen}, the first of {len(models)}; another one with --model"))
    last = time.monotonic()
    is_watched = sys.stderr.isatty()
    with terminal.progress("repro") as bar:

        def told(what: str, share: float) -> None:
            nonlocal last
            bar(what, share)
            if not is_watched and time.monotonic() - last >= NOTE_EVERY_S:
                last = time.monotonic()
                terminal.note(what)

        return Experiment(endpoint, chosen, models, prompts, settings, stop, told).run()


def _emit(run: "Run", verdict: "Verdict", prompts: "Sequence[Prompt]", output: Path | None, form: str, *, answers: bool) -> None:
    from diag.report import repro as report

    document = json.dumps(report.render(run, verdict, prompts, answers=answers), ensure_ascii=True) + "\n"
    if output is not None:
        terminal.write(output, document)
    if form == "json":
        terminal.out(document)
        return
    terminal.out_line(terminal.printable(report.first_line(verdict)))
    terminal.out("\n")
    terminal.rows(report.COLUMNS, [report.arm_row(arm) for arm in verdict.arms])
    for line in report.notes(verdict):
        terminal.out_line(line)
    terminal.out("\n")
    for line in report.timelines(run, min(terminal.width(), 100)):
        terminal.out(f"{line}\n")
    terminal.out("\n")
    for line in report.details(run, verdict, answers=answers):
        terminal.out_line(terminal.printable(line))
    if output is not None:
        terminal.note(f"written: {output}")


def _show_variants(prompts: "Sequence[Prompt]", settings: "Settings", form: str) -> None:
    from diag.report import repro as report
    from diag.repro import variants

    count = SAMPLES * len(prompts)
    made = [
        (arm, number, number % len(prompts), make(prompts, number, settings.seed))
        for arm, make in (("control", variants.control), ("pressure", variants.pressure)) for number in range(count)
    ]
    if form == "json":
        found = [{"arm": arm, "number": number, "of": origin, **prompt.body()} for arm, number, origin, prompt in made]
        terminal.out(json.dumps({"schema": "llmdiag.repro_plan/1", "variants": found}) + "\n")
        return
    for arm, number, origin, prompt in made:
        terminal.out_line(terminal.printable(f"{arm} {number}, prompt {origin}: {report.changed(prompts[origin], prompt)}"))
    terminal.note("nothing was sent")
