"""Tells in a few microseconds that a value is what the sound values of its family are. Anything else is looked at closely.

What it says must follow from what `verdicts.judge` says: each form (head, tail, length) is judged once by it, with
numbers that stand for all that are let through here, and so it is found how large they may be. It never calls anything
a ghost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.cache.values import numbers_of
from diag.cache.values.facts import Stats
from diag.cache.values.profile import Profile
from diag.cache.values.skeleton import Skeleton, learn
from diag.cache.values.verdicts import judge

MAX_FORMS = 4_096
MAX_HEADS = 8
"""Lengths of heads that are tried."""
TRIES = 64
"""So many values may teach nothing before the family is given up."""
TINY, HUGE = math.log(1e-15), math.log(1e15)
"""Of a norm: squares beyond may have lost digits in 32 bits."""
MARGIN = 0.01
"""Of the logarithm of a norm: these sums are rounded otherwise than the exact ones."""
HALVINGS = 12
TTLS = (None, 1.0, 1e9)


@dataclass(frozen=True, slots=True)
class Form:
    """A skeleton of sound values, and the sum of squares that their elements may have."""

    skeleton: Skeleton
    least: float
    most: float
    halves: bool
    """Small float16 arrays: `numbers_of.Halves` adds many up at once."""


@dataclass(slots=True)
class Quick:
    """What is known of one family's sound values. Without a profile, and for other families than arrays, it knows nothing."""

    profile: Profile
    version: str | None
    """In the names of its keys."""
    forms: dict[bytes, Form] = field(default_factory=dict)
    """By head."""
    heads: list[int] = field(default_factory=list)
    taught: int = 0
    failed: int = 0
    usable: bool = False
    expires: bool = False
    """A sound key has a TTL."""

    def __post_init__(self) -> None:
        profile = self.profile
        stated = None if profile.stated is None else profile.stated.file
        by_form = stated is None or not (stated.halves or stated.checks or stated.protected or stated.few_versions or stated.expect.ttl_max_s is not None)
        self.usable = profile.holds_data and profile.kind == "array" and by_form
        self.expires = profile.expires or (stated is not None and stated.expect.ttl == "required")

    def sound(self, value: memoryview) -> bool:
        """True: `judge` has nothing against it, whatever its TTL (but for `no-ttl`). False: not known."""
        form = self.form(value)
        return form is not None and lively(form, form.skeleton.elements(value))

    def form(self, value: memoryview) -> Form | None:
        """Of a value that is the same around its elements as one that was seen."""
        for size in self.heads:
            form = self.forms.get(bytes(value[:size]))
            if form is not None:
                return form if form.skeleton.fits(value) else None
        return None

    def skeleton(self, value: memoryview) -> Skeleton | None:
        """The same without its limits."""
        form = self.form(value)
        return None if form is None else form.skeleton

    def learn(self, value: bytes) -> None:
        """Remember what is around the elements of a value that was judged to be sound."""
        if not self.usable:
            return
        skeleton = learn(value)
        form = None if skeleton is None or skeleton.dtype.kind not in "fiu" else self._form(skeleton)
        if skeleton is None or form is None:
            self.failed += 1
            self.usable = self.failed < TRIES + self.taught
            return
        size = len(skeleton.head)
        if size not in self.heads:
            if len(self.heads) >= MAX_HEADS:
                return
            self.heads.append(size)
        if len(self.forms) >= MAX_FORMS:
            self.forms.clear()
        self.taught += 1
        self.forms[skeleton.head] = form

    def _form(self, skeleton: Skeleton) -> Form | None:
        """Between which norms is every value of this form sound? None: even the one it was learnt from is not."""
        stats = skeleton.facts.stats
        if stats is None or not stats.norm or not math.exp(TINY) < stats.norm < math.exp(HUGE):
            return None
        norm = math.log(stats.norm)
        ttls = TTLS[1:] if self.expires else TTLS
        if not self._sound(skeleton, norm, ttls):
            return None
        least, most = (self._farthest(skeleton, norm, end) for end in (TINY, HUGE))
        if not (self._sound(skeleton, least, ttls) and self._sound(skeleton, most, ttls)):
            return None
        halves = skeleton.dtype == numbers_of.HALF and skeleton.count <= numbers_of.LARGEST
        return Form(skeleton, math.exp(2 * (least + MARGIN)), math.exp(2 * (most - MARGIN)), halves)

    def _farthest(self, skeleton: Skeleton, norm: float, end: float) -> float:
        """The norm nearest to `end` up to which all is well."""
        if self._sound(skeleton, end, TTLS[-1:]):
            return end
        good, bad = norm, end
        for _ in range(HALVINGS):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if self._sound(skeleton, middle, TTLS[-1:]) else (good, middle)
        return good

    def _sound(self, skeleton: Skeleton, norm: float, ttls: Sequence[float | None]) -> bool:
        """Of this form, with lively elements of that norm (its logarithm), under all these TTLs?"""
        size = math.exp(norm)
        facts = replace(skeleton.facts, stats=Stats(skeleton.count, -size, size, 0.0, size, 0, 0, 0))
        return all(judge(facts, self.profile, ttl_s=ttl_s, key_version=self.version) == ("ok", ()) for ttl_s in ttls)


def lively(form: Form, values: npt.NDArray[Any]) -> bool:
    """Finite, not all the same, of a usual norm. A sum of squares is not finite if one element is not."""
    if values.dtype.kind != "f" or values.itemsize == 2:
        values = values.astype(np.float64)
    with np.errstate(all="ignore"):  # numbers too large for a sum of squares are not lively either
        squares = float(values.dot(values))
    if not form.least < squares < form.most:
        return False
    first = values[0]
    return bool(first != values[-1] or first != values[values.size >> 1])
