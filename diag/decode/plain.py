"""Facts about a tree of plain values (dict, list, text, bytes, number, None), whichever format it was written in."""

import base64
import binascii
import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from diag.decode.decoded import Array, Buffer, Decoded
from diag.decode.dtypes import BadArray, build, framework_name
from diag.decode.raw import error_of
from diag.decode.wrappers import DATA, data_of, hollow, wrapper_of

MAX_NODES = 20_000
MAX_TEXTS = 64
MAX_TEXT = 256
MAX_NESTED = 16
MIN_BASE64 = 64
ERROR_KEYS = frozenset({
    "error", "errors", "detail", "message", "code", "status", "status_code", "type", "title", "param", "path", "timestamp", "request_id",
    "object", "exception", "traceback",
})  # fmt: skip
BASE64 = re.compile(r"[A-Za-z0-9+/_-]{64,}={0,2}")
HEX = re.compile(r"[0-9a-fA-F]+")


def describe(value: Any, codec: str) -> Decoded:
    """Arrays, texts and the wrapper in a tree of plain values. Never raises; looks at MAX_NODES of them."""
    survey = Survey()
    survey.walk(value)
    fields = {str(_text(key)): item for key, item in value.items()} if isinstance(value, dict) else {}
    data = data_of(fields)
    inner = {str(_text(key)): item for key, item in data.items()} if isinstance(data, dict) else {}
    outer_error, inner_error = error_in(fields), error_of(data) if isinstance(data, str) else error_in(inner)
    wrapper = wrapper_of("dict", fields, payload_of(data))
    nested = wrapper_of("dict", inner, payload_of(data_of(inner)))
    if wrapper is not None and nested is not None and wrapper.version is None:
        wrapper = replace(wrapper, version=nested.version)
    return Decoded(
        codec,
        arrays=tuple(sorted(survey.arrays, key=lambda array: array.size, reverse=True)),
        texts=tuple(survey.texts),
        keys=tuple([*fields, *(f"{_carrier(fields)}.{name}" for name in inner)][:MAX_TEXTS]),
        wrapper=wrapper or nested,
        error=outer_error or inner_error or (error_of(value) if isinstance(value, str) else None),
        error_inside=outer_error is None and inner_error is not None,
        root=_root(value),
        problem="corrupt" if survey.broken else None,
        detail=survey.broken,
        is_none=value is None,
        is_empty=isinstance(value, (dict, list, tuple, str, bytes)) and len(value) == 0,
        hollow=hollow(fields) or _only_error(fields, outer_error),
        blob=max(survey.blobs, key=len, default=None),
        nested=tuple(survey.nested),
    )


def payload_of(data: object) -> Buffer | None:
    """The bytes a checksum is over."""
    return data.encode("utf-8", "replace") if isinstance(data, str) else data if isinstance(data, bytes) else None


def _carrier(fields: dict[str, Any]) -> str:
    """Name of the field that carries the data."""
    return next((name for name in DATA if fields.get(name) is not None), "")


def _only_error(fields: dict[str, Any], error: str | None) -> Literal["none"] | None:
    """{"caption": null, "error": "cannot identify image file"}: nothing but the error holds anything."""
    rest = [value for name, value in fields.items() if name not in ERROR_KEYS]
    return "none" if error is not None and rest and all(value is None for value in rest) else None


def _root(value: Any, *, inside: bool = False) -> str:
    """"dict", "list[int]", "str": what it is, and what the first element of a list is."""
    if isinstance(value, (list, tuple)):
        return "list" if inside else f"list[{_root(value[0], inside=True) if value else ''}]"
    return type(value).__name__


def error_in(fields: dict[str, Any]) -> str | None:
    """{"error": {…}}, {"object": "error", …}, {"detail": "…", "status_code": 503}: an answer that is a refusal."""
    for name in ("error", "errors", "exception", "traceback"):
        if fields.get(name) not in (None, "", [], {}, False, 0):
            return name
    if fields.get("object") == "error" or fields.get("type") == "error" or fields.get("status") in ("error", "failed"):
        return "error"
    if ERROR_KEYS.issuperset(fields) and isinstance(fields.get("detail") or fields.get("message"), str):
        return "detail" if "detail" in fields else "message"
    for name in ("status", "status_code", "code"):
        code = fields.get(name)
        if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
            return f"{name} {code}"
    return None


