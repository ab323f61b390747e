"""One dump folder layout a module; nothing to register.

A layout module has

    NAME                       as it is called in messages
    ORDER                      when it is asked: low first; `plain` (any folder of files) comes last
    recognise(root, files)     is this tree mine? `files` are all regular files under `root`, sorted; a single
                               file is its own root. Never raises
    read(root, files)          -> Iterator[Tensor | Unread] with name, rank, step, layer, order, op, direction and role set. Raises ReadError.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from diag.tensors.dump import Tensor, Unread


class Layout(Protocol):
    """The shape of a layout module."""

    NAME: str
    ORDER: int

    def recognise(self, root: Path, files: Sequence[Path]) -> bool: ...

    def read(self, root: Path, files: Sequence[Path]) -> Iterator[Tensor | Unread]: ...


@cache
def layouts() -> tuple[Layout, ...]:
    """All layouts of this folder in the order they are asked."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return tuple(sorted((cast(Layout, module) for module in modules if hasattr(module, "ORDER")), key=lambda item: (item.ORDER, item.NAME)))
