"""The view `stacks` as values: what one look at one thread showed. Most looks show what others did: a stack is unpacked once."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import datetime

    import pandas as pd

BETWEEN_FRAMES, BETWEEN_FIELDS = "\x1e", "\x1f"


class Frame(NamedTuple):
    """Last dotted part of the function, its file (`?`: the dump does not say), the line, and whether it is of a shared object."""

    func: str
    file: str
    line: int | None
    native: bool


class Look(NamedTuple):
    """One thread in one sample; `stack` leaf first, None where the dump does not say. Equal stacks are one object."""

    bundle: str
    host: str | None
    capture: str | None
    pid: int | None
    tid: int | None
    sample: int | None
    ts: "datetime.datetime | None"
    started_at: "datetime.datetime | None"
    thread: str | None
    active: bool | None
    owns_gil: bool | None
    whole: bool | None
    packed: str
    sources: str
    stack: tuple[Frame, ...]

    def source(self, depth: int) -> str:
        """Raw evidence of one of its frames."""
        return self.sources.split(BETWEEN_FRAMES)[depth]


COLUMNS = Look._fields[:12]
KEPT = "looks"


def looks(stacks: "pd.DataFrame | None") -> list[Look]:
    """Rows of the view, in their order. Made once a frame: several derivations look at the same."""
    if stacks is None or stacks.empty:
        return []
    if KEPT not in stacks.attrs:
        stacks.attrs[KEPT] = _made(stacks)
    return list(stacks.attrs[KEPT])


def _made(stacks: "pd.DataFrame") -> list[Look]:
    columns = [stacks[name].astype(object).where(stacks[name].notna(), None).tolist() for name in COLUMNS]
    packed = stacks["stack"].tolist()
    known = {text: _unpacked(text) for text in set(packed)}
    unpacked = [known[text] for text in packed]
    return list(map(Look._make, zip(*columns, packed, stacks["sources"].tolist(), unpacked, strict=True)))


def _unpacked(text: str) -> tuple[Frame, ...]:
    fields = (part.split(BETWEEN_FIELDS) for part in text.split(BETWEEN_FRAMES))
    return tuple(Frame(func, file, int(line) if line else None, native == "n") for func, file, line, native in fields)
