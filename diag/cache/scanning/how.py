"""What a person may say about how a scan is to be done: pace, share, what is read, when to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diag.cache.scanning.pace import Pace

if TYPE_CHECKING:
    from diag.cache.scanning.resume import Saved

SHOW_EVERY_S = 0.2
LENGTHS_ONLY = "names, TTL and lengths only: no value was read, so nothing is known of ghosts"


@dataclass
class Watch:
    """How far a scan is: told by the scan, shown by whoever runs it."""

    show: Callable[[str, float], object] = lambda what, share: None
    total: int | None = None
    """Keys, as the server counts them."""
    keys: int = 0
    ghosts: Callable[[], int] = int
    started: float = field(default_factory=time.monotonic)
    shown: float = 0.0

    def tick(self, keys: int) -> None:
        """So many more were looked at."""
        self.keys += keys
        now = time.monotonic()
        if now - self.shown >= SHOW_EVERY_S:
            self.shown = now
            self.show(self.text(now), min(1.0, self.keys / self.total) if self.total else 0.0)

    def text(self, now: float) -> str:
        """120,000 of 200,000 keys (60 %), 81,000 keys/s, 12 ghosts"""
        known = f"{self.keys:,} of {self.total:,} keys ({100 * self.keys / self.total:.0f} %)" if self.total else f"{self.keys:,} keys"
        rate = self.keys / max(1e-3, now - self.started)
        return f"{known}, {rate:,.0f} keys/s, {self.ghosts():,} ghosts"


@dataclass(frozen=True)
class How:
    """The defaults read everything, as fast as the server answers."""

    pace: Pace = field(default_factory=Pace)
    values: bool = True
    """False: names, TTL and lengths only; nothing is judged."""
    per_family: int | None = None
    """Look at so many keys of each family only."""
    workers: int | None = 0
    """Further processes that read and judge; None: one, where there is enough to do and a processor for it."""
    stop: Callable[[], bool] = bool
    """Asked between two pages; True ends the scan there."""
    watch: Watch = field(default_factory=Watch)
    begin: "Saved | None" = None
    """Where an earlier scan was stopped."""
