"""Finds the tensors in the description of what torch.save or pickle wrote: dicts and lists become dotted keys.

    {"layers": [{"k": tensor}], "meta": {"rank": 0}}   ->   layers.0.k, and meta.rank as a note

Whatever is neither a tensor nor plain data is named and left alone: nothing a pickle asks for is looked up or called.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path

import numpy as np

from diag.decode.decoded import Array
from diag.decode.dtypes import BadArray
from diag.decode.pickle_ import foreign
from diag.decode.pickle_arrays import array_of
from diag.decode.pickle_nodes import Bag, Call, Global, Node, Pairs, Persistent
from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.elements import named
from diag.tensors.files.extents import Extent, check_shape, extent
from diag.tensors.files.regular import Regular, opened
from diag.tensors.files.torch_storages import NEEDED, Storage, Storages, is_tensor, reference, view

MAX_TENSORS = 200_000
MAX_DEPTH = 60
MAX_KEY = 1_024
MAX_NOTES = 1_000
MAX_STRANGERS = 100
REBUILDERS = ("torch._utils._rebuild_",)
TYPE_NAME = re.compile(r"torch\.(?:storage\.)?(?:\w+Storage|(?:bits|q?u?int|b?float|complex)\d\w*|bool|half|double|float|long|int|short)")
"""torch's element types and storages, those included that are not read: the tensor says so itself."""
Note = str | int | float | bool


