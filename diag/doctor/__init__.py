"""What this machine allows llmdiag, and how to fix the rest. One check a module; nothing to register.

A check module has

    ORDER                            its place on the screen
    check(ground) -> Iterator[Check] looks, changes nothing, ends within its bounds; raises no CollectorError

Rights are tried, not guessed from files: on the process that was asked for, else on a child of our own.
"""

import contextlib
import importlib
import importlib.util
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from diag.doctor.ground import Check, Ground

__all__ = ["Check", "Checker", "Ground", "checkers", "run"]

RUNNING = "/proc/self/exe"
"""The program that runs now, also where its path cannot be followed by this user."""
RESTS = "import time; print(flush=True); time.sleep(600)"


class Checker(Protocol):
    """The shape of a check module."""

    ORDER: int

    def check(self, ground: Ground) -> Iterator[Check]: ...


def checkers(folder: Path | None = None) -> tuple[list[Checker], list[Check]]:
    """All check modules of this package, or of another folder, in the order of the screen; and those that cannot be imported.

    A library that is missing or broken is for the doctor to tell, not to fail of.
    """
    found: list[Checker] = []
    broken = []
    for info in pkgutil.iter_modules(__path__ if folder is None else [str(folder)]):
        try:
            module = _imported(info, folder)
        except ImportError as error:
            broken.append(Check(info.name.replace("_", " "), False, f"llmdiag is not whole: {error}", "pip install --force-reinstall .    # in the clone of llmdiag"))
            continue
        if hasattr(module, "check"):
            found.append(cast(Checker, module))
    return sorted(found, key=lambda module: module.ORDER), broken


def _imported(info: pkgutil.ModuleInfo, folder: Path | None) -> ModuleType:
    if folder is None:
        return importlib.import_module(f"{__name__}.{info.name}")
    spec = importlib.util.spec_from_file_location(f"diag_extra_checks.{info.name}", folder / f"{info.name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    pid: int | None, folder: Path, told: Callable[[str, float], None] = lambda what, share: None, extra: Path | None = None
) -> Iterator[Check]:
    """Every check as it comes. `pid`: the service that shall be looked at; `folder`: where a bundle would be written."""
    found, broken = checkers(extra)
    with _child() as own:
        ground = Ground(pid, own, folder)
        for number, module in enumerate(found):
            told((module.__doc__ or "").partition("\n")[0], number / len(found))
            yield from module.check(ground)
    yield from broken


@contextlib.contextmanager
def _child() -> Iterator[int]:
    """A Python process of our own that sleeps, to try things on."""
    with subprocess.Popen(
        [sys.executable or "python", "-S", "-E", "-c", RESTS], executable=RUNNING, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None
        try:
            child.stdout.readline()
            yield child.pid
        finally:
            child.kill()
