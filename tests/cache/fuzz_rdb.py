"""RDB and append-only files with mistakes in them: nothing may crash, hang, or take memory.

    python -m tests.cache.fuzz_rdb 20000     # as many mutations; prints what came of them
"""

import contextlib
import random
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anycrc

from diag.cache.offline.contents import opened
from diag.cache.offline.lzf import Unpackable
from diag.errors import BadInput

END = b"\xff" + bytes(8)
MOST_S = 1.0
MOST_BYTES = 24 << 20
VALUE_BYTES = 1 << 20
LENGTHS = (b"\x3f", b"\x7f\xff", b"\x80\xff\xff\xff\xff", b"\x81" + b"\xff" * 8, b"\x81" + b"\x00\x00\x08" + bytes(5), b"\xc3\x01\x81\x7f" + b"\xff" * 7)


def text(data: bytes) -> bytes:
    """A plain string as RDB files have it."""
    size = len(data)
    return (bytes([size]) if size < 64 else bytes([0x40 | size >> 8, size & 255]) if size < 16384 else b"\x80" + size.to_bytes(4, "big")) + data


def dump(body: bytes, magic: bytes = b"REDIS0011") -> bytes:
    """A whole file with a right checksum."""
    data = magic + body + b"\xff"
    return data + anycrc.Model("CRC64-REDIS").calc(data).to_bytes(8, "little")


def mutated(seed: bytes, noise: random.Random) -> bytes:
    """A few mistakes of the kinds that disks, networks and people make."""
    data = bytearray(seed)
    for _ in range(noise.choice((1, 1, 1, 2, 3, 8))):
        at = noise.randrange(len(data) + 1)
        match noise.randrange(7):
            case 0:
                data[at : at + 1] = bytes([noise.randrange(256)])
            case 1:
                if at < len(data):
                    data[at] ^= 1 << noise.randrange(8)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + noise.randrange(1, 40)]
            case 4:
                data[at:at] = noise.randbytes(noise.randrange(1, 40))
            case 5:
                data[at : at + 1] = noise.choice(LENGTHS)
            case _:
                other = noise.randrange(len(data) + 1)
                data[at:at] = data[other : other + noise.randrange(1, 200)]
    return bytes(data) or b"R"


def read(path: Path) -> str:
    """Read everything in a file; how that ended. Raises whatever is a mistake of the reader."""
    try:
        with opened(path) as contents:
            for held in contents.items():
                contents.hash_of(held)
                if held.kind == "string":
                    with contextlib.suppress(Unpackable):
                        contents.value(held, VALUE_BYTES)
            return "read with notes" if contents.notes else "read as if it were sound"
    except BadInput as error:
        assert str(path) in error.message, error
        return "refused"


def check(path: Path, data: bytes) -> str:
    """`read`, and that it took neither long nor much."""
    path.write_bytes(data)
    tracemalloc.reset_peak()
    started = time.process_time()
    outcome = read(path)
    took_s = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    assert took_s < MOST_S, f"{took_s:.1f} s for {data[:2000].hex()}"
    assert peak < MOST_BYTES, f"{peak} bytes for {data[:2000].hex()}"
    return outcome


def run(seeds: Sequence[bytes], rounds: int, folder: Path, *, start: int = 0) -> Counter[str]:
    """That many mutations; raises with what the file was."""
    outcomes: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for number in range(start, start + rounds):
            noise = random.Random(number)
            data = mutated(noise.choice(seeds), noise)
            try:
                outcomes[check(folder / "mutated", data)] += 1
            except Exception as error:
                raise AssertionError(f"mutation {number}: {type(error).__name__}: {error}; file: {data[:4000].hex()}") from error
    finally:
        tracemalloc.stop()
    return outcomes


def _main() -> None:
    from tests.cache.fuzz_seeds import seeds

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        outcomes = run(seeds(Path(folder)), rounds, Path(folder))
        print(f"{rounds} mutated files in {time.monotonic() - started:.0f} s: {dict(outcomes)}")


if __name__ == "__main__":
    _main()
