"""What a stack means: where in its work a thread of an inference service is, by the functions that are on its stack.

The knowledge is data, one TOML file per product beside this one, read strictly. A place is recognised by functions that
all lie on the stack, outermost first, whatever is between them; files are compared by a part of their path, and names by
their last dotted part, because dumps of different versions print more or less of both::

    [[place]]
    id = "worker-idle"
    rank = 30                                   # lower ones are tried first
    says = "waits for the next order"
    path = ["worker_busy_loop", "dequeue"]      # or "select@selectors.py", or "all_reduce|barrier@distributed"
    rest = true                                 # this is where it is when there is nothing to do

Adding a product or a version adds a file or an entry; nothing else knows a function's name.
"""

import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from diag.errors import RuleError

Phase = Literal["startup", "serving", "shutdown"]


class Step(NamedTuple):
    """One of the functions on a path: any of these names, in a file whose path holds `file`."""

    names: frozenset[str]
    file: str

    def fits(self, func: str, file: str) -> bool:
        return func in self.names and self.file in file


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place; several may have one id. `path` outermost first. `ends`: the last of its steps must be the innermost frame, or the innermost of Python."""

    id: str
    says: str
    path: tuple[str, ...]
    rank: int = 50
    rest: bool = False
    ends: bool = False
    waits_for: str = ""
    """Role of the processes that must move first, or device, peers, cache, disk."""
    why: str = ""


class PhaseMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Functions that are on a stack only in one phase of a process's life."""

    phase: Phase
    any: tuple[str, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    place: tuple[Place, ...] = ()
    phase: tuple[PhaseMark, ...] = ()


class Frame(NamedTuple):
    """What is compared: last dotted part of the function, and its file."""

    func: str
    file: str
    native: bool = False


class _Known(NamedTuple):
    places: tuple[tuple[Place, tuple[Step, ...]], ...]
    phases: tuple[tuple[Phase, tuple[Step, ...]], ...]


def frame(func: str, file: str, native: bool = False) -> Frame:
    """A frame as it is compared: of `gloo::transport::tcp::UnboundBuffer::waitRecv(int*)` the class and the function."""
    return Frame("::".join(func.partition("(")[0].split("::")[-2:]) if native else func, file, native)


@lru_cache(4096)
def place_of(stack: tuple[Frame, ...]) -> Place | None:
    """The place of a stack, leaf first; None: nobody has written down what it means."""
    names = {frame.func for frame in stack}
    likely = (item for item in _known().places if all(not names.isdisjoint(step.names) for step in item[1]))
    return next((place for place, steps in likely if _lies_on(steps, stack, place.ends)), None)


@lru_cache(4096)
def phase_of(stack: tuple[Frame, ...]) -> Phase | None:
    """The phase of life that a stack tells, leaf first; None: it could be any."""
    return next((phase for phase, steps in _known().phases if any(step.fits(*frame[:2]) for frame in stack for step in steps)), None)


def says(place_id: str) -> str:
    """What to call a place in a sentence."""
    return next((place.says for place, _ in _known().places if place.id == place_id), place_id)


def _lies_on(steps: Sequence[Step], stack: Sequence[Frame], ends: bool) -> bool:
    """Do the steps, outermost first, lie on a stack that is leaf first, in this order?"""
    left = list(steps)
    if ends and len(left) == 1:
        return _ends_with(left[0], stack)
    for number in range(len(stack) - 1, -1, -1):
        if left[0].fits(*stack[number][:2]):
            del left[0]
            if not left:
                return not ends or number == 0 or all(frame.native for frame in stack[:number])
            if ends and len(left) == 1:
                return _ends_with(left[0], stack)
    return False


def _ends_with(step: Step, stack: Sequence[Frame]) -> bool:
    innermost = next((frame for frame in stack if not frame.native), None)
    return any(frame is not None and step.fits(*frame[:2]) for frame in (stack[0], innermost))


@lru_cache(1)
def _known() -> _Known:
    places: list[tuple[Place, tuple[Step, ...]]] = []
    phases: list[tuple[Phase, tuple[Step, ...]]] = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        try:
            data = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
        except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
            raise RuleError(f"{path.name}: {error}", hint="diag/places/__init__.py says what may stand there") from error
        places += [(place, tuple(map(_step, place.path))) for place in data.place]
        phases += [(mark.phase, tuple(map(_step, mark.any))) for mark in data.phase]
    return _Known(tuple(sorted(places, key=lambda item: (item[0].rank, item[0].id))), tuple(phases))


def _step(text: str) -> Step:
    """`a|b@part/of/path`; one file only."""
    names, _, file = text.partition("@")
    if "@" in file or "|" in file:
        raise RuleError(f"{text}: several functions in one file, or several places", hint="write one [[place]] per file; they may have one id")
    return Step(frozenset(names.split("|")), file)
