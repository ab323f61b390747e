"""Where the first lab is and what its keys look like (for tests only: llmdiag itself does not know)."""

import hashlib

from tests.conftest import SAMPLES

GHOST_LAB = SAMPLES / "ghost-key-retry-loop" / "lab.py"


def ghost_key(image: bytes, ghost: str = "marker") -> str:
    """The key under which the lab caches `image`."""
    family = "clip-vit-b-32:v2:image" if ghost == "stale-version" else "clip-vit-b-32:image"
    return f"{family}:{hashlib.md5(image).hexdigest()}"
