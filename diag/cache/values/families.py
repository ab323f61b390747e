"""Key names -> families: hashes, ids and numbers masked, versions kept.

    clip-vit-b-32:image:d41d8cd98f00b204e9800998ecf8427e  ->  clip-vit-b-32:image:<hex>
    mm:v3:qwen2-vl:image:17                               ->  mm:v3:qwen2-vl:image:<n>
"""

import re
from collections.abc import Iterator

_EDGE = rb"(?<![0-9A-Za-z])"
_STOP = rb"(?![0-9A-Za-z])"
UUID = rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
ULID = rb"[0-7][0-9A-HJKMNP-TV-Z]{25}"
DIGEST = rb"(?:0x)?(?:[0-9a-f]{8,}|[0-9A-F]{8,})"
TOKEN = rb"(?=[0-9A-Za-z]*[0-9][0-9A-Za-z]*[0-9])(?=[0-9A-Za-z]*[a-z])(?=[0-9A-Za-z]*[A-Z])[0-9A-Za-z]{20,}"
LONG_NUMBER = rb"[0-9]{5,}"
PART_NUMBER = rb"(?:(?<=[:/|@#,;=.])|\A)[0-9]+(?=[:/|@#,;=.]|\Z)"

MASK = re.compile(
    _EDGE + rb"(?:(?P<uuid>" + UUID + rb")|(?P<ulid>" + ULID + rb")|(?P<hex>" + DIGEST + rb")|(?P<tok>" + TOKEN + rb"))" + _STOP
    + rb"|(?P<long>" + LONG_NUMBER + rb")|(?P<n>" + PART_NUMBER + rb")"
)  # fmt: skip
VERSION = re.compile(rb"(?:(?<=[:/|@])|\A)[vV]([0-9]+(?:\.[0-9]+)*)(?=[:/|@]|\Z)")
# `emb:clip:float16`: these digits are a type, not a count
TYPE_NAME = re.compile(rb"(?:b?float|u?int|fp|bf|fp8_e|v)[0-9]+", re.IGNORECASE)

Span = tuple[int, int, str]
"""start, end, what it is."""


def family(key: bytes) -> str:
    """The key with everything that differs between siblings masked. Any bytes are fine."""
    out = bytearray()
    at = 0
    for start, end, mask in _spans(key):
        out += key[at:start] + b"<" + mask.encode() + b">"
        at = end
    return (bytes(out) + key[at:]).decode("utf-8", "backslashreplace")


def version_of(key: bytes) -> str | None:
    """The version a key carries as a part of its own: "1" of `model:v1:image:…`; None if it has none."""
    found = VERSION.search(key)
    return None if found is None else found[1].decode()


def versionless(key: bytes) -> str:
    """The family over all versions: `model:<v>:image:<hex>`."""
    return family(VERSION.sub(b"<v>", key, count=1))


def sibling_glob(key: bytes) -> bytes:
    """A MATCH pattern that every sibling of this key fits, of any version; it may fit others too."""
    spans = [*_spans(key), *((found.start(), found.end(), "v") for found in VERSION.finditer(key))]
    out = bytearray()
    at = 0
    for start, end, _mask in sorted(spans):
        if start >= at:
            out += _escaped(key[at:start]) + b"*"
            at = end
    return bytes(out) + _escaped(key[at:])


def older(version: str, than: str) -> bool | None:
    """Is this version number lower? None if the two cannot be compared."""
    try:
        ours, theirs = (tuple(int(part) for part in text.lstrip("vV").split(".")) for text in (version, than))
    except ValueError:
        return None
    return ours < theirs


def _escaped(text: bytes) -> bytes:
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", text)


def _spans(key: bytes) -> Iterator[Span]:
    """What to mask, from left to right."""
    try:
        key.decode()
    except UnicodeDecodeError as error:
        # a binary digest: where it begins is known only to the separator before it
        start = max((key.rfind(mark, 0, error.start) for mark in (b":", b"/", b"|", b"@")), default=-1) + 1
        yield from _text_spans(key[:start], whole=False)
        yield start, len(key), "bin"
        return
    yield from _text_spans(key, whole=True)


def _text_spans(key: bytes, *, whole: bool) -> Iterator[Span]:
    spans = [(found.start(), found.end(), _kind(found)) for found in MASK.finditer(key) if _is_id(found)]
    if whole:
        spans += _last_numbers(key, spans)
    yield from sorted(spans)


def _is_id(found: re.Match[bytes]) -> bool:
    """Eight letters a-f may be a word (`deadbeef`, `facade`); with a digit, or long, they are a digest."""
    digest = found["hex"]
    return digest is None or len(digest) >= 16 or any(byte in b"0123456789" for byte in digest)


def _kind(found: re.Match[bytes]) -> str:
    kind = found.lastgroup or "n"
    text = found[0]
    if kind == "hex" and text.isdigit():
        return "n"  # a digest of digits alone is rarer than a number of that length
    return "n" if kind == "long" else kind


def _last_numbers(key: bytes, spans: list[Span]) -> list[Span]:
    """Numbers glued to a word count only in the last part: `img:frame17`, but not `qwen2-7b:image:…`."""
    start = max(key.rfind(mark) for mark in (b":", b"/", b"|", b"@")) + 1
    if start == 0 or TYPE_NAME.search(key, start) is not None:
        return []
    taken = [(a, b) for a, b, _ in spans]
    numbers = [(m.start(), m.end()) for m in re.finditer(rb"[0-9]+", key) if m.start() >= start]
    return [(a, b, "n") for a, b in numbers if not any(a < end and b > begin for begin, end in taken)]
