"""A pair of tensors of 1 GiB each measured in one pass, with and without numba, against `cat A B >/dev/null` in the same run.

Everything but the digests: ends, mean, std, norm, zeros, NaN and Inf, cosine, relative L2, largest differences with their
index, mismatches, rel_l2 of every row of 1,024. `cat` and each way take turns, the page cache is warm, the best of RUNS
counts: on a busy machine the turn that was disturbed least. Two threads. The peers have whole arrays of a 64th.
With less than 7 GB of memory or disk left the tensors are smaller, and the bars say so.

Both ways use two processors where cat uses one, so the clock tells half the ratio of processor time (user + sys, printed
beside it) only while two are idle; with less, read the bars from that. What bounds the way without numba: numpy fuses
nothing, each figure is a pass of its own over a block in the third-level cache, 0.02 to 0.12 ns a number, and between two
passes a thread waits for the interpreter: blocks of 512 K numbers (768 K of 16 bits) are the best of both, with half of that everything takes
half as long again. Identical pairs, measured once, take 1.6 to 1.9 times as long as cat with float32 and 2.4 to 3 times with 16
bits without numba, where the bar does not apply.
"""

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from diag.tensors.dump import Tensor
from diag.tensors.elements import itemsize
from diag.tensors.measure import measure_pair, ways
from tests.bench.bars import Bar

BYTES = 1 << 30
RUNS = 7
ROOM_BYTES = 7 << 30
ROW = 1024
PEER_SHARE = 64
SMALL, SMALL_TENSORS = 1024, 1000
# bars in multiples of cat: with numba, and without
BARS = {"float32": (2.0, 4.0), "bfloat16": (3.5, 8.0), "float16": (3.5, 8.0)}
IDENTICAL = 1.7

FRESH = """
import sys, time
from pathlib import Path
from diag.tensors.measure import ways
began = time.perf_counter()
ways.warm_up(ways.FUSED_FROM, lambda text: None)
print(time.perf_counter() - began)
"""


def bars() -> Iterator[Bar]:
    """Speed of a large pair by element type, identical ones, small tensors, and what loading the compiled loops costs."""
    size = BYTES if _room() else BYTES // 4
    with tempfile.TemporaryDirectory() as name:
        for dtype, (with_numba, without) in BARS.items():
            folder = Path(name) / dtype
            folder.mkdir()
            _write(folder, dtype, size)
            pair, same = _pair(folder, dtype, size), (_pair(folder, dtype, size)[0],) * 2
            text = f"{dtype}, 2 x {size / 1e9:.2f} GB"
            peers = _peers(folder, dtype, size)
            if ways.available():
                ways.warm_up(ways.FUSED_FROM, lambda text: None)
                yield _against_cat(f"{text}, with numba", pair, with_numba, peers)
                yield _against_cat(f"{text}, identical, with numba", same, IDENTICAL, "")
            else:
                print("     numba is missing (pip install '.[fast]'): measured without it")
            with _without_numba():
                yield _against_cat(f"{text}, numpy alone", pair, without, "see above" if ways.available() else peers)
                identical = _against_cat(f"{text}, identical, numpy alone", same, IDENTICAL, "")
            if ways.available():
                print(f"     {identical.name}: {identical.value:.2f}x, no bar where numba is there")
            else:
                yield identical
            shutil.rmtree(folder)
        yield _small(Path(name))
    if ways.available():
        _fresh()


def _against_cat(name: str, pair: tuple[Tensor, Tensor], bar: float, peer: str) -> Bar:
    cat, ours, worked = [], [], []
    measure_pair(*pair, row_elements=ROW)
    for _ in range(RUNS):
        before = _cpu_s()
        cat.append(_seconds(lambda: subprocess.run(["sh", "-c", 'exec cat "$1" "$2" >/dev/null', "cat", *(str(side.file) for side in pair)], check=True)))
        between = _cpu_s()
        ours.append(_seconds(lambda: measure_pair(*pair, row_elements=ROW)))
        worked.append((between - before, _cpu_s() - between))
    cpu = [min(side) for side in zip(*worked, strict=True)]
    said = f"cat {min(cat):.2f} s, ours {min(ours):.2f} s; user + sys {cpu[0]:.2f} and {cpu[1]:.2f} s; load {os.getloadavg()[0]:.1f}"
    return Bar(name, min(ours) / min(cat), bar, "x", f"{said}; {peer}" if peer else said)


