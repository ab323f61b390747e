"""What a pickle's description is made of, and the three ways a pickle can fail to be read."""

from dataclasses import dataclass, field
from typing import Any

Node = Any
"""None, bool, int, float, str, memoryview, list, tuple, or one of the classes below."""


@dataclass(slots=True, eq=False, repr=False)
class Global:
    """A name the pickle would import: "module.attribute". Only ever compared as text."""

    name: str


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """An object the pickle would make by calling `func`; its later state and items beside it."""

    func: Node
    args: Node
    kwargs: Node = None
    state: Node = None
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the class made or function called; "" if that is itself computed."""
        if isinstance(self.func, Global):
            return self.func.name
        return ""


@dataclass(slots=True, eq=False, repr=False)
class Persistent:
    """A reference to something outside of the pickle."""

    pid: Node


@dataclass(slots=True, eq=False, repr=False)
class Pairs:
    """A dict as its pairs in order, so that no key has to be hashed."""

    pairs: list[tuple[Node, Node]] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Bag:
    """A set or frozenset."""

    items: list[Node] = field(default_factory=list)


class Truncated(Exception):
    """The pickle goes on behind the end of the data: at least `needs` bytes from its start."""

    def __init__(self, needs: int) -> None:
        super().__init__(f"ends at byte {needs - 1} or later")
        self.needs = needs


class Corrupt(Exception):
    """No pickle writer makes this."""


class Unsupported(Exception):
    """A legal pickle that needs something from outside, or more than the limits allow."""
