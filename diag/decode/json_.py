"""JSON: lists of numbers become arrays, error bodies are named.

    {"embedding": [0.012, -0.4, …], "model": "bge-m3", "format_version": 2}
"""

import json
import re
from typing import Any

from diag.decode.decoded import Array, Buffer, Decoded
from diag.decode.pickle_ import number_list
from diag.decode.raw import text_of
from diag.decode.wrappers import data_of, wrapper_of

NAME = "json"
ORDER = 100

MAX_BYTES = 8 << 20
MAX_TEXTS = 64
MAX_TEXT = 256
MAX_NODES = 20_000
CUT_NUMBER = re.compile(r"\.?[eE]?[-+]?")


def sniff(data: Buffer) -> bool:
    return bytes(data[:64]).lstrip()[:1] in (b"{", b"[")


def decode(data: Buffer) -> Decoded:
    if len(data) > MAX_BYTES:
        return Decoded(NAME, detail=f"JSON not read: more than {MAX_BYTES} bytes")
    try:
        text = str(data, "utf-8")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        return _not_utf8(data, error)
    except json.JSONDecodeError as error:
        return _damaged(data, text, error)
    except (ValueError, RecursionError) as error:
        return Decoded(NAME, problem="corrupt", detail=f"JSON: {type(error).__name__}")
    return _describe(value)


def _not_utf8(data: Buffer, error: UnicodeDecodeError) -> Decoded:
    """Bytes that only begin like JSON are not broken JSON."""
    if error.start < 16:
        return Decoded("raw")
    if error.end >= len(data) and error.reason.startswith("unexpected end"):
        return Decoded(NAME, problem="truncated", detail="JSON ends inside of a character", needs_bytes=len(data) + 1)
    return Decoded(NAME, problem="corrupt", detail=f"JSON: byte {error.start} is not UTF-8")


def _damaged(data: Buffer, text: str, error: json.JSONDecodeError) -> Decoded:
    """Cut short, broken inside, or never JSON: "[INFO] started", "{name} said", a Python dict's text."""
    if _ends_early(text.rstrip(), error):
        return Decoded(NAME, problem="truncated", detail=f"JSON: {error.msg} at the end", needs_bytes=len(data) + 1)
    if error.pos < 16 or error.msg.startswith("Extra data"):
        return text_of(text)
    return Decoded(NAME, problem="corrupt", detail=f"JSON: {error.msg} at character {error.pos}")


def _ends_early(text: str, error: json.JSONDecodeError) -> bool:
    """Cut at the end, maybe inside a number, a literal or an escape."""
    tail = text[error.pos :]
    if error.msg.startswith("Invalid \\uXXXX"):
        return len(tail) < 6
    literal = any(word.startswith(tail) for word in ("true", "false", "null", "NaN", "Infinity", "-Infinity"))
    return literal or CUT_NUMBER.fullmatch(tail) is not None or error.msg.startswith("Unterminated string")


def _describe(value: Any) -> Decoded:
    arrays: list[Array] = []
    texts: list[str] = []
    queue = [value]
    for _ in range(MAX_NODES):
        if not queue:
            break
        node = queue.pop()
        if isinstance(node, str):
            if node and len(texts) < MAX_TEXTS:
                texts.append(node[:MAX_TEXT].encode("utf-8", "replace").decode())
        elif isinstance(node, dict):
            queue.extend(reversed(list(node.values())[:MAX_NODES]))
        elif isinstance(node, list):
            array = number_list(node)
            if array is None:
                queue.extend(reversed(node[:MAX_NODES]))
            else:
                arrays.append(array)
    fields = value if isinstance(value, dict) else {}
    data = data_of(fields)
    wrapper = wrapper_of("dict", fields, data.encode("utf-8", "replace") if isinstance(data, str) else None)
    return Decoded(
        NAME,
        arrays=tuple(sorted(arrays, key=lambda array: array.size, reverse=True)),
        texts=tuple(texts),
        keys=tuple(list(fields)[:MAX_TEXTS]),
        wrapper=wrapper,
        error=_error(fields),
        is_none=value is None,
        is_empty=value in ({}, []),
    )


def _error(fields: dict[str, Any]) -> str | None:
    """{"error": {…}} and {"object": "error", …}: an answer that is a refusal."""
    for name in ("error", "errors", "exception"):
        if fields.get(name) not in (None, "", [], {}, False, 0):
            return name
    if fields.get("object") == "error" or fields.get("status") in ("error", "failed"):
        return "error"
    return None
