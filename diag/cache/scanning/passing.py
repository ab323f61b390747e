"""What a pass over a server's keys is told, and whom it tells."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from diag.cache.values.facts import Facts
from diag.cache.values.keys import CacheKey, Place
from diag.cache.values.profile import Profile
from diag.cache.values.quick import Quick

Ttl = Literal["known", "before", "unknown"]
"""Of the keys whose values are asked for: known, answered right before the values, or not asked for."""


class Sink(Protocol):
    """Who takes what a pass finds: `judging.Scan`."""

    @property
    def each(self) -> Callable[[CacheKey], None] | None: ...

    @property
    def profiles(self) -> Mapping[tuple[int, str], Profile]: ...

    def add(self, place: Place, facts: Facts) -> None: ...

    def emit(self, row: CacheKey) -> None: ...

    def sound(self, db: int, name: str, versions: tuple[str, str] | None, keys: int, size: int) -> None: ...


class Found(Protocol):
    """What another process says of a page: `second.Answer`."""

    keys: int
    sound: list[tuple[str, tuple[str, str] | None, int, int]]
    seen: list[tuple[Place, Facts]]
    rows: list[CacheKey]
    back: list[bytes]


class Helper(Protocol):
    """Another process that judges pages: `second.Second`."""

    lost: type[Exception]
    """What is raised when it is gone."""
    waiting: deque[list[bytes]]

    @property
    def free(self) -> bool: ...

    def take(self, names: list[bytes], profiles: Mapping[tuple[int, str], Profile], db: int) -> None: ...

    def answers(self, *, wait: bool) -> Iterator[Found]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Kin:
    """What a pass knows of one family."""

    name: str
    version: str | None
    versionless: str
    quick: Quick | None = None
    """None: not learnt yet."""
    careful: bool = True
    """Ask for the length first: the family is not learnt, or has long values."""
    page: re.Pattern[bytes] | None = None
    """Lines of keys like the one seen last."""
    mixed: bool = False
    """Some of it are no strings."""
    longest: int = 0
    seen: int = 0
    """Names."""
    keys: int = 0
    """Sound ones that are not yet in the scan's count, and their bytes."""
    bytes: int = 0

    @property
    def expires(self) -> bool:
        """Do sound keys of it have a TTL?"""
        return self.quick is not None and self.quick.expires


@dataclass(slots=True)
class Asked:
    """One key on its way."""

    key: bytes
    kin: Kin
    ttl_s: float | None = None
    idle_s: float | None = None
    bytes: int = 0
