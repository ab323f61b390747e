"""Words that stand where data should be: "skip", "placeholder", "unavailable", and null in its spellings."""

import re
from collections.abc import Iterable

WORDS = frozenset({
    "skip", "skipped", "skipping", "placeholder", "unavailable", "fail", "failed", "failure", "error", "errored",
    "invalid", "missing", "dummy", "sentinel", "tombstone", "marker", "absent", "notfound", "unprocessable",
    "unsupported", "corrupt", "corrupted", "damaged", "broken", "stub", "fallback", "aborted", "cancelled",
    "timeout", "none", "null", "nil", "nan", "undefined", "negative",
})  # fmt: skip
PHRASES = frozenset({
    "not found", "not available", "no data", "no image", "n a", "timed out", "negative cache", "could not fetch",
    "too large", "not ready", "in progress", "to be computed",
})  # fmt: skip
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
MAX_TEXT = 512


def words(text: str) -> tuple[str, ...]:
    """`_SkipMarker` and `__skip_marker__` alike -> ("skip", "marker")."""
    return tuple(word.lower() for word in WORD.findall(text[:MAX_TEXT]))


def inside(texts: Iterable[str]) -> str | None:
    """The first text with a marker word anywhere in it."""
    for text in texts:
        found = words(text)
        joined = " ".join(found)
        if not WORDS.isdisjoint(found) or any(f" {phrase} " in f" {joined} " for phrase in PHRASES):
            return text
    return None


def whole(texts: Iterable[str]) -> str | None:
    """The first text that is nothing but marker words: "skip", "__PLACEHOLDER__", "not found"."""
    for text in texts:
        found = words(text) if len(text) <= 64 else ()
        if found and (" ".join(found) in PHRASES or all(word in WORDS for word in found)):
            return text
    return None
