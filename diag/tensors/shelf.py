"""A long list that is kept small: its values are packed and compressed in chunks, and unpacked as they are asked for.

A dump may hold 200,000 tensors of a few numbers each, and what is said of each is ten times as long as its content.
"""

import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")
CHUNK = 64
"""Values that are packed together."""
UNPACKED = 32
"""Chunks that stay unpacked for those who do not go in order."""


class Shelf(Sequence[T], Generic[T]):
    """Values of one dataclass (or tuple type), in the order they were added. What comes out equals what went in, but is not the same object.

    What cannot be packed (a function in it, a file name that is no UTF-8, a number of more than 64 bits) stays as it is.
    """

    def __init__(self, kind: Any, items: Iterable[T] = ()) -> None:
        self._pack: Callable[[object], bytes] = msgspec.msgpack.Encoder(enc_hook=_plain).encode
        self._unpack: Callable[[bytes], list[T]] = msgspec.msgpack.Decoder(list[kind], dec_hook=_whole).decode
        self._chunks: list[bytes | list[T]] = []
        self._last: list[T] = []
        self._unpacked: OrderedDict[int, list[T]] = OrderedDict()
        self.extend(items)

    def append(self, item: T) -> None:
        """Add one at the end."""
        self._last.append(item)
        if len(self._last) == CHUNK:
            self._chunks.append(self._packed(self._last))
            self._last = []

    def extend(self, items: Iterable[T]) -> None:
        """Add some at the end."""
        for item in items:
            self.append(item)

    def __len__(self) -> int:
        return CHUNK * len(self._chunks) + len(self._last)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(f"{at} of {len(self)}")
        return self._chunk(number // CHUNK)[number % CHUNK]

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:  # in order nothing needs to be kept
            yield from self._opened(chunk)
        yield from self._last

    def _chunk(self, number: int) -> list[T]:
        if number == len(self._chunks):
            return self._last
        if number not in self._unpacked:
            self._unpacked[number] = self._opened(self._chunks[number])
            if len(self._unpacked) > UNPACKED:
                self._unpacked.popitem(last=False)
        self._unpacked.move_to_end(number)
        return self._unpacked[number]

    def _packed(self, items: list[T]) -> bytes | list[T]:
        try:
            packed = self._pack(items)
            self._unpack(packed)  # a file may hold a number where its format wants a text
        except (TypeError, OverflowError, UnicodeEncodeError, msgspec.ValidationError):
            return items
        return zlib.compress(packed, 1)

    def _opened(self, chunk: bytes | list[T]) -> list[T]:
        return self._unpack(zlib.decompress(chunk)) if isinstance(chunk, bytes) else chunk


class Picked(Sequence[T], Generic[T]):
    """Values of a sequence in another order."""

    def __init__(self, items: Sequence[T], numbers: Iterable[int]) -> None:
        self._items, self._numbers = items, array("q", numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        return [self._items[number] for number in self._numbers[at]] if isinstance(at, slice) else self._items[self._numbers[at]]


def _plain(value: object) -> object:
    """What msgspec does not know: paths, and numbers of numpy."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(type(value).__name__)


def _whole(kind: Any, value: Any) -> Any:
    """A path again. Functions are never packed."""
    return kind(value)