def _cpu_s() -> float:
    """User and system seconds of this process and of those it waited for."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


class _without_numba:
    """Large pairs go the way they go where numba is not installed."""

    def __enter__(self) -> None:
        self._before = ways.FUSED_FROM
        ways.FUSED_FROM = 1 << 62

    def __exit__(self, *error: object) -> None:
        ways.FUSED_FROM = self._before


def _small(folder: Path) -> Bar:
    """Pairs of 4 KB, each in a file of its own."""
    noise = np.random.default_rng(1).normal(size=(2, SMALL)).astype(np.float32)
    pairs = []
    for number in range(SMALL_TENSORS):
        sides = []
        for side, cells in zip("ab", noise, strict=True):
            path = folder / f"{side}{number}"
            cells.tofile(path)
            sides.append(Tensor(str(number), "float32", (SMALL,), path))
        pairs.append(sides)
    best = min(_seconds(lambda: [measure_pair(*pair) for pair in pairs]) for _ in range(3)) / SMALL_TENSORS
    naive = min(_seconds(lambda: [_numpy(*noise) for _ in range(SMALL_TENSORS)]) for _ in range(3)) / SMALL_TENSORS
    return Bar("a pair of 4 KB, file to figures", best * 1e3, 0.5, "ms", f"naive numpy {naive * 1e3:.2f} ms, the file not read")


def _fresh() -> None:
    """What the first large pair of a process waits for."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        first, second = (float(subprocess.run([sys.executable, "-c", FRESH], env=environment, capture_output=True, text=True, check=True).stdout) for _ in range(2))
    print(f"     not counted: numba imported and the loops compiled {first:.1f} s, once for a machine; {second:.1f} s in later processes")


def _peers(folder: Path, dtype: str, size: int) -> str:
    """Others on a part of the pair, scaled; whole arrays would need tens of gigabytes."""
    part = size // PEER_SHARE // itemsize(dtype)
    cells = [np.fromfile(folder / side, np.float32 if dtype == "float32" else np.uint16, part) for side in "ab"]
    found = {"naive numpy": lambda: _numpy(*(_floats(side, dtype) for side in cells)), "numpy in chunks": lambda: _chunks(*cells, dtype)}
    if importlib.util.find_spec("torch"):
        found |= _torch_peers(cells, dtype)
    else:
        print("     torch is missing: its peers are not measured")
    told = [f"{name} {_seconds(work) * PEER_SHARE:.1f} s" for name, work in found.items()]
    return f"{', '.join(told)} (a {PEER_SHARE}th, scaled)"


def _floats(cells: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (cells.astype(np.uint32) << 16).view(np.float32)
    return cells.view(np.float16).astype(np.float32) if dtype == "float16" else cells


def _numpy(a: np.ndarray, b: np.ndarray) -> list[float]:
    """What one writes first: whole arrays, in the type they have."""
    d, norms = np.abs(a - b), [np.linalg.norm(side) for side in (a, b)]
    sides = [[x.min(), x.max(), x.mean(), x.std(), np.isnan(x).sum(), np.isinf(x).sum(), (x == 0).sum()] for x in (a, b)]
    relative = d / np.maximum(np.abs(a), np.finfo(np.float32).tiny)
    return [*sides[0], *sides[1], *norms, np.dot(a, b) / norms[0] / norms[1], np.linalg.norm(d), d.max(), d.argmax(), relative.max(), relative.argmax(), (a != b).sum()]


def _chunks(a: np.ndarray, b: np.ndarray, dtype: str) -> None:
    """The same over pieces of 65,536 in float64."""
    for begin in range(0, len(a), 1 << 16):
        _numpy(*(_floats(side[begin : begin + (1 << 16)], dtype).astype(np.float64) for side in (a, b)))


def _torch_peers(cells: list[np.ndarray], dtype: str) -> dict[str, Callable[[], object]]:
    import torch

    a, b = (torch.from_numpy(side if dtype == "float32" else side.view(np.int16)).view(getattr(torch, dtype)) for side in cells)
    torch.set_num_threads(2)

    def naive() -> None:
        x, y = a.float(), b.float()
        d = (x - y).abs()
        for side in (x, y):
            side.min(), side.max(), side.mean(), side.std(), side.norm(), side.isnan().sum(), side.isinf().sum(), (side == 0).sum()
        torch.nn.functional.cosine_similarity(x, y, dim=0)
        d.norm(), d.max(), d.argmax(), (d / x.abs().clamp_min(1e-38)).max(), (x != y).sum()

    def assert_close() -> None:
        try:
            torch.testing.assert_close(a, b)
        except AssertionError:
            return

    return {"naive torch": naive, "assert_close": assert_close}


def _write(folder: Path, dtype: str, size: int) -> None:
    """Normal numbers, and the same with noise of a thousandth."""
    noise, at_once = np.random.default_rng(1), 1 << 22
    a = noise.standard_normal(at_once, np.float32)
    for name, cells in (("a", a), ("b", a + np.float32(1e-3) * noise.standard_normal(at_once, np.float32))):
        part = (cells.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else cells.astype(dtype)
        with (folder / name).open("wb") as file:
            for _ in range(size // part.nbytes):
                part.tofile(file)


def _pair(folder: Path, dtype: str, size: int) -> tuple[Tensor, Tensor]:
    return Tensor("a", dtype, (size // itemsize(dtype),), folder / "a"), Tensor("a", dtype, (size // itemsize(dtype),), folder / "b")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _room() -> bool:
    memory = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")).split()[1]) << 10
    return min(memory, shutil.disk_usage(tempfile.gettempdir()).free) >= ROOM_BYTES
