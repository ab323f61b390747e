"""Figures that a dump tells of itself where it holds no content: msprobe statistics, statistic.csv of ATB."""

import math

from diag.tensors.dump import Tensor
from diag.tensors.measure import Figures
from diag.tensors.result import Side
from diag.tensors.verdicts import Limits, Verdict


def summaries(good: Tensor, bad: Tensor, limits: Limits) -> tuple[Verdict, str | None]:
    """By figures that both dumps tell; a difference beyond rounding is one of content."""
    if good.shape != bad.shape:
        return "shape-mismatch", f"{shown(good.shape)} in the good run, {shown(bad.shape)} in the bad one"
    if good.dtype != bad.dtype:
        return "dtype-mismatch", f"{good.dtype} in the good run, {bad.dtype} in the bad one"
    ours, theirs = dict(good.summary), dict(bad.summary)
    scale = max((abs(ours[name]) for name in ("min", "max") if math.isfinite(ours.get(name, math.nan))), default=0.0)
    worst, where = 0.0, ""
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        if not (math.isfinite(a) and math.isfinite(b)) and str(a) != str(b):
            return "nan", f"{name} is {b} in the bad run, {a} in the good one"
        unit = abs(a) if name == "norm" else scale
        apart = abs(a - b) / unit if a != b and unit and math.isfinite(a) else float(a != b and math.isfinite(a))
        worst, where = max((worst, where), (apart, name))
    if worst == 0.0:
        return "same", None
    if worst <= limits.close(good.dtype):
        return "close", None
    return "different", f"{where} {theirs[where]:.6g} against {ours[where]:.6g}, by the dump's own figures"


def told(tensor: Tensor) -> Side:
    """A side with the figures that the dump itself tells."""
    known = dict(tensor.summary)
    figures = Figures(math.prod(tensor.shape), 0, 0, 0, known.get("min"), known.get("max"), known.get("mean"), known.get("std"), known.get("norm"))
    return Side(tensor.dtype, tensor.shape, figures if known else None)


def shown(shape: tuple[int, ...]) -> str:
    """2x3, or a scalar."""
    return "x".join(map(str, shape)) or "a scalar"
