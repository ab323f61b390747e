"""Mutated headers, documents and file names for the layouts: named errors only, no hang, bounded memory, nothing executed.

    python -m tests.tensors.fuzz_layouts [COUNT [SEED]]        10,000 of each target; prints what came out of them
"""

import contextlib
import copy
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from diag.errors import BadInput
from diag.tensors.dump import ReadError, Tensor
from diag.tensors.elements import itemsize
from diag.tensors.files import atb_bin, formats, polygraphy
from diag.tensors.layouts import layouts
from diag.tensors.opening import open_dump
from tests.oracle.atb_bytes import BF16, record

DATA = Path(__file__).parent / "data"
DEADLINE_S = 10
SPARE_BYTES = 8 << 20
RUNS_CODE = frozenset({
    "exec", "compile", "import", "marshal.loads", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
    "socket.connect", "ctypes.dlopen",
})  # fmt: skip
PIECES = (
    b"\n", b"=", b",", b"-", b"0", b"99999999999999999999", b"$End=1\n", b"dtype=", b"dims=", b"data=0_intensor0.bin", b"$Object.Length=", b"\x00", b"\xff",
    b'"', b"\\", b"{", b"}", b"[", b"]", b"null", b"NaN", b"-1e999", b'"data_name": "../x.pt"', b'"shape": [-1]', b'"dtype": "torch.float32"', b"k05V",
    b"__import__('os').system('true')", b"9" * 400, b"[" * 2000, b"{\"a\":" * 2000,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 70, 1e308, float("nan"), float("inf"), "", "x", "../../x.pt", "\x00blob:0:9", "\ud800", "torch.int4", "9" * 5000, [], [[]], {},
    [0] * 70, {"dtype": "torch.int4", "shape": [3]}, {"dtype": "x", "shape": [True, 1.5]}, {"array": "x"}, {"values": None}, "_1_2_3", "Layer_5", ["t", 3],
)  # fmt: skip
NAMES = (
    "step=0___rank=1___dump_index=3___name=hidden___layer_id=4.pt", "Pass00001.pt", "1.Model-2.DecoderLayer-input.x.pt", "edgellm_dump.safetensors",
    "intensor0.bin", "layers.10.k_cache.npy", "dump.json", "statistic.csv",
)  # fmt: skip
FOLDERS = ("before", "after", "5_Prefill_layer", "0_39943", "7", "step0", "rank3", "proc12", "TP0_PP0_Rank0_pid4", "dump_tensor_data", "info", "layer")

Case = Callable[[random.Random, Path], Iterator[str]]

_armed = False
_ran: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed and event in RUNS_CODE:
        _ran.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_audit)


def mutated(numbers: random.Random, content: bytes) -> bytes:
    text = bytearray(content)
    for _ in range(numbers.choice((1, 1, 2, 4, 12))):
        at = numbers.randrange(len(text) + 1)
        match numbers.randrange(6):
            case 0 if text:
                text[min(at, len(text) - 1)] = numbers.randrange(256)
            case 1:
                del text[at : at + numbers.randrange(1, 40)]
            case 2:
                text[at:at] = numbers.choice(PIECES)
            case 3:
                other = numbers.randrange(len(text) + 1)
                text[at:at] = text[other : other + numbers.randrange(1, 200)]
            case 4:
                text[at : at + numbers.randrange(1, 8)] = numbers.choice(PIECES)
            case _ if numbers.random() < 0.3:
                del text[at:]
    return bytes(text)


def misshapen(numbers: random.Random, content: bytes) -> bytes:
    """A JSON document that stays one, with odd values in places; or a mutated one."""
    if numbers.random() < 0.4:
        return mutated(numbers, content)
    document = json.loads(content)
    for _ in range(numbers.choice((1, 3, 20))):
        at: Any = document
        while isinstance(at, dict | list) and at:
            key = numbers.choice(list(at)) if isinstance(at, dict) else numbers.randrange(len(at))
            if not isinstance(at[key], dict | list) or numbers.random() < 0.2:
                at[key] = copy.deepcopy(numbers.choice(ODD))
                break
            at = at[key]
    return json.dumps(document).encode()


def atb(numbers: random.Random, folder: Path) -> Iterator[str]:
    """Headers of one to three records, in a place where ATB has them."""
    path = folder / "d/atb_dump_data/data/0_1/2/3_Decoder_layer/before/intensor0.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = b"".join(record(numbers.choice((BF16, 0, 29, 13)), (2, 4), bytes(16), alias=numbers.choice(("", "", "3_intensor0.bin"))) for _ in range(numbers.randrange(1, 4)))
    path.write_bytes(mutated(numbers, whole))
    for item in atb_bin.read(path):
        yield type(item).__name__
        if isinstance(item, Tensor):
            assert item.offset + _length(item) <= path.stat().st_size, item
    open_dump(folder / "d", settle_s=0)


