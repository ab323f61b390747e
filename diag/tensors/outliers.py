"""Wrong rows that a few huge channels hide: massive activations make relative L2 and cosine blind for all the others.

Each channel is measured by its own size (root mean square over the tokens), and a row is wrong where the median channel is
off by as much as other content would be. Rounding never is, whatever the sizes.
"""

import math
from typing import TYPE_CHECKING, Any

from diag.decode.dtypes import widen
from diag.tensors import views
from diag.tensors.dump import Tensor
from diag.tensors.measure import Figures, content
from diag.tensors.verdicts import ROW_DIFFERENT

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, Any]

PEAK = 6.0
"""Normal numbers stay within six times their root mean square; one dominant channel of C lies at the root of C."""
MIN_CHANNELS = 16
CHUNK_ELEMENTS = 1 << 20


def may_hide(good: Figures) -> bool:
    """Is there an element so large that the others hardly count?"""
    if good.norm is None or good.min is None or good.max is None or not good.norm:
        return False
    return max(abs(good.min), abs(good.max)) > PEAK * good.norm / math.sqrt(good.count)


def hidden_rows(good: Tensor, bad: Tensor, rows: int) -> "Floats":
    """Numbers of the rows [rows, …] whose median channel holds other content."""
    import numpy as np

    channels = views.count(good) // rows
    if channels < MIN_CHANNELS:
        return np.empty(0, np.int64)
    found, size = [], None
    step = max(1, CHUNK_ELEMENTS // channels)
    ours, theirs = (content(tensor).reshape(rows, channels) for tensor in (good, bad))
    for start in range(0, rows, step):
        a, b = (values(part[start : start + step], good.dtype) for part in (ours, theirs))
        if size is None:
            size = np.sqrt(np.mean(np.square(a, dtype=np.float64), axis=0))
            size[size == 0] = np.inf
        with np.errstate(invalid="ignore"):
            off = np.median(np.abs(a - b) / size, axis=1)
        found.append(np.flatnonzero(off >= ROW_DIFFERENT) + start)
    return np.concatenate(found)


def values(codes: "Floats", dtype: str) -> "Floats":
    """Numbers of a small array that `content` gave, as float32 or wider."""
    import numpy as np

    native = codes.astype(codes.dtype.newbyteorder("="), copy=False)
    wide = widen(np.ascontiguousarray(native).tobytes(), dtype)
    if wide is not None:
        return wide.reshape(codes.shape)
    return native.astype(np.float64 if codes.dtype.itemsize > 4 else np.float32)
