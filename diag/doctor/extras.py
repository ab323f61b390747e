"""Extras of the installation: none is needed for a snapshot."""

import importlib.util
from collections.abc import Iterator

from diag.doctor.ground import Check, Ground

ORDER = 90
EXTRAS = {
    "numba": ("compare-dumps of large tensors at the speed they are read", "compare-dumps takes several times as long", "pip install numba"),
    "torch": ("the labs of two demos", "demo prefix-mismatch does not run; llmdiag itself never imports it", "pip install torch"),
}
"""Package -> what it is for, what is without it, how to get it."""


def check(ground: Ground) -> Iterator[Check]:
    """Found, not imported."""
    for name, (purpose, without, fix) in EXTRAS.items():
        if importlib.util.find_spec(name) is not None:
            yield Check(name, True, f"installed: {purpose}")
        else:
            yield Check(name, None, f"not installed: {without}", fix)
