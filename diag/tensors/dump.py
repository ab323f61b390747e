"""A dump: where its tensors are and whose they are. Content stays on disk until it is measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["k", "v", "kv", "token_ids", "positions", "block_table", "slot_mapping", "context_lens"]
Direction = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor in one file. Equal names in two dumps mean the same tensor of two runs: no pid, rank, step or time is part of it."""

    name: str
    dtype: str
    """numpy's name, or "bfloat16", "float8_e4m3fn", "float8_e5m2", …; "opaque1" and "opaque2" where a .npy file lost it."""
    shape: tuple[int, ...]
    file: Path
    offset: int = 0
    """Bytes from the start of the file to the first element."""
    strides: tuple[int, ...] | None = None
    """In elements; None: C order, no gaps."""
    big_endian: bool = False
    key: str = ""
    """Name inside the file, where one file holds several."""
    rank: int | None = None
    step: int | None = None
    """Forward pass, ATB round or training step."""
    layer: int | None = None
    order: int = 0
    """Place in execution order, within its dump and rank."""
    op: str = ""
    """The operation it belongs to: its inputs and outputs share it."""
    direction: Direction | None = None
    role: Role | None = None
    tiled: str = ""
    """A byte order that is not row by row ("FRACTAL_NZ"): equal tilings compare, but hold no token rows."""
    load: Callable[[], memoryview] | None = None
    """For content that is no plain range of the file (deflated, base64): all its bytes, of exactly the announced length.
    Raises ReadError. None: map `file` at `offset`."""
    summary: tuple[tuple[str, float], ...] = ()
    """Figures the dump itself tells (max, min, mean, norm), where it has no content (`offset` is then -1)."""

    @property
    def source(self) -> str:
        """`file#key`, as tables name it."""
        return f"{self.file}#{self.key}" if self.key else str(self.file)


@dataclass(frozen=True, slots=True)
class Unread:
    """Something in a dump that is not compared, and why; never silently left out."""

    source: str
    reason: str


@dataclass(frozen=True)
class Dump:
    """All tensors under one path."""

    name: str
    root: Path
    layout: str
    tensors: Sequence[Tensor]
    """In execution order; of a large dump packed, so that an element is another object each time."""
    unread: tuple[Unread, ...] = ()
    stamps: Sequence[tuple[str, int, int]] = ()
    """Every file as it was when the dump was opened: path, bytes, mtime in ns. Sorted by path."""


class ReadError(Exception):
    """A file is not what its name or head promises; the text says what and what to do."""
