"""JSON: lists of numbers become arrays, error bodies are named.

    {"embedding": [0.012, -0.4, …], "model": "bge-m3", "format_version": 2}
"""

import json
import re

from diag.decode.decoded import Buffer, Decoded
from diag.decode.plain import describe
from diag.decode.raw import text_of

NAME = "json"
ORDER = 100

MAX_BYTES = 8 << 20
MIN_SURE = 32
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
    return describe(value, NAME)


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
    named = text.lstrip()[:2] == '{"' and len(text) > MIN_SURE
    if (error.pos < 16 and not named) or error.msg.startswith("Extra data"):
        return text_of(text)
    return Decoded(NAME, problem="corrupt", detail=f"JSON: {error.msg} at character {error.pos}")


def _ends_early(text: str, error: json.JSONDecodeError) -> bool:
    """Cut at the end, maybe inside a number, a literal or an escape."""
    tail = text[error.pos :]
    if error.msg.startswith("Invalid \\uXXXX"):
        return len(tail) < 6
    literal = any(word.startswith(tail) for word in ("true", "false", "null", "NaN", "Infinity", "-Infinity"))
    return literal or CUT_NUMBER.fullmatch(tail) is not None or error.msg.startswith("Unterminated string")
