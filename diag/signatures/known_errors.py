"""What an error line of an engine is: what went wrong, a wrapper round it, or what comes of it. The table `errors.toml`."""

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from diag.errors import RuleError

Class = Literal["specific", "wrapper", "consequence", "request"]
ENGINE_ROLES = frozenset({"engine_core", "worker", "scheduler", "detokenizer"})


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """One kind of error line. `delay_s`: how long it had lasted when the line was written."""

    id: str
    kind: Class
    says: str
    match: tuple[str, ...]
    delay_s: float = 0.0
    death: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    error: tuple[Known, ...]


class Told(NamedTuple):
    """What a line is, and how long what it tells of had lasted by then."""

    known: Known
    delay_s: float


EXCEPTION = Known("exception", "specific", "an exception in a process of the engine", ())
"""A traceback of an engine process that no entry names."""
OTHER = Known("other", "request", "an error of the web server or of a single request", ())


def tell(message: str, event: str | None, role: str | None) -> Told | None:
    """The first entry that fits; tracebacks that fit none go by who wrote them. None: a line that names no error of an engine."""
    for known, patterns in _table():
        for pattern in patterns:
            match = pattern.search(message)
            if match is not None:
                return Told(known, _delay_s(match, known.delay_s))
    if event == "traceback":
        return Told(OTHER if role == "api_server" else EXCEPTION, 0.0)
    return None


def ids() -> tuple[str, ...]:
    """All kinds, in the order in which they are tried."""
    return tuple(known.id for known, _ in _table())


def says(kind: str) -> str:
    """A kind in words."""
    return next((known.says for known in (*(item for item, _ in _table()), EXCEPTION, OTHER) if known.id == kind), kind)


def _delay_s(match: "re.Match[str]", usual_s: float) -> float:
    groups = match.groupdict()
    if groups.get("seconds") is not None:
        return float(groups["seconds"][:9])
    return float(groups["ms"][:12]) / 1000 if groups.get("ms") is not None else usual_s


@lru_cache(1)
def _table() -> tuple[tuple[Known, tuple["re.Pattern[str]", ...]], ...]:
    path = Path(__file__).parent / "errors.toml"
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).error
        return tuple((entry, tuple(re.compile(text) for text in entry.match)) for entry in entries)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, re.error) as error:
        raise RuleError(f"{path.name}: {error}", hint="diag/signatures/known_errors.py says what may stand there") from error
