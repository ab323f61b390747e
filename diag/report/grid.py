"""Rows for a terminal: a table where its columns have room, else one block of `column: value` lines a row."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

READABLE = 16
"""A column that has this many cells, or all it wants, can be read."""
GAP = 2


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[RenderableType]:
    """Columns and harmless texts -> what a console of `width` cells prints. Nothing in it is read as markup or emoji."""
    if not rows:
        yield Text((" " * GAP).join(columns), style="bold")
    elif _has_room(columns, rows, width):
        yield _table(columns, rows)
    else:
        for number, row in enumerate(rows):
            yield from (Text(),) if number else ()
            yield _block(columns, row)


def _has_room(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Does every column get a readable width?"""
    wanted = [max(cell_len(column), *(cell_len(row[place]) for row in rows)) for place, column in enumerate(columns)]
    return sum(min(cells, READABLE) for cells in wanted) + GAP * (len(columns) - 1) <= width


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(Text(column), overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown


def _block(columns: Sequence[str], row: Sequence[str]) -> Table:
    shown = Table.grid(padding=(0, 1))
    shown.add_column(max_width=READABLE + 1, overflow="fold", style="bold")
    shown.add_column(overflow="fold")
    for column, value in zip(columns, row, strict=True):
        shown.add_row(Text(f"{column}:"), Text(value))
    return shown
