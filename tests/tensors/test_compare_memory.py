"""Many small tensors: what the whole command keeps of each of them, measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.tensors.world import settled

CHILD = """
import contextlib, os, sys, threading
from diag import cli


def anonymous_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def run(folder):
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        return cli.cli.main(["compare-dumps", folder + "/good", folder + "/bad", "-o", folder + "/c.json"], standalone_mode=False)


peak, done = [0], threading.Event()


def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous_kb())


codes, peaks = [], []
watcher = threading.Thread(target=watch)
watcher.start()
for folder in sys.argv[1:]:
    peak[0] = anonymous_kb()
    try:
        run(folder)
    except SystemExit as left:
        codes.append(left.code)
    peaks.append(peak[0])
done.set()
watcher.join()
print(*codes, peaks[1] - peaks[0])
"""
FEW, MANY = 200, 4_000
BYTES_EACH = 4_000
"""All of a comparison: two tensors, a result, three rows of evidence. As plain objects it was more than 9,000."""


def written(folder: Path, count: int) -> Path:
    """A tenth of them rounded otherwise, one of a thousand wrong."""
    for side in ("good", "bad"):
        (folder / side).mkdir(parents=True)
        cells = np.random.default_rng(1).standard_normal((count, 4, 8), np.float32)
        if side == "bad":
            cells[3::10] *= np.float32(1.00001)
            cells[99::1000] += 1
        np.savez(folder / side / "all.npz", **{f"layers.{number % 80}.op{number // 80}.output": one for number, one in enumerate(cells)})
        settled(folder / side)
    return folder


def test_memory_of_many_small_tensors(tmp_path: Path) -> None:
    folders = [str(written(tmp_path / str(count), count)) for count in (FEW, MANY)]
    done = subprocess.run([sys.executable, "-c", CHILD, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *codes, grown_kb = map(int, done.stdout.split())
    assert codes == [1, 1], done.stderr
    assert grown_kb * 1024 < BYTES_EACH * (MANY - FEW), f"{grown_kb * 1024 / (MANY - FEW):.0f} bytes a pair"


def test_what_is_packed_comes_out_as_it_went_in() -> None:
    from diag.tensors.dump import Tensor
    from diag.tensors.shelf import CHUNK, Picked, Shelf

    def bytes_of_it() -> memoryview:
        return memoryview(b"")

    one = Tensor("x", "float32", (2, 3), Path("/a/x.npy"), 128, (3, 1), rank=0, step=None, layer=7, op="o", direction="output", role="k", summary=(("min", float("-inf")),))
    odd = [Tensor("bad\udcff", "int8", (), Path("y")), Tensor("z", "int8", (1 << 70,), Path("z")), Tensor("w", "int8", (), Path("w"), load=bytes_of_it)]
    for stranger in (one, *odd):
        items = [one] * CHUNK + [stranger] + [one] * (2 * CHUNK)
        shelf = Shelf(Tensor, items)
        assert len(shelf) == len(items)
        assert list(shelf) == items
        assert [shelf[number] for number in (0, CHUNK, -1)] == [one, stranger, one]
        assert shelf[CHUNK - 1 : CHUNK + 1] == [one, stranger]
        assert list(Picked(shelf, [CHUNK, 0])) == [stranger, one]
