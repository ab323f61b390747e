"""Pickles of all protocols, read by a machine that describes and never does.

    \\x80\\x04\\x95 … \\x8c\\x16numpy._core.multiarray\\x94\\x8c\\x0c_reconstruct\\x94\\x93 …
"""

import re
from collections.abc import Iterator

from diag.decode.decoded import Array, Buffer, Decoded, Problem, Wrapper
from diag.decode.dtypes import BadArray, build, framework_name
from diag.decode.pickle_arrays import Short, Storages, array_of, legacy, payload, storage_id
from diag.decode.pickle_machine import Machine
from diag.decode.pickle_nodes import (
    Bag,
    Call,
    Corrupt,
    Global,
    Node,
    Pairs,
    Persistent,
    Truncated,
    Unsupported,
)
from diag.decode.plain import base64_of, error_in, number_list
from diag.decode.raw import error_of
from diag.decode.wrappers import data_of, hollow, wrapper_of

NAME = "pickle"
ORDER = 10

MAX_NODES = 20_000
MAX_DEPTH = 100
MAX_TEXTS = 64
MAX_TEXT = 256
MAX_NESTED = 16
MIN_BLOB = 64

# protocol 0 and 1 have no magic: `cnumpy.core.multiarray\n_reconstruct\np0`, `(dp0`, `(lp0`, `ccopy_reg\n…`
OLD_START = re.compile(rb"c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n[p(q]|\((?:dp|lp)\d+\n|\(i[\w.]+\n\w+\n|\}q|\]q|\((?:S[^\n]{0,400}\n|V[^\n]{0,400}\n|I\d+\n)+i[\w.]+\n\w+\n")
OLD_WHOLE = re.compile(rb"N\.\Z|[ILF][-+0-9.eE]+L?\n\.\Z|[SV].*\n(?:p\d+\n)?\.\Z", re.DOTALL)
TELLING = b"\x80\x93{[PK!\x1f\x28"  # first bytes of formats; anything else that is long is a raw buffer
ERROR_CLASS = re.compile(r"(?:Error|Exception|Timeout|Failure|Interrupt)$")

PLAIN = frozenset({
    "_codecs.encode", "builtins.bytearray", "builtins.bytes", "builtins.complex", "builtins.dict", "builtins.float",
    "builtins.frozenset", "builtins.int", "builtins.list", "builtins.object", "builtins.range", "builtins.set",
    "builtins.slice", "builtins.str", "builtins.tuple", "builtins.bool", "builtins.type",
    "collections.OrderedDict", "collections.defaultdict", "collections.deque", "collections.Counter",
    "copyreg.__newobj__", "copyreg._reconstructor", "datetime.date", "datetime.datetime", "datetime.time",
    "datetime.timedelta", "datetime.timezone", "decimal.Decimal", "fractions.Fraction", "uuid.UUID",
    "numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar", "numpy.core.numeric._frombuffer",
    "numpy.dtype", "numpy.ndarray", "torch._utils._rebuild_parameter", "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3", "torch.Size", "torch.device", "torch.storage._load_from_bytes",
    "torch.storage.UntypedStorage", "torch.storage.TypedStorage",
})  # fmt: skip
_OLD_NAMES = (("numpy._core.", "numpy.core."), ("copy_reg.", "copyreg."), ("__builtin__.", "builtins."))


def sniff(data: Buffer) -> bool:
    head = bytes(data[:512])
    if head[:1] == b"!" and head[1:2] == b"\x80":  # cachelib's mark before a pickle
        return sniff(data[1:])
    if head[:1] == b"\x80":
        return len(head) < 2 or 2 <= head[1] <= 5
    return OLD_START.match(head) is not None or OLD_WHOLE.match(head) is not None


def decode(data: Buffer) -> Decoded:
    body = data[1:] if data[:1] == b"!" else data
    skipped = len(data) - len(body)
    machine = Machine(body)
    try:
        root = machine.run()
    except Truncated as error:
        return Decoded(
            NAME, foreign=foreign(machine.globals), problem="truncated", detail=f"pickle {error}",
            needs_bytes=error.needs + skipped,
        )  # fmt: skip
    except Corrupt as error:
        return Decoded(NAME, foreign=foreign(machine.globals), problem="corrupt", detail=f"pickle {error}")
    except Unsupported as error:
        return Decoded(NAME, foreign=foreign(machine.globals), detail=f"pickle not read: {error}")
    trailing = len(body) - machine.at
    if isinstance(root, int) and trailing:
        return _torch_stream(body) or describe(root, machine, trailing_bytes=trailing)
    return describe(root, machine, trailing_bytes=trailing)


