"""torch's tensors as a pickle describes them: which storage, which type, where in it, which strides. No torch needed."""

from collections.abc import Callable
from typing import NamedTuple

from diag.decode.dtypes import BadArray
from diag.decode.pickle_arrays import legacy_pickles, payload
from diag.decode.pickle_nodes import Call, Global, Node, Pairs, Persistent
from diag.tensors.dump import ReadError
from diag.tensors.elements import itemsize, named
from diag.tensors.files.extents import Extent, extent

_NPU = "torch_npu.utils.storage._rebuild_npu_tensor"  # torch_npu before torch 2.1; its bytes are those of the tensor on the CPU
REBUILD = frozenset(f"torch._utils._rebuild_{kind}" for kind in ("tensor", "tensor_v2", "tensor_v3", "qtensor")) | {_NPU}
_AROUND = frozenset(f"torch._utils._rebuild_{kind}" for kind in ("parameter", "parameter_with_state", "device_tensor_from_cpu_tensor"))
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
NEEDED = REBUILD | _AROUND | {
    _FROM_TYPE, "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "torch.Tensor", "torch.serialization._get_layout",
    "torch_npu.npu._format.Format", "torch.per_tensor_affine", "torch.per_channel_affine",
}  # fmt: skip
"""Names a tensor needs beside the plain ones of diag.decode."""
MAX_WRAPPED = 4
_PICKLED_STORAGE = "torch.storage._load_from_bytes"
_QUANTISED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}


class Storage(NamedTuple):
    """A run of bytes that tensors view."""

    dtype: str
    """Its type; "" where only its tensors have one."""
    size_bytes: int
    offset: int
    """In the file; 0 with `load`."""
    load: Callable[[int, int], Callable[[], memoryview]] | None = None
    """(start, length) -> a loader of that range, where the storage is no range of the file."""
    big_endian: bool = False
    inside: memoryview | None = None
    """Its bytes, where they are part of the pickle itself."""


class Reference(NamedTuple):
    """What a pickle says of a storage that lies outside of it."""

    key: str
    dtype: str
    elements: int
    """Bytes where `dtype` is ""."""

    @property
    def size_bytes(self) -> int:
        return self.elements * (itemsize(self.dtype) if self.dtype else 1)


class View(NamedTuple):
    """One tensor of a storage."""

    dtype: str
    shape: tuple[int, ...]
    extent: Extent
    storage: Storage


Storages = Callable[[Reference], Storage]
"""Finds a storage. ReadError: it is missing or has another length."""


def is_tensor(node: Call) -> bool:
    """Would this call make a tensor?"""
    return _unwrapped(node) is not None


def view(node: Call, storages: Storages) -> View:
    """The tensor that call would make. ReadError: its parts do not fit, or its storage is not all there."""
    call = _unwrapped(node)
    if call is None or not isinstance(call.args, tuple):
        raise ReadError("is described in a way no torch writes")
    args = call.args
    if len(args) < 4:
        raise ReadError("has no storage in this file")
    notes = args[6 + call.name.endswith("_v3") : 8]
    if notes and isinstance(notes[0], Pairs) and any(value is True for _key, value in notes[0].pairs):
        raise ReadError("is stored conjugated or negated; save a resolved copy (resolve_conj, resolve_neg)")
    held, storage = _held(args[0], storages)
    dtype = _dtype(call, held)
    shape, strides, offset = _numbers(args[2]), _numbers(args[3]), args[1]
    if not isinstance(offset, int):
        raise ReadError("has an offset that is no number")
    return View(dtype, shape, extent(dtype, shape, strides, offset, storage.size_bytes), storage)


def reference(node: Persistent) -> Reference:
    """torch's ("storage", type, key, place, count[, view]). ReadError: something else."""
    pid = node.pid
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], Global):
        raise ReadError("refers to something outside of its pickle that is no storage")
    _word, kind, key, _place, count = pid[:5]
    if not isinstance(key, str) or not isinstance(count, int) or count < 0:
        raise ReadError("refers to a storage in a way no torch writes")
    if len(pid) > 5 and pid[5] is not None:
        raise ReadError("is a view of a part of a storage, as torch before 0.4 saved it; save it with a newer torch")
    short = kind.name.rpartition(".")[2].removesuffix("Storage")
    if short == "Untyped":
        return Reference(key, "", count)
    dtype = _QUANTISED.get(short.lower()) or named(short)
    if dtype is None:
        raise ReadError(f"has a storage of type {kind.name[:80]}, which is not read")
    return Reference(key, dtype, count)


