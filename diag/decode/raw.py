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
    r"upstream connect error or disconnect/reset before headers|(?:no healthy upstream|upstream request timeout|local_rate_limited)\s*\Z"
    r"|Traceback \(most recent call last\):\s*\n|Error code: [45]\d\d - \{|(?:<!doctype html>\s*)?<html[^>]*>\s*(?:<head>\s*)?<title>\s*[45]\d\d|<html[^>]*>\s*<head>\s*<title>\s*[45]\d\d"
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
    return Decoded(NAME, texts=tuple(run.decode("ascii") for run in runs), blob=data)


def text_of(text: str) -> Decoded:
    """A readable value."""
    bare = text.strip()
    return Decoded(
        "text",
        texts=(bare[:MAX_TEXT],) if bare else (),
        error=error_of(bare),
        is_none=bare.lower() in NULLS,
        is_empty=bare in ("", '""', "''"),
        root="text",
    )


def error_of(text: str) -> str | None:
    """How a text begins that is an error report and nothing else: a traceback, a proxy's page, an API client's message."""
    found = ERROR_TEXT.match(text.strip())
    return None if found is None else found[0].strip()[:64]
