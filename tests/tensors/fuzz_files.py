"""Tensor files with mistakes in them: nothing may crash, hang, take memory, or be executed.

    python -m tests.tensors.fuzz_files 10000            # as many mutations of every format; prints what came of them
    python -m tests.tensors.fuzz_files 10000 torch npz  # of these
"""

import codecs
import faulthandler
import io
import itertools
import json
import math
import os
import pickle
import random
import resource
import sys
import tempfile
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from diag.tensors.dump import ReadError, Tensor
from diag.tensors.elements import itemsize
from diag.tensors.files import Format, format_of, npy, npz, raw_bin, safetensors, torch_legacy, torch_zip

DATA = Path(__file__).parent / "data"
MOST_S = 1.0
MOST_BYTES = 4 << 20
"""Above the file's own size, times `PER_BYTE`: an object of Python's takes some hundred bytes for one or two of a pickle."""
PER_BYTE = 256
FORBIDDEN = ("exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "socket.connect", "open.write")
NUMBERS = (0, 1, 2, 7, 8, 63, 64, 255, 256, 65535, 65536, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 40) + 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
WORDS = (
    b"-1", b"0", b"99999999999999999999", b"1e9", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"'", b'"', b"(", b")", b",", b":", b"<f4", b">c16", b"|O", b"<V2", b"|S9",
    b"F32", b"F4", b"BF16", b"__metadata__", b"\\ud800", b"\xff", b"../", b"\0", b".", b"(lp0\n", b"cposix\nsystem\n", b"R", b"Q", b"h\x00", b"q\x00", b"2", b"0", b"\x85", b"t", b"}", b"]", b"N",
)  # fmt: skip


class Canary:
    """Touches a file when somebody unpickles it."""

    path = Path("/nowhere")

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


class Guard:
    """Sees what Python is asked to do while a file is read."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._event)

    def _event(self, event: str, args: tuple[object, ...]) -> None:
        if self.on and event in FORBIDDEN and not (event == "import" and args[0] in sys.modules):
            self.seen.append(f"{event} {args!r:.200}")


GUARD = Guard()


def mutated(seed: bytes, noise: random.Random) -> bytes:
    """A few mistakes of the kinds that disks, networks and people make."""
    data = bytearray(seed)
    for _ in range(noise.choice((1, 1, 1, 2, 3, 8))):
        at = noise.randrange(len(data) + 1)
        match noise.randrange(8):
            case 0:
                data[at : at + 1] = bytes([noise.randrange(256)])
            case 1 if at < len(data):
                data[at] ^= 1 << noise.randrange(8)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + noise.randrange(1, 40)]
            case 4:
                data[at:at] = noise.randbytes(noise.randrange(1, 40))
            case 5:
                number = noise.choice(NUMBERS).to_bytes(8, "little")[: noise.choice((1, 2, 4, 8))]
                data[at : at + len(number)] = number
            case 6:
                word = noise.choice(WORDS)
                data[at : at + noise.choice((0, len(word)))] = word
            case _:
                other = noise.randrange(len(data) + 1)
                data[at:at] = data[other : other + noise.randrange(1, 200)]
    return bytes(data) or b"x"


def _head_mutated(seed: bytes, noise: random.Random, start: int, end: int, length_bytes: int) -> bytes:
    """The header alone changed, and its length put right: what a lying writer makes."""
    head = mutated(seed[start:end], noise)
    most = (1 << 8 * length_bytes) - 1
    return seed[: start - length_bytes] + min(len(head), most).to_bytes(length_bytes, "little") + head + seed[end:]


def _npy(seed: bytes, noise: random.Random) -> bytes:
    start, width = (10, 2) if seed[6] == 1 else (12, 4)
    return _head_mutated(seed, noise, start, start + int.from_bytes(seed[8:start], "little"), width)


def _safetensors(seed: bytes, noise: random.Random) -> bytes:
    return _head_mutated(seed, noise, 8, 8 + int.from_bytes(seed[:8], "little"), 8)


def _members(seed: bytes, noise: random.Random) -> bytes:
    """One member changed, the archive sound again: directory and checksums fit."""
    with zipfile.ZipFile(io.BytesIO(seed)) as old:
        members = [(info.filename, old.read(info)) for info in old.infolist()]
    pickles = [index for index, (name, _content) in enumerate(members) if name.endswith(".pkl")]
    chosen = noise.choice(pickles) if pickles and noise.random() < 0.8 else noise.randrange(len(members))
    out = io.BytesIO()
    method = noise.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method) as new:
        for index, (name, content) in enumerate(members):
            changed = content if index != chosen else _npy(content, noise) if name.endswith(".npy") else mutated(content, noise)
            new.writestr(name, changed)
    return out.getvalue()


def _directory(seed: bytes, noise: random.Random) -> bytes:
    """Only the zip's own records changed."""
    at = seed.rindex(b"PK\x05\x06")
    start = int.from_bytes(seed[at + 16 : at + 20], "little")
    return seed[:start] + mutated(seed[start:], noise)


def _pickle(seed: bytes, noise: random.Random) -> bytes:
    """Only the part before the content changed, its length kept: storages stay where they were."""
    end = min(len(seed), 900)
    head = mutated(seed[:end], noise)[:end]
    return head.ljust(end, b".") + seed[end:]


class Kind:
    """One format: its reader, its seeds, its ways to go wrong."""

    def __init__(self, module: Format, suffix: str, seeds: list[bytes], ways: list[Callable[[bytes, random.Random], bytes]]) -> None:
        self.module = module
        self.suffix = suffix
        self.seeds = seeds
        self.ways = [mutated, *ways]


def kinds() -> dict[str, Kind]:
    """All formats with the samples of their owners' packages, and a canary in those that could be executed."""
    torch = sorted((DATA / "torch").glob("*.p*"))
    zipped = [path.read_bytes() for path in torch if path.read_bytes()[:2] == b"PK"]
    pickled = [path.read_bytes() for path in torch if path.read_bytes()[:2] != b"PK"]
    return {
        "npy": Kind(npy, ".npy", [*_read("numpy/*.npy"), _objects()], [_npy, _npy]),
        "npz": Kind(npz, ".npz", _read("numpy/*.npz"), [_members, _directory]),
        "safetensors": Kind(safetensors, ".safetensors", _read("safetensors/*.safetensors"), [_safetensors, _safetensors]),
        "torch": Kind(torch_zip, ".pt", [*zipped, *(_planted(seed) for seed in zipped)], [_members, _members, _directory]),
        "legacy": Kind(torch_legacy, ".pt", [*pickled, *(pickle.dumps({"a": Canary(), "b": np.arange(3)}, protocol) for protocol in range(6))], [_pickle]),
        "raw": Kind(raw_bin, ".bin", [json.dumps({"dtype": "bfloat16", "shape": [4, 3], "order": "F", "byteorder": "big", "offset": 0}).encode()], []),
    }


def _read(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(DATA.glob(pattern))]


def _objects() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([Canary()], dtype=object), allow_pickle=True)
    return out.getvalue()


