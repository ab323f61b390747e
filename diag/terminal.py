"""What the commands share when they print: streams, consoles, progress, whole-or-nothing files."""

import contextlib
import io
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from diag.errors import BundleError
from diag.report.charset import PLAIN

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, float], None]
COMMAND = re.compile(r"\bllmdiag [a-z]+(-[a-z]+)? ")


class OutputLost(Exception):
    """Stdout could not be written: the reader went away, or its disk is full. No OSError: sockets raise those as well."""


class _Stdout(io.TextIOWrapper):
    """Stdout whose own trouble can be told from that of files and sockets."""

    def write(self, text: str) -> int:
        with _lost_if_it_fails():
            return super().write(text)

    def flush(self) -> None:
        with _lost_if_it_fails():
            super().flush()


@contextmanager
def _lost_if_it_fails() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputLost(error.errno, error.strerror) from error


def steady_streams() -> None:
    """Streams that were closed lead nowhere, so that no file takes their number; a Latin-1 terminal, or a file name that
    is no text, is no reason to crash.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        old = sys.stdout
        encoding, line_buffering = old.encoding, old.line_buffering
        sys.stdout = _Stdout(old.detach(), encoding=encoding, errors=PLAIN, line_buffering=line_buffering)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=PLAIN)


def silence(stream: IO[str]) -> None:
    """Point a stream that cannot be written to nowhere: what it still holds must not fail again at the exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def format_option(*choices: str) -> Callable[[Any], Any]:
    """`-f/--format`, the first choice is the default."""
    return click.option("-f", "--format", "form", type=click.Choice(choices), default=choices[0], show_default=True, help="Output format.")


def out(text: str) -> None:
    """To stdout, exactly."""
    sys.stdout.write(text)
    sys.stdout.flush()


def out_line(text: str) -> None:
    """One line to stdout; a person's terminal gets it broken between words."""
    out(f"{_between_words(text, sys.stdout)}\n")


def note(text: str) -> None:
    """Progress and remarks go to stderr, so that stdout stays pure; where stderr is lost, nobody reads them."""
    try:
        sys.stderr.write(f"{_between_words(text, sys.stderr)}\n")
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)


def _between_words(text: str, stream: IO[str]) -> str:
    """Long lines broken between words where a person reads them; a command stays on one line, to be copied whole."""
    if not stream.isatty():
        return text
    cells = width(stream)
    return "\n".join(part for line in text.split("\n") for part in _broken(line, cells))


def _broken(line: str, cells: int) -> list[str]:
    from diag.report.layout import wrapped

    indent = " " * (len(line) - len(line.lstrip(" ")))
    if len(line) * 2 <= cells or len(indent) * 2 > cells or COMMAND.search(line):
        return [line]
    return [f"{indent}{part}" for part in wrapped(line, cells - len(indent))] if line.strip() else [line]


def printable(text: str) -> str:
    """Lines with evidence or file names in them, made harmless for a terminal."""
    from diag.report.inert import inert

    return "\n".join(inert(line, 2000) for line in text.split("\n"))


def visible(text: str) -> str:
    """Whole lines for a person's terminal: what would move the cursor or colour the text is shown as an escape."""
    from diag.report.inert import visible as escape

    return "".join(char if char == "\n" or char.isprintable() else escape(char) for char in text)


def markup(text: str) -> str:
    """Text that rich prints as it is, brackets included."""
    from rich.markup import escape

    return escape(text)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The place to fill for a file that shall be there whole or not at all. Raises OSError.

    It has a name of its own, for two may write the same file at a time. What is no file (/dev/null, /dev/stdout, a pipe) is
    filled as it is, and a link goes on pointing where it did.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    partial = target.with_name(f".llmdiag-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield partial
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):  # a read-only mount refuses even that
            partial.unlink()
        raise


def write(path: Path, text: str) -> None:
    """A file, whole or not at all. Raises BundleError."""
    try:
        with whole(path) as partial:
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    except IsADirectoryError as error:
        raise BundleError(f"cannot write {path}: it is a folder", hint="name a file in it with -o") from error
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror}", hint="name a writable file with -o") from error


def emit(text: str, output: Path | None) -> None:
    """To the file that was named, else to stdout."""
    if output is None:
        out(visible(text) if sys.stdout.isatty() else text)
    else:
        write(output, text)


def width(stream: IO[str] | None = None) -> int:
    """Cells of the terminal behind a stream (stdout), COLUMNS where it is set; 100 where there is neither."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or 100
    except (OSError, ValueError):
        return 100


def console(stream: IO[str] | None = None) -> "Console":
    """A console on stdout; colour only where it is a terminal and NO_COLOR is not set. `:name:` of evidence is no emoji."""
    from rich.console import Console

    return Console(file=stream, width=width() if stream is None and sys.stdout.isatty() else 160, highlight=False, emoji=False)


def rows(columns: Sequence[str], found: Sequence[Mapping[str, Any]], *, null: str = "unknown", output: Path | None = None) -> None:
    """Rows on stdout, or in the file that was named; evidence in them is inert."""
    from diag.report.grid import grid
    from diag.report.inert import inert

    texts = [[null if row.get(column) is None else inert(row[column]) for column in columns] for row in found]
    names = [inert(column) for column in columns]
    paper = None if output is None else io.StringIO()
    shown = console(paper)
    for part in grid(names, texts, shown.width):
        shown.print(part)
    if output is not None and paper is not None:
        write(output, paper.getvalue())


def redrawn() -> "Console | None":
    """A console on stderr where a person watches a terminal that can be redrawn; None elsewhere."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    found = Console(stderr=True, emoji=False, highlight=False)
    return None if found.is_dumb_terminal else found


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A spinner with what is being done, on stderr of a terminal that can be redrawn; silent elsewhere."""
    paper = redrawn()
    if paper is None:
        yield lambda what, share: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(), console=paper, transient=True
    ) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda what, share: bar.update(task, description=f"{title}: {what}", completed=share)
