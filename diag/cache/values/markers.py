"""Words that stand where data should be: "skip", "placeholder", "unavailable", and null in its spellings."""

import re
from collections.abc import Iterable

WORDS = frozenset({
    "skip", "skipped", "skipping", "placeholder", "unavailable", "fail", "failed", "failure", "error", "errored",
    "invalid", "missing", "dummy", "sentinel", "tombstone", "marker", "absent", "notfound", "unprocessable",
    "unsupported", "corrupt", "corrupted", "damaged", "broken", "stub", "fallback", "aborted", "cancelled",
    "timeout", "none", "null", "nil", "nan", "undefined", "negative", "pending", "empty", "omitted", "unset", "todo", "tbd",
})  # fmt: skip
PHRASES = frozenset({
    "not found", "not available", "no data", "no image", "n a", "timed out", "negative cache", "could not fetch",
    "too large", "not ready", "in progress", "to be computed",
})  # fmt: skip
FILLERS = frozenset({
    "image", "img", "images", "picture", "audio", "video", "text", "frame", "embedding", "embeddings", "embed", "emb", "vector", "tensor",
    "feature", "features", "encoding", "encode", "encoder", "token", "tokens", "value", "data", "item", "content", "input", "output",
    "result", "response", "request", "entry", "object", "cache", "cached", "key", "model", "is", "was", "not", "no", "to", "be", "the",
})  # fmt: skip
"""Words that may stand beside a marker word and say nothing by themselves."""
PHRASE_WORDS = frozenset(word for phrase in PHRASES for word in phrase.split())
CODE = re.compile(r"[_<>\[\]{}]|\A[A-Z][A-Z ]{4,}\Z")
LETTERS = re.compile(r"[A-Za-z_<>\[\]{} -]{6,}")
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
        said = " ".join(found)
        sayings = not WORDS.isdisjoint(found) or any(f" {phrase} " in f" {said} " for phrase in PHRASES)
        known = WORDS | FILLERS | PHRASE_WORDS
        if found and sayings and all(word in known for word in found):
            return text
    return None


def coded(texts: Iterable[str]) -> str | None:
    """The first text that no person would answer with: "__PLACEHOLDER__", "<skip>", "IMAGE_UNAVAILABLE"; not "None."."""
    return next((text for text in texts if CODE.search(text) is not None and whole([text]) is not None), None)
