"""What a demo tells as it goes, and what it is asked for."""

from dataclasses import dataclass
from pathlib import Path

from diag.errors import LlmdiagError


class DemoFailed(LlmdiagError):
    """The demo did not show what it promises."""


@dataclass(frozen=True)
class Step:
    """One thing that happened: a title, and what was seen (already a finished text)."""

    title: str
    seen: str = ""


@dataclass(frozen=True)
class Settings:
    """`fault` False plants nothing: the demo must then end clear. `heal` False only plans the healing, which must make it fail."""

    fault: bool = True
    heal: bool = True
    keep: Path | None = None
