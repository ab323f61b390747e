"""Finds the arrays in a pickle's description: numpy in all its spellings, torch tensors with their storage inside."""

from collections.abc import Callable
from typing import Any

import numpy as np

from diag.decode.decoded import Array, Buffer
from diag.decode.dtypes import BadArray, build, framework_name, itemsize, strided
from diag.decode.pickle_machine import MAX_MEMO, MAX_OPS, Machine
from diag.decode.pickle_nodes import Call, Corrupt, Global, Node, Pairs, Persistent, Truncated, Unsupported

PLAIN_KINDS = frozenset("biufc")
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
TORCH_PROTOCOL = 1001
MAX_STORAGES = 64
BYTE_TYPES = frozenset(
    f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("bytes", "bytearray")
)

Storages = Callable[[Persistent], tuple[str, Buffer] | None]
"""A torch storage by its persistent id -> (element type or "" if untyped, bytes)."""


def array_of(node: Call, storages: Storages | None = None) -> Array | None:
    """The array this call would make, or None if it makes none. BadArray: it would, but its parts do not fit."""
    recognise = RECOGNISERS.get(node.name.replace("numpy._core.", "numpy.core."))
    if recognise is None or not isinstance(node.args, tuple):
        return None
    try:
        return recognise(node, storages)
    except BadArray:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise BadArray(f"{node.name} with parts that do not fit") from error


def payload(node: Node) -> Buffer | None:
    """Bytes, also in the disguise protocols 0 to 2 need: a text and its way back, or `bytes()` for none."""
    if isinstance(node, memoryview):
        return node
    if not isinstance(node, Call) or not isinstance(node.args, tuple):
        return None
    if node.name == "_codecs.encode" and node.args and isinstance(node.args[0], str):
        return node.args[0].encode("latin-1", "replace")
    if node.name in BYTE_TYPES:
        return payload(node.args[0]) if node.args else b""
    return None


def _shape(node: Node) -> tuple[int, ...]:
    axes = (node,) if isinstance(node, int) else node
    if not isinstance(axes, tuple) or not all(isinstance(axis, int) for axis in axes):
        raise BadArray("a shape that is none")
    return axes


def _dtype(node: Node) -> str | np.dtype[Any]:
    """`numpy.dtype('f2')` with its byte order. Names, not numpy, decide; object arrays are "object"."""
    if not isinstance(node, Call) or node.name != "numpy.dtype" or not isinstance(node.args, tuple) or not node.args:
        raise BadArray("an element type that is none")
    spec = node.args[0]
    if isinstance(spec, Global):
        name = spec.name.rpartition(".")[2]
        return framework_name(name) or name
    if not isinstance(spec, str) or len(spec) > 16:
        raise BadArray("an element type that is none")
    order = node.state[1] if isinstance(node.state, tuple) and len(node.state) > 1 else "="
    kind, width = spec.lstrip("<>|=")[:1], spec.lstrip("<>|=")[1:]
    if kind not in PLAIN_KINDS or not width.isdigit():
        return {"O": "object", "U": "str", "S": "bytes", "V": "void", "M": "datetime64", "m": "timedelta64"}.get(
            kind, "other"
        )
    return np.dtype((order if isinstance(order, str) and order in "<>" else "") + kind + width)


def _array(dtype: str | np.dtype[Any], shape: tuple[int, ...], data: Node, *, fortran: bool) -> Array:
    if isinstance(dtype, str) and framework_name(dtype) is None:
        return Array(dtype, shape)  # texts, objects: a type to compare, no numbers to look at
    content = payload(data)
    if content is None:
        raise BadArray("an array whose content is no bytes")
    return build(dtype, shape, content, fortran=fortran)


def _reconstruct(node: Call, _storages: Storages | None) -> Array:
    if not isinstance(node.state, tuple) or len(node.state) < 5:
        raise BadArray("an array without content")
    _version, shape, dtype, fortran, data = node.state[:5]  # what follows belongs to a subclass
    return _array(_dtype(dtype), _shape(shape), data, fortran=bool(fortran))


def _frombuffer(node: Call, _storages: Storages | None) -> Array:
    data, dtype, shape, order = node.args
    return _array(_dtype(dtype), _shape(shape), data, fortran=order == "F")


def _scalar(node: Call, _storages: Storages | None) -> Array:
    dtype, data = node.args
    return _array(_dtype(dtype), (), data, fortran=False)


