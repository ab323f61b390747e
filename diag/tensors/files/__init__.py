"""One file format a module; nothing to register.

A format module has

    NAME                       as it is called in messages
    ORDER                      when it is asked: low first (sure magic before extensions)
    recognise(path, head)      is this file (first 4 KiB) mine? Pure, never raises
    read(path)                 -> Iterator[Tensor | Unread]: descriptions with name = key or stem, no content. Raises ReadError.
                               Allocates no more than the file's size plus a fixed bound, executes nothing.
"""

import importlib
import os
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from diag.tensors.dump import ReadError, Tensor, Unread

HEAD_BYTES = 4096


class Format(Protocol):
    """The shape of a format module."""

    NAME: str
    ORDER: int

    def recognise(self, path: Path, head: bytes) -> bool: ...

    def read(self, path: Path) -> Iterator[Tensor | Unread]: ...


@cache
def formats() -> tuple[Format, ...]:
    """All formats of this folder in the order they are asked."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return tuple(sorted((cast(Format, module) for module in modules if hasattr(module, "ORDER")), key=lambda item: (item.ORDER, item.NAME)))


def format_of(path: Path, head: bytes) -> Format | None:
    """The first format that recognises the file, or None."""
    return next((item for item in formats() if item.recognise(path, head)), None)


def head_of(path: Path) -> bytes:
    """The first 4 KiB of a file, links not followed. Raises ReadError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.pread(handle, HEAD_BYTES, 0)
        finally:
            os.close(handle)
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}") from error


def tensors_in(path: Path) -> Iterator[Tensor | Unread]:
    """Whatever one file holds; a file that is no tensor file, or a broken one, is an Unread. Never raises ReadError."""
    try:
        head = head_of(path)
        kind = format_of(path, head)
        if kind is None:
            yield Unread(str(path), "an empty file" if not head else "not a tensor file of a known format")
        else:
            yield from kind.read(path)
    except ReadError as error:
        yield Unread(str(path), str(error))
