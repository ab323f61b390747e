"""Drive one collector on a live process as a snapshot does: first read, beats of a short window, last read, parse."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

from diag import procfs
from diag.bundle import Door, Writer
from diag.errors import CollectorError
from diag.live import Options, Patient, Tick
from diag.manifest import Note
from diag.model import Artefact
from diag.parts import spelled_out
from diag.redact import Redactor
from diag.snapshot import beats


@dataclass(frozen=True)
class Run:
    """What a collector brought back: rows by table, notes, the named error it ended with, its artefacts."""

    rows: Mapping[str, Sequence[Mapping[str, object]]]
    notes: Sequence[Note]
    error: CollectorError | None
    artefacts: Sequence[Artefact]
    side_effects: Mapping[str, object] = field(default_factory=dict)

    def of(self, table: str, **where: object) -> list[Mapping[str, object]]:
        """Rows of a table whose columns have these values."""
        return [row for row in self.rows.get(table, ()) if all(row.get(name) == value for name, value in where.items())]

    def bytes(self) -> bytes:
        """Everything that was written, for tests that look for what must not be there."""
        return b"\n".join(artefact.bytes() for artefact in self.artefacts)


def run(
    module: ModuleType,
    pid: int,
    tmp_path: Path,
    *,
    window_s: float = 0.5,
    options: Options | None = None,
    seen: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
    root: int | None = None,
    pids: Sequence[int] | None = None,
    at_beat: Callable[[Tick], None] | None = None,
    redactor: Redactor | None = None,
) -> Run:
    """Collect from `pid` and parse what was written.

    `options.window_s` is replaced by `window_s`; `seen` stands for the rows of other collectors; `root` and `pids`
    default to what the snapshot would find; `at_beat` is called before each beat (to hurt the patient mid-window).
    """
    options = replace(options or Options(), window_s=window_s)
    root = procfs.service_root(pid) if root is None else root
    rows = seen or {}
    patient = Patient(pid, root, procfs.tree(root) if pids is None else pids, options, lambda table: rows.get(table, ()))
    folder = tmp_path / f"bundle-{module.NAME}-{time.monotonic_ns()}"
    writer = Writer(folder, redactor or Redactor(), {"hostname": "test"}, {"pid": pid})
    door = Door(writer, module.NAME, module.BUDGET_BYTES)
    try:
        error = _drive(module, patient, door, at_beat)
    finally:
        writer._journal.close()
    parsed: dict[str, list[Mapping[str, object]]] = {}
    for table, row in module.parse(door.artefacts):
        parsed.setdefault(table, []).extend(spelled_out(row))
    return Run(parsed, door.notes, error, door.artefacts, dict(writer._side_effects))


def parse(module: ModuleType, files: Mapping[str, str | bytes]) -> dict[str, list[Mapping[str, object]]]:
    """Loose files (name -> content) that the collector must recognise -> rows by table."""
    artefacts = []
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        assert module.recognise(name.rsplit("/", 1)[-1], data[:64 << 10]), f"{module.NAME} does not recognise {name}"
        artefacts.append(Artefact.of_bytes(name, module.NAME, data))
    rows: dict[str, list[Mapping[str, object]]] = {}
    for table, row in module.parse(artefacts):
        rows.setdefault(table, []).extend(spelled_out(row))
    return rows


def tool(name: str) -> str:
    """Path of a tool of the system; the test is skipped where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def output(*command: str) -> str:
    """What a tool prints, in English and wide."""
    env = {**os.environ, "LC_ALL": "C", "COLUMNS": "512", "TERM": "dumb"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=60).stdout


def _drive(module: ModuleType, patient: Patient, door: Door, at_beat: Callable[[Tick], None] | None) -> CollectorError | None:
    generator = module.collect(patient, door)
    try:
        next(generator)
        for tick in beats(patient.options):
            if at_beat is not None:
                at_beat(tick)
            generator.send(tick)
    except StopIteration:
        return None
    except CollectorError as error:
        return error
    finally:
        generator.close()
    raise AssertionError(f"{module.NAME} did not finish at the last beat")
