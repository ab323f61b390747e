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
from pathlib import Path

from diag.errors import BadInput
from diag.loose import shown
from diag.tensors.dump import Dump, ReadError, Tensor, Unread
from diag.tensors.layouts import Layout, layouts
from diag.tensors.naming import natural

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


def open_dump(path: Path, *, settle_s: float = 1.0) -> Dump:
    """All tensors of one file or folder, in execution order. BadInput: nothing there, too much, still growing, no tensor.

    `settle_s`: a dump touched in the last 10 s is looked at twice, this many seconds apart.
    """
    listing = list_files(path)
    _settled(path, listing, settle_s)
    files = tuple(Path(name) for name in sorted(listing.stamps))
    layout = next(item for item in layouts() if item.recognise(path, files))
    tensors, unread = _read(layout, path, files)
    if not tensors:
        raise BadInput(f"{shown(path)} holds no tensor{_because((*listing.unread, *unread))}", hint="name the dump folder itself, or a tensor file (.npy, .npz, .safetensors, .pt, ATB .bin)")
    stamps = tuple((name, size, mtime) for name, (size, mtime) in sorted(listing.stamps.items()))
    return Dump(path.name or path.absolute().name, path, layout.NAME, _distinct(tensors), (*listing.unread, *unread), stamps)


def still_same(dump: Dump) -> list[str]:
    """What changed since the dump was opened, one sentence a file: its figures are then of no one moment. Empty: nothing."""
    before = {name: (size, mtime) for name, size, mtime in dump.stamps}
    try:
        now = list_files(dump.root).stamps
    except BadInput as error:
        return [error.message]
    return list(_changes(before, now))


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


def _settled(path: Path, listing: Listing, settle_s: float) -> None:
    newest = max((mtime for _, mtime in listing.stamps.values()), default=0)
    if not listing.stamps or time.time() - newest / 1e9 > QUIET_S:
        return
    time.sleep(settle_s)
    growing = next(_changes(listing.stamps, list_files(path).stamps), None)
    if growing is not None:
        raise BadInput(f"{shown(path)} is still being written: {growing}", hint="wait until it stops growing, then compare again")


def _changes(before: Stamps, now: Stamps) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        where = shown(Path(name))
        if old == new:
            continue
        if old is None:
            yield f"{where} appeared"
        elif new is None:
            yield f"{where} is gone"
        elif old[0] != new[0]:
            yield f"{where} went from {old[0]:,} to {new[0]:,} bytes"
        else:
            yield f"{where} was written again"


def _read(layout: Layout, path: Path, files: Sequence[Path]) -> tuple[list[Tensor], tuple[Unread, ...]]:
    tensors: list[Tensor] = []
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


def _distinct(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """In execution order; the second tensor of the same name, step and rank is `name#2`: a name means one tensor."""
    ordered = sorted(tensors, key=lambda item: (item.rank is not None, item.rank or 0, item.order, natural(item.name)))
    seen: Counter[tuple[str, int | None, int | None]] = Counter()
    distinct = []
    for tensor in ordered:
        key = (tensor.name, tensor.rank, tensor.step)
        seen[key] += 1
        distinct.append(tensor if seen[key] == 1 else replace(tensor, name=f"{tensor.name}#{seen[key]}"))
    return tuple(distinct)
