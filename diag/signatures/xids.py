"""What an Xid means: the catalogue `xid.toml`, with its source and the day on which that was read."""

import tomllib
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from diag.errors import RuleError

Class = Literal["hardware", "fabric", "driver", "application", "consequence", "notice"]


class Xid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """One code. `do`: what the vendor's catalogue says is to be done at once."""

    code: int
    name: str
    kind: Class
    says: str
    do: str


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table; `read` is the day on which `source` was read."""

    about: str
    source: str
    read: date
    xid: tuple[Xid, ...]


@lru_cache(1)
def catalogue() -> Catalogue:
    """The table. Raises RuleError when the file is damaged."""
    path = Path(__file__).parent / "xid.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Catalogue)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise RuleError(f"{path.name}: {error}", hint="diag/signatures/xids.py says what may stand there") from error


def known(code: int | None) -> Xid | None:
    """What is known of a code; None: it is not in the catalogue."""
    return next((item for item in catalogue().xid if item.code == code), None)