class Found:
    """One walk over one file's object. `tensors()` is the only thing to call; `notes` is filled on the way.

    `describe` finds the same object once more: a tensor whose bytes are part of the pickle is loaded by it, so that
    a hundred thousand descriptions do not hold as many files open.
    """

    def __init__(self, path: Path, root: Node, names: dict[str, None], storages: Storages, describe: "Describe", end_at: int = 0) -> None:
        self.path = path
        self.root = root
        self.names = names
        self.storages = storages
        self.describe = describe
        self.end_at = end_at
        self.notes: dict[str, Note] = {}
        self.inside: dict[str, memoryview] | None = None
        """Bytes of those tensors that are part of the pickle, by key; None: not kept."""
        self._strangers: set[str] = set()
        self._keys: set[str] = set()
        self._containers: dict[int, tuple[str, int]] = {}
        """id -> (key, tensors inside; -1 while they are counted)"""
        self._count = 0

    def tensors(self) -> Iterator[Tensor | Unread]:
        """Every tensor in the order the file has them, and what is not read. Never raises for what a tensor lacks."""
        for item in self._visit(self.root, "", 0):
            yield item
            if self._count >= MAX_TENSORS:
                yield Unread(str(self.path), f"holds more than {MAX_TENSORS} tensors; the rest was not looked at")
                return
        for name in foreign(self.names):
            yield from self._stranger(name, "")

    def _visit(self, node: Node, key: str, depth: int) -> Iterator[Tensor | Unread]:
        if isinstance(node, (bool, int, float, str)):
            self._note(key, node)
        elif isinstance(node, Global):
            yield from self._stranger(node.name, key)
        elif isinstance(node, Call) and is_tensor(node):
            yield self._tensor(node, key)
        elif isinstance(node, Call) and node.name.startswith(REBUILDERS):
            self._count += 1
            self._strangers.add(node.name)
            yield Unread(self._source(key), f"is made by {_printable(node.name[:120])}: only dense tensors with a storage are read; save a dense copy")
        elif isinstance(node, Persistent):
            yield self._storage(node, key)
        elif isinstance(node, (Call, Pairs, Bag, list, tuple)):
            yield from self._container(node, key, depth)

    def _container(self, node: Call | Pairs | Bag | list[Node] | tuple[Node, ...], key: str, depth: int) -> Iterator[Tensor | Unread]:
        known = self._containers.get(id(node))
        if known is not None:
            first, inside = known
            if inside > 0:
                yield Unread(self._source(key), f"is the same object as {first or 'the whole file'}, which is compared")
            return
        if depth >= MAX_DEPTH or len(key) > MAX_KEY:
            yield Unread(self._source(key[:80]), f"lies deeper than {MAX_DEPTH} levels or has a name of more than {MAX_KEY} characters; not looked at")
            return
        self._containers[id(node)] = (key, -1)
        before = self._count
        if isinstance(node, Call):
            yield from self._call(node, key, depth)
        else:
            for part, value in _parts(node):
                yield from self._visit(value, f"{key}.{part}" if key else part, depth + 1)
        self._containers[id(node)] = (key, self._count - before)

    def _call(self, node: Call, key: str, depth: int) -> Iterator[Tensor | Unread]:
        """An object: an array of numpy, a plain container, or a stranger whose plain parts are still looked at."""
        try:
            array = array_of(node)
        except BadArray as error:
            yield Unread(self._source(key), str(error))
            return
        if array is not None and node.name.endswith(".scalar") and array.values is not None:
            yield from self._visit(array.values.item(), key, depth)
            return
        if array is not None:
            yield self._array(array, key)
            return
        if isinstance(node.func, Global):
            yield from self._stranger(node.name, key)
        elif isinstance(node.func, (Call, Pairs, Bag, list, tuple)):
            yield from self._visit(node.func, f"{key}.()" if key else "()", depth + 1)
        for part, value in _parts(node):
            yield from self._visit(value, f"{key}.{part}" if key else part, depth + 1)

    def _tensor(self, node: Call, key: str) -> Tensor | Unread:
        self._count += 1
        try:
            seen = view(node, self.storages)
        except ReadError as error:
            return Unread(self._source(key), str(error))
        return self._placed(key, seen.dtype, seen.shape, seen.extent, seen.storage)

    def _storage(self, node: Persistent, key: str) -> Tensor | Unread:
        """A storage that was saved itself: as one run of elements."""
        self._count += 1
        try:
            held = reference(node)
            storage = self.storages(held)
            dtype = held.dtype or "uint8"
            shape = (held.elements,)
            place = extent(dtype, shape, (1,), 0, storage.size_bytes)
        except ReadError as error:
            return Unread(self._source(key), str(error))
        return self._placed(key, dtype, shape, place, storage)

    def _placed(self, key: str, dtype: str, shape: tuple[int, ...], place: Extent, storage: Storage) -> Tensor | Unread:
        offset, load = storage.offset + place.start_bytes, None
        if storage.inside is not None:
            offset, load = 0, self._kept(key, storage.inside[place.start_bytes : place.start_bytes + place.span_bytes])
        elif storage.load is not None:
            offset, load = 0, storage.load(place.start_bytes, place.span_bytes)
        return self._named(Tensor(key, dtype, shape, self.path, offset, place.strides, storage.big_endian, key, load=load))

    def _kept(self, key: str, content: memoryview) -> Callable[[], memoryview]:
        if self.inside is not None:
            self.inside.setdefault(key, content)
        return partial(_load, self.describe, self.path, key)

    def _array(self, array: Array, key: str) -> Tensor | Unread:
        """An array of numpy's whose bytes are part of the pickle."""
        self._count += 1
        values = array.values
        if named(array.dtype) is None or (values is None and array.raw is None):
            return Unread(self._source(key), f"is an array of {array.dtype[:40]}, which is not read")
        try:
            check_shape(array.shape)
        except ReadError as error:
            return Unread(self._source(key), str(error))
        content = memoryview(array.raw or b"")
        if values is not None and self.inside is not None:
            content = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        big_endian = values is not None and values.dtype.byteorder == ">"
        return self._named(Tensor(key, array.dtype, array.shape, self.path, 0, None, big_endian, key, load=self._kept(key, content)))

    def _named(self, tensor: Tensor) -> Tensor | Unread:
        """A root tensor is called like its file; a second tensor of one name is not compared."""
        if tensor.key in self._keys:
            return Unread(self._source(tensor.key), "is there twice under this name; the first is compared")
        self._keys.add(tensor.key)
        if tensor.key:
            return tensor
        return Tensor(
            self.path.stem, tensor.dtype, tensor.shape, tensor.file, tensor.offset, tensor.strides, tensor.big_endian, load=tensor.load
        )  # fmt: skip

    def _stranger(self, name: str, key: str) -> Iterator[Unread]:
        """Each name once: what lies inside of such objects is looked at all the same."""
        if not name or _known(name) or name in self._strangers or len(self._strangers) > MAX_STRANGERS:
            return
        self._strangers.add(name)
        if len(self._strangers) > MAX_STRANGERS:
            yield Unread(str(self.path), f"holds more than {MAX_STRANGERS} names that no tensor needs; none was executed")
        else:
            yield Unread(self._source(key), f"holds {_printable(name[:120])}, which no tensor needs; not executed")

    def _note(self, key: str, value: Note) -> None:
        if len(self.notes) < MAX_NOTES and key:
            self.notes[key] = value[:MAX_KEY] if isinstance(value, str) else value

    def _source(self, key: str) -> str:
        return f"{self.path}#{key}" if key else str(self.path)


