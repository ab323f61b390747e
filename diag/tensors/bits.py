"""bfloat16 that was saved as 16-bit integers, recognised by its bits: numpy has no such type, so people save its bits.

As integers, rounding is a difference: two neighbours of opposite sign are 32768 apart. Read as bfloat16 the eight bits
behind the sign are an exponent, and those of one tensor's numbers lie close together around 127; float16, read the same
way, is spread eight times as far, and token ids, block tables and quantised codes begin with zeros.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from diag.tensors import views
from diag.tensors.cutting import KV_ROLES
from diag.tensors.dump import Dump, ReadError, Tensor
from diag.tensors.measure import content
from diag.tensors.pairing import HOLDERS, INDICES, Pair
from diag.tensors.shelf import Shelf

KIND = "bfloat16"
RUNS, RUN = 16, 64
"""Elements that are looked at: so many stretches of so many."""
LEAST = 64
"""Numbers other than zero that a tensor must have to tell anything."""
EXPONENTS = (80, 150)
"""From 2**-47 to 2**23; 255 is NaN and Inf."""
SPREAD = 24
"""Between the lowest and the highest exponent of 98 in 100 numbers. Normally distributed ones have 8."""
SIGNS = (0.02, 0.98)
"""Share of negative numbers."""
SHARE = 0.98


@dataclass(frozen=True)
class Guess:
    """Names of tensors of the good and the bad dump that hold bfloat16, and what is to be said of 16-bit integers."""

    names: frozenset[str]
    note: str | None = None

    def typed(self, dump: Dump) -> Dump:
        """The dump with those taken as bfloat16."""
        if not self.names:
            return dump
        return replace(dump, tensors=Shelf(Tensor, (replace(item, dtype=KIND) if self._is_one(item) else item for item in dump.tensors)))

    def _is_one(self, item: Tensor) -> bool:
        return item.dtype in HOLDERS and (item.name in self.names or item.name.partition("/")[2] in self.names)


def guess(pairs: Iterable[Pair], said: Mapping[str, str]) -> Guess:
    """Of pairs whose 16-bit integers are bfloat16. `said`: types that a person gave by name, or for all (`"*"`): not guessed."""
    found: dict[str, None] = {}
    fitting: list[Pair] = []
    count = 0
    for pair in pairs:
        if not _may_be(pair, said):
            continue
        if any(side.dtype in HOLDERS and _tells(_sample(side)) for side in (pair.good, pair.bad)):
            found |= dict.fromkeys((pair.good.name, pair.bad.name))
            count += 1
        else:
            fitting.append(pair)
    doubtful = None
    for pair in fitting:
        if found and all(side.dtype == KIND or _fits(_sample(side)) for side in (pair.good, pair.bad)):
            found |= dict.fromkeys((pair.good.name, pair.bad.name))  # too small or too even to tell by itself
            count += 1
        elif pair.good.role in KV_ROLES:
            doubtful = doubtful or pair.good
    if found:
        return Guess(frozenset(found), f"16-bit integers of {count} tensors hold the bits of {KIND} and are taken as that, such as {next(iter(found))} (say --dtype uint16 if they are numbers)")
    if doubtful is not None:
        return Guess(frozenset(), f"{doubtful.name} is compared as {doubtful.dtype}: if it holds the bits of another type, say --dtype {KIND} or --dtype float16")
    return Guess(frozenset())


def _may_be(pair: Pair, said: Mapping[str, str]) -> bool:
    kinds = {pair.good.dtype, pair.bad.dtype}
    known = said.keys() & {"*", pair.good.name, pair.bad.name}
    there = min(pair.good.offset, pair.bad.offset) >= 0
    return there and not known and bool(kinds & HOLDERS) and kinds <= {*HOLDERS, KIND} and pair.good.role not in INDICES and pair.bad.role not in INDICES


def _sample(tensor: Tensor) -> npt.NDArray[np.uint16]:
    """Some stretches of it, from its first element to its last; none where it cannot be read."""
    with suppress(ReadError):
        values = content(tensor if tensor.strides is None else views.selected(tensor, 0, 0) if tensor.shape and tensor.shape[0] else tensor).reshape(-1)
        starts = np.linspace(0, max(0, len(values) - RUN), RUNS).astype(int) if len(values) > RUNS * RUN else [0]
        parts = [np.asarray(values[start : start + (RUN if len(starts) > 1 else RUNS * RUN)]) for start in starts]
        return np.concatenate(parts).astype(np.int64).astype(np.uint16)
    return np.empty(0, np.uint16)


def _fits(codes: npt.NDArray[np.uint16]) -> bool:
    """Could these be bfloat16? Zeros, NaN and Inf could."""
    exponents = (codes.astype(np.int32) >> 7) & 0xFF
    plain = exponents[(codes & 0x7FFF != 0) & (exponents != 255)]
    return bool(len(codes)) and (not len(plain) or float(np.mean((plain >= EXPONENTS[0]) & (plain <= EXPONENTS[1]))) >= SHARE)


def _tells(codes: npt.NDArray[np.uint16]) -> bool:
    """Are these bfloat16 and nothing else?"""
    exponents = (codes.astype(np.int32) >> 7) & 0xFF
    is_plain = (codes & 0x7FFF != 0) & (exponents != 255)
    plain = exponents[is_plain]
    if len(plain) < LEAST or not _fits(codes) or 2 * len(plain) < np.count_nonzero(codes):
        return False
    low, high = np.percentile(plain, (1, 99))
    negative = float(np.mean(codes[is_plain] >> 15))
    return bool(high - low <= SPREAD and low < high) and SIGNS[0] <= negative <= SIGNS[1]
