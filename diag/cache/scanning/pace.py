"""How hard a scan leans on a server: keys and bytes it asks for at once, and keys a second."""

import time
from dataclasses import dataclass, field

BATCH_KEYS = 250
BATCH_BYTES = 1 << 20


@dataclass
class Pace:
    """Bounds of one request, and of a second."""

    batch_keys: int = BATCH_KEYS
    batch_bytes: int = BATCH_BYTES
    keys_s: float | None = None
    """None: as fast as the server answers."""
    careful: bool = False
    """Ask for the length of every value before it is read."""
    due: float = field(default_factory=time.monotonic)

    def wait(self, keys: int) -> None:
        """Until so many more keys may be asked for."""
        if self.keys_s is None:
            return
        now = time.monotonic()
        if self.due > now:
            time.sleep(self.due - now)
        self.due = max(self.due, now) + keys / self.keys_s


def gentle() -> Pace:
    """For a server that people are waiting for: bites that it swallows within half a millisecond, with room between them."""
    return Pace(batch_keys=24, batch_bytes=128 << 10, keys_s=6_000.0, careful=True)
