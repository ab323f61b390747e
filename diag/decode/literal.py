"""The text of a Python dict or list, as LiteLLM's synchronous path stores it: str(value).

    {'timestamp': 1796007298.3, 'response': '{"id": "chatcmpl-1", "choices": [...]}'}

Read token by token: nothing is compiled, and only the texts between quotes go through ast.literal_eval.
"""

import ast
import json
import re
from typing import Any

from diag.decode.decoded import Buffer, Decoded
from diag.decode.plain import describe
from diag.decode.raw import text_of

NAME = "literal"
ORDER = 90

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
START = re.compile(r"""\s*[{\[(]\s*(?:[bru]?['"(\[{]|[-+]?[0-9]|None\b|True\b|False\b)""")
SINGLE = re.compile(rb"""[{\[(,:]\s*b?'|\b(?:None|True|False)\b""")
TOKEN = re.compile(
    r"""\s*(?:(?P<text>[bru]?(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))|(?P<number>[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"""
    r"""|(?P<word>None|True|False|-?nan|-?inf|datetime\.[a-z]+\([^()]*\))|(?P<mark>[\[\](){},:]))""",
    re.DOTALL,
)
WORDS: dict[str, object] = {"None": None, "True": True, "False": False}
CLOSES = {"]": "[", ")": "(", "}": "{"}


class Unfit(Exception):
    """Not such a text. `at_end`: it would be if it went on."""

    def __init__(self, at: int, *, at_end: bool = False) -> None:
        super().__init__(f"character {at}")
        self.at = at
        self.at_end = at_end


def sniff(data: Buffer) -> bool:
    head = bytes(data[:256])
    return head.lstrip()[:1] in (b"{", b"[", b"(") and SINGLE.search(head) is not None and not _is_json(data)


def _is_json(data: Buffer) -> bool:
    """JSON may hold "[b'" inside of a text; what JSON reads is JSON."""
    if len(data) > MAX_BYTES:
        return True
    try:
        json.loads(bytes(data))
    except (ValueError, RecursionError):
        return False
    return True


def decode(data: Buffer) -> Decoded:
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        if error.start < 16:
            return Decoded("raw", blob=data)
        return Decoded(NAME, problem="corrupt", detail=f"Python text: byte {error.start} is not UTF-8")
    if START.match(text) is None:
        return text_of(text)
    try:
        value = read(text)
    except Unfit as error:
        if error.at_end:
            return Decoded(NAME, problem="truncated", detail="Python text ends early", needs_bytes=len(data) + 1)
        return text_of(text) if error.at < 16 else Decoded(NAME, problem="corrupt", detail=f"Python text: {error}")
    return describe(value, NAME)


def read(text: str) -> Any:
    """The value that a Python literal of plain types stands for. Unfit: it is none, or nested too deep."""
    stack: list[tuple[str, list[Any]]] = []
    at = 0
    while True:
        found = TOKEN.match(text, at)
        if found is None:
            raise Unfit(at, at_end=_cut(text[at:]) and bool(stack))
        at = found.end()
        mark = found["mark"]
        if mark in ("[", "(", "{"):
            if len(stack) >= MAX_DEPTH:
                raise Unfit(at)
            stack.append((mark, []))
            continue
        if mark in (",", ":"):
            if not stack or not stack[-1][1]:
                raise Unfit(at)
            stack[-1][1].append(mark)
            continue
        if mark is None:
            value = _leaf(found, at)
        else:
            if not stack or stack[-1][0] != CLOSES[mark]:
                raise Unfit(at)
            value = _container(*stack.pop(), at)
        if not stack:
            if text[at:].strip():
                raise Unfit(at)
            return value
        stack[-1][1].append((value,))


def _cut(rest: str) -> bool:
    """Is this the beginning of a token that the end of the text cut off?"""
    bare = rest.strip()
    return not bare or bare[:1] in "'\"bru-+." or any(word.startswith(bare) for word in ("None", "True", "False", "nan", "inf", "datetime."))


def _leaf(found: re.Match[str], at: int) -> Any:
    if found["text"] is not None:
        try:
            return ast.literal_eval(found["text"])
        except (ValueError, SyntaxError) as error:
            raise Unfit(at) from error
    word = found["word"]
    if word is not None:
        return WORDS[word] if word in WORDS else word if "(" in word else float(word)
    number = found["number"].replace("_", "")
    try:
        return int(number) if number.lstrip("+-").isdigit() else float(number)
    except ValueError as error:
        raise Unfit(at) from error


def _container(kind: str, parts: list[Any], at: int) -> Any:
    """Parts are one-tuples of values, and the marks between them."""
    groups: list[list[Any]] = [[]]
    for part in parts:
        if part == ",":
            groups.append([])
        else:
            groups[-1].append(part)
    if groups and not groups[-1]:
        groups.pop()
    if kind == "{" and all(len(group) == 3 and group[1] == ":" for group in groups):
        try:
            return {group[0][0]: group[2][0] for group in groups}
        except TypeError as error:
            raise Unfit(at) from error
    if any(len(group) != 1 or group[0] == ":" for group in groups):
        raise Unfit(at)
    return [group[0][0] for group in groups]
