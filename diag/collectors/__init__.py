"""One source of evidence a file. Nothing to register: every module in this folder is a collector.

A collector module has

    NAME          = its file name
    FEEDS         = tables it fills
    NEEDS         = tables (of other collectors) its live part reads through `patient.seen`
    TABLES        = tables of its own, if any (diag.tables.Table)
    BUDGET_S, BUDGET_BYTES = what its live part may cost at most
    HINT          = the command that collects its tables ({pid} is filled in)
    BESIDE        = optional: collectors whose artefacts its `parse` is given too (a log may tell of more than one thing)
    certain(name, head) = optional: is it one of mine, and nobody else's? Asked first, and quick: no other collector looks at such a file
    also(owner, head) = optional: is this loose file of the collector `owner` of use to me too? (A whole journal may hold engine lines.)
    wanted(mine)  = optional: my artefacts of one source -> which further files (by path) I want for what mine say (a map names logs)
    LIVE          = optional: False = reads nothing of a live service, only what is handed in
    would_read(patient, door) = optional: for --dry-run, the very files and addresses, a line each; notes to the door say what cannot be read
    hint(seen)    = optional: the same with what the evidence knows filled in (an address, say)
    collect(patient, door) -> Collecting         live; reads only; raises CollectorError, never anything else
    recognise(name, head) -> bool                is this loose file (name, first 64 KiB) one of mine?
    parse(artefacts) -> Iterator[Row]            artefacts of one source -> rows; pure

`parse` may yield `("collected", {"table_name":…, "status":…, "reason":…})` to say that a table was read and is
empty, or that part of it could not be read. A row may stand for several that share most of it (diag/parts.py). A loose file collects only the tables it yields rows or such lines for.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from diag.bundle import Door
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.tables import Table


class Collector(Protocol):
    """The shape of a collector module."""

    NAME: str
    FEEDS: tuple[str, ...]
    NEEDS: tuple[str, ...]
    TABLES: tuple[Table, ...]
    BUDGET_S: float
    BUDGET_BYTES: int
    HINT: str

    def collect(self, patient: Patient, door: Door) -> Collecting: ...

    def recognise(self, name: str, head: bytes) -> bool: ...

    def parse(self, artefacts: Sequence[Artefact]) -> Iterator[Row]: ...


def hint_of(collector: Collector, seen: Callable[[str], Sequence[Mapping[str, object]]]) -> str:
    """The command that collects a collector's tables, given the rows of evidence that there are."""
    hint = getattr(collector, "hint", None)
    return collector.HINT if hint is None else str(hint(seen))


def discover(folder: Path | None = None) -> tuple[Collector, ...]:
    """All collectors of this package, or of another folder, by file name."""
    if folder is None:
        names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
        return tuple(cast(Collector, importlib.import_module(f"{__name__}.{name}")) for name in names)
    return tuple(_load(path) for path in sorted(folder.glob("*.py")) if not path.name.startswith("_"))


def _load(path: Path) -> Collector:
    name = f"diag_extra_collectors.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return cast(Collector, module)
