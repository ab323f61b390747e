"""A map of a KV cache, layers down and blocks across: one sign a cell, its colour by relative L2. Readable without colour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from diag.plots import Cell as Field
from diag.plots import Grid as Plot
from diag.plots import Line, Tone
from diag.tensors.result import Result

SIGNS = {
    "same": ".", "close": "-", "suspicious": "?", "different": "x", "permuted": "p", "aliased": "a", "zero": "0", "nan": "N",
    "shape-mismatch": "!", "dtype-mismatch": "!",
}  # fmt: skip
WORST = ("nan", "shape-mismatch", "dtype-mismatch", "aliased", "permuted", "zero", "different", "suspicious", "close", "same")
NAMES = {".": "same bits", "-": "close", "?": "suspicious", "x": "different", "p": "permuted", "a": "another request's", "0": "zero", "N": "NaN", "!": "shape or dtype"}
COLOURS = ((0.0, "green"), (1e-2, "cyan"), (1e-1, "yellow"), (0.5, "dark_orange"), (1.0, "bold red"))
"""From this relative L2 on."""
TONES: Mapping[str, Tone] = {"same": "good", "close": "calm", "suspicious": "warn"}
"""Of a plot; what is not here is bad."""
MAX_COLUMNS = 160
MAX_ROWS = 40
EDGE = 22
"""Cells for the figures behind a row."""


@dataclass(frozen=True)
class Cell:
    """The worst of keys and values, ranks and requests in one layer and block."""

    verdict: str
    rel_l2: float | None
    cosine: float | None

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]


Grid = Mapping[tuple[int, int], Cell]


def render(results: Sequence[Result], width: int) -> list[Text]:
    """Lines of the map, none where no block was compared."""
    return draw(_cells(results), width)


def draw(cells: Grid, width: int) -> list[Text]:
    """(layer, block) -> cell as lines of at most `width` cells. Columns that are the same everywhere are drawn together."""
    if not cells:
        return []
    layers, blocks = sorted({layer for layer, _ in cells}), sorted({block for _, block in cells})
    room = max(16, width - EDGE - 8)
    columns = _columns(cells, layers, blocks, room // 2)
    wide = max(len(str(block)) for block in columns if block is not None) + 1
    cell = wide if wide * len(columns) <= room else 2
    lines = [_header(columns, cell)]
    for first, last in _stretches(cells, layers, blocks)[:MAX_ROWS]:
        lines.append(_row(cells, first, last, columns, cell))
    used = [sign for sign in NAMES if any(cell.sign == sign for cell in cells.values())]
    return [*lines, Text("       " + "  ".join(f"{sign} {NAMES[sign]}" for sign in used) + ("  ~ further blocks like the one before" if None in columns else ""), style="dim")]


def plot(cells: Grid) -> Plot:
    """The same as a picture, which has room for more columns."""
    layers, blocks = sorted({layer for layer, _ in cells}), sorted({block for _, block in cells})
    columns = _columns(cells, layers, blocks, MAX_COLUMNS)
    lines = tuple(
        Line(_span(first, last), tuple(_field(cells, first, block) for block in columns), _figures(cells, first, last))
        for first, last in _stretches(cells, layers, blocks)[:MAX_ROWS]
    )
    used = {cell.sign: TONES.get(cell.verdict, "bad") for cell in cells.values()}
    return Plot("layer", tuple("~" if block is None else str(block) for block in columns), lines, tuple(Field(sign, used[sign], NAMES[sign]) for sign in NAMES if sign in used), "worst of the row")


def _field(cells: Grid, layer: int, block: int | None) -> Field | None:
    if block is None:
        return Field("~", "none", "further blocks like the one before")
    cell = cells.get((layer, block))
    if cell is None:
        return None
    figures = "" if cell.rel_l2 is None else f": cosine {_short(cell.cosine)}, relative L2 {_short(cell.rel_l2)}"
    return Field(cell.sign, TONES.get(cell.verdict, "bad"), f"block {block}, {NAMES[cell.sign]}{figures}")


def _cells(results: Sequence[Result]) -> dict[tuple[int, int], Cell]:
    found: dict[tuple[int, int], Cell] = {}
    for item in results:
        if item.block is None or item.layer is None:
            continue
        told = item.difference
        verdict = "suspicious" if item.is_suspicious else item.verdict
        cell = Cell(verdict, None if told is None else told.rel_l2, None if told is None else told.cosine)
        key = (item.layer, item.block)
        found[key] = cell if key not in found else _worse(found[key], cell)
    return found


def _worse(one: Cell, other: Cell) -> Cell:
    verdict = min((one.verdict, other.verdict), key=WORST.index)
    rel = max((value for value in (one.rel_l2, other.rel_l2) if value is not None), default=None)
    cosine = min((value for value in (one.cosine, other.cosine) if value is not None), default=None)
    return Cell(verdict, rel, cosine)


def _columns(cells: Grid, layers: Sequence[int], blocks: Sequence[int], room: int) -> list[int | None]:
    """Blocks to draw; None stands for a run of blocks that are as the one before it."""
    columns: list[int | None] = []
    before: tuple[str, ...] | None = None
    for number, block in enumerate(blocks):
        signs = tuple(cells[(layer, block)].sign if (layer, block) in cells else " " for layer in layers)
        after = blocks[number + 1] if number + 1 < len(blocks) else None
        alike = after is not None and signs == tuple(cells[(layer, after)].sign if (layer, after) in cells else " " for layer in layers)
        if len(blocks) <= room or signs != before or not alike:
            columns.append(block)
        elif columns[-1] is not None:
            columns.append(None)
        before = signs
    return columns if len(columns) <= room else [*columns[: room - 1], None]


def _stretches(cells: Grid, layers: Sequence[int], blocks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last layer of rows that look the same; few layers are drawn one by one."""
    if len(layers) <= MAX_ROWS // 2:
        return [(layer, layer) for layer in layers]
    found: list[tuple[int, int]] = []
    before: list[str] = []
    for layer in layers:
        signs = [cells[(layer, block)].sign if (layer, block) in cells else " " for block in blocks]
        if found and signs == before:
            found[-1] = (found[-1][0], layer)
        else:
            found.append((layer, layer))
        before = signs
    return found


