"""The reason codes of a verdict: hard ones make a ghost, soft ones are reported."""

from dataclasses import dataclass

HARD = (
    "empty", "placeholder", "truncated", "corrupt", "checksum-mismatch", "nan-inf", "all-zero", "constant", "shape-mismatch",
    "dtype-mismatch", "missing-half", "error-cached", "foreign-object", "null-marker",
)  # fmt: skip
PROTECTED = "protected"
SOFT = (
    "null-marker", "stale-version", "no-ttl", "length-outlier", "norm-outlier", "placeholder", "foreign-object", "error-cached", "empty",
    "shape-mismatch", "dtype-mismatch", "missing-half", PROTECTED,
)  # fmt: skip
"""Reasons that may be all there is against a key: reported, purged only when a person includes them."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a key is odd. `hard` False: reported only; None: odd, but the family is too little known to say more."""

    code: str
    hard: bool | None = True
