"""Open a dump: list its files once, make sure nobody is still writing them, and let its layout name every tensor.

    good = open_dump(Path("dumps/good"))        # descriptions only: content stays on disk
    ...                                         # compare
    changed = still_same(good)                  # [] or what happened to which file meanwhile
"""

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import overload

from diag.errors import BadInput
from diag.loose import shown
from diag.tensors.dump import Dump, ReadError, Tensor, Unread
from diag.tensors.layouts import Layout, layouts
from diag.tensors.naming import natural_text
from diag.tensors.shelf import Shelf

MAX_FILES = 200_000
QUIET_S = 10.0
"""A dump whose newest file is older than this is taken as finished without a second look."""
SHOWN = 3

Stamps = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Listing:
    """Regular files with size and mtime (ns), by path; and what else lay there."""

    stamps: Stamps
    unread: tuple[Unread, ...]


class Files(Sequence[Path]):
    """Paths made from their names when they are asked for: a path has four times the size of its name."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> Path: ...
    @overload
    def __getitem__(self, at: slice) -> "Files": ...
    def __getitem__(self, at: int | slice) -> "Path | Files":
        return Files(self._names[at]) if isinstance(at, slice) else Path(self._names[at])


def open_dump(path: Path, *, settle_s: float = 1.0) -> Dump:
    """All tensors of one file or folder, in execution order. BadInput: nothing there, too much, still growing, no tensor.

    `settle_s`: a dump touched in the last 10 s is looked at twice, this many seconds apart.
    """
    listing = list_files(path)
    stamps = _shelved(listing)
    if _is_fresh(listing):
        time.sleep(settle_s)
        _check_grown(path, stamps)
    names = sorted(listing.stamps)
    listing.stamps.clear()  # the largest part of what is known here
    files = Files(names)
    layout = next(item for item in layouts() if item.recognise(path, files))
    tensors, unread = _read(layout, path, files)
    if not tensors:
        raise BadInput(f"{shown(path)} holds no tensor{_because((*listing.unread, *unread))}", hint="name the dump folder itself, or a tensor file (.npy, .npz, .safetensors, .pt, ATB .bin)")
    return Dump(path.name or path.absolute().name, path, layout.NAME, _distinct(tensors), (*listing.unread, *unread), stamps)


def settle(paths: Iterable[Path], settle_s: float = 1.0) -> None:
    """Wait once for all of them, where one was touched in the last 10 s. BadInput: one is not there, too much, or still growing."""
    fresh = [(path, _shelved(listing)) for path, listing in ((path, list_files(path)) for path in paths) if _is_fresh(listing)]
    if fresh:
        time.sleep(settle_s)
    for path, stamps in fresh:
        _check_grown(path, stamps)


def still_same(dump: Dump) -> list[str]:
    """What changed since the dump was opened, one sentence a file: its figures are then of no one moment. Empty: nothing."""
    try:
        return _changes(dump.stamps, list_files(dump.root).stamps)
    except BadInput as error:
        return [error.message]


def _shelved(listing: Listing) -> Shelf[tuple[str, int, int]]:
    return Shelf(tuple[str, int, int], ((name, *listing.stamps[name]) for name in sorted(listing.stamps)))


def _changes(before: Iterable[tuple[str, int, int]], now: Stamps) -> list[str]:
    """One sentence a file; `now` is used up."""
    changed: dict[str, tuple[tuple[int, int] | None, tuple[int, int] | None]] = {}
    for name, size, mtime in before:
        found = now.pop(name, None)
        if found != (size, mtime):
            changed[name] = ((size, mtime), found)
    changed |= {name: (None, found) for name, found in now.items()}
    return [_change(name, *changed[name]) for name in sorted(changed)]


def list_files(path: Path) -> Listing:
    """Every regular file under a path (or the path itself), links not followed. BadInput: missing, or more than 200,000."""
    try:
        found = path.stat()
    except OSError as error:
        raise BadInput(f"cannot open {shown(path)}: {error.strerror}", hint="give the folder or file that was dumped") from error
    if stat.S_ISREG(found.st_mode):
        return Listing({str(path): (found.st_size, found.st_mtime_ns)}, ())
    if not stat.S_ISDIR(found.st_mode):
        raise BadInput(f"{shown(path)} is neither a file nor a folder", hint="give the folder or file that was dumped")
    stamps: Stamps = {}
    unread: list[Unread] = []
    folders = [str(path)]
    while folders:
        _list_folder(folders.pop(), folders, stamps, unread)
        if len(stamps) + len(unread) + len(folders) > MAX_FILES:
            raise BadInput(f"{shown(path)} holds more than {MAX_FILES:,} files", hint="compare one step or one rank at a time")
    return Listing(stamps, tuple(unread))


def _list_folder(folder: str, folders: list[str], stamps: Stamps, unread: list[Unread]) -> None:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    unread.append(Unread(entry.path, "a link, not followed" if entry.is_symlink() else "not a regular file"))
                else:
                    found = entry.stat(follow_symlinks=False)
                    stamps[entry.path] = (found.st_size, found.st_mtime_ns)
                if len(stamps) + len(unread) + len(folders) > MAX_FILES:
                    return
    except FileNotFoundError as error:
        unread.append(Unread(str(error.filename or folder), "removed while the folder was listed"))
    except OSError as error:
        unread.append(Unread(folder, f"cannot be listed: {error.strerror}"))


def _is_fresh(listing: Listing) -> bool:
    newest = max((mtime for _, mtime in listing.stamps.values()), default=0)
    return bool(listing.stamps) and time.time() - newest / 1e9 <= QUIET_S


def _check_grown(path: Path, stamps: Iterable[tuple[str, int, int]]) -> None:
    growing = _changes(stamps, list_files(path).stamps)
    if growing:
        raise BadInput(f"{shown(path)} is still being written: {growing[0]}", hint="wait until it stops growing, then compare again")


def _change(name: str, old: tuple[int, int] | None, new: tuple[int, int] | None) -> str:
    where = shown(Path(name))
    if old is None:
        return f"{where} appeared"
    if new is None:
        return f"{where} is gone"
    if old[0] != new[0]:
        return f"{where} went from {old[0]:,} to {new[0]:,} bytes"
    return f"{where} was written again"


def _read(layout: Layout, path: Path, files: Sequence[Path]) -> tuple[Shelf[Tensor], tuple[Unread, ...]]:
    tensors = Shelf[Tensor](Tensor)
    unread: list[Unread] = []
    try:
        for item in layout.read(path, files):
            if isinstance(item, Tensor):
                tensors.append(item)
            else:
                unread.append(item)
    except ReadError as error:
        raise BadInput(f"{shown(path)} ({layout.NAME}): {error}", hint="dump again, or compare the part that is whole") from error
    return tensors, tuple(unread)


def _because(unread: Sequence[Unread]) -> str:
    if not unread:
        return ""
    some = "; ".join(f"{shown(Path(item.source))}: {item.reason}" for item in unread[:SHOWN])
    return f" ({some}{f'; and {len(unread) - SHOWN:,} more' if len(unread) > SHOWN else ''})"


def _distinct(tensors: Sequence[Tensor]) -> Shelf[Tensor]:
    """In execution order; the second tensor of the same name, step and rank is `name#2`: a name means one tensor."""
    seen: Counter[tuple[str, int | None, int | None]] = Counter()
    distinct = Shelf[Tensor](Tensor)
    for tensor in _ordered(tensors):
        key = (tensor.name, tensor.rank, tensor.step)
        seen[key] += 1
        distinct.append(tensor if seen[key] == 1 else replace(tensor, name=f"{tensor.name}#{seen[key]}"))
    return distinct


def _ordered(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """By rank, then as dumped; those that were dumped together by name."""
    keys = [(item.rank is not None, item.rank or 0, item.order) for item in tensors]
    for _, together in groupby(sorted(range(len(keys)), key=keys.__getitem__), keys.__getitem__):
        numbers = list(together)
        if len(numbers) == 1:
            yield tensors[numbers[0]]
        else:
            names = {number: natural_text(tensors[number].name) for number in numbers}
            yield from (tensors[number] for number in sorted(numbers, key=names.__getitem__))
