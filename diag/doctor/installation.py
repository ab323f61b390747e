"""Which llmdiag this is, on which Python."""

import platform
import sys
from collections.abc import Iterator

from diag import __version__
from diag.doctor.ground import Check, Ground

ORDER = 10


def check(ground: Ground) -> Iterator[Check]:
    """Always fine: it runs."""
    yield Check("llmdiag", True, f"{__version__} on Python {platform.python_version()} ({sys.executable}), Linux {platform.release()} {platform.machine()}")
