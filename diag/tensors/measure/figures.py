"""What is said of a pair of tensors and of each segment of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one tensor or one segment of it. Counts over all numbers, the rest over finite ones (None: there is none).

    A complex element is two numbers. Of opaque codes only `count` and `zeros` (all bits 0) are known. `std` is the
    population's (divided by n). Measured in float64 from exact values; min and max of 64-bit integers are rounded to it.
    Of float64, numbers 1e150 times smaller than the largest near them add nothing to a norm.
    """

    count: int
    zeros: int
    nan: int
    inf: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    norm: float | None
    """L2."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Bad against good. Values are compared exactly, also across element types (each is widened, none is rounded).

    Cosine, rel_l2, max_abs and max_rel are over the elements that are finite on both sides, None where there is none
    (empty, all NaN, opaque codes): `nan_mismatch` tells of the others, so look at it first.
    Indices are of elements of the whole tensor, flat in logical C order, the first of equals; None where nothing differs.
    """

    equal_bits: bool
    """Same element type and same bits, byte order of the file aside."""
    equal_values: bool
    """-0.0 equals 0.0, NaN equals NaN."""
    cosine: float | None
    """1.0 where both are all zero, None where one is."""
    one_minus_cosine: float | None
    """(|a-b|^2 - (|a|-|b|)^2) / (2|a||b|): keeps its digits where the cosine rounds to 1."""
    rel_l2: float | None
    """|a-b| / |a|, a = good: 0.0 where both are all zero, inf where only good is."""
    max_abs: float | None
    max_abs_index: int | None
    max_rel: float | None
    """Largest |a-b| / max(|a|, tiny): tiny is the smallest normal number of good's type, 1 for integers."""
    max_rel_index: int | None
    mismatch: int
    """Numbers whose values differ, NaN against number included."""
    nan_mismatch: int
    """Of them: NaN or Inf on one side only, or NaN, +Inf and -Inf against each other."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of elements of a pair, by its place in the tensor."""

    index: int
    good: Figures
    bad: Figures
    difference: Difference


@dataclass(frozen=True)
class Measured:
    """All that one pass over a pair tells."""

    whole: Segment
    segments: Sequence[Segment]
    """Made when asked for: a pool of 100,000 blocks costs 22 MB, not 100."""
    rows: npt.NDArray[np.float64]
    """rel_l2 of each row, inf where NaN or Inf stands on one side only; empty without `row_elements`, without numbers
    (opaque codes) and beyond MAX_ROWS rows."""


