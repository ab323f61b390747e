"""What commands that end in a diagnosis share: options, analysing, showing, the exit code."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diag import terminal
from diag.cli_completion import bundles
from diag.errors import BadInput

if TYPE_CHECKING:
    from diag.model import Diagnosis
    from diag.sources import Dates

EXIT = {"clear": 0, "matched": 1, "inconclusive": 3}

READ = (
    "give bundles, /metrics texts, engine logs (whole lines, with level and time), py-spy dumps, ps, top, ss, dmesg, logs with cache lookups, tensor dumps, "
    "and the JSON that compare-dumps and repro-prefix write with -o"
)

PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), shell_complete=bundles)
DATE = click.option("--date", metavar="YYYY[-MM-DD]", help="When loose logs that print no year begin.")
ZONE = click.option("--tz", metavar="ZONE", help="Zone of loose logs that print none: UTC, +02:00, Europe/Berlin.")
EVENTS_MAP = click.option(
    "--events-map", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="TOML: which lines of your own tools' logs are events."
)
MOST_BESIDE = 20
RULES = click.option("--rules", "rules_dir", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Use the rules of this folder instead of those that come with llmdiag.")


def analyse(
    paths: Sequence[Path], rules_dir: Path | None, date: str | None = None, tz: str | None = None, events_map: str | None = None, *, pictures: bool = False
) -> "list[Diagnosis]":
    from diag import analysis, jail, rules

    dates = dates_of(date, tz, events_map)
    if rules_dir is not None and not analysis.is_own(rules_dir, rules.shipped()):
        diagnoses = jail.analyse(paths, rules_dir, dates, pictures=pictures)
    else:
        diagnoses = analysis.analyse(paths, rules.load(rules.shipped()), dates=dates, pictures=pictures)
    _say_if_blind(diagnoses)
    if events_map is None:
        _say_if_left_behind(paths)
    return diagnoses


def _say_if_left_behind(paths: Sequence[Path]) -> None:
    """`*.log` leaves the events map beside the logs where it is."""
    from diag.parsers import events_map

    given = {path.resolve() for path in paths}
    for folder in dict.fromkeys(path.parent for path in paths if path.is_file() and path.suffix != ".toml"):
        for file in sorted(folder.glob("*.toml"))[:MOST_BESIDE]:
            if file.resolve() not in given and file.is_file() and events_map.is_map(_head(file)):
                terminal.note(terminal.printable(f"a map lies beside the logs and was not read: --events-map {file}"))
                return


def _head(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            return handle.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""


def _say_if_blind(diagnoses: "list[Diagnosis]") -> None:
    """An empty folder, or one full of something else, is not a service in good health."""
    if any(item.status != "skipped" for diagnosis in diagnoses for item in diagnosis.collected):
        return
    names = [str(name) for diagnosis in diagnoses for name in diagnosis.subject.get("unrecognised") or ()]  # type: ignore[attr-defined]
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    what = f"not recognised: {listed}" if names else "there is no file in it"
    terminal.note(terminal.printable(f"nothing could be looked at: {what}; {READ}"))


def dates_of(date: str | None, tz: str | None, events_map: str | None) -> "Dates":
    """What a person says about loose files."""
    from diag.sources import Dates

    return Dates(None if date is None else _year(date), tz, events_map)


def _year(date: str) -> int:
    import re

    found = re.fullmatch(r"(\d{4})(-\d\d-\d\d)?", date)
    if found is None:
        raise BadInput(f"--date {date}: not a date", hint="give YYYY or YYYY-MM-DD")
    return int(found[1])


def show(diagnoses: "list[Diagnosis]", form: str, *, full: bool) -> None:
    from diag.report import text

    if form != "text":
        terminal.out(rendered(diagnoses, form, full=full))
        return
    console = terminal.console()
    for diagnosis in diagnoses:
        console.print(text.render(diagnosis, full=full, width=terminal.width(), whole=not sys.stdout.isatty()), end="", soft_wrap=True, highlight=False)


def rendered(diagnoses: "list[Diagnosis]", form: str, *, full: bool) -> str:
    from diag import analysis
    from diag.report import json_, markdown, text

    if form == "json":
        document = json_.render(analysis.best(diagnoses))
        if len(diagnoses) > 1:
            document["captures"] = [json_.render(diagnosis) for diagnosis in diagnoses]
        return json.dumps(document, default=str) + "\n"
    if form == "md":
        return markdown.render_all(diagnoses)
    return "".join(text.render(diagnosis, full=full, whole=True).plain for diagnosis in diagnoses)


def markdown_of(diagnoses: "list[Diagnosis]", limit: str, *, handoff: bool) -> str:
    """All captures as Markdown that fits; or the one that says most, for an upstream project."""
    from diag import analysis
    from diag.report import handoff as block
    from diag.report import markdown

    most = markdown.LIMITS[limit]
    text = block.render(analysis.best(diagnoses), most) if handoff else markdown.render_all(diagnoses, most)
    return markdown.for_slack(text) if limit == "slack" else text


def page(diagnoses: "list[Diagnosis]", paths: Sequence[Path], date: str | None, tz: str | None, events_map: str | None) -> str:
    """All captures as one HTML file, the one that says most first, with the raw lines of their rows."""
    from diag import analysis, evidence, rawlines
    from diag.redact import Redactor
    from diag.report import html
    from diag.sources import sources_of

    sources = sources_of(paths, evidence.collectors_of(evidence.Extras()), dates_of(date, tz, events_map))
    loose, redactor = {source.name for source in sources if source.manifest is None}, Redactor()
    quoted = rawlines.read(sources, rawlines.places_of(diagnoses))
    quoted = {place: redactor.text(line) if place.bundle is None or place.bundle in loose else line for place, line in quoted.items()}
    return html.render(diagnoses, quoted, analysis.best(diagnoses))


def explain(diagnoses: "list[Diagnosis]", rule: str, form: str) -> None:
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


def leave(diagnoses: "list[Diagnosis]") -> None:
    from diag import analysis

    sys.exit(EXIT[analysis.best(diagnoses).verdict])
