"""What leaves the machine: secrets and prompts are replaced before anything touches the disk.

By structure first (argv, environment, URLs, headers, key and value), by pattern second; then every secret found so far is
swept from every later text. A secret reads `[REDACTED:api-key:1a2b3c4d]`, a prompt `[PROMPT len=39 h=fc6e9b06]`: the digits
are a keyed hash, so equal values stay joinable inside one bundle and cannot be guessed from outside it.
"""

import datetime
import re
from collections.abc import Mapping, Sequence

from diag.redact import patterns as p
from diag.redact import text as redact_text
from diag.redact.tokens import Tokens

# Short texts known to be clean: stacks repeat a few hundred function names a hundred thousand times.
_MAX_CLEAN, _CLEAN_CHARS = 50_000, 200
_WIDE = re.compile(rb"(?:[^\0]\0){8}|(?:\0[^\0]){8}")
_CLIENT = re.compile(r"(?:redis|valkey|keydb)-(?:cli|benchmark)")
# Set beside a text only in OpenAI-like messages and completions.
_BESIDE_TEXT = frozenset({"finish_reason", "meta_info", "logprobs"})
_BESIDE_MODEL = ("input", "query", "documents", "instruction", "completion")
# Here -a is no password.
_OTHER_PROGRAMS = frozenset({"tee", "grep", "docker", "podman", "ssh", "ps", "ls", "rsync", "cp", "curl", "lsof", "ss", "jq", "uname"})


class UndecodableArtefact(ValueError):
    """Bytes that are not UTF-8 text: nothing can be said about secrets in them, so the artefact is dropped."""


