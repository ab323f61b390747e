"""What the tensors of the good dump are called in the bad one, as a person says in a file (`--map`).

    "layers.*.k" = "blocks.*.key"       # one * on each side, or none
    [map]                               # such a header may stand above the lines

Lines speak of names as they are printed; the folder or file that all names of a dump begin with may be left out. A line
that nothing comes of is an error: it is a slip, and the tensors it was meant for would silently stay without a partner.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diag.errors import BadInput
from diag.tensors.dump import Dump, Role, Tensor
from diag.tensors.shelf import Shelf

EXAMPLE = '"layers.*.k" = "blocks.*.key"'
SHOWN = 3
_AGAIN = re.compile(r"(.+)(#[0-9]+)", re.DOTALL)
"""The second tensor of one name is `name#2`."""


@dataclass(frozen=True)
class Line:
    """One line of a map. `pattern`: None where it has no star."""

    old: str
    new: str
    pattern: re.Pattern[str] | None = None

    def fits(self, name: str) -> str | None:
        """The new name, or None: the line is about other ones."""
        if self.pattern is None:
            return self.new if name == self.old else None
        found = self.pattern.fullmatch(name)
        return None if found is None else self.new.replace("*", found[1])

    def __str__(self) -> str:
        return f'"{self.old}" = "{self.new}"'


@dataclass(frozen=True)
class Names:
    """Names of the good dump and what the same tensors are called in the bad one. An exact name wins, then the first line that fits."""

    exact: Mapping[str, Line] = field(default_factory=dict)
    patterns: tuple[Line, ...] = ()
    path: Path | None = None
    folders: tuple[str, str] = ("", "")
    """`dump/`, which all names of the good dump begin with, and of the bad one; "": they have none in common."""
    is_stripped: bool = False
    """Both dumps are taken without them."""

    def __bool__(self) -> bool:
        return bool(self.exact or self.patterns)

    def translated(self, name: str) -> str:
        """The name in the bad dump."""
        found = self.found(name) if self else None
        return name if found is None else found[1]

    def found(self, name: str) -> tuple[Line, str] | None:
        """The line that speaks of this tensor, and its name in the bad dump."""
        again = _AGAIN.fullmatch(name)
        return self._found(name) or (None if again is None else _with(self._found(again[1]), again[2]))

    def _found(self, name: str) -> tuple[Line, str] | None:
        ours, theirs = self.folders
        if (told := self._line(name)) is not None:
            return told[0], told[1].removeprefix(theirs) if self.is_stripped else told[1]
        if ours and name.startswith(ours) and (told := self._line(name.removeprefix(ours))) is not None:
            return told[0], theirs + told[1]
        if ours and self.is_stripped and (told := self._line(ours + name)) is not None:
            return told[0], told[1].removeprefix(theirs)
        return None

    def _line(self, name: str) -> tuple[Line, str] | None:
        if name in self.exact:
            return self.exact[name], self.exact[name].new
        return next(((line, new) for line in self.patterns if (new := line.fits(name)) is not None), None)

    def between(self, good: Dump, bad: Dump) -> "Names":
        """The same for these two dumps."""
        return replace(self, folders=(folder_of(good), folder_of(bad))) if self else self


SAME_NAMES = Names()


def read_map(path: Path) -> Names:
    """`"old.name" = "new.name"` lines of a TOML file. BadInput names file and key."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint=f"give a TOML file with lines such as {EXAMPLE}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {error}", hint=f"names with dots or stars need quotes: {EXAMPLE}") from error
    if document.keys() == {"map"} and isinstance(document["map"], dict):
        document = document["map"]  # a header above the lines
    lines: list[Line] = []
    for old, new in _flat(document):
        if not isinstance(new, str) or not new:
            raise BadInput(f"{path}: {old}: the new name is no text", hint="one line per name: \"old\" = \"new\"")
        if old.count("*") != new.count("*") or old.count("*") > 1:
            raise BadInput(f"{path}: {old} = {new}: one * on each side, or none", hint="what it stands for on the left is put in on the right")
        before, star, after = old.partition("*")
        lines.append(Line(old, new, re.compile(f"{re.escape(before)}(.*){re.escape(after)}", re.DOTALL) if star else None))
    if not lines:
        raise BadInput(f"{path}: there is no line in it", hint=f"one line per name: {EXAMPLE}")
    return Names({line.old: line for line in lines if line.pattern is None}, tuple(line for line in lines if line.pattern is not None), path)


