"""`llmdiag demo`: reproduce an incident live, diagnose it, heal it."""

import signal
import sys
from pathlib import Path

import click

from diag import terminal
from diag.cli_completion import demo_names

STOPPED = 2


@click.command()
@click.argument("rule", required=False, shell_complete=demo_names)
@click.option("--no-fault", "--no-ghost", "no_fault", is_flag=True, help="Plant nothing: the diagnosis must be clear.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the evidence in this folder; it is made if it is not there.")
@click.option("--dry-heal", "--dry-purge", "dry_heal", is_flag=True, hidden=True, help="Plan the healing only: the demo must then fail.")
def demo(rule: str | None, no_fault: bool, keep: Path | None, dry_heal: bool) -> None:
    """Reproduce an incident live on this machine, diagnose it and heal it.

    RULE is a rule id or a unique beginning of one, e.g. ghost-key; prefix-mismatch names prefix-block-mismatch. Without RULE the demos are listed.
    """
    from diag import demos

    if rule is None:
        terminal.rows(("demo", "shows"), [{"demo": name, "shows": about} for name, about in demos.told().items()])
        return
    name = demos.find(rule)
    _end_well_on(signal.SIGTERM, signal.SIGHUP)
    console = terminal.console()
    for number, step in enumerate(demos.run(name, demos.Settings(fault=not no_fault, heal=not dry_heal, keep=keep)), 1):
        console.print(f"[bold cyan]{number:>2}[/bold cyan] [bold]{terminal.markup(step.title)}[/bold]")
        for line in step.seen.splitlines():
            console.print(f"   {line}", markup=False, soft_wrap=True)


def _end_well_on(*signals: signal.Signals) -> None:
    """The first of them unwinds, so that labs, servers and folders go too; further ones do not disturb that."""
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup stays nohup

    def leave(*_: object) -> None:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(STOPPED)

    for number in heard:
        signal.signal(number, leave)
