"""`llmdiag analyze` and `llmdiag report`: evidence on disk -> a diagnosis, on the screen or as a runbook report."""

import sys
from pathlib import Path

import click

from diag import terminal
from diag.cli_completion import rule_ids
from diag.cli_diagnosis import DATE, EVENTS_MAP, PATHS, RULES, ZONE, analyse, explain, leave, markdown_of, page, rendered, show
from diag.errors import BadInput

LIMITS = ("github", "gitlab", "jira", "slack")
"""Names of markdown.LIMITS, which takes long to import."""


@click.command()
@PATHS
@click.option("--explain", "rule", metavar="RULE", shell_complete=rule_ids, help="Why this rule matched or did not.")
@DATE
@ZONE
@EVENTS_MAP
@RULES
@terminal.format_option("text", "md", "json")
def analyze(
    paths: tuple[Path, ...], rule: str | None, date: str | None, tz: str | None, events_map: str | None, rules_dir: Path | None, form: str
) -> None:
    """Diagnose bundles, bundle folders or loose evidence files, in any mix.

    Exit: 0 clear, 1 matched, 2 error, 3 inconclusive.
    """
    with terminal.progress("analysing"):
        diagnoses = analyse(paths, rules_dir, date, tz, events_map)
    if rule is not None:
        explain(diagnoses, rule, form)
    else:
        show(diagnoses, form, full=False)
    leave(diagnoses)


@click.command()
@PATHS
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to this file.")
@click.option("--handoff", is_flag=True, help="For the bug report of an upstream project, as Markdown: environment, signature, folded stacks, what was ruled out.")
@click.option("--limit", type=click.Choice(LIMITS), help="Markdown (-f md is implied) that fits there [github].")
@DATE
@ZONE
@EVENTS_MAP
@RULES
@terminal.format_option("text", "md", "html", "json")
def report(
    paths: tuple[Path, ...], output: Path | None, handoff: bool, limit: str | None, date: str | None, tz: str | None, events_map: str | None,
    rules_dir: Path | None, form: str,
) -> None:
    """A full runbook report to attach to a ticket; `-f html` is one file with plots, for any browser and without a network.

    Exit: 0 clear, 1 matched, 2 error, 3 inconclusive.
    """
    if handoff and form not in ("text", "md"):
        raise click.UsageError("--handoff is Markdown: leave -f away")
    if limit is not None and form not in ("text", "md"):
        raise click.UsageError(f"--limit is for Markdown: leave -f {form} away")
    form = "md" if handoff or limit is not None else form
    if form == "html" and output is None and sys.stdout.isatty():
        raise BadInput("a page of HTML is nothing for a terminal", hint="name a file with -o report.html, or send it through a pipe")
    with terminal.progress("analysing"):
        diagnoses = analyse(paths, rules_dir, date, tz, events_map, pictures=handoff or form == "html")
        whole = page(diagnoses, paths, date, tz, events_map) if form == "html" else None
        whole = markdown_of(diagnoses, limit or LIMITS[0], handoff=handoff) if form == "md" else whole
    if output is not None:
        terminal.write(output, rendered(diagnoses, form, full=True) if whole is None else whole)
        terminal.note(f"report: {output}")
    elif whole is not None:
        terminal.emit(whole, None)
    else:
        show(diagnoses, form, full=True)
    leave(diagnoses)
