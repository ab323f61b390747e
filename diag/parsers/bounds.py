"""Numbers that an artefact may hold: what is beyond is damage, not evidence, and would not fit a table."""

from typing import Annotated

import msgspec

Epoch = Annotated[float, msgspec.Meta(ge=0, le=32_503_680_000)]
"""Seconds since 1970, until the year 3000."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))]
"""Pids, read numbers, levels."""
