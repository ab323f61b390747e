"""Two answers to one question side by side, and where the engine's log has the question. Pure."""

import shlex

EXCERPT_CHARS = 200
"""The document keeps so many characters of an answer."""
SHOWN_CHARS = 140
SHARED_CHARS = 32
"""Of what two answers have in common before they part."""


def beside(good: str | None, bad: str | None) -> tuple[str | None, str | None]:
    """Two answers, shortened where they are alike so that where they part is seen. None stays None (not kept)."""
    start = 0 if good is None or bad is None else _parting(good, bad)
    return _shown(good, start), _shown(bad, start)


def _parting(good: str, bad: str) -> int:
    """Where to begin: some words before the first difference."""
    alike = next((at for at, (left, right) in enumerate(zip(good, bad, strict=False)) if left != right), min(len(good), len(bad)))
    if alike <= SHARED_CHARS:
        return 0
    blank = good.find(" ", alike - SHARED_CHARS, alike)
    return blank + 1 if blank >= 0 else alike - SHARED_CHARS


def _shown(text: str | None, start: int) -> str | None:
    if text is None:
        return None
    if not text.strip():
        return "(empty)"
    rest = text[start : start + SHOWN_CHARS]
    is_cut = len(text) > start + SHOWN_CHARS or len(text) >= EXCERPT_CHARS
    return f"{'… ' if start else ''}{rest}{'…' if is_cut else ''}" if rest else "… (ends here)"


def grep(request: object, sent: object) -> str:
    """A command that finds a request in a log by the id that the engine gave it, or by the one that was sent."""
    names = dict.fromkeys(str(name) for name in (sent if sent is not None and str(sent) in str(request) else request, sent) if name is not None)
    return shlex.join(["grep", "-nwF", *(word for name in names for word in ("-e", name))]) + " ENGINE_LOG"