def telling(data: Buffer) -> bool:
    """May these bytes inside a value be a value themselves?"""
    return len(data) <= MAX_TEXT or data[0] in TELLING or OLD_START.match(bytes(data[:512])) is not None


def foreign(names: dict[str, None]) -> tuple[str, ...]:
    """Those names that are no plain data type."""
    return tuple(name for name in names if not _plain(name))


def _plain(name: str) -> bool:
    for old, new in _OLD_NAMES:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    module, _, attribute = name.rpartition(".")
    if module in ("torch", "ml_dtypes", "numpy") and framework_name(attribute.removesuffix("Storage")) is not None:
        return True
    return name in PLAIN


def _torch_stream(data: Buffer) -> Decoded | None:
    """torch.save of before the zip format: several pickles in a row, then the storages."""
    try:
        root, storages, names = legacy(data)
    except Short as error:
        return Decoded("torch", problem="truncated", detail=str(error), needs_bytes=error.needs)
    except BadArray as error:
        return Decoded("torch", problem="corrupt", detail=str(error)) if "torch storage" in str(error) else None
    survey = Survey(lambda node: storages.get(storage_id(node)[0]))
    survey.walk(root)
    fields = _fields(root)
    return Decoded(
        "torch",
        arrays=tuple(sorted(survey.arrays, key=lambda array: array.size, reverse=True)),
        texts=tuple(survey.texts),
        keys=tuple(list(fields)[:MAX_TEXTS]),
        wrapper=survey.wrapper,
        foreign=foreign(names),
        problem="corrupt" if survey.broken else None,
        detail=survey.broken,
    )


def describe(
    root: Node, machine: Machine, *, trailing_bytes: int = 0, codec: str = NAME, storages: Storages | None = None
) -> Decoded:
    """Facts about a pickle that was read to its end. `storages` finds the bytes of tensors kept outside of it."""
    survey = Survey(storages)
    survey.walk(root)
    fields = _fields(root)
    problem: Problem | None = "corrupt" if survey.broken else None
    return Decoded(
        codec,
        arrays=tuple(sorted(survey.arrays, key=lambda array: array.size, reverse=True)),
        texts=tuple(survey.texts),
        keys=tuple(list(fields)[:MAX_TEXTS]),
        wrapper=survey.wrapper,
        foreign=foreign(machine.globals),
        error=_error(root) or (error_in(fields) if isinstance(root, Pairs) else None),
        problem=problem,
        detail=survey.broken,
        is_none=root is None,
        is_empty=_is_empty(root),
        root=_root(root),
        hollow=hollow({name: payload(value) if payload(value) is not None else value for name, value in fields.items()}),
        blob=max(survey.blobs, key=len, default=None),
        trailing_bytes=trailing_bytes,
        nested=tuple(survey.nested),
    )


def _error(root: Node) -> str | None:
    """An exception object stored as if it were an answer."""
    if isinstance(root, Call) and ERROR_CLASS.search(root.name):
        return root.name
    return error_of(root) if isinstance(root, str) else None


def _root(node: Node, *, inside: bool = False) -> str:
    """What the object is, and what the first element of a list is: "dict", "list[int]", "app.CacheItem"."""
    match node:
        case Call():
            return node.name or "object"
        case Pairs():
            return "dict"
        case Bag():
            return "set"
        case memoryview():
            return "bytes"
        case list() | tuple():
            return "list" if inside else f"list[{_root(node[0], inside=True) if node else ''}]"
        case Persistent() | Global():
            return "object"
    return type(node).__name__


def _is_empty(root: Node) -> bool:
    match root:
        case str() | memoryview() | list() | tuple():
            return len(root) == 0
        case Pairs():
            return not root.pairs
        case Bag():
            return not root.items
    return False


def _fields(node: Node) -> dict[str, Node]:
    """The named parts of a mapping or of an object: its state, its items, its keyword arguments."""
    pairs: list[tuple[Node, Node]] = []
    match node:
        case Pairs():
            pairs = node.pairs
        case Call():
            states = node.state if isinstance(node.state, tuple) else (node.state,)  # (dict, slots) or dict
            for part in (*states, node.kwargs):
                pairs = pairs + part.pairs if isinstance(part, Pairs) else pairs
            pairs = pairs + node.pairs
    return {key: value for key, value in pairs[:MAX_NODES] if isinstance(key, str)}


