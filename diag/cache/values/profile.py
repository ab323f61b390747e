"""What is normal in a family of keys, learnt from a sample of it: medians and majorities, so ghosts do not count."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from diag.cache.values.facts import Facts
from diag.cache.values.family_files import Known
from diag.cache.values.views import TYPES

SUPPORT = 20
"""Siblings that must be known before any of them is called odd."""
MAJORITY = 0.6
SECOND_MODE = 0.1
"""Something that a tenth of the family (and at least SUPPORT keys, or FEW_MODE of a small family) has is another kind of normal."""

CLOSED = 0.95
"""If the common shapes make up so much of a family, another one is odd."""
FEW = 8
"""So few numbers may all be zero, all the same, or of any size, by chance."""
SPARSE = 4
"""Arrays with so few numbers that are not zero may have none at all."""

FEW_MODE = 0.15
SECOND_SIZE = 0.2
"""An axis that has another size so often varies, even where too few keys are known to call that size normal."""

DATA = frozenset({"array", "raw", "text", "json", "object"})
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the values of a family lie: median and median absolute deviation."""

    median: float
    mad: float

    def far(self, value: float, *, times: float, least: float) -> bool:
        """Is it more than `times` standard deviations (by MAD), and more than `least` of the median, away?"""
        return abs(value - self.median) > max(times * 1.4826 * self.mad, least * abs(self.median))


@dataclass(frozen=True, slots=True)
class Sample:
    """One sibling."""

    facts: Facts
    ttl_s: float | None
    """None: never expires."""


@dataclass(frozen=True)
class Profile:
    """The normal of one family. None or empty where there is no majority."""

    family: str
    support: int
    """Siblings looked at."""
    kind: str | None = None
    codec: str | None = None
    dtype: str | None = None
    dtypes: frozenset[str] = frozenset()
    """The majority's and other normal ones."""
    kinds: frozenset[str] = frozenset()
    axes: tuple[int | None, ...] | None = None
    """Shape with None for an axis that varies."""
    shapes: frozenset[tuple[int, ...]] = frozenset()
    """Shapes common enough to be normal."""
    closed: bool = False
    """Several fixed shapes and hardly any other."""
    formats: frozenset[str] = frozenset()
    """Serialisations, without compression around them, that are normal: "pickle", "json", "raw"."""
    dominant: bool = False
    """Nine of ten that can be read are of the majority's kind."""
    view: str | None = None
    """The float type that raw buffers of this family are full of."""
    view_size: Spread | None = None
    """Of the logarithm of their norm per element."""
    sparse: bool = False
    """Arrays of hardly anything but zeros are normal here."""
    lengths: Mapping[str, Spread] = field(default_factory=dict)
    """Natural logarithm of the length in bytes, by kind, where there are enough of it."""
    sizes: frozenset[int] = frozenset()
    """Lengths in bytes common enough to be normal."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Bytes that nearly all of a kind have at least."""
    roots: frozenset[str] = frozenset()
    """What values are ("dict", "list[int]"), if nine of ten are one thing; else nothing."""
    crc_kind: str | None = None
    """The function whose checksums nearly all wrappers carry."""
    stated: Known | None = None
    """The family file that describes it."""
    marks_elsewhere: frozenset[str] = frozenset()
    """Marker texts that family files state, this family's own among them."""
    length: Spread | None = None
    norm: Spread | None = None
    """Of the natural logarithm of the norm per element."""
    ttl_least_s: float | None = None
    """Hardly any data key has less left."""
    ttl_long_s: float | None = None
    """Nine of ten data keys expire within it; None: the data never expires, or too little is known."""
    expires: bool = False
    """Most data keys have a TTL."""
    version: str | None = None
    """Of the wrappers."""
    key_version: str | None = None
    """That most keys of the same name but any version have."""
    foreign: frozenset[str] = frozenset()
    """Globals that most of the data needs."""
    foreign_known: frozenset[str] = frozenset()
    """Globals that a tenth of it needs."""
    keys: frozenset[str] = frozenset()
    """Names of parts that the majority has."""
    texts: frozenset[str] = frozenset()
    """Texts so common in the family that they mark nothing."""
    usual: frozenset[str] = frozenset()
    """Oddities the family is known for: "nan-inf", "all-zero", "constant", "broken", "crc", "error"."""
    healthy: int = 0
    """Siblings that hold data and can be read."""

    @property
    def known(self) -> bool:
        return self.support >= SUPPORT

    @property
    def holds_data(self) -> bool:
        """The family is known and most of it is data."""
        return self.known and self.healthy >= MAJORITY * self.support