def _rebuild_tensor(node: Call, storages: Storages | None) -> Array | None:
    """torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …) and _v3(…, dtype, …)."""
    storage = node.args[0]
    found: tuple[str, Buffer] | None = None
    if isinstance(storage, Persistent):
        found = storages(storage) if storages is not None else None
    elif isinstance(storage, Call) and storage.name == "torch.storage._load_from_bytes":
        data = payload(storage.args[0])
        found = None if data is None else _only_storage(data)
    if found is None:
        return None
    kind, content = found
    typed = node.args[6] if node.name.endswith("_v3") and len(node.args) > 6 else None
    name = (framework_name(typed.name) if isinstance(typed, Global) else None) or kind
    if name == "":
        raise BadArray("a tensor without an element type")
    return strided(name, _shape(node.args[2]), _shape(node.args[3]), int(node.args[1]), content)


def _rebuild_parameter(node: Call, storages: Storages | None) -> Array | None:
    return array_of(node.args[0], storages) if isinstance(node.args[0], Call) else None


RECOGNISERS: dict[str, Callable[[Call, Storages | None], Array | None]] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _frombuffer,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
}


def storage_id(node: Persistent) -> tuple[str, str, int]:
    """(key, element type or "", number of elements) of torch's ("storage", type, key, place, count[, view])."""
    pid = node.pid
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], Global):
        raise BadArray("a storage that is none")
    kind = pid[1].name.rpartition(".")[2].removesuffix("Storage")
    if not isinstance(pid[2], str) or not isinstance(pid[4], int):
        raise BadArray("a storage that is none")
    return pid[2], framework_name(kind) or "", pid[4]


def _only_storage(data: Buffer) -> tuple[str, Buffer] | None:
    root, found, _names = legacy(data)
    if not isinstance(root, Persistent):
        return None
    return found.get(storage_id(root)[0])


class Short(BadArray):
    """The bytes end before the storages do: at least `needs` from the start."""

    def __init__(self, said: str, needs: int) -> None:
        super().__init__(said)
        self.needs = needs


def legacy(data: Buffer) -> tuple[Node, dict[str, tuple[str, Buffer]], dict[str, None]]:
    """torch's format before zip: five pickles, then per storage its element count and its bytes.

    Returns the description of the object, the storages by key, the globals named. BadArray: not that format; Short: cut.
    """
    root, keys, named, at = legacy_pickles(data)
    if len(keys) > MAX_STORAGES:
        raise BadArray("not the format torch stores")
    kinds = {key: kind for key, kind, _count in map(storage_id, persistent(root))}
    storages: dict[str, tuple[str, Buffer]] = {}
    for key in keys:
        count = int.from_bytes(data[at : at + 8], "little")
        kind = kinds.get(key, "")
        size = count * (itemsize(kind) if kind else 1)
        content = memoryview(data)[at + 8 : at + 8 + size]
        if len(content) != size:
            raise Short(f"torch storage of {size} bytes, {len(content)} are stored", at + 8 + size)
        storages[key] = (kind, content)
        at += 8 + size
    return root, storages, named


def legacy_pickles(data: Buffer, *, max_ops: int = MAX_OPS, max_memo: int = MAX_MEMO) -> tuple[Node, list[str], dict[str, None], int]:
    """The five pickles of that format: the object, its storages' keys in file order, the globals named, where the storages begin.

    BadArray: not that format; Short: cut.
    """
    try:
        at = 0
        roots: list[Node] = []
        named: dict[str, None] = {}
        for _ in range(5):
            machine = Machine(data, at, max_ops=max_ops, max_memo=max_memo)
            roots.append(machine.run())
            named |= machine.globals
            at = machine.at
    except Truncated as error:
        if roots and roots[0] == TORCH_MAGIC:
            raise Short(f"torch storage: {error}", error.needs) from error
        raise BadArray(f"torch storage: {error}") from error
    except (Corrupt, Unsupported) as error:
        raise BadArray(f"torch storage: {error}") from error
    magic, protocol, _system, root, keys = roots
    if magic == TORCH_MAGIC and protocol != TORCH_PROTOCOL:
        raise BadArray(f"torch storage: protocol {str(protocol)[:16]}, not {TORCH_PROTOCOL}")
    if magic != TORCH_MAGIC or not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadArray("not the format torch stores")
    return root, keys, named, at


def persistent(root: Node, most: int = 10_000) -> list[Persistent]:
    """The storages an object refers to: enough of a walk, over `most` nodes, for tensors and plain dicts of them."""
    found: list[Persistent] = []
    queue: list[Node] = [root]
    seen: set[int] = set()
    while queue and len(seen) < most:
        node = queue.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case Persistent():
                found.append(node)
            case Call():
                queue += [node.args, node.state, *node.items, *(value for _key, value in node.pairs)]
            case tuple() | list():
                queue += node
            case Pairs():
                queue += [value for _key, value in node.pairs]
    return found
