"""Which key is the other half of a key, and which of the two is deleted first, by the family files that hold now."""

from diag.cache.values import halves, selection
from diag.cache.values.family_files import Known


def partner(key: bytes) -> bytes | None:
    """The name of the other half, whether it exists or not; None: this key is no half of anything for sure."""
    known = _known(key)
    return None if known is None else halves.partner(key, known)


def goes_first(key: bytes) -> bool:
    """Is this the half without which no reader looks for the other (LMCache: metadata)?"""
    known = _known(key)
    found = None if known is None or known.file.halves is None else halves.base_and_side(key, known.file.halves)
    return found is not None and found[1] == 0


def _known(key: bytes) -> Known | None:
    for known in selection.current_book().families:
        if known.file.halves is not None and not known.file.halves.assumed and known.fits(key):
            return known
    return None
