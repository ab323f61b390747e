"""Figures of a pair the slow and sure way, and tensors on disk to measure."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diag.tensors.dump import Tensor
from diag.tensors.measure import Figures, Segment, ways
from diag.tensors.measure.widening import kind_of, numbers, widened

WAYS = ["double", "single", "fused"]
PRECISION = {"double": 1e-12, "single": 1e-6, "fused": 1e-12}


def go(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send pairs of any size one way, in cells small enough that a small tensor has several."""
    if way == "fused":
        pytest.importorskip("numba")
    monkeypatch.setattr(ways, "SINGLE_FROM", 1 << 60 if way == "double" else 0)
    monkeypatch.setattr(ways, "FUSED_FROM", 0 if way == "fused" else 1 << 60)
    monkeypatch.setattr(ways.streaming, "CELL", 4096)
    monkeypatch.setattr(ways.single, "BLOCK", {2: 4096, 4: 4096})
    monkeypatch.setattr(ways.single, "BLOCKS", 2)
    monkeypatch.setattr(ways.single.columns, "WIDTH", 32)
    monkeypatch.setattr(ways.single.columns, "LONG", 1024)
    monkeypatch.setattr(ways, "CELL", 8192)


def stored(folder: Path, name: str, cells: np.ndarray[Any, Any], dtype: str = "", *, lead: int = 0, **more: Any) -> Tensor:
    """The array's bytes as they lie, in a file, `lead` bytes after its beginning."""
    path = folder / name
    path.write_bytes(b"\xa5" * lead + np.ascontiguousarray(cells).tobytes())
    return Tensor(name, dtype or cells.dtype.name, more.pop("shape", cells.shape), path, lead, **more)


def values(cells: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """float64 numbers of native cells, by numpy's own conversion where it has one."""
    if dtype == "bfloat16":
        return (cells.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype.startswith("float8"):
        return widened(numbers(cells.reshape(-1), kind_of(dtype)), kind_of(dtype), np.empty(cells.size))
    if dtype.startswith("complex"):
        return cells.reshape(-1).view(cells.real.dtype).astype(np.float64)
    return (cells != 0 if dtype == "bool" else cells).astype(np.float64)


@dataclass(frozen=True)
class Slow:
    """What `values` of a pair come to: numpy in extended precision, whole arrays."""

    good: dict[str, Any]
    bad: dict[str, Any]
    pair: dict[str, Any]
    sizes: dict[str, np.ndarray[Any, Any]]
    """Of each element, what max_abs and max_rel are the largest of."""
    first: int


def slowly(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], tiny: float, first: int = 0) -> Slow:
    """Figures of flat float64 arrays; indices count from `first`."""
    both = np.isfinite(a) & np.isfinite(b)
    x, y = (np.where(both, v, 0).astype(np.longdouble) for v in (a, b))
    na, nb, nd = (np.sqrt((v * v).sum()) for v in (x, y, x - y))
    with np.errstate(over="ignore"):  # as they are defined, in float64: extended precision tells more ties apart
        d = np.abs(x.astype(float) - y.astype(float))
        relative = d / np.maximum(np.abs(x).astype(float), tiny)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    pair: dict[str, Any] = {"equal_values": bool(same.all()), "mismatch": int((~same).sum()), "nan_mismatch": int((~same & ~both).sum())}
    if both.any():
        pair |= {"rel_l2": 0.0 if nd == 0 else math.inf if na == 0 else float(nd / na), "max_abs": float(d.max()), "max_rel": float(relative.max())}
        pair |= {"max_abs_index": first + int(d.argmax()) if d.any() else None, "max_rel_index": first + int(relative.argmax()) if d.any() else None}
        pair["one_minus_cosine"] = 0.0 if nd == 0 else None if not na or not nb else float((((x / na) - (y / nb)) ** 2).sum() / 2)
    return Slow(_slow_side(a), _slow_side(b), pair, {"max_abs_index": d, "max_rel_index": relative}, first)


def _slow_side(a: np.ndarray[Any, Any]) -> dict[str, Any]:
    found = {"count": a.size, "zeros": int((a == 0).sum()), "nan": int(np.isnan(a).sum()), "inf": int(np.isinf(a).sum())}
    x = a[np.isfinite(a)].astype(np.longdouble)
    names = ("min", "max", "mean", "std", "norm")
    if not x.size:
        return found | dict.fromkeys(names)
    mean = x.mean()
    return found | dict(zip(names, (float(v) for v in (x.min(), x.max(), mean, np.sqrt(((x - mean) ** 2).mean()), np.sqrt((x * x).sum()))), strict=True))


def check(segment: Segment, slow: Slow, precision: float) -> None:
    """Every figure, to `precision` of the size of what it is formed from."""
    for side, figures, told in (("good", segment.good, slow.good), ("bad", segment.bad, slow.bad)):
        _check_side(side, figures, told, precision)
    difference = segment.difference
    for name, told in slow.pair.items():
        got = getattr(difference, name)
        if name in slow.sizes and precision > 1e-9 and told is not None and got is not None:  # one as good as the largest
            sizes = slow.sizes[name]
            assert sizes[got - slow.first] >= sizes.max() * (1 - precision), f"{name}: {got}, not {told}"
            continue
        if told is None or isinstance(told, int) or got is None:
            assert got == told, f"{name}: {got}, not {told}"
            continue
        relative = slow.pair["rel_l2"]
        floor = 1e-15 * precision / 1e-12 if relative > 0.5 else 0  # norms may differ by half: then it is 1 less a cosine
        within = max(floor, precision * min(relative, 1) ** 2) if name == "one_minus_cosine" else 0
        exact = name in ("max_abs", "max_rel")
        assert got == pytest.approx(told, rel=1e-15 if exact and precision < 1e-9 else precision * 4, abs=within), f"{name}: {got!r}, not {told!r}"
    if "rel_l2" not in slow.pair:
        assert (difference.cosine, difference.rel_l2, difference.max_abs, difference.max_rel_index) == (None,) * 4
    elif difference.one_minus_cosine is not None:
        assert difference.cosine == 1 - difference.one_minus_cosine


def _check_side(side: str, figures: Figures, told: dict[str, Any], precision: float) -> None:
    for name, value in told.items():
        got = getattr(figures, name)
        if name in ("mean", "std", "norm") and value is not None:
            scale = {"norm": 0.0, "mean": told["norm"] / math.sqrt(told["count"]), "std": abs(told["mean"]) * 1e-3}[name]
            assert got == pytest.approx(value, rel=precision * 4, abs=precision * scale), f"{side} {name}: {got!r}, not {value!r}"
        else:
            assert got == value, f"{side} {name}: {got!r}, not {value!r}"
