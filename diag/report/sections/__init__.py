"""What a full report shows of the tables themselves, beside the findings. Nothing to register: every module in this folder is a section.

A section module has

    ORDER         = its place: the lower, the earlier
    READS         = name -> one SELECT over evidence tables
    PICTURES      = optional: True = all it has are plots, for formats that show some; not asked for others
    sections(rows) -> Iterator[Section]      rows of READS by name -> sections, none where there is nothing to show; pure

A module is asked only where all its relations exist and one of its SELECTs gave a row. A `Section` is made of parts that
know no width and no format: sentences, quotations with a label, lines that are drawn as they are (at most WIDTH cells),
commands, and plots (diag/plots.py), which HTML shows in place of the drawn lines. text.py, markdown.py and html/ show them, each
what it can; a section of plots alone is left out of text, Markdown and JSON. Texts of the evidence in parts are as found: the
formats make those harmless.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

from diag.evidence import Evidence
from diag.model import Section

Rows = Sequence[Mapping[str, object]]
WIDTH = 76
"""Cells that drawn lines have: what a terminal and a ticket show without breaking them."""
MAX_ROWS = 100_000


class SectionModule(Protocol):
    """The shape of a section module."""

    ORDER: int
    READS: Mapping[str, str]

    def sections(self, rows: Mapping[str, Rows]) -> Iterator[Section]: ...


def discover() -> tuple[SectionModule, ...]:
    """All sections, in the order of a report."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    found = [cast(SectionModule, importlib.import_module(f"{__name__}.{name}")) for name in names]
    return tuple(sorted(found, key=lambda module: module.ORDER))


def of(loaded: Evidence, *, pictures: bool = True) -> tuple[Section, ...]:
    """Every section that this evidence has something for; without `pictures` none that is made of plots alone."""
    wanted = [module for module in discover() if pictures or not getattr(module, "PICTURES", False)]
    return tuple(section for module in wanted for section in _of(module, loaded))


def _of(module: SectionModule, loaded: Evidence) -> Iterator[Section]:
    rows = {name: loaded.rows(sql, f"section {module.__name__}: {name}", MAX_ROWS)[0] for name, sql in module.READS.items()}  # type: ignore[attr-defined]
    if any(rows.values()):
        yield from module.sections(rows)
