"""Our own signs where the encoding of a stream has none: an error handler for streams, by its name."""

import codecs

PLAIN = "llmdiag.plain"
"""`errors=PLAIN`: separators become ASCII signs of one cell, everything else a backslash escape."""
SIGNS = {"·": "|", "…": "~", "–": "-", "—": "-", "✔": "+"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(SIGNS.get(char) or char.encode("ascii", "backslashreplace").decode() for char in lost), error.end


codecs.register_error(PLAIN, _plain)
