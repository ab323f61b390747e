"""The JSON that lies beside tensors in a dump: read whole, bounded, and never trusted to be well formed."""

import json
from pathlib import Path
from typing import Any

from diag.tensors.dump import ReadError
from diag.tensors.files.regular import opened

MAX_BYTES = 256 << 20
"""A dump.json of 100,000 tensors has about 40 MB."""


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Raises ReadError: missing, too large, no JSON."""
    with opened(path) as file:
        if file.size > max_bytes:
            raise ReadError(f"has {file.size:,} bytes, more than the {max_bytes:,} that are read; compare one step or rank at a time")
        return parsed_json(file.read(0, file.size))


def parsed_json(text: bytes) -> Any:
    """JSON, with the NaN and Infinity that Python writes. Raises ReadError: damaged, cut, nested too deep."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except RecursionError as error:
        raise ReadError("is nested too deep to be a dump") from error
    except ValueError as error:
        raise ReadError(f"is damaged or cut short: {str(error)[:120]}; dump again") from error