def learn(
    family: str, samples: Sequence[Sample], key_versions: Counter[str] | None = None, stated: Known | None = None,
    marks_elsewhere: frozenset[str] = frozenset(),
) -> Profile:
    """The profile of a family from siblings (ghosts among them do not hurt while they are a minority).

    `key_versions` counts the keys of the same name by the version in the key, this family's included. `stated` is the
    family file that fits it.
    """
    everyone = [sample.facts for sample in samples]
    data = [facts for facts in everyone if facts.kind in DATA]
    kind = _majority([facts.kind for facts in data])
    alike = [facts for facts in data if facts.kind == kind] if kind is not None else data
    arrays = [facts for facts in data if facts.kind == "array"]
    view = _view(data)
    ttls = [sample.ttl_s for sample in samples if sample.facts.kind in DATA]
    set_ttls = sorted(ttl for ttl in ttls if ttl is not None)
    expires = len(ttls) >= SUPPORT and len(set_ttls) >= MAJORITY * len(ttls)
    return Profile(
        family=family,
        support=len(samples),
        healthy=len(data),
        kind=kind,
        kinds=_normal([facts.kind for facts in everyone]),
        codec=_majority([facts.codec for facts in alike]),
        dtype=_majority([facts.dtype for facts in arrays if facts.dtype is not None]),
        dtypes=_normal([facts.dtype for facts in arrays if facts.dtype is not None]),
        axes=_axes([facts.shape for facts in arrays if facts.shape is not None]),
        shapes=_normal([facts.shape for facts in arrays if facts.shape is not None]),
        closed=_closed([facts.shape for facts in arrays if facts.shape is not None]),
        formats=_normal([serialisation(facts) for facts in data]),
        dominant=kind is not None and len(alike) >= 0.9 * len(data),
        view=view,
        view_size=_spread([one.size for f in data for one in f.views if one.dtype == view and one.size is not None]),
        sparse=_is_sparse(arrays),
        lengths={
            one: spread for one in DATA if (spread := _spread([math.log(max(f.plain_bytes, 1)) for f in data if f.kind == one])) is not None
        },
        sizes=_normal([facts.bytes for facts in data]),
        least={one: _low([f.plain_bytes for f in data if f.kind == one]) for one in DATA},
        roots=_roots([facts.root for facts in data if facts.root is not None]),
        crc_kind=_majority([facts.crc_kind for facts in data if facts.crc_kind is not None]),
        stated=stated,
        marks_elsewhere=marks_elsewhere,
        length=_spread([float(facts.bytes) for facts in alike]),
        norm=_spread([size for f in arrays if (size := magnitude(f)) is not None]),
        expires=expires,
        ttl_least_s=set_ttls[len(set_ttls) // 100] if expires else None,
        ttl_long_s=set_ttls[int(0.9 * (len(set_ttls) - 1))] if expires else None,
        version=_majority([facts.version for facts in data if facts.version is not None]),
        key_version=None if key_versions is None else _winner(key_versions),
        foreign=_common([facts.foreign for facts in data], MAJORITY),
        foreign_known=_common([facts.foreign for facts in data], SECOND_MODE),
        keys=_common([facts.keys for facts in alike], MAJORITY),
        texts=_common([facts.texts for facts in data], 1 - MAJORITY),
        usual=_usual(everyone),
    )


def _majority(values: Sequence[T]) -> T | None:
    """The value of at least MAJORITY of at least SUPPORT, or None."""
    return _winner(Counter(values))


def _winner(counts: Counter[T]) -> T | None:
    total = counts.total()
    if total < SUPPORT:
        return None
    value, count = counts.most_common(1)[0]
    return value if count >= MAJORITY * total else None


def _normal(values: Sequence[T]) -> frozenset[T]:
    """Every value common enough to be no outlier; in a small family a larger share is asked for instead of SUPPORT."""
    needed = max(3.0, min(max(SUPPORT, SECOND_MODE * len(values)), FEW_MODE * len(values)))
    return frozenset(value for value, count in Counter(values).items() if count >= needed)


def _common(groups: Sequence[Iterable[str]], share: float) -> frozenset[str]:
    """Members of at least that share of the groups."""
    if len(groups) < SUPPORT:
        return frozenset()
    counts = Counter(member for group in groups for member in set(group))
    return frozenset(member for member, count in counts.items() if count >= share * len(groups))


def _spread(values: Sequence[float]) -> Spread | None:
    if len(values) < SUPPORT:
        return None
    middle = median(values)
    return Spread(middle, median(abs(value - middle) for value in values))


def _axes(shapes: Sequence[tuple[int, ...]]) -> tuple[int | None, ...] | None:
    """The majority's shape, None for axes that vary. None: no majority even for the number of axes."""
    rank = _majority([len(shape) for shape in shapes])
    if rank is None:
        return None
    same = [shape for shape in shapes if len(shape) == rank]
    return tuple(_axis([shape[i] for shape in same], last=i == rank - 1 and rank > 1) for i in range(rank))


def _axis(sizes: Sequence[int], *, last: bool) -> int | None:
    """The one size of an axis, or None if it varies.

    The last of several axes is the width of the model and never varies. Any other may count tokens or chunks: if
    the odd sizes differ among themselves (tails, short inputs) the axis varies, if they are one or two it does not.
    """
    (size, count), *others = Counter(sizes).most_common(2)
    second = others[0][1] if others else 0
    if count < MAJORITY * len(sizes) or second >= max(3.0, SECOND_SIZE * len(sizes)):
        return None
    odd = {other for other in sizes if other != size}
    return size if last or len(odd) <= 3 else None


def magnitude(facts: Facts) -> float | None:
    """Logarithm of the root of the mean square, which shorter and longer inputs have in common. None: it says nothing."""
    stats, dtype = facts.stats, facts.dtype or ""
    if stats is None or not stats.norm or stats.size < FEW or dtype.startswith(("int", "uint", "bool")):
        return None
    return math.log(stats.norm) - 0.5 * math.log(stats.size)


def _low(sizes: Sequence[int]) -> int:
    """What all but one of fifty have at least; 0: too few to tell."""
    return sorted(sizes)[len(sizes) // 50] if len(sizes) >= SUPPORT else 0


def _roots(roots: Sequence[str]) -> frozenset[str]:
    """If nine of ten are one thing: that, and what else is found more than once or twice."""
    if len(roots) < SUPPORT or Counter(roots).most_common(1)[0][1] < 0.9 * len(roots):
        return frozenset()
    needed = max(3.0, 0.015 * len(roots))
    return frozenset(root for root, count in Counter(roots).items() if count >= needed)


def serialisation(facts: Facts) -> str:
    """The innermost format: "zlib+pickle" is "pickle" to a reader who inflates first."""
    return facts.codec.rpartition("+")[2]


def _closed(shapes: Sequence[tuple[int, ...]]) -> bool:
    normal = _normal(shapes)
    others = {shape for shape in shapes if shape not in normal}
    covered = sum(shape in normal for shape in shapes)
    return len(normal) > 1 and covered >= CLOSED * len(shapes) and len(others) <= 3


def _view(data: Sequence[Facts]) -> str | None:
    """The narrowest float type in which nearly all buffers look like numbers, and hardly any has NaN."""
    seen = [facts.views for facts in data if facts.views and not facts.repeats]
    if len(seen) < SUPPORT:
        return None
    for dtype in TYPES:
        own = [view for views in seen for view in views if view.dtype == dtype]
        if sum(view.plausible for view in own) >= 0.8 * len(seen) and sum(view.bad > 0 for view in own) <= 0.15 * len(seen):
            return dtype
    return None


def _is_sparse(arrays: Sequence[Facts]) -> bool:
    """Would an array without anything in it surprise nobody? By the emptiest tenth of those that hold something."""
    filled = sorted(f.stats.size - f.stats.zeros for f in arrays if f.stats is not None and f.stats.zeros < f.stats.size)
    return len(filled) >= SUPPORT and filled[len(filled) // 10] <= SPARSE


def _usual(everyone: Sequence[Facts]) -> frozenset[str]:
    """Oddities too common in the family to mean anything."""
    checks = {
        "nan-inf": [f.stats is not None and f.stats.nan + f.stats.inf > 0 for f in everyone],
        "all-zero": [is_zero(f) for f in everyone],
        "constant": [f.repeats or (f.stats is not None and f.stats.constant) for f in everyone],
        "blob-nan": [any(view.bad for view in f.views) for f in everyone],
        "short-tail": [f.trailing_bytes > 0 for f in everyone],
        "empty": [f.kind == "empty" and f.bytes > 0 for f in everyone],
        "crc": [f.crc_ok is False for f in everyone],
        "error": [f.error is not None for f in everyone],
        # a format this program reads wrongly looks broken in most keys
        "broken": [f.kind == "broken" for f in everyone],
    }
    many = max(SUPPORT, (1 - MAJORITY) * len(everyone))
    some = max(3, SECOND_MODE * len(everyone))  # "there is nothing" is an answer that many services keep
    return frozenset(name for name, hits in checks.items() if sum(hits) >= (some if name == "empty" else many))


def is_zero(facts: Facts) -> bool:
    """Nothing but zeros inside."""
    return facts.blank or (
        facts.stats is not None and facts.stats.size > 0 and facts.stats.zeros == facts.stats.size
    )
