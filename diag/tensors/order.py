"""Which of two dumps was taken first: by the numbers of their names (request-7 before request-12), else by the times of their files."""

import re
from collections.abc import Iterable, Mapping
from functools import cmp_to_key

from diag.tensors.dump import Dump

NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def taken_at(dump: Dump) -> int:
    """When its last file was written, ns since 1970; 0: not known. Copies that keep no times tell nothing, so a name goes first."""
    return max((mtime for _, _, mtime in dump.stamps), default=0)


def is_before(one: str, other: str) -> bool:
    """Do both names end in a number behind the same words, this one in the lower?"""
    return (_by_name(one, other) or 0) < 0


def number(name: str) -> tuple[str, int]:
    """To sort by: request-2 before request-12."""
    found = NUMBERED.fullmatch(name)
    return (name, -1) if found is None else (found[1], int(found[2]))


def earliest(names: Iterable[str], bad: str, taken: Mapping[str, int]) -> str:
    """The dump most likely to have written what several hold: of those before the bad run the first, later ones have it from the cache.

    `taken`: time of each, see `taken_at`. Where neither names nor times tell, the first that was given.
    """
    def compare(one: str, other: str) -> int:
        late = _is_later(one, bad, taken) - _is_later(other, bad, taken)
        return late or _compare(one, other, taken)

    return min(names, key=cmp_to_key(compare))


def _is_later(name: str, bad: str, taken: Mapping[str, int]) -> bool:
    return _compare(name, bad, taken) > 0


def _compare(one: str, other: str, taken: Mapping[str, int]) -> int:
    named = _by_name(one, other)
    return taken.get(one, 0) - taken.get(other, 0) if named is None else named


def _by_name(one: str, other: str) -> int | None:
    """None: they are not numbered alike."""
    ours, theirs = NUMBERED.fullmatch(one), NUMBERED.fullmatch(other)
    return None if ours is None or theirs is None or ours[1] != theirs[1] else int(ours[2]) - int(theirs[2])
