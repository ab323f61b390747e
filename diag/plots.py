"""Pictures of a report as data: what is in them and what it means, never how it looks. A format that has no pictures leaves them out.

They are tagged structs, and no dataclasses, because a diagnosis comes out of the jail as JSON and a part may hold any of them.
A *tone* is what a thing means to a reader: formats give it a colour and always a sign or words beside it.
"""

from typing import Literal

import msgspec

Tone = Literal["none", "good", "calm", "warn", "bad", "heat-1", "heat-2", "heat-3", "heat-4"]


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at a moment, or from then until another one. Times are seconds since 1970, UTC."""

    at_s: float
    text: str
    tone: Tone = "calm"
    until_s: float | None = None
    source: str = ""


class Lane(msgspec.Struct, frozen=True):
    """Marks of one kind, in order of time."""

    name: str
    marks: tuple[Mark, ...]
    left_out: int = 0
    """Further ones that are not shown."""


class Timeline(msgspec.Struct, frozen=True, tag="timeline"):
    """What happened when, of all hosts."""

    lanes: tuple[Lane, ...]


class Cell(msgspec.Struct, frozen=True):
    """One field of a grid: a sign of few letters, and in words what it says."""

    sign: str
    tone: Tone
    about: str = ""


class Line(msgspec.Struct, frozen=True):
    """One row of a grid; None is an empty field."""

    name: str
    cells: tuple[Cell | None, ...]
    note: str = ""


class Grid(msgspec.Struct, frozen=True, tag="grid"):
    """A heat map: named rows and columns, one sign a field."""

    corner: str
    """What the names of the rows are."""
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    legend: tuple[Cell, ...] = ()
    """Each sign that is used, `about` what it means."""
    note: str = ""
    """What the notes of the rows are; "" = they have none."""


class Branch(msgspec.Struct, frozen=True):
    """Functions that the same threads are in, outermost first, and where they part."""

    frames: tuple[str, ...]
    weight: int
    note: str = ""
    branches: tuple["Branch", ...] = ()


class Tree(msgspec.Struct, frozen=True, tag="tree"):
    """A prefix tree of stacks; weights count `unit`."""

    unit: str
    branches: tuple[Branch, ...]


class Bar(msgspec.Struct, frozen=True):
    """A named amount; `part` of it has the tone."""

    name: str
    value: float
    text: str
    tone: Tone = "calm"
    part: float | None = None
    """None = all of it."""


class Bars(msgspec.Struct, frozen=True, tag="bars"):
    """Amounts of one unit below each other, the longest as long as there is room."""

    bars: tuple[Bar, ...]


class Listing(msgspec.Struct, frozen=True, tag="listing"):
    """A plain table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Plot = Timeline | Grid | Tree | Bars | Listing
