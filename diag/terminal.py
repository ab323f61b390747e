"""What the commands share when they print: streams, consoles, progress, whole-or-nothing files."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag.errors import BundleError

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, float], None]


def format_option(*choices: str) -> Callable[[Any], Any]:
    """`-f/--format`, the first choice is the default."""
    return click.option("-f", "--format", "form", type=click.Choice(choices), default=choices[0], show_default=True, help="Output format.")


def out(text: str) -> None:
    """To stdout, exactly."""
    sys.stdout.write(text)
    sys.stdout.flush()


def out_line(text: str) -> None:
    """One line to stdout."""
    out(f"{text}\n")


def note(text: str) -> None:
    """Progress and remarks go to stderr, so that stdout stays pure."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Lines with evidence or file names in them, made harmless for a terminal."""
    from diag.report.inert import inert

    return "\n".join(inert(line, 2000) for line in text.split("\n"))


def write(path: Path, text: str) -> None:
    """A file, whole or not at all. Raises BundleError."""
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BundleError(f"cannot write {path}: {error.strerror}", hint="name a writable file with -o") from error


def emit(text: str, output: Path | None) -> None:
    """To the file that was named, else to stdout."""
    if output is None:
        out(text)
    else:
        write(output, text)


def width() -> int:
    """Cells of the terminal; 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def console() -> "Console":
    """A console on stdout; colour only where it is a terminal and NO_COLOR is not set."""
    from rich.console import Console

    return Console(width=width() if sys.stdout.isatty() else 160, highlight=False)


def rows(columns: Sequence[str], found: Sequence[Mapping[str, Any]]) -> None:
    """A table on stdout; evidence in it is inert."""
    from rich.markup import escape
    from rich.table import Table

    from diag.report.inert import inert

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(escape(str(column)), overflow="fold")
    for row in found:
        shown.add_row(*(escape(inert(row.get(column))) for column in columns))
    console().print(shown)


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A spinner with what is being done, on stderr of a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda what, share: bar.update(task, description=f"{title}: {what}", completed=share)
