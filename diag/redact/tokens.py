"""What stands in place of a secret or a prompt, and the memory that finds the same secret again elsewhere."""

import hmac
import json
import os
import re
from collections.abc import Iterator
from urllib.parse import unquote

from diag.redact import patterns as p

# The first are looked for inside words too; later ones (a log can name a new key on each line) by their words, in one pass.
_MAX_INSIDE, _MAX_KNOWN = 300, 200_000
_WORD = re.compile(r"[A-Za-z0-9]{4,}+")
_LETTER = re.compile(r"[A-Za-z0-9]")
# `\\nhunter2` and `%20hunter2` are hunter2 at the start of a word.
_ESCAPED_BEFORE = re.compile(r"(?:\\[nrt]|%[0-9A-Fa-f]{2})\Z")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r"}


class Tokens:
    """Keyed tokens of one bundle: the same value always gets the same token, whatever it is called later."""

    def __init__(self, salt: bytes | None, prompts: bool) -> None:
        self.counts: dict[str, int] = {}
        self.hides_prompts = prompts
        self._salt = os.urandom(16) if salt is None else salt
        self._kinds: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._inside: list[str] = []
        self._by_word: dict[str, list[tuple[str, int]]] = {}

    @property
    def known(self) -> int:
        """Number of remembered spellings; grows, never shrinks."""
        return len(self._known)

    def secret(self, kind: str, raw: str, *, certain: bool = True, encoded: bool = False) -> str:
        """Token of a secret as written here (escaped, or percent-`encoded`). The first kind seen for a value stays."""
        value = unquote(raw) if encoded else plain(raw)
        token = self._token(kind, value)
        if certain or not p.is_prose(value):
            self._remember(token, value, raw, json.dumps(value)[1:-1])
        return self._counted(token)

    def shape(self, kind: str, value: str) -> str:
        """Token of what is found by its shape, so that it need not be remembered."""
        return self._counted(self._token(kind, value))

    def learn(self, kind: str, value: str) -> None:
        """Remember a secret that is not written in plain here, as the password inside a basic credential."""
        self._remember(self._token(kind, value), value)

    def prompt(self, raw: str) -> str:
        """Token of a prompt, an output, or their token ids; `len` counts characters, or ids."""
        self.counts["prompt"] = self.counts.get("prompt", 0) + 1
        value = plain(raw)
        length = len(re.findall("[0-9]+", raw)) if p.IDS.fullmatch(raw) else len(value)
        return f"[PROMPT len={length} h={self._hash(value)}]"

    def mentions(self, text: str) -> bool:
        """May a remembered secret stand in this text?"""
        return next(self._hits(text), None) is not None

    def sweep(self, text: str) -> str:
        """Replace every remembered secret, but never inside a token."""
        hits = sorted(self._hits(text), key=lambda hit: (hit[0], -hit[1]))
        if not hits:
            return text
        out: list[str] = []
        done = 0
        tokens = iter(p.TOKEN.finditer(text))
        token = next(tokens, None)
        for start, end in hits:
            while token is not None and token.end() <= start:
                token = next(tokens, None)
            if start < done or (token is not None and token.start() < end):
                continue
            out += (text[done:start], self._counted(self._known[text[start:end]]))
            done = end
        return "".join((*out, text[done:]))

    def _hits(self, text: str) -> Iterator[tuple[int, int]]:
        for form in self._inside:
            start = text.find(form)
            while start >= 0:
                if len(form) >= 12 or _stands_alone(text, start, start + len(form)):
                    yield start, start + len(form)
                start = text.find(form, start + len(form))
        if self._by_word:
            for word in _WORD.finditer(text):
                for form, offset in self._by_word.get(word[0], ()):
                    if text.startswith(form, word.start() - offset):
                        yield word.start() - offset, word.start() - offset + len(form)

    def _token(self, kind: str, value: str) -> str:
        digest = self._hash(value)
        return f"[REDACTED:{self._kinds.setdefault(digest, kind)}:{digest}]"

    def _hash(self, value: str) -> str:
        return hmac.digest(self._salt, value.encode("utf-8", "surrogatepass"), "sha256")[:4].hex()

    def _counted(self, token: str) -> str:
        kind = token.split(":")[1]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return token

    def _remember(self, token: str, *forms: str) -> None:
        for form in forms:
            if form in self._known or len(self._known) >= _MAX_KNOWN or not p.is_memorable(form):
                continue
            word = max(_WORD.finditer(form), key=lambda found: len(found[0]), default=None)
            if len(self._inside) < _MAX_INSIDE:
                self._inside.append(form)
            elif word is not None:
                self._by_word.setdefault(word[0], []).append((form, word.start()))
            self._known[form] = token


def _stands_alone(text: str, start: int, end: int) -> bool:
    """A short secret must be a word of its own: `abc123` inside a digest is a coincidence."""
    if _LETTER.match(text, end):
        return False
    return start == 0 or not _LETTER.match(text, start - 1) or _ESCAPED_BEFORE.search(text, max(0, start - 3), start) is not None


def plain(raw: str) -> str:
    """What an escaped text says: the same secret in JSON, in a repr and on a command line gets the same token."""
    if "\\" not in raw:
        return raw
    return _ESCAPE.sub(lambda e: chr(int(e[1], 16)) if e[1] else _CONTROL.get(e[2], e[2]), raw)
