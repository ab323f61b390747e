"""How versions compare, as engines and their parts write them: `v0.8.5.post1`, `2.2.RC1`, `0.32.0+cpu`. Pure.

More is read than the packaging standard allows, and less is said: post releases and local tags count as their release.
"""

import re

FINAL, BEFORE = 1, 0
"""A release candidate comes before the release, whatever its number."""
NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)\.?(a|b|rc|dev|alpha|beta)?", re.I)

Key = tuple[tuple[int, ...], int]


def between(version: str, since: str, below: str) -> bool | None:
    """Is it from `since` on and below `below`, empty = open? None: it cannot be read."""
    number, first, end = key(version), key(since), key(below)
    if number is None:
        return None
    return (first is None or number >= first) and (end is None or number < end)


def key(version: str) -> Key | None:
    """Comparable: numbers without trailing zeros, then whether it is a release; None: it cannot be read."""
    match = NUMBERS.match(version.strip())
    if match is None:
        return None
    numbers = [int(part[:9]) for part in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), BEFORE if match[2] else FINAL
