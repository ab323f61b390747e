"""What a snapshot shows while it runs: in a terminal a table that is redrawn, elsewhere a line for each thing that was found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diag import terminal

if TYPE_CHECKING:
    from rich.console import Group

    from diag.snapshot import View

BAR_CELLS = 20
STYLES = {"ok": "green", "runs": "cyan", "waits": "dim", "partial": "yellow", "failed": "bold red", "skipped": "dim"}


@contextmanager
def collecting(title: str) -> "Iterator[Callable[[View], None]]":
    """A function that is told each moment of a snapshot. What it shows goes to stderr."""
    console = terminal.redrawn()
    if console is None:
        yield _lines(title)
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        yield lambda view: live.update(_screen(title, view, console.width), refresh=True)


def _lines(title: str) -> "Callable[[View], None]":
    said: set[str] = set()

    def show(view: "View") -> None:
        for text in (title, *view.found):
            if text not in said:
                said.add(text)
                terminal.note(terminal.printable(text if text == title else f"  {text}"))

    return show


def _screen(title: str, view: "View", cells: int) -> "Group":
    """Title, bar, what was found, the collectors and what became of them."""
    from rich.console import Group
    from rich.text import Text

    from diag.report.inert import inert
    from diag.report.layout import clipped

    def line(text: str, style: str = "") -> Text:
        return Text(clipped(inert(text), cells), style)

    full = round(view.share * BAR_CELLS)
    bar = Text.assemble("  ", ("#" * full, "green"), ("-" * (BAR_CELLS - full), "dim"), f" {view.what}")
    parts = Text("  ", overflow="fold")
    for part in view.parts:
        parts.append(f"{part.name} ", STYLES.get(part.status, ""))
        if part.files:
            parts.append(f"{part.files} ", "dim")
    failed = [line(f"  {part.name}: {part.reason}", STYLES["failed"]) for part in view.parts if part.reason]
    return Group(line(title), bar, *(line(f"  {text}") for text in view.found), parts, *failed)
