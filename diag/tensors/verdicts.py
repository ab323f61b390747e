"""What the figures of a pair mean: same, close, different, zero, nan. Thresholds with their grounds stand here.

Relative L2, |bad - good| / |good|, tells rounding from other content: with a 24-layer bfloat16 transformer another order of
summation gave at most 0.02, other tokens at least 0.7; means, norms and even cosine hardly move. So

    up to CLOSE[dtype]          close: rounding, added up over many layers
    from DIFFERENT on           different content
    between the two             close, with the doubt "suspicious": rounding alone does not explain it, other content would be
                                further away. Only a control run (the good request once more, --control) can tell, and this
                                is never called a difference by itself. So is a close tensor whose norm has changed by a factor.

With a control run that band does not exist: up to NOISE_RATIO times the noise of the same tensor between two good runs is
close, more is different. CLOSE stays allowed, and a control run that repeats a tensor bit for bit leaves the band as it is: it
shows that the engine can repeat itself, not how it rounds in another batch.

One token row of many that was replaced hardly moves any figure of the whole: rows are judged on their own, and one row from
ROW_DIFFERENT on makes the whole different.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from diag.tensors.measure import Difference, Figures

if TYPE_CHECKING:
    import numpy as np

Verdict = Literal["same", "close", "different", "permuted", "zero", "nan", "shape-mismatch", "dtype-mismatch", "aliased"]
GOOD_VERDICTS = frozenset({"same", "close"})
SUSPICIOUS = "suspicious"
ARTEFACT = "capture-artefact"

CLOSE: Mapping[str, float] = {
    "float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2,
    "float8_e4m3fn": 6e-2, "float8_e4m3fnuz": 6e-2, "float8_e5m2": 1.2e-1, "float8_e5m2fnuz": 1.2e-1,
}  # fmt: skip
"""Relative L2 that rounding reaches over many layers. Anchors: msprobe's accumulative bounds, half an epsilon of float8; float32
logits of three layers with sharp attention are 2e-5 apart in another batch size, and other content is 10,000 times further away."""
DIFFERENT = 0.3
ROW_DIFFERENT = 0.3
NOISE_RATIO = 4.0
NOISE_CAP = 0.6
"""However noisy an engine is: other content is at 0.7 and more."""
CODES_STEP, CODES_SHARE = 1.0, 0.05
"""8-bit quantised codes may be off by one in so many elements."""
SCALE_COSINE, SCALE_LEAST, SCALE_ELEMENTS = 0.9999, 0.005, 1024
"""Rounding moves the norm of so many elements by a thirtieth of the relative L2 and less: 0.5 % in one direction is a factor."""
QUANTISED = frozenset({"int8", "uint8"})


@dataclass(frozen=True, slots=True)
class Judged:
    """One pair of segments: the verdict, and what more can be said."""

    verdict: Verdict
    doubt: str | None = None
    detail: str | None = None
    rows_differ: int | None = None
    rows_of: int | None = None
    first_row: int | None = None


@dataclass(frozen=True)
class Limits:
    """What a person said: dtype (`"*"`: any) -> relative L2 that is still close."""

    said: Mapping[str, float]
    least: float = 0.0
    """Close at any rate, whatever the type: numbers that were computed from coarser ones."""

    def close(self, dtype: str) -> float:
        """0: every difference counts, as for integers."""
        said = self.said.get(dtype, self.said.get("*"))
        return max(CLOSE[dtype], self.least) if said is None and dtype in CLOSE else said or 0.0

    def with_noise(self, dtype: str, noise: float) -> float:
        """The same where a control run showed how noisy this tensor is."""
        return max(self.close(dtype), min(NOISE_RATIO * noise, NOISE_CAP))


DEFAULT_LIMITS = Limits({})


def judge(
    dtype: str, good: Figures, bad: Figures, found: Difference, rows: "np.ndarray[Any, Any] | None", limits: Limits = DEFAULT_LIMITS,
    noise: float | None = None,
) -> Judged:  # fmt: skip
    """The verdict on one pair of segments of equal shape and type. `rows`: relative L2 of each token row."""
    of = None if rows is None else len(rows)
    if found.equal_bits:
        return Judged("same", rows_differ=None if of is None else 0, rows_of=of)
    if found.equal_values:
        return Judged("same", detail="values are equal, bits are not (-0.0 or the payload of a NaN)", rows_differ=None if of is None else 0, rows_of=of)
    wrong = _wrong_rows(rows, limits, dtype, noise)
    first = None if wrong is None or not len(wrong) else int(wrong[0])
    told: dict[str, Any] = {"rows_differ": None if wrong is None else len(wrong), "rows_of": of, "first_row": first}
    if found.nan_mismatch:
        return Judged("nan", detail=_non_finite(good, bad, found), **told)
    if bad.count and bad.zeros == bad.count:
        return Judged("zero", detail="all zero: never written, or cleared", **told)
    if dtype not in CLOSE:
        return _exact(dtype, good, found, told)
    if wrong is not None and len(wrong):
        return Judged("different", detail=_row_words(wrong, of or 0) or _words(good, bad, found), **told)
    rel = math.inf if found.rel_l2 is None else found.rel_l2
    if noise:
        verdict: Verdict = "close" if rel <= limits.with_noise(dtype, noise) else "different"
        return Judged(verdict, detail=_words(good, bad, found) if verdict == "different" else None, **told)
    if rel <= limits.close(dtype):
        factor = _factor(good, bad, found) if good.count >= SCALE_ELEMENTS else None
        return Judged("close", **told) if factor is None else Judged("close", doubt=SUSPICIOUS, detail=f"{factor}; rounding is not that one-sided", **told)
    if rel >= DIFFERENT or "*" in limits.said or dtype in limits.said:
        return Judged("different", detail=_words(good, bad, found), **told)
    tells = "only a control run tells" if noise is None else "the control run repeats the good run exactly and cannot tell: take it in another batch"
    words = f"relative L2 {rel:.2g}: more than rounding of {dtype} explains, less than other content; {tells}"
    return Judged("close", doubt=SUSPICIOUS, detail="; ".join(filter(None, (words, _words(good, bad, found)))), **told)


def _wrong_rows(rows: "np.ndarray[Any, Any] | None", limits: Limits, dtype: str, noise: float | None) -> "np.ndarray[Any, Any] | None":
    """Numbers of the rows that hold other content. A row without a figure (NaN) does."""
    if rows is None:
        return None
    import numpy as np

    bound = ROW_DIFFERENT if dtype in CLOSE else 0.0
    if dtype in CLOSE:
        bound = max(bound, limits.close(dtype), 0.0 if noise is None else limits.with_noise(dtype, noise))
    return np.flatnonzero(~(rows <= bound))


def _exact(dtype: str, good: Figures, found: Difference, told: Mapping[str, Any]) -> Judged:
    """Integers, codes and lost types: equal or not, but for one step of quantised codes."""
    if dtype in QUANTISED and found.max_abs is not None and found.max_abs <= CODES_STEP and found.mismatch <= CODES_SHARE * good.count:
        return Judged("close", detail=f"quantised codes off by one in {found.mismatch} elements", **{**told, "rows_differ": 0, "first_row": None})
    return Judged("different", **told)


def _non_finite(good: Figures, bad: Figures, found: Difference) -> str:
    side, ours, theirs = ("bad", bad, good) if bad.nan + bad.inf >= good.nan + good.inf else ("good", good, bad)
    what = " and ".join(f"{number} {name}" for number, name in ((ours.nan, "NaN"), (ours.inf, "Inf")) if number)
    return f"{what} of {ours.count} elements in the {side} run, {theirs.nan + theirs.inf} in the other; {found.nan_mismatch} where the other has numbers"


def _words(good: Figures, bad: Figures, found: Difference) -> str | None:
    """What the difference looks like."""
    if good.count and good.zeros == good.count:
        return "all zero in the good run"
    if bad.count > 1 and bad.min is not None and bad.min == bad.max and good.min != good.max:
        return f"constant {bad.min:.6g}: memory that was never written?"
    if factor := _factor(good, bad, found):
        return factor
    if found.cosine is not None and found.cosine <= -SCALE_COSINE:
        return "the good run's content with the sign changed"
    return None


def _factor(good: Figures, bad: Figures, found: Difference) -> str | None:
    if found.cosine is None or found.cosine < SCALE_COSINE or not good.norm or bad.norm is None or abs(bad.norm / good.norm - 1) < SCALE_LEAST:
        return None
    return f"the good run's content times {bad.norm / good.norm:.4g}"


def _row_words(wrong: "np.ndarray[Any, Any]", of: int) -> str | None:
    """`rows 0-11 are the good run's, 12-15 are not`."""
    if len(wrong) == of:
        return None
    if len(wrong) == of - int(wrong[0]):
        return f"rows 0-{int(wrong[0]) - 1} are the good run's, {_runs(wrong)} hold other content"
    return f"{len(wrong)} of {of} rows hold other content: {_runs(wrong)}"


def _runs(rows: "np.ndarray[Any, Any]", limit: int = 4) -> str:
    """0-3, 9, 12-15."""
    import numpy as np

    pieces = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    texts = [str(piece[0]) if len(piece) == 1 else f"{piece[0]}-{piece[-1]}" for piece in pieces[:limit]]
    return ", ".join(texts) + (" …" if len(pieces) > limit else "")
