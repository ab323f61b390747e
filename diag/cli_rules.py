"""`llmdiag rules`: the catalogue of signatures; check your own."""

import json
import sys
from pathlib import Path

import click

from diag import terminal
from diag.cli_completion import rule_ids
from diag.errors import BadInput

FOLDER = click.option("--rules", "named", type=click.Path(path_type=Path, exists=True, file_okay=False), help="The same as FOLDER.")


@click.group("rules")
def rules_group() -> None:
    """The catalogue of incident signatures; check your own."""


@rules_group.command("list")
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@FOLDER
@terminal.format_option("text", "json")
def rules_list(folder: Path | None, named: Path | None, form: str) -> None:
    """All rules with severity and title."""
    from diag import rules

    found = rules.load(folder or named or rules.shipped())
    if form == "json":
        terminal.out(json.dumps([{"id": r.id, "severity": r.severity, "title": r.title, "explains": r.explains} for r in found]) + "\n")
        return
    terminal.rows(["id", "severity", "title"], [{"id": r.id, "severity": r.severity, "title": r.title} for r in found])


@rules_group.command("show")
@click.argument("rule", shell_complete=rule_ids)
@click.option("--rules", "folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of the rules.")
@terminal.format_option("text", "json")
def rules_show(rule: str, folder: Path | None, form: str) -> None:
    """One rule as it is written."""
    from diag import rules

    place = (folder or rules.shipped()) / f"{rule}.toml"
    try:
        text = place.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"no rule {rule!r}", hint="llmdiag rules list shows them") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {place}: {error}", hint="a rule is a UTF-8 TOML file") from error
    if form == "json":
        import msgspec

        text = json.dumps(msgspec.to_builtins(rules.read(place))) + "\n"
    terminal.out(text)


@rules_group.command("test")
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@FOLDER
@terminal.format_option("text", "json")
def rules_test(folder: Path | None, named: Path | None, form: str) -> None:
    """Run the samples that each rule names. Exit: 0 all as expected, 1 not, 2 error."""
    from diag import ruletest

    with terminal.progress("rules test") as told:
        results = ruletest.run(folder or named, told)
    if form == "json":
        terminal.out(json.dumps([result.__dict__ for result in results]) + "\n")
    else:
        terminal.rows(["ok", "rule", "sample", "expect", "got", "note"], [{**r.__dict__, "ok": "ok" if r.ok else "FAIL"} for r in results])
    sys.exit(0 if all(result.ok for result in results) else 1)
