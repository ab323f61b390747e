"""Values written as base64 text, standard or URL-safe; a hex digest is text, not base64.

    gASVkgAAAAAAAACMFm51bXB5Ll9jb3JlLm11bHRpYXJyYXmUjAxfcmVjb25zdHJ1Y3SUk5QojAVudW1weZSM …
"""

from diag.decode.decoded import Buffer, Decoded
from diag.decode.plain import MIN_BASE64, base64_of

NAME = "base64"
ORDER = 920

MAX_BYTES = 16 << 20
ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


def sniff(data: Buffer) -> bool:
    return MIN_BASE64 <= len(data) <= MAX_BYTES and ALPHABET.issuperset(bytes(data[:MIN_BASE64]))


def decode(data: Buffer) -> Decoded:
    from diag.decode import raw

    text = str(data, "latin-1")
    inner = base64_of(text.strip())
    if inner is None or _readable(inner):
        return raw.decode(data)
    return Decoded(NAME + "+", nested=(inner,))


def _readable(inner: bytes) -> bool:
    """Base64 of a text is as likely a long word: left as the text it is."""
    return len(inner) < 48
