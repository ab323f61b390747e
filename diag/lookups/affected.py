"""Which versions of an engine search their prefix cache in a way that holes deceive: the table `affected.toml`."""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from diag import releases


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
    return next((found for found in ranges() if found.component == component and releases.between(version, found.since, found.below)), None)