def legacy_storages(data: memoryview, references: list[Reference], keys: list[str], at: int) -> tuple[dict[str, Storage], int]:
    """Where each storage of a file before 1.6 lies, and where the last one ends: the file gives counts, the object types. ReadError."""
    kinds = {one.key: one for one in references}
    found: dict[str, Storage] = {}
    for key in keys:
        if key not in kinds or key in found:
            raise ReadError(f"lists storage {key[:32]!r} {'twice' if key in found else 'and nothing refers to it'}: damaged")
        if at + 8 > len(data):
            raise ReadError(f"ends at byte {len(data)}, before storage {key[:32]!r}; it was cut short, dump again")
        size = kinds[key]._replace(elements=int.from_bytes(data[at : at + 8], "little")).size_bytes
        if at + 8 + size > len(data):
            raise ReadError(f"needs {size} bytes from byte {at + 8} for storage {key[:32]!r}, {len(data)} are stored; it was cut short, dump again")
        found[key] = Storage(kinds[key].dtype, size, at + 8)
        at += 8 + size
    return found, at


def _held(node: Node, storages: Storages) -> tuple[Reference, Storage]:
    """A storage of the file, or one that was pickled into the pickle as a file of its own."""
    if isinstance(node, Persistent):
        held = reference(node)
        return held, storages(held)
    data = payload(node.args[0]) if isinstance(node, Call) and node.name == _PICKLED_STORAGE and isinstance(node.args, tuple) and node.args else None
    if data is None:
        raise ReadError("has no storage in this file")
    try:
        root, keys, _names, at = legacy_pickles(data)
    except BadArray as error:
        raise ReadError(f"has a storage that cannot be read: {error}; dump again") from error
    if not isinstance(root, Persistent):
        raise ReadError("has a storage that is none")
    held = reference(root)
    found, _end = legacy_storages(memoryview(data), [held], keys, at)
    storage = found.get(held.key)
    if storage is None or storage.size_bytes != held.size_bytes:
        raise ReadError(f"announces a storage of {held.size_bytes} bytes that is not there; dump again")
    return held, storage._replace(offset=0, inside=memoryview(data)[storage.offset : storage.offset + storage.size_bytes])


def _unwrapped(node: Call) -> Call | None:
    """The innermost call that makes the tensor, out of parameters and subclasses; None: it makes none."""
    for _ in range(MAX_WRAPPED):
        if node.name in REBUILD:
            return node
        args = node.args if isinstance(node.args, tuple) else ()
        if node.name in _AROUND and args and isinstance(args[0], Call):
            node = args[0]
        elif node.name == _FROM_TYPE and len(args) > 2 and isinstance(args[0], Global):
            node = Call(args[0], args[2])
        else:
            return None
    return None


def _dtype(call: Call, held: Reference) -> str:
    typed = call.args[6] if call.name.endswith("_v3") and len(call.args) > 6 else None
    if typed is None:
        if not held.dtype:
            raise ReadError("has no element type")
        return held.dtype
    name = named(typed.name.rpartition(".")[2]) if isinstance(typed, Global) else None
    try:
        itemsize(name or "")
    except KeyError:
        raise ReadError(f"has elements of type {typed.name[:80] if isinstance(typed, Global) else 'unknown'}, which is not read") from None
    return name or ""


def _numbers(node: Node) -> tuple[int, ...]:
    parts = node.args[0] if isinstance(node, Call) and node.name == "torch.Size" and isinstance(node.args, tuple) and node.args else node
    if not isinstance(parts, (tuple, list)) or not all(isinstance(part, int) for part in parts):
        raise ReadError("has a shape or strides that are no numbers")
    return tuple(parts)
