"""Loose evidence on disk: what is there, and how each file begins. Nothing is followed, waited for or read for ever."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from diag.errors import BadInput

HEAD_BYTES = 64 << 10
MAX_FILES = 20_000


class Unreadable(Exception):
    """A file that is not evidence: its text says why."""


def shown(path: Path) -> str:
    """A path that can be printed: bytes that are no UTF-8 as `\\xff`, line ends and escapes likewise."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def files(root: Path) -> Iterator[Path]:
    """The file itself, or all that is in the folder, links and unreadable folders included. Raises BadInput for too much."""
    if not root.is_dir():
        yield root
        return
    found: list[str] = []
    folders = [os.fspath(root)]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else found).append(entry.path)
                    if len(found) + len(folders) > MAX_FILES:
                        raise BadInput(f"{shown(root)} holds more than {MAX_FILES} files", hint="name the files or folders with the evidence")
        except OSError:
            found.append(folder)  # `head` says why
    yield from map(Path, sorted(found))


def head(path: Path, *, follow: bool) -> bytes:
    """The first 64 KiB of a regular file. Raises Unreadable for all else: links (unless `follow`), pipes, devices, folders."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        kind = path.stat(follow_symlinks=follow).st_mode
        if stat.S_ISLNK(kind):
            raise Unreadable("a link, not followed")
        if stat.S_ISDIR(kind):
            os.scandir(path).close()
        if not stat.S_ISREG(kind):
            raise Unreadable("not a regular file")
        with os.fdopen(os.open(path, flags if follow else flags | os.O_NOFOLLOW), "rb") as stream:
            return stream.read(HEAD_BYTES)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