class Survey:
    """One bounded walk over a description: arrays, texts, wrapper, values inside values."""

    def __init__(self, storages: Storages | None = None) -> None:
        self.storages = storages
        self.arrays: list[Array] = []
        self.texts: list[str] = []
        self.nested: list[Buffer] = []
        self.blobs: list[Buffer] = []
        self.wrapper: Wrapper | None = None
        self.broken = ""

    def walk(self, root: Node) -> None:
        queue: list[tuple[Node, int]] = [(root, 0)]
        seen: set[int] = set()
        for _ in range(MAX_NODES):
            if not queue:
                return
            node, depth = queue.pop()
            if isinstance(node, (str, memoryview)):
                self._leaf(node)
            elif isinstance(node, (list, tuple, Call, Pairs, Bag, Persistent)) and id(node) not in seen:
                seen.add(id(node))
                if depth < MAX_DEPTH:
                    children = [(child, depth + 1) for child in self._children(node)]
                    queue.extend(reversed(children))

    def _children(self, node: Node) -> Iterator[Node]:
        """What is left to look at inside, once arrays and wrappers are recognised."""
        if isinstance(node, (list, tuple)):
            array = number_list(node)
            if array is None:
                yield from node[:MAX_NODES]
            else:
                self.arrays.append(array)
            return
        if isinstance(node, Bag):
            yield from node.items[:MAX_NODES]
            return
        if isinstance(node, Persistent):
            yield node.pid
            return
        if isinstance(node, Call) and self._took_array(node):
            return
        fields = _fields(node)
        self._look_for_wrapper(node, fields)
        if self._took_raw_array(fields):
            fields = {name: value for name, value in fields.items() if payload(value) is None}
            yield from fields.values()
            return
        yield from self._contents(node)

    def _contents(self, node: Node) -> Iterator[Node]:
        if isinstance(node, Call):
            data = payload(node)
            if data is not None:
                yield memoryview(data)
                return
            states = node.state if isinstance(node.state, tuple) else (node.state,)
            yield from (node.args, node.kwargs, *states, *node.items[:MAX_NODES])
        for key, value in node.pairs[:MAX_NODES]:
            if not isinstance(key, str):
                yield key
            yield value

    def _took_array(self, node: Call) -> bool:
        try:
            array = array_of(node, self.storages)
        except BadArray as error:
            self.broken = self.broken or str(error)
            return True
        if array is None:
            return False
        self.arrays.append(array)
        if array.values is None and isinstance(node.state, tuple) and isinstance(node.state[-1], list):
            self.texts += [text[:MAX_TEXT] for text in node.state[-1][:MAX_TEXTS] if isinstance(text, str)]
        if isinstance(node.state, tuple):
            self.texts += [text[:MAX_TEXT] for text in node.state[5:][:MAX_TEXTS] if isinstance(text, str)]  # of a subclass
        return True

    def _look_for_wrapper(self, node: Node, fields: dict[str, Node]) -> None:
        if self.wrapper is None and fields:
            kind = node.name.rpartition(".")[2] if isinstance(node, Call) else "dict"
            self.wrapper = wrapper_of(kind, fields, payload(data_of(fields)))

    def _took_raw_array(self, fields: dict[str, Node]) -> bool:
        """{"shape": (1, 512), "dtype": "float32", "data": b"…"}: what many services write by hand."""
        shape, dtype, data = fields.get("shape"), fields.get("dtype"), payload(data_of(fields))
        axes = tuple(shape) if isinstance(shape, (list, tuple)) else None
        if data is None or not isinstance(dtype, str) or axes is None or not all(isinstance(a, int) for a in axes):
            return False
        name = framework_name(dtype)
        if name is None:
            return False
        try:
            self.arrays.append(build(name, axes, data))
        except BadArray as error:
            self.broken = self.broken or str(error)
        return True

    def _leaf(self, node: str | memoryview) -> None:
        if isinstance(node, str):
            self._text(node)
            return
        if len(node) > 1 and telling(node) and len(self.nested) < MAX_NESTED:
            self.nested.append(node)
        elif len(node) >= MIN_BLOB:
            self.blobs.append(node)

    def _text(self, text: str) -> None:
        binary = base64_of(text)
        if binary is not None:
            self._leaf(memoryview(binary))
            return
        if text[:1] in ("{", "[") and len(text) > 1 and len(self.nested) < MAX_NESTED:  # JSON in a pickle
            self.nested.append(text.encode("utf-8", "replace"))
        elif len(self.texts) < MAX_TEXTS and text:
            self.texts.append(text[:MAX_TEXT].encode("utf-8", "replace").decode())
