"""`llmdiag analyze` and `llmdiag report`: evidence on disk -> a diagnosis, on the screen or as a runbook report."""

from pathlib import Path

import click

from diag import terminal
from diag.cli_diagnosis import DATE, EVENTS_MAP, PATHS, RULES, ZONE, analyse, explain, leave, rendered, show


@click.command()
@PATHS
@click.option("--explain", "rule", metavar="RULE", help="Why this rule matched or did not.")
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
@DATE
@ZONE
@EVENTS_MAP
@RULES
@terminal.format_option("text", "md", "json")
def report(
    paths: tuple[Path, ...], output: Path | None, date: str | None, tz: str | None, events_map: str | None, rules_dir: Path | None, form: str
) -> None:
    """A full runbook report to attach to a ticket.

    Exit: 0 clear, 1 matched, 2 error, 3 inconclusive.
    """
    with terminal.progress("analysing"):
        diagnoses = analyse(paths, rules_dir, date, tz, events_map)
    if output is None:
        show(diagnoses, form, full=True)
    else:
        terminal.write(output, rendered(diagnoses, form, full=True))
        terminal.note(f"report: {output}")
    leave(diagnoses)
