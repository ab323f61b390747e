"""`llmdiag recovery`: where the time of a recovery went, stage by stage."""

import json
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diag import terminal
from diag.cli_diagnosis import DATE, EVENTS_MAP, PATHS, ZONE, dates_of
from diag.errors import BadInput

if TYPE_CHECKING:
    from diag.evidence import Evidence
    from diag.model import Diagnosis
    from diag.sources import Dates

Rows = list[dict[str, object]]
MAX_RECOVERIES = 1000
READS = ("log_files", "event_files", "host_events")


@click.command()
@PATHS
@DATE
@ZONE
@EVENTS_MAP
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
@click.option(
    "--orphans-script", type=click.Path(path_type=Path), metavar="FILE",
    help="Write a script that ends orphans which hold device memory, to review; it changes nothing without --apply.",
)
@terminal.format_option("text", "md", "json")
def recovery(
    paths: tuple[Path, ...], date: str | None, tz: str | None, events_map: str | None, output: Path | None, orphans_script: Path | None, form: str
) -> None:
    """Where the time of a recovery went: stages, bottleneck, time to recover, first requests after it.

    Reads engine logs (vLLM, SGLang), journals, Kubernetes and docker events, access logs, metrics and bundles, in any
    mix; several recoveries are shown side by side. What no line covers is UNATTRIBUTED.

    Exit: 0, 2 error.
    """
    from diag.recovery import orphans

    if orphans_script is not None:
        orphans.refuse_place(orphans_script)
    held: Rows = []
    with terminal.progress("reading"):
        found, stages, diagnoses = _looked(paths, dates_of(date, tz, events_map), held)
    if form == "text" and output is None:
        _show(found, stages, diagnoses)
    else:
        terminal.emit(_rendered(found, stages, diagnoses, form), output)
    if orphans_script is not None:
        _write_script(held, orphans_script)


def _write_script(held: Rows, path: Path) -> None:
    """Say how to go on. Without an orphan nothing is written."""
    from diag.recovery import orphans

    listed = orphans.of_rows(held)
    if not listed:
        terminal.note(f"no orphan that holds device memory is in the evidence: {path} was not written")
        return
    orphans.write(listed, path)
    blind = sum(item.started_at is None for item in listed)
    if blind:
        terminal.note(f"of {blind} the evidence has no start time, they will be kept: make the list with ps -eo pid,ppid,lstart,stat,rss,args > ps.txt")
    where = shlex.quote(str(path))
    terminal.note(f"wrote {path} for {len(listed)} orphan{'s' if len(listed) > 1 else ''}; nothing was ended. Read it, look with: sh {where}, end them with: sh {where} --apply")


def _rendered(found: Rows, stages: Rows, diagnoses: "list[Diagnosis]", form: str) -> str:
    from diag import analysis
    from diag.report import json_
    from diag.report import recovery as report

    if form == "json":
        return json.dumps(report.document(found, stages, json_.render(analysis.best(diagnoses))), default=str) + "\n"
    if form == "md":
        return report.markdown(found, stages)
    return "".join(f"{line.plain.rstrip()}\n" for line in report.render(found, stages, report.MARKDOWN_CELLS))


def _looked(paths: tuple[Path, ...], dates: "Dates", held: Rows) -> "tuple[Rows, Rows, list[Diagnosis]]":
    """Recoveries, their stages and a diagnosis of each capture; orphans are added to `held`. BadInput: no log or journal is among the paths."""
    from diag import analysis, engine, evidence, rules
    from diag.recovery import orphans
    from diag.sources import sources_of

    collectors = evidence.collectors_of(evidence.Extras())
    chosen = rules.load(rules.shipped())
    found: Rows = []
    stages: Rows = []
    diagnoses = []
    looked = False
    for group in analysis.captures(sources_of(list(paths), collectors, dates)):
        loaded = evidence.load(group, collectors)
        looked = looked or any(_some(loaded, name) for name in READS)
        found += _rows(loaded, "SELECT * FROM recoveries ORDER BY bundle, host, capture, incident")
        stages += _rows(loaded, "SELECT * FROM recovery_stages ORDER BY bundle, host, capture, incident")
        held += _rows(loaded, orphans.SQL)
        subject = analysis.subject_of(loaded, chosen, paths)
        diagnoses.append(engine.diagnose(loaded, chosen, {"bundle": str(paths[0]), "evidence": tuple(map(str, paths))}, subject))
    if not looked:
        raise BadInput(
            f"{', '.join(map(str, paths))}: no engine log and no journal in it",
            hint="give the log of vLLM or SGLang, `journalctl -u UNIT`, kubectl or docker events, or a bundle",
        )
    return found, stages, diagnoses


def _some(loaded: "Evidence", table: str) -> bool:
    return table in loaded.bases and bool(loaded.rows(f'SELECT 1 AS one FROM "{table}"', "recovery", 1)[0])


def _rows(loaded: "Evidence", sql: str) -> Rows:
    """Rows with None for unknown."""
    return loaded.rows(sql, "recovery", MAX_RECOVERIES * 13)[0]


def _show(found: Rows, stages: Rows, diagnoses: "list[Diagnosis]") -> None:
    from diag.report import recovery as report

    console, width = terminal.console(), min(terminal.width(), 120)
    if not found:
        terminal.out_line("no start and no end of an engine is in the evidence")
    for line in report.render(found, stages, width):
        console.print(line, highlight=False, soft_wrap=True)
    matched = [result for diagnosis in diagnoses for result in diagnosis.findings]
    if matched:
        console.print()
        also = f"Also: {', '.join(dict.fromkeys(result.rule for result in matched))}; llmdiag analyze tells more"
        for part in textwrap.wrap(also, width, break_long_words=False, break_on_hyphens=False):
            console.print(part, highlight=False, soft_wrap=True)
