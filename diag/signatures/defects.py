"""Versions with known defects: the table `defects.toml`."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from diag import releases
from diag.errors import RuleError


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """Versions of one component, `since` included and `below` excluded; empty = open."""

    component: str
    since: str
    below: str


class Defect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A defect: in which versions, on which cards (a regular expression on their names), how it shows, who says so."""

    id: str
    says: str
    symptoms: tuple[str, ...]
    known: Literal["confirmed", "reported"]
    url: str
    read: date
    do: str
    needs: tuple[Need, ...]
    gpu: str = ""
    flag: str = ""
    """A regular expression on the arguments that the log prints at its start."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    defect: tuple[Defect, ...]


@lru_cache(1)
def table() -> tuple[Defect, ...]:
    """The table. Raises RuleError when the file is damaged."""
    path = Path(__file__).parent / "defects.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).defect
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise RuleError(f"{path.name}: {error}", hint="diag/signatures/defects.py says what may stand there") from error


def fits(defect: Defect, versions: Mapping[str, str], cards: Iterable[str], arguments: Iterable[str]) -> bool:
    """Are all its components there in such versions, and such a card and argument (where it asks for them)?"""
    on_card = not defect.gpu or any(re.search(defect.gpu, card) for card in cards)
    flagged = not defect.flag or any(re.search(defect.flag, text) for text in arguments)
    return on_card and flagged and all(
        need.component in versions and releases.between(versions[need.component], need.since, need.below) for need in defect.needs
    )
