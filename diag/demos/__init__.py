"""Reproduce an incident live on this machine, diagnose it, heal it. One demo a module; nothing to register.

A demo module has

    RULE                    the rule it ends in
    NEEDS, HINT             packages its lab imports, and how to get them
    run(folder, settings)   -> Iterator[Step] as they happen; raises DemoFailed

Everything a demo says it reads from outside: from the JSON of the tool and from HTTP, never from the script's own
knowledge. Without the fault it ends clear, and a healing that does not heal makes it fail.
"""

import importlib
import importlib.util
import pkgutil
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from diag.demos.steps import DemoFailed, Settings, Step
from diag.errors import BadInput

__all__ = ["DemoFailed", "Settings", "Step", "demos", "find", "run"]

KEPT = ("demo-incident*", "purged-*.jsonl")
"""What a demo leaves in the folder of --keep, the half bundle of an interrupted one included."""


class Demo(Protocol):
    """The shape of a demo module."""

    RULE: str
    NEEDS: tuple[str, ...]
    HINT: str

    def run(self, folder: Path, settings: Settings) -> Iterator[Step]: ...


@cache
def demos() -> Mapping[str, Demo]:
    """All demos by rule id."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {module.RULE: cast(Demo, module) for module in modules if hasattr(module, "RULE")}


def told() -> dict[str, str]:
    """What each demo shows, by rule id: the first line of its module, without the number of the incident."""
    return {rule: (module.__doc__ or "").partition("\n")[0].partition(": ")[2] for rule, module in demos().items()}


def find(name: str) -> str:
    """A rule id, a unique beginning of one, or some of its words in order -> the rule id. Raises BadInput."""
    known = demos()
    if name in known:
        return name
    found = [rule for rule in known if rule.startswith(name)] or [rule for rule in known if _words_of(name, rule)]
    if len(found) != 1:
        raise BadInput(f"{'no demo' if not found else 'several demos'} for {name!r}", hint=f"demos: {', '.join(known)}")
    return found[0]


def _words_of(name: str, rule: str) -> bool:
    """Is `prefix-mismatch` what somebody calls `prefix-block-mismatch`?"""
    left = iter(rule.split("-"))
    return all(word in left for word in name.split("-"))


def run(rule: str, settings: Settings) -> Iterator[Step]:
    """The steps of a demo, as they happen. Raises DemoFailed, BadInput before anything is started; leaves no process behind."""
    if settings.keep is not None and (old := [path for pattern in KEPT for path in settings.keep.glob(pattern)]):
        raise BadInput(f"{old[0]} is there already", hint="name another folder with --keep, or move it away")
    demo = demos()[rule]
    _make(settings.keep)
    if missing := [name for name in demo.NEEDS if importlib.util.find_spec(name) is None]:
        raise DemoFailed(f"the lab needs {' and '.join(missing)}", hint=demo.HINT)
    with tempfile.TemporaryDirectory(prefix="llmdiag-demo-") as folder:
        try:
            yield from demo.run(Path(folder), settings)
        except DemoFailed as error:
            raise DemoFailed(error.message, hint=_kept(Path(folder), error.hint)) from error


def _make(folder: Path | None) -> None:
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be made: {error.strerror}", hint="name another folder with --keep") from error


def _kept(folder: Path, hint: str | None) -> str:
    """The hint, with the bundles of a demo that failed moved to where they stay."""
    bundles = sorted(folder.glob("*.zip"))
    if not bundles:
        return hint or ""
    place = Path(tempfile.mkdtemp(prefix="llmdiag-demo-failed-"))
    for bundle in bundles:
        shutil.copy2(bundle, place)
    return (hint or f"the bundle is {folder}").replace(str(folder), str(place))