def _planted(seed: bytes) -> bytes:
    """A sample of torch with the canary in front of what torch wrote."""
    out = io.BytesIO()
    evil = pickle.dumps(Canary(), 2)[2:-1]
    with zipfile.ZipFile(io.BytesIO(seed)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            new.writestr(info.filename, content[:2] + evil + b"0" + content[2:] if info.filename.endswith(".pkl") else content)
    return out.getvalue()


def read(module: Format, path: Path) -> str:
    """Read a file's descriptions and load what is no range of it; how that ended. Raises whatever is a mistake of the reader."""
    size = path.stat().st_size
    tensors = unread = 0
    try:
        format_of(path, path.read_bytes()[:4096])
        for item in itertools.islice(module.read(path), 10_000):
            if isinstance(item, Tensor):
                tensors += 1
                _check(item, size)
            else:
                unread += 1
                assert item.reason and len(item.reason) < 600, item
                item.source.encode()
                item.reason.encode()
    except ReadError as error:
        assert str(error) and len(str(error)) < 600, error
        return "refused"
    return "read in part" if tensors and unread else "read as if it were sound" if tensors else "not read"


def _check(tensor: Tensor, size: int) -> None:
    """A description that a colleague may map without looking: inside of the file, or loaded in full."""
    tensor.name.encode()
    assert len(tensor.shape) <= 32 and min(tensor.shape, default=0) >= 0, tensor
    strides = tensor.strides
    cells = math.prod(tensor.shape)
    if strides is not None and cells:
        assert len(strides) == len(tensor.shape), tensor
        cells = 1 + sum((axis - 1) * step for axis, step in zip(tensor.shape, strides, strict=True))
    wanted = cells * itemsize(tensor.dtype)
    if tensor.load is None:
        assert tensor.offset >= 0 and tensor.offset + wanted <= size, f"{tensor} in {size} bytes"
        return
    assert tensor.offset == 0, tensor
    try:
        loaded = len(tensor.load().cast("B"))
    except ReadError as error:
        assert str(error)
    else:
        assert loaded == wanted, f"{loaded} bytes for {tensor}"


def check(kind: Kind, path: Path, data: bytes) -> str:
    """`read`, and that it took neither long nor much, and ran nothing."""
    if kind.module is raw_bin:
        path.with_suffix(".json").write_bytes(data)
        path.write_bytes(bytes(24))
    else:
        path.write_bytes(data)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    started = time.process_time()
    GUARD.seen.clear()
    GUARD.on = True
    try:
        outcome = read(kind.module, path)
    finally:
        GUARD.on = False
    took_s = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    assert not GUARD.seen, f"ran: {GUARD.seen}"
    assert took_s < MOST_S, f"{took_s:.1f} s"
    assert peak - before < MOST_BYTES + PER_BYTE * len(data), f"{peak - before} bytes"
    assert not Canary.path.exists(), "the canary ran"
    return outcome


def run(name: str, rounds: int, folder: Path, *, start: int = 0) -> Counter[str]:
    """That many mutations of one format; raises with what the file was."""
    Canary.path = folder / "canary"
    kind = kinds()[name]
    path = folder / f"mutated{kind.suffix}"
    outcomes: Counter[str] = Counter()
    for codec in ("cp437", "latin-1", "raw-unicode-escape", "unicode-escape"):  # Python imports its own when they are first used
        codecs.lookup(codec)
    for seed in kind.seeds:  # sound ones first: they import what is imported late
        check_sound = path if kind.module is not raw_bin else path.with_suffix(".json")
        check_sound.write_bytes(seed)
        path.touch()
        read(kind.module, path)
    tracemalloc.start()
    try:
        for number in range(start, start + rounds):
            noise = random.Random(f"{name} {number}")
            data = noise.choice(kind.ways)(noise.choice(kind.seeds), noise)
            try:
                outcomes[check(kind, path, data)] += 1
            except Exception as error:
                raise AssertionError(f"{name} mutation {number}: {type(error).__name__}: {error}; file: {data[:4000].hex()}") from error
    finally:
        tracemalloc.stop()
    return outcomes


def _main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    for name in sys.argv[2:] or kinds():
        faulthandler.dump_traceback_later(1200, exit=True)
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            outcomes = run(name, rounds, Path(folder))
            print(f"{name}: {rounds} mutated files in {time.monotonic() - started:.0f} s: {dict(outcomes)}", flush=True)


if __name__ == "__main__":
    _main()