def _header(columns: Sequence[int | None], cell: int) -> Text:
    """The number of every block where there is room for it, and of the last one in any case; `cell`: places of a column."""
    last = max(number for number, block in enumerate(columns) if block is not None)
    line, at = "", 0
    for number, block in enumerate(columns):
        place = cell * number
        room = cell * last - 1 if number < last else place + len(str(block))
        if block is not None and place >= at and (number == last or place + len(str(block)) <= room):
            line = line.ljust(place) + str(block)
            at = place + len(str(block)) + 1
    return Text(f"layer  {line}", style="bold")


def _row(cells: Grid, first: int, last: int, columns: Sequence[int | None], cell: int) -> Text:
    line = Text(f"{_span(first, last):>5}  ")
    for block in columns:
        found = None if block is None else cells.get((first, block))
        line.append("~" if block is None else " " if found is None else found.sign, style="dim" if found is None else _colour(found))
        line.append(" " * (cell - 1))
    told = f" {figures}" if (figures := _figures(cells, first, last)) else ""
    line.append(told if cell_len(told) <= EDGE else told[:EDGE], style="dim")
    return line


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _figures(cells: Grid, first: int, last: int) -> str:
    """The lowest cosine and the largest difference of some layers; "" = there is none."""
    rows = [cell for (layer, _), cell in cells.items() if first <= layer <= last]
    cosine = min((cell.cosine for cell in rows if cell.cosine is not None), default=None)
    rel = max((cell.rel_l2 for cell in rows if cell.rel_l2 is not None), default=None)
    return f"cos {_short(cosine)} rel {_short(rel)}" if rel else ""


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _colour(cell: Cell) -> str:
    if cell.verdict == "same":
        return "green"
    if cell.rel_l2 is None:
        return "bold red"
    return next(colour for least, colour in reversed(COLOURS) if cell.rel_l2 >= least)
