"""Families of very many keys, quickly: what `families` says of one key holds for all that differ in their id only."""

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

from diag.cache.values.families import VERSION, family, version_of, versionless

HEX = b"0123456789abcdef"
DIGITS = b"0123456789"
MAX_REMEMBERED = 4_096
MAX_NUMBER = 19
"""More digits may be an id of another kind."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Named:
    """What a key's name says."""

    family: str
    version: str | None
    versionless: str
    """The family over all versions."""


class Names(Generic[T]):
    """Key -> what was found out about its name, remembered for all keys that differ only in the id they end with."""

    def __init__(self) -> None:
        self._remembered: dict[tuple[bytes, int], T] = {}

    def get(self, key: bytes) -> T | None:
        """What was remembered for a key like this one."""
        place = like(key)
        return None if place is None else self._remembered.get(place)

    def remember(self, key: bytes, name: str, what: T) -> bool:
        """For every key like this one of the family `name`; False: that or a version takes something from the id."""
        place = like(key)
        if place is None or not name.endswith(">") or _version_in_id(key, len(place[0])):
            return False
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[place] = what
        return True


def like(key: bytes) -> tuple[bytes, int] | None:
    """(everything before the id, what the id is): equal for keys of equal family. None: the key ends with no plain id.

    The id is 0 for eight or more lowercase hexadecimal digits with a letter and a digit among them, behind a
    separator; n for n decimal digits.
    """
    before = key.rstrip(HEX)
    size = len(key) - len(before)
    if size >= 8 and (not before or before[-1] in b":/|@"):
        tail = key[-size:]
        if not tail.isdigit() and not tail.isalpha():
            return before, 0
    before = key.rstrip(DIGITS)
    size = len(key) - len(before)
    return (before, size) if 0 < size <= MAX_NUMBER else None


def page_of(key: bytes) -> re.Pattern[bytes] | None:
    """Fits a text of lines of which every one is like this key; None: there can be none like it."""
    place = like(key)
    if place is None:
        return None
    before, size = place
    tail = rb"[0-9]{%d}" % size if size else rb"(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}"
    return re.compile(rb"(?:" + re.escape(before) + tail + rb"\n)+")


def named(key: bytes) -> Named:
    """The slow and sure way."""
    return Named(family(key), version_of(key), versionless(key))


def _version_in_id(key: bytes, start: int) -> bool:
    found = VERSION.search(key)
    return found is not None and found.end() > start
