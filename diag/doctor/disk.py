"""Is there room for a bundle here, and may it be written?"""

import shlex
import shutil
import tempfile
from collections.abc import Iterator

from diag.doctor.ground import Check, Ground

ORDER = 100
ENOUGH_BYTES = 256 << 20
"""A bundle of a large service is some 20 MB; while it is collected it lies there unpacked as well."""
FIX = "llmdiag snapshot PID -o /tmp"


def check(ground: Ground) -> Iterator[Check]:
    """A file is really made in the working directory; it is gone at once."""
    folder = ground.folder
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room?")
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Check("disk", False, f"nothing can be written in {shlex.quote(str(folder))}: {error.strerror}", FIX)
        return
    room = f"{free >> 20:,} MiB free in {shlex.quote(str(folder))}"
    if free < ENOUGH_BYTES:
        yield Check("disk", False, f"{room}: a bundle may need {ENOUGH_BYTES >> 20} MiB", FIX)
    else:
        yield Check("disk", True, f"{room}, and it can be written")