def _load(describe: "Describe", path: Path, key: str) -> memoryview:
    """The bytes of a tensor that are part of its pickle. ReadError: the file changed or is gone."""
    try:
        facts = path.stat()
    except OSError as error:
        raise ReadError(f"is gone: {error.strerror}") from error
    content = _inside(describe, path, facts.st_size, facts.st_mtime_ns).get(key)
    if content is None:
        raise ReadError(f"changed while it was read: {key[:80]!r} is no longer there; dump again")
    return content


@lru_cache(maxsize=4)
def _inside(describe: "Describe", path: Path, size: int, mtime_ns: int) -> dict[str, memoryview]:
    """`size` and `mtime_ns` make a file that changed another one."""
    with opened(path) as file:
        found = describe(path, file)
        found.inside = {}
        for _tensor in found.tensors():
            pass
    return found.inside


Describe = Callable[[Path, Regular], Found]


def _parts(node: Call | Pairs | Bag | list[Node] | tuple[Node, ...]) -> Iterator[tuple[str, Node]]:
    """(name, value) of what a container or an object holds; a key that was set twice counts once, as in Python."""
    if isinstance(node, Call):
        states = node.state if isinstance(node.state, tuple) else (node.state,)
        yield from _parts(node.args) if isinstance(node.args, tuple) else ()
        for part in (node.kwargs, *states, Pairs(node.pairs)):
            if isinstance(part, Pairs):
                yield from _parts(part)
            elif isinstance(part, (Call, list, tuple, Bag)):
                yield "state", part
        yield from ((str(index), item) for index, item in enumerate(node.items))
    elif isinstance(node, Pairs):
        last = {_key(key, index): value for index, (key, value) in enumerate(node.pairs)}
        yield from last.items()
    else:
        items = node.items if isinstance(node, Bag) else node
        yield from ((str(index), item) for index, item in enumerate(items))


def _key(key: Node, index: int) -> str:
    if isinstance(key, str):
        return _printable(key)
    if isinstance(key, (int, float)) and abs(key) < 1 << 63:
        return str(key)
    if isinstance(key, tuple) and all(isinstance(part, (str, int)) and not (isinstance(part, int) and abs(part) >= 1 << 63) for part in key):
        return _printable("_".join(map(str, key)))
    return f"[{index}]"


def _printable(text: str) -> str:
    """Half characters, which no output takes, are spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


@cache
def _known(name: str) -> bool:
    """Does a tensor, or the plain data around it, need that name?"""
    if name in NEEDED or not foreign({name: None}):
        return True
    return TYPE_NAME.fullmatch(name) is not None
