"""`llmdiag help`: long texts in the terminal. A text lives where it is also read on the web; this only finds and shows it."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from diag import terminal
from diag.errors import BadInput

MOST_CELLS = 100
BESIDE = re.compile(r"(?<![\w./-])(samples|rules)/")


def _beginning(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in places() if name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", required=False, shell_complete=_beginning)
def help_(topic: str | None) -> None:
    """Long texts: a tour, how to read a report, how to write a rule, what is promised. Without TOPIC, which there are."""
    known = topics()
    if topic is None:
        terminal.rows(["llmdiag help", "says"], [{"llmdiag help": name, "says": title(text)} for name, text in known.items()])
        return
    found = [topic] if topic in known else [name for name in known if name.startswith(topic)]
    if len(found) != 1:
        raise BadInput(f"no topic {topic!r}" if not found else f"{topic!r} may be {' or '.join(found)}", hint="llmdiag help lists them")
    _show(_placed(known[found[0]]))


def topics() -> dict[str, str]:
    """Name -> text."""
    return {name: place.read_text(encoding="utf-8") for name, place in places().items()}


def places() -> dict[str, Path]:
    """Name -> file: those of diag/help, and the README of the rules, of the samples and of each folder of samples."""
    from diag import rules

    own = {path.stem: path for path in sorted((Path(__file__).parent / "help").glob("*.md"))}
    folders = {path.parent.name: path for path in sorted(rules.samples().glob("*/README.md"))}
    return {**own, "rules": rules.shipped() / "README.md", "samples": rules.samples() / "README.md", **folders}


def title(text: str) -> str:
    """Its first heading."""
    return text.partition("\n")[0].lstrip("# ")


def _placed(text: str) -> str:
    """Paths of samples and rules as they are from here: beside the current folder in a clone, else in the installation."""
    from diag import rules

    places = {"samples": rules.samples(), "rules": rules.shipped()}
    return BESIDE.sub(lambda found: found[0] if Path(found[1]).is_dir() else f"{places[found[1]]}/", text)


def _show(text: str) -> None:
    """As it is written where it is not a person who reads it."""
    if not sys.stdout.isatty():
        terminal.out(text)
        return
    from rich.markdown import CodeBlock, Markdown
    from rich.text import Text

    class Whole(CodeBlock):
        """Code whose lines are never broken: they are there to be copied."""

        def __rich_console__(self, console: Any, options: Any) -> Any:
            for line in str(self.text).rstrip("\n").split("\n"):
                yield Text(f"    {line}", style="cyan", no_wrap=True, overflow="ignore")

    class Guide(Markdown):
        elements = {**Markdown.elements, "fence": Whole, "code_block": Whole}  # noqa: RUF012

    terminal.console().print(Guide(text, hyperlinks=False), width=min(terminal.width(), MOST_CELLS), crop=False)