def base64_of(text: str) -> bytes | None:
    """What a long text is in base64, or None if it is none (or more likely a hex digest)."""
    if len(text) < MIN_BASE64 or BASE64.fullmatch(text) is None:
        return None
    if HEX.fullmatch(text) is not None and len(set(text)) > 2:  # zeros are AAAA
        return None
    try:
        return base64.b64decode(text.translate({45: 43, 95: 47}) + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def number_list(node: list[Any] | tuple[Any, ...]) -> Array | None:
    """A list of two or more floats, or a rectangle of them, as the embedding it surely is. A null among them is NaN."""
    if not node:
        return None
    first = node[0]
    if isinstance(first, (list, tuple)):
        width = len(first)
        if width < 2 or not all(isinstance(row, (list, tuple)) and len(row) == width for row in node):
            return None
        cells = [cell for row in node for cell in row] if len(node) * width <= MAX_NODES * 50 else []
        return _of_numbers(cells, (len(node), width))
    return _of_numbers(node, (len(node),)) if len(node) > 1 else None


def _of_numbers(cells: Any, shape: tuple[int, ...]) -> Array | None:
    kinds = set(map(type, cells))
    if not kinds <= {float, int, type(None)} or float not in kinds:
        return None  # lists of whole numbers are token ids, sizes, flags: not to be judged as vectors
    try:
        return Array("float64", shape, np.array(cells, np.float64).reshape(shape))
    except OverflowError:
        return None


def _text(node: Any) -> Any:
    return node.decode("utf-8", "replace") if isinstance(node, bytes) else node


class Survey:
    """One bounded walk over a tree."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.texts: list[str] = []
        self.nested: list[Buffer] = []
        self.blobs: list[Buffer] = []
        self.broken = ""

    def walk(self, root: Any) -> None:
        queue = [root]
        for _ in range(MAX_NODES):
            if not queue:
                return
            node = queue.pop()
            if isinstance(node, str):
                self._text(node)
            elif isinstance(node, bytes):
                self._bytes(node)
            elif isinstance(node, dict):
                if not self._took_array(node) and not self._took_base64(node):
                    queue.extend(reversed(list(node.values())[:MAX_NODES]))
            elif isinstance(node, (list, tuple)):
                array = number_list(node)
                if array is None:
                    queue.extend(reversed(node[:MAX_NODES]))
                else:
                    self.arrays.append(array)

    def _text(self, node: str) -> None:
        binary = base64_of(node)
        if binary is not None:
            self._bytes(binary)
            return
        if node[:1] in "{[" and len(node) > 1 and len(self.nested) < MAX_NESTED:  # JSON in JSON
            self.nested.append(node.encode("utf-8", "replace"))
        elif node and len(self.texts) < MAX_TEXTS:
            self.texts.append(node[:MAX_TEXT].encode("utf-8", "replace").decode())

    def _bytes(self, node: bytes) -> None:
        from diag.decode.pickle_ import telling

        if len(node) > 1 and telling(node) and len(self.nested) < MAX_NESTED:
            self.nested.append(node)
        elif len(node) >= MIN_BASE64:
            self.blobs.append(node)

    def _took_base64(self, node: dict[Any, Any]) -> bool:
        """{"embedding": "<base64 of float32>"}, as OpenAI's and LiteLLM's interfaces give it: as numbers like any other."""
        text = node.get("embedding")
        data = base64_of(text) if isinstance(text, str) else None
        if data is None or len(data) % 4:
            return False
        self.arrays.append(Array("float64", (len(data) // 4,), np.frombuffer(data, "<f4").astype(np.float64)))
        for name, value in node.items():
            if name != "embedding" and isinstance(value, str):
                self._text(value)
        return True

    def _took_array(self, node: dict[Any, Any]) -> bool:
        """msgpack-numpy's {b"nd": True, b"type": "<f4", b"shape": [1, 512], b"data": b"…"}, and what services write by hand."""
        fields = {str(_text(key)): value for key, value in node.items()} if len(node) <= 32 else {}
        shape, data = fields.get("shape"), data_of(fields)
        kind = _text(fields.get("type" if "nd" in fields else "dtype"))
        data = base64_of(data) if isinstance(data, str) else data
        if not isinstance(data, bytes) or not isinstance(kind, str) or not isinstance(shape, (list, tuple)):
            return False
        name = _numpy_name(kind)
        if name is None or not all(type(axis) is int for axis in shape):
            return False
        try:
            self.arrays.append(build(name, tuple(shape), data))
        except BadArray as error:
            self.broken = self.broken or str(error)
        self.texts += [value[:MAX_TEXT] for value in fields.values() if isinstance(value, str)][:MAX_TEXTS]
        return True


def _numpy_name(kind: str) -> "str | np.dtype[Any] | None":
    """`<f4` and `float32` alike; None for what holds no numbers."""
    if (name := framework_name(kind)) is not None:
        return name
    if re.fullmatch(r"[<>|=]?[biufc][0-9]{1,2}", kind) is None:
        return None
    try:
        return np.dtype(kind)
    except TypeError:
        return None
