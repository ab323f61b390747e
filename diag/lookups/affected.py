"""Which versions of an engine search their prefix cache in a way that holes deceive: the table `affected.toml`."""

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

FINAL, BEFORE = 1, 0
"""A release candidate comes before the release, whatever its number."""
NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)\.?(a|b|rc|dev|alpha|beta)?", re.I)


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """Versions of one component, `since` included and `below` excluded; empty = open."""

    component: str
    since: str
    below: str
    status: Literal["affected", "possible", "fixed"]
    says: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    range: tuple[Range, ...]


@lru_cache
def ranges() -> tuple[Range, ...]:
    """The table."""
    return msgspec.convert(tomllib.loads((Path(__file__).parent / "affected.toml").read_text(encoding="utf-8")), _File).range


def known(component: str, version: str) -> Range | None:
    """What is known of a version; None: nothing, or the version cannot be read."""
    number = _key(version)
    if number is None:
        return None
    return next((found for found in ranges() if found.component == component and _within(number, found)), None)


def _within(number: tuple[tuple[int, ...], int], found: Range) -> bool:
    since, below = _key(found.since), _key(found.below)
    return (since is None or number >= since) and (below is None or number < below)


def _key(version: str) -> tuple[tuple[int, ...], int] | None:
    """Comparable: numbers without trailing zeros, then whether it is a release. Post releases and local tags count as theirs."""
    match = NUMBERS.match(version.strip())
    if match is None:
        return None
    numbers = [int(part[:9]) for part in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), BEFORE if match[2] else FINAL