def dump_json(numbers: random.Random, folder: Path) -> Iterator[str]:
    path = folder / "d/step0/rank0/dump.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(misshapen(numbers, (DATA / "msprobe/good_statistics/step0/rank0/dump.json").read_bytes()))
    path.with_name("construct.json").write_bytes(misshapen(numbers, (DATA / "msprobe/good_statistics/step0/rank0/construct.json").read_bytes()))
    dump = open_dump(folder / "d", settle_s=0)
    yield from (type(item).__name__ for item in (*dump.tensors, *dump.unread))


def runs(numbers: random.Random, folder: Path) -> Iterator[str]:
    """Polygraphy's RunResults; all that is described is loaded."""
    path = folder / "r.json"
    path.write_bytes(misshapen(numbers, (DATA / "polygraphy/one.json").read_bytes()))
    for item in polygraphy.read(path):
        yield type(item).__name__
        if isinstance(item, Tensor):
            assert item.load is not None
            with contextlib.suppress(ReadError):
                assert len(item.load()) == _length(item), item


def statistics(numbers: random.Random, folder: Path) -> Iterator[str]:
    """ATB's table and graph without any content."""
    source = DATA / "atb/good/atb_dump_data"
    table, graph = source / "data/0_39943/7/statistic.csv", source / "info/model/0_39943/DecoderModel_Prefill.json"
    for path in (table, graph):
        there = folder / "d" / path.relative_to(source.parent)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes((mutated if path is table else misshapen)(numbers, path.read_bytes()))
    dump = open_dump(folder / "d", settle_s=0)
    yield from (type(item).__name__ for item in (*dump.tensors, *dump.unread))


def file_names(numbers: random.Random, folder: Path) -> Iterator[str]:
    """One honest file under a made-up path."""
    content = DATA / numbers.choice(("numpy/float32.npy", "torch/alone.pt", "safetensors/edge_llm.safetensors"))
    name = os.fsdecode(mutated(numbers, numbers.choice(NAMES).encode()).replace(b"/", b"_").replace(b"\0", b"_")[:200] or b"x")
    if name in (".", ".."):
        return
    place = folder / "d" / "/".join(numbers.choices(FOLDERS, k=numbers.randrange(5)))
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(content, place / name)
    dump = open_dump(folder / "d", settle_s=0)
    yield from (type(item).__name__ for item in (*dump.tensors, *dump.unread))


TARGETS: dict[str, Case] = {"atb": atb, "dump.json": dump_json, "polygraphy": runs, "statistic.csv": statistics, "file names": file_names}


def _length(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * itemsize(tensor.dtype)


def _late(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"a case took more than {DEADLINE_S} s")


def run(name: str, count: int, seed: int, *, stop_at_alarm: bool = True) -> Counter[str]:
    """Outcomes of `count` cases. AssertionError, or whatever else a reader let escape: a bug, with its seed."""
    global _armed
    case = TARGETS[name]
    outcomes: Counter[str] = Counter()
    formats(), layouts(), "".encode("unicode_escape")  # imported before anything is watched
    if stop_at_alarm:
        signal.signal(signal.SIGALRM, _late)
    for number in range(-1, count):
        numbers = random.Random(f"{seed}/{name}/{number}")
        with tempfile.TemporaryDirectory() as scratch:
            _ran.clear()
            tracemalloc.start()
            if stop_at_alarm:
                signal.alarm(DEADLINE_S)
            _armed = number >= 0  # the first case warms up: modules are imported then
            try:
                outcomes.update(case(numbers, Path(scratch)))
            except (ReadError, BadInput) as error:
                outcomes[type(error).__name__] += 1
            except BaseException as error:
                error.add_note(f"seed {seed}, {name}, case {number}")
                raise
            finally:
                _armed = False
                signal.alarm(0)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            assert not _ran, f"executed in seed {seed}, {name}, case {number}: {_ran[:3]}"
            assert peak < SPARE_BYTES, f"{peak:,} bytes in seed {seed}, {name}, case {number}"
    return outcomes


def main(count: int = 10_000, seed: int = 1) -> None:
    for name in TARGETS:
        print(f"{name}: {count:,} mutations, {dict(run(name, count, seed))}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