def check(names: Names, good: Dump, bad: Dump) -> None:
    """BadInput: a line of the map speaks of no tensor of the good dump, or what it makes of them is in no bad one."""
    if not names:
        return
    names = names.between(good, bad)
    ours, theirs = ({tensor.name for tensor in dump.tensors} for dump in (good, bad))
    known = theirs | {name.removeprefix(names.folders[1]) for name in theirs}
    made: dict[Line, str] = {}
    right: set[Line] = set()
    spellings = {one for name in ours for one in _spellings(name, names.folders[0])}
    for name in ours:
        told = names.found(name)
        if told is not None:
            made.setdefault(*told)
            right |= {told[0]} if told[1] in known else set()
    for line in (*names.exact.values(), *names.patterns):
        if line.old not in spellings and not any(line.fits(name) is not None for name in spellings):
            raise _unmatched(names, line, ours, known)
        if line in made and line not in right:
            raise BadInput(
                f"{names.path}: {line}: there is no {made[line]} in {bad.name}, which holds {_some(theirs)}",
                hint="on the right stands the name in the bad dump, as compare-dumps prints it",
            )


def _unmatched(names: Names, line: Line, ours: Iterable[str], theirs: Iterable[str]) -> BadInput:
    if any(line.fits(name) is not None for name in theirs):
        return BadInput(f"{names.path}: {line}: the old name is one of the bad dump", hint="the name in the good dump stands on the left, the one in the bad dump on the right")
    return BadInput(f"{names.path}: {line}: no tensor of the good dump is called that; it holds {_some(ours)}", hint=f"names as compare-dumps prints them, such as {EXAMPLE}")


def _spellings(name: str, folder: str) -> set[str]:
    whole = {name, name.removeprefix(folder)}
    return whole | {found[1] for one in whole if (found := _AGAIN.fullmatch(one))}


def lent(names: Names, good: Dump, bad: Dump, others: Iterable[Dump]) -> tuple[Dump, ...]:
    """Good, bad and all others with layer and role the same under both names: what one name tells holds for the other."""
    if not names:
        return (good, bad, *others)
    names = names.between(good, bad)
    new = {tensor.name: told[1] for tensor in good.tensors if (told := names.found(tensor.name)) is not None}
    ours, theirs = _told(good, new.keys()), _told(bad, new.values())
    known: dict[str, tuple[int | None, Role | None]] = {}
    for name, other in new.items():
        one, two = ours.get(name), theirs.get(other)
        if one is not None and two is not None:
            known[name] = known[other] = (two[0] if one[0] is None else one[0], two[1] if one[1] is None else one[1])
    return tuple(_lent(dump, known) for dump in (good, bad, *others))


def _told(dump: Dump, wanted: Iterable[str]) -> dict[str, tuple[int | None, Role | None]]:
    """Name -> layer and role, of names that stand for one layer."""
    names = set(wanted)
    found: dict[str, set[tuple[int | None, Role | None]]] = defaultdict(set)
    for tensor in dump.tensors:
        if tensor.name in names:
            found[tensor.name].add((tensor.layer, tensor.role))
    return {name: next(iter(told)) for name, told in found.items() if len(told) == 1}


def _lent(dump: Dump, known: Mapping[str, tuple[int | None, Role | None]]) -> Dump:
    def one(tensor: Tensor) -> Tensor:
        layer, role = known.get(tensor.name, (tensor.layer, tensor.role))
        return tensor if (layer, role) == (tensor.layer, tensor.role) else replace(tensor, layer=layer, role=role)

    return replace(dump, tensors=Shelf(Tensor, map(one, dump.tensors)))


def folder_of(dump: Dump) -> str:
    """`dump/`: the first part of all names, where it is the same; "": it is not."""
    first: set[str] = set()
    for tensor in dump.tensors:
        before, slash, _ = tensor.name.partition("/")
        first.add(before + slash)
        if not slash or len(first) > 1:
            return ""
    return next(iter(first), "")


def _with(found: tuple[Line, str] | None, tail: str) -> tuple[Line, str] | None:
    return None if found is None else (found[0], found[1] + tail)


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Bare dotted keys are tables to TOML; here they are names."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
