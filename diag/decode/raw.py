"""Last resort: nothing, text, or bytes whose meaning only their siblings can tell."""

import re

from diag.decode.decoded import Buffer, Decoded

NAME = "raw"
ORDER = 1000

MAX_TEXT_BYTES = 1 << 20
MAX_TEXT = 2_000
MAX_RUNS = 16
NULLS = frozenset(
    {"none", "null", "nil", "undefined", "nan", "n/a", "<null>", "(null)", "(nil)", "__null__", "__none__"}
)
RUN = re.compile(rb"[ -~]{5,256}")
ERROR_TEXT = re.compile(
    r"Traceback \(most recent call last\)|<html[^>]*>\s*<head>\s*<title>\s*[45]\d\d"
    r"|(?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out|Too Many Requests)\s*\Z|[A-Za-z_.]*(?:Error|Exception): ",
    re.IGNORECASE,
)


def sniff(data: Buffer) -> bool:
    return True


def decode(data: Buffer) -> Decoded:
    if len(data) == 0:
        return Decoded("empty", is_empty=True)
    if len(data) <= MAX_TEXT_BYTES:
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError:
            text = ""
        if text and all(char.isprintable() or char.isspace() for char in text[:MAX_TEXT]):
            return text_of(text)
    runs = RUN.findall(bytes(data[:4096]))[:MAX_RUNS] if len(data) <= 4096 else []
    return Decoded(NAME, texts=tuple(run.decode("ascii") for run in runs))


def text_of(text: str) -> Decoded:
    """A readable value."""
    bare = text.strip()
    found = ERROR_TEXT.match(bare)
    return Decoded(
        "text",
        texts=(bare[:MAX_TEXT],) if bare else (),
        error=found[0].strip()[:64] if found is not None else None,
        is_none=bare.lower() in NULLS,
        is_empty=not bare,
    )