class Redactor:
    """Replaces secrets and prompts; one a bundle, because equal secrets must get equal tokens.

    `salt` keys the hashes: random unless given, never stored. `prompts=False` keeps prompts and outputs.
    `enabled=False` lets everything through.
    """

    def __init__(self, enabled: bool = True, salt: bytes | None = None, prompts: bool = True) -> None:
        self.enabled = enabled
        self._tokens = Tokens(salt, prompts)
        self._clean: set[str] = set()
        self._clean_at = 0

    @property
    def counts(self) -> dict[str, int]:
        """Number of values replaced so far, by kind."""
        return self._tokens.counts

    @property
    def known(self) -> int:
        """Number of remembered spellings; grows, never shrinks."""
        return self._tokens.known

    def mentions(self, text: str) -> bool:
        """May one of the secrets found so far stand in this text? Cheaper than replacing them."""
        return self.enabled and self._tokens.mentions(text)

    def sweep(self, text: str) -> str:
        """Only the secrets found so far, in a text that was redacted when fewer were known."""
        return self._tokens.sweep(text) if self.enabled else text

    def text(self, text: str) -> str:
        """Free text of any artefact: patterns, then the sweep for secrets found before."""
        if not self.enabled or not text:
            return text
        if self._clean_at != self._tokens.known:
            self._clean.clear()
            self._clean_at = self._tokens.known
        if text in self._clean:
            return text
        out = self._tokens.sweep(redact_text.redact(text, self._tokens))
        if out == text and len(text) <= _CLEAN_CHARS and len(self._clean) < _MAX_CLEAN:
            self._clean.add(text)
        return out

    def argv(self, args: Sequence[str]) -> list[str]:
        """A command line, word by word: `--api-key X`, `--hf-token=X`, `-a X`, `user:password`, URLs."""
        if not self.enabled:
            return list(args)
        out: list[str] = []
        kind: str | None = None
        many = False
        for word in args:
            if kind is not None and not _is_option(word):
                out.append(redact_text.userinfo(word, self._tokens) if kind == "userinfo" else self._whole(kind, word))
                kind = kind if many else None
                continue
            kind = _argument_kind(word, args)
            # vLLM takes several keys after one --api-key, and AUTH a user and a password.
            many = kind == "api-key" or word.upper() == "AUTH"
            option, equals, value = word.partition("=")
            inline = _argument_kind(option, args) if equals and _is_option(option) else None
            out.append(self.text(word) if inline is None else f"{option}={self._whole(inline, value)}")
        return [self._tokens.sweep(word) for word in out]

    def env(self, env: Mapping[str, str]) -> dict[str, str | None]:
        """An environment: values of names that help a diagnosis, None for all others. Secrets are remembered either way."""
        if not self.enabled:
            return dict(env)
        read = {name: self.pair(name, value) for name, value in env.items()}
        return {
            self.name(name): self._tokens.sweep(value) if p.ENV_KEPT.fullmatch(name) else None for name, value in read.items()
        }

    def url(self, url: str) -> str:
        """One URL: what stands before the `@`, and secret query parameters."""
        scheme, mark, rest = url.partition("://")
        if not self.enabled or not mark or p.NEXT_URL.search(url):
            return self.text(url)
        return self.text(f"{scheme}://{redact_text.authority(scheme, rest, self._tokens)}")

    def pair(self, key: str, value: str) -> str:
        """One value whose key is known by structure: header, label, setting, local variable."""
        kind = p.kind_of(key, "structure") if self.enabled else None
        if kind is not None and kind != "prompt-maybe":
            return self._whole(kind, value)
        return self.url(value) if "://" in value and not re.search(r"\s", value) else self.text(value)

    def json(self, value: object) -> object:
        """Anything JSON can say, walked through: keys, values, argv lists, `{"name": ..., "value": ...}` and its like.

        Raises TypeError on an object that is neither JSON nor a date: what is inside could not be judged.
        """
        if not self.enabled:
            return value
        before = self._tokens.known
        out = self._walk(value, None)
        # A secret found late may stand in an earlier string too.
        return self._walk(out, None) if self._tokens.known > before else out

    def name(self, name: str) -> str:
        """A file name, a Redis key, a client name or another identifier."""
        return self.text(name)

    def bytes_(self, data: bytes) -> bytes:
        """The bytes of a text artefact. Raises UndecodableArtefact when they are not UTF-8 text."""
        if not self.enabled:
            return data
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UndecodableArtefact(f"byte {error.start} is not UTF-8: it cannot be redacted, so it is not kept") from error
        if b"\0" in data and _WIDE.search(data):
            raise UndecodableArtefact("every other byte is zero (UTF-16?): it cannot be redacted, so it is not kept")
        return self.text(text).encode("utf-8")

    def _whole(self, kind: str, value: str) -> str:
        replaced = redact_text.whole(kind, value, self._tokens)
        return self.text(value) if replaced is None else self._tokens.sweep(replaced)

    def _walk(self, value: object, kind: str | None) -> object:
        """`kind` is that of the key above: everything below a secret key is secret."""
        match value:
            case str():
                return self.text(value) if kind is None else self._whole(kind, value)
            case bool() | float() | None | datetime.date() | datetime.time() | datetime.timedelta():
                return value
            case int():
                return value if kind is None or p.is_harmless(str(value), kind) else self._whole(kind, str(value))
            case Mapping():
                return self._mapping(value, kind)
            case list() | tuple():
                return self._sequence(value, kind)
        raise TypeError(f"cannot redact a {type(value).__name__}: turn it into JSON types first")

    def _mapping(self, value: Mapping[object, object], kind: str | None) -> dict[object, object]:
        kinds: dict[object, str | None] = {}
        for name in (value.get(at) for at in ("name", "var", "key")):
            if isinstance(name, str) and (named := p.kind_of(name, "structure")) is not None:
                kinds = dict.fromkeys(("value", "repr"), named)
        if kind in p.PROMPT_KINDS or value.get("type") == "text" or not _BESIDE_TEXT.isdisjoint(value.keys()):
            kinds["text"] = "prompt"
        if "model" in value:
            kinds |= dict.fromkeys(_BESIDE_MODEL, "prompt")
        # Messages have a structure of their own below `content` and `prompt`.
        above = None if kind in p.PROMPT_KINDS else kind
        return {
            self.name(key) if isinstance(key, str) else key: self._item(key, item, above or kinds.get(key))
            for key, item in value.items()
        }

    def _item(self, key: object, item: object, kind: str | None) -> object:
        if not isinstance(key, str) or kind is not None:
            return self._walk(item, None if kind == "prompt-maybe" else kind)
        if isinstance(item, str):
            return self._hex(item) if key.endswith("_hex") else self.pair(key, item)
        own = p.kind_of(key, "structure")
        return self._walk(item, None if own == "prompt-maybe" else own)

    def _sequence(self, value: Sequence[object], kind: str | None) -> object:
        if value and kind in p.PROMPT_KINDS and self._tokens.hides_prompts and all(isinstance(item, int) for item in value):
            return self._tokens.prompt(f"[{', '.join(map(str, value))}]")
        texts = [item for item in value if isinstance(item, str)]
        if kind is None and len(texts) == len(value):
            if len(texts) == 2 and p.kind_of(texts[0], "structure") in p.HEADER_KINDS:
                return [texts[0], self.pair(*texts)]
            if any(map(_is_option, texts)):
                return self.argv(texts)
        return [self._walk(item, kind) for item in value]

    def _hex(self, value: str) -> str:
        """A key in hex says what the key says, also one that is not UTF-8: it stays hex, of the redacted key."""
        try:
            text = bytes.fromhex(value).decode("utf-8", "surrogateescape")
        except ValueError:
            return self.text(value)
        redacted = self.name(text)
        return value if redacted == text else redacted.encode("utf-8", "surrogateescape").hex()


def _is_option(word: str) -> bool:
    return p.NEXT_OPTION.match(word) is not None


def _argument_kind(word: str, args: Sequence[str]) -> str | None:
    """What follows this word of a command line: a kind of secret, `userinfo`, or None."""
    programs = [arg.rpartition("/")[2] for arg in args[:4]]
    if (word == "-a" and _OTHER_PROGRAMS.isdisjoint(programs)) or (word == "-p" and "sshpass" in programs):
        return "password"
    if word in ("-u", "--user") and not {"curl", "wget"}.isdisjoint(programs):
        return "userinfo"
    if word.upper() in ("AUTH", "REQUIREPASS", "MASTERAUTH") and any(map(_CLIENT.fullmatch, programs)):
        return "password"
    if not _is_option(word):
        return None
    kind = p.kind_of(word, "structure")
    return None if kind in ("prompt-ids", "prompt-maybe") else kind
