"""Which local variables look like cache keys, and what their printed form says about the text behind it.

py-spy prints a string in double quotes, a quote inside it as `\\"`, a line end as `\\n`, and cuts it to 128 characters
per `--locals` given: the last three are then dots.
"""

import re

CUT_STEP = 128
"""Characters that one more `--locals` shows."""
MAX_CHARS = 512
"""Longer texts are no keys."""

# 9e107d9d372bb6826bd81d3542a419d6, or the same with dashes as in a UUID
_DIGEST = re.compile(r"[0-9a-fA-F]{16,}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")

# 127.0.0.1:6379, [::1]:6379, redis://cache:6379/0, cache.prod.svc:6380, cache:6379; but clip:image:42 and session:42 are keys
_ADDRESS = re.compile(
    r"(\w+://[^/\s]+|localhost|\[[\da-fA-F:.]+\]|[\da-fA-F:.]*::[\da-fA-F:.]*|(\d+\.){3}\d+|([\w-]+\.)+[a-zA-Z][\w-]*):\d{1,5}(/\d*)?"
    r"|[\w-]+:(63[78]\d|1?6379|26379|700\d|11211)(/\d*)?"  # a host of one word looks like a family of keys: the port must tell
)


def text_of(printed: str) -> str | None:
    """The string that was printed, without quotes and, where it was cut, without the dots; None when it is no string."""
    if len(printed) < 2 or printed[0] != '"' or printed[-1] != '"':
        return None
    body = printed[1:-1]
    if was_cut(printed):
        body = body[:-3].removesuffix("\\")  # the cut may fall between a backslash and what it escapes
    return body.replace('\\"', "'").replace("\\n", "\n")


def was_cut(printed: str) -> bool:
    """Did py-spy cut this string? A text that happens to end in dots is one only at exactly the length of a cut."""
    return printed.startswith('"') and printed.endswith('..."') and len(printed) % CUT_STEP == 0


def looks_like_key(text: str) -> bool:
    """No white space, at most 512 characters, and a separator of keys or a digest in it."""
    if not text or len(text) > MAX_CHARS or any(char.isspace() for char in text):
        return False
    return ":" in text or "@" in text or _DIGEST.search(text) is not None


def is_address(text: str) -> bool:
    """Where a cache is, not what is in it."""
    return _ADDRESS.fullmatch(text) is not None
