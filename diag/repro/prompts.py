"""The prompts that failed, as a person hands them in: one JSON object a line.

    {"prompt": "You are … What is the capital of France?", "expect": "Paris"}
    {"messages": [{"role": "system", "content": "…"}, {"role": "user", "content": "…"}]}

`prompt` (a text, or a list of token ids) goes to /v1/completions, `messages` to /v1/chat/completions. `expect` is a text or
a regular expression that every good answer contains (Python's without look-around and back-references: it runs in linear
time, whatever an endpoint answers). `id` is kept as a name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import re2

from diag.errors import BadInput

MAX_FILE_BYTES = 64 << 20
MAX_PROMPTS = 200
REGEX_BYTES = 8 << 20
KEYS = {"prompt", "messages", "expect", "id"}
SHAPE = '{"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}, one a line, with "expect" if you know it'

Kind = Literal["completions", "chat"]
Message = Mapping[str, object]
"""`role`, and `content` as a text or a list of parts; other keys stay as they are."""


@dataclass(frozen=True)
class Prompt:
    """One question. Exactly one of `text`, `tokens` and `messages` is there."""

    line: int
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None
    expect: str | None = None
    name: str | None = None

    @property
    def kind(self) -> Kind:
        return "completions" if self.messages is None else "chat"

    def body(self) -> dict[str, object]:
        """Its part of a request."""
        if self.messages is not None:
            return {"messages": list(self.messages)}
        return {"prompt": list(self.tokens) if self.tokens is not None else self.text}

    def plain(self) -> str:
        """All its text, for comparing answers with it; token ids have none."""
        if self.messages is not None:
            return "\n".join(text for message in self.messages for text in texts(message))
        return self.text or ""


def texts(message: Message) -> Iterator[str]:
    """The texts of one message, whether it is one or several parts."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def read(path: Path) -> tuple[Prompt, ...]:
    """All prompts of a file. Raises BadInput that names file and line."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint="name a file with one JSON object a line") from error
    if len(raw) > MAX_FILE_BYTES:
        raise BadInput(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB", hint="a few failing prompts are enough")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}:{line}: not UTF-8", hint="save the prompts as UTF-8") from error
    found = tuple(_prompt(f"{path}:{number}", number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    if not found:
        raise BadInput(f"{path} holds no prompt", hint=SHAPE)
    if len(found) > MAX_PROMPTS:
        raise BadInput(f"{path} holds {len(found)} prompts", hint=f"a few that fail are enough, {MAX_PROMPTS} at most")
    return found


def _prompt(where: str, number: int, line: str) -> Prompt:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: no JSON: {error}", hint=SHAPE) from error
    if not isinstance(item, dict) or ("prompt" in item) == ("messages" in item):
        raise BadInput(f"{where}: needs either prompt or messages", hint=SHAPE)
    if unknown := sorted(item.keys() - KEYS):
        raise BadInput(f"{where}: unknown key {unknown[0]!r}", hint=SHAPE)
    text, tokens = _question(where, item["prompt"]) if "prompt" in item else (None, None)
    messages = _messages(where, item["messages"]) if "messages" in item else None
    name = item.get("id")
    return Prompt(number, text, tokens, messages, _expect(where, item.get("expect")), None if name is None else str(name))


def _question(where: str, value: object) -> tuple[str | None, tuple[int, ...] | None]:
    if isinstance(value, str) and value.strip():
        return _encodable(where, value), None
    if isinstance(value, list) and value and all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
        return None, tuple(value)
    raise BadInput(f"{where}: prompt must be a text or a list of token ids, and not empty", hint=SHAPE)


def _messages(where: str, value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in value):
        raise BadInput(f"{where}: messages must be a list of objects with a role", hint=SHAPE)
    for item in value:
        for text in texts(item):
            _encodable(where, text)
    if not any(text.strip() for item in value for text in texts(item)):
        raise BadInput(f"{where}: no message has a text", hint=SHAPE)
    return tuple(value)


def _expect(where: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value:
        try:
            _compiled(_encodable(where, value))
        except re2.error as error:
            why = error.args[0].decode("utf-8", "replace") if error.args and isinstance(error.args[0], bytes) else str(error)
            raise BadInput(f"{where}: expect is no regular expression: {why}", hint=f"as a text it is {json.dumps(re.escape(value))}; look-around and back-references are not there") from error
        return value
    raise BadInput(f"{where}: expect must be a text or a regular expression, and not empty", hint=SHAPE)


def _encodable(where: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadInput(f"{where}: half a character (\\u{ord(text[error.start]):04x}) is no text", hint="save the prompts as UTF-8") from error
    return text


def meets(expect: str, answer: str) -> bool:
    """Does an answer contain the text, or match the regular expression?"""
    if expect in answer:  # "C++" matches no "C++" as an expression
        return True
    whole = answer.encode("utf-8", "replace").decode()  # an endpoint may answer half a character
    return _compiled(expect).search(whole) is not None


@lru_cache(maxsize=MAX_PROMPTS)
def _compiled(expect: str) -> Any:
    """Raises re2.error."""
    options = re2.Options()
    options.max_mem, options.log_errors = REGEX_BYTES, False
    return re2.compile(expect, options=options)
