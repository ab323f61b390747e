"""Which family files count and which families are looked at, for everything that scans while a command runs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from diag.cache.values.families import family
from diag.cache.values.family_files import Book, Known, book, shipped
from diag.errors import BadInput


@dataclass(frozen=True)
class Selection:
    """Family files, and the families that were asked for; none asked for: all."""

    book: Book = field(default_factory=shipped)
    names: tuple[str, ...] = ()
    """As scan-cache prints them (`clip:image:<hex>`), with * for anything, or of family files."""
    files: tuple[Known, ...] = ()

    def wants(self, key: bytes) -> bool:
        """Is this key of a family that was asked for?"""
        if not self.names and not self.files:
            return True
        own = family(key)
        return any(own == name or fnmatchcase(own, name) for name in self.names) or any(known.fits(key) for known in self.files)


CURRENT: ContextVar[Selection] = ContextVar("selection")


def current() -> Selection:
    """What holds now; the shipped family files and every family unless a command said otherwise."""
    return CURRENT.get(None) or Selection()


def current_book() -> Book:
    """Its family files."""
    return current().book


def chosen(names: Sequence[str], files: Iterable[Path]) -> Selection:
    """What `--family` and `--family-file` ask for. BadInput: a file is wrong, or a name is empty."""
    everything = book(files)
    if "" in names:
        raise BadInput("--family is empty", hint="give a family as scan-cache prints it, or the name of a family file")
    by_name = {known.name: known for known in reversed(everything.families)}
    return Selection(
        everything, tuple(name for name in names if name not in by_name), tuple(by_name[name] for name in names if name in by_name)
    )


@contextmanager
def using(selection: Selection) -> Iterator[None]:
    """Everything that scans inside follows it."""
    token = CURRENT.set(selection)
    try:
        yield
    finally:
        CURRENT.reset(token)
