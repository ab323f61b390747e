"""What only the whole family shows: rows that are odd by shape or length alone wait until all of it was seen.

A profile is learnt from the first siblings. Where later ones show that an axis varies (tail chunks, short inputs) or that
a second shape is common, what looked odd is sound. Where all but a few buffers have one length to the byte, and the
others no row structure in common, a shorter one was cut.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import reduce
from math import exp, gcd

from diag.cache.values.keys import CacheKey
from diag.cache.values.profile import SECOND_MODE, SUPPORT, Profile

MAX_ROWS = 20_000
"""More rows than that are told as they come: then it is no longer about a few."""
VARIED = 4
"""So many different sizes of one axis, none larger than usual, are tails and short inputs."""
ROW_BYTES = 32
"""Buffers whose lengths are all multiples of that are made of rows."""
LONG_BYTES = 32 << 10
"""A buffer of so many is a chunk of a sequence, and the last chunk of a sequence is shorter; a vector is not so long."""
ONE_LENGTH = 0.95
LARGE = 100
FORM = frozenset({"shape-mismatch", "length-outlier", "norm-outlier"})

Place = tuple[int, str]


@dataclass
class Family:
    """One family while a scan goes on."""

    profile: Profile
    keys: int = 0
    rows: list[CacheKey] = field(default_factory=list)


@dataclass
class Doubts:
    """Rows that wait for the end of the scan."""

    families: dict[Place, Family] = field(default_factory=dict)
    kept: int = 0

    def keep(self, row: CacheKey, profile: Profile) -> bool:
        """Counts the row; True: it waits here, and `settle` will tell it."""
        place = (row.db, row.family)
        family = self.families.get(place)
        if family is None:
            family = self.families[place] = Family(profile)
        family.keys += 1
        doubtful = row.verdict in ("ghost", "soft") and FORM.issuperset(row.reasons)
        if not doubtful or row.reasons == ("norm-outlier",) or self.kept >= MAX_ROWS:
            return False
        self.kept += 1
        family.rows.append(row)
        return True

    def settle(self) -> list[CacheKey]:
        """The rows that waited, judged by the whole of their family."""
        families = [*self.families.values()]
        self.families.clear()
        self.kept = 0
        return [row for family in families for row in _settled(family)]


def _settled(family: Family) -> list[CacheKey]:
    arrays = [row for row in family.rows if row.reasons[0] == "shape-mismatch"]
    others = [row for row in family.rows if row.reasons[0] != "shape-mismatch"]
    return [*_shapes(family, arrays), *_lengths(family, others)]


def _shapes(family: Family, rows: list[CacheKey]) -> list[CacheKey]:
    """Tails and second shapes are taken back."""
    counts = Counter(row.shape for row in rows)
    needed = max(SUPPORT, SECOND_MODE * family.keys)
    axes = family.profile.axes or ()
    tails = _tails([shape for row in rows if (shape := _axes(row)) is not None], axes)
    return [_sound(row, "shape-mismatch") if counts[row.shape] >= needed or _axes(row) in tails else row for row in rows]


def _axes(row: CacheKey) -> tuple[int, ...] | None:
    if row.shape is None or row.shape == "scalar":
        return None
    return tuple(int(size) for size in row.shape.split("x"))


def _tails(shapes: list[tuple[int, ...]], axes: tuple[int | None, ...]) -> set[tuple[int, ...]]:
    """Shapes that are smaller than usual in one axis, not the last, where many different sizes are found."""
    found: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for shape in shapes:
        if len(shape) != len(axes) or len(axes) < 2:
            continue
        odd = [at for at, (size, usual) in enumerate(zip(shape, axes, strict=True)) if usual is not None and size != usual]
        if len(odd) == 1 and odd[0] < len(axes) - 1 and 0 < shape[odd[0]] < (axes[odd[0]] or 0):
            found[odd[0]].add(shape)
    return {shape for group in found.values() if len(group) >= VARIED for shape in group}


def _lengths(family: Family, rows: list[CacheKey]) -> list[CacheKey]:
    """Of buffers that are all of one length, a shorter one was cut and a longer one is another thing; tails are sound."""
    spread = family.profile.lengths.get("raw")
    fixed = family.profile.kind == "raw" and spread is not None and spread.mad == 0
    if not fixed or spread is None:
        return rows
    usual = round(exp(spread.median))
    odd = [row for row in rows if row.codec.endswith("raw") and row.verdict == "soft"]
    tails = _buffer_tails([row.bytes for row in odd], usual)
    few = len(odd) <= (1 - ONE_LENGTH) * family.keys and family.keys >= LARGE and family.profile.view is not None
    stated = family.profile.stated
    announced = stated is not None and "lmcache-chunk" in stated.file.checks  # its other half tells the length
    told = []
    for row in rows:
        if row in odd and (announced or row.bytes in tails or len(odd) > (1 - ONE_LENGTH) * family.keys):
            told.append(_sound(row, "length-outlier"))
        else:
            told.append(_cut(row, usual) if row in odd and few else row)
    return told


def _buffer_tails(sizes: list[int], usual: int) -> set[int]:
    """Lengths that the last chunk of a sequence may have: shorter, of whole rows, and many different ones if chunks are small."""
    shorter = {size for size in sizes if size < usual and size % ROW_BYTES == 0}
    rows = reduce(gcd, shorter, usual) >= ROW_BYTES
    return shorter if rows and (usual >= LONG_BYTES or len(shorter) >= VARIED) else set()


def _cut(row: CacheKey, usual: int) -> CacheKey:
    code = "truncated" if row.bytes < usual else "shape-mismatch"
    reasons = (code, *(reason for reason in row.reasons if reason != "length-outlier"))
    return replace(row, verdict="ghost", reasons=reasons, detail=f"{row.bytes} bytes, nearly all siblings have {usual}")


def _sound(row: CacheKey, code: str) -> CacheKey:
    reasons = tuple(reason for reason in row.reasons if reason != code)
    return replace(row, verdict="soft" if reasons else "ok", reasons=reasons)
