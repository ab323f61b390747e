"""Sums of squares of many small float16 arrays at once: each by itself costs four times as much.

The bits of a float16 without its sign, shifted by 13 and read as float32, are its absolute value times 2^-112, also of
the smallest ones; infinities and NaN become ordinary numbers, so they are looked for in the bits.
"""

import numpy as np
import numpy.typing as npt

CAPACITY = 1 << 16
"""Elements; what is worked on stays in the processor's cache."""
LARGEST = CAPACITY // 4
HALF = np.dtype("<f2")
MAGNITUDE = np.uint16(0x7FFF)
INFINITY = 0x7C00
SHIFT = np.uint32(13)
SCALE = np.float32(2.0**112)


class Halves:
    """Elements of float16 arrays, one after the other, until `sums` is asked for."""

    def __init__(self) -> None:
        self._bits = np.empty(CAPACITY, np.uint16)
        self._wide = np.empty(CAPACITY, np.uint32)
        self.ends: list[int] = [0]

    def room(self, count: int) -> bool:
        return self.ends[-1] + count <= CAPACITY

    def put(self, elements: npt.NDArray[np.uint16]) -> None:
        """The bits of one array; there must be room."""
        start = self.ends[-1]
        end = start + elements.size
        self._bits[start:end] = elements
        self.ends.append(end)

    def sums(self) -> list[float]:
        """The sum of squares of each; infinite where an element is infinite or NaN."""
        end = self.ends[-1]
        bits = np.bitwise_and(self._bits[:end], MAGNITUDE)
        wide = self._wide[:end]
        wide[:] = bits
        np.left_shift(wide, SHIFT, out=wide)
        numbers = wide.view(np.float32)
        np.multiply(numbers, SCALE, out=numbers)
        parts = [numbers[start:stop] for start, stop in zip(self.ends, self.ends[1:], strict=False)]
        found = [float(part.dot(part)) for part in parts]
        if end and int(bits.max()) >= INFINITY:
            odd = np.add.accumulate(bits >= INFINITY, dtype=np.int64)
            for number, (start, stop) in enumerate(zip(self.ends, self.ends[1:], strict=False)):
                if odd[stop - 1] - (odd[start - 1] if start else 0):
                    found[number] = float("inf")
        return found

    def array(self, number: int) -> bytes:
        """The bytes of that one again."""
        return self._bits[self.ends[number] : self.ends[number + 1]].tobytes()

    def clear(self) -> None:
        self.ends = [0]
