"""Where a value ends: with its quote, its JSON-in-JSON quote, its URL, its sentence. Pure functions of a text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from diag.redact import patterns as p


@dataclass(frozen=True)
class Found:
    """A value in a text: where it is, what it says, and whether it stood in quotes."""

    start: int
    end: int
    value: str
    quoted: bool


def value_at(text: str, at: int, kind: str = "", query: bool = False) -> Found | None:
    """The value that starts at `at`: to its closing quote, or as far as one without quotes goes."""
    opened = p.OPEN.match(text, at)
    if opened:
        if opened["call"] and p.LOOKUP.search(opened["call"]):
            return None
        start = opened.end()
        end = _closing(text, start, len(opened["slashes"]), opened["quote"])
        return Found(start, end, text[start:end], True)
    if (token := p.TOKEN.match(text, at)) is not None:
        return Found(at, token.end(), token[0], False)
    if kind == "authorization":
        return _authorization(text, at)
    found = {"prompt": p.UNQUOTED_PROMPT, "cookie": p.COOKIE_RUN}.get(kind, p.RUN).match(text, at)
    if found is None:
        return None
    start, run = found.start("run"), found["run"]
    if kind != "prompt":
        cut = re.search("[&#]", run) if query else None if kind == "cookie" else p.NEXT_PAIR.search(run)
        run = run[: cut.start()] if cut else run
        closing = (p.CLOSING_AFTER_PLACEHOLDER if run.startswith(("<", "{", "$")) else p.CLOSING).match(run[::-1])
        tokens = [token.end() for token in p.TOKEN.finditer(run)] if "[" in run else []
        run = run[: max(len(run) - (closing.end() if closing else 0), *tokens[-1:], 0)]
    return Found(start, start + len(run), run, False)


def without_quotes(value: str) -> tuple[str, str, str]:
    """Opening quote, text, closing quote of a repr; py-spy cuts long ones, so the closing quote may be missing."""
    found = p.PEEL.match(value)
    if found is None:
        return "", value, ""
    body, quote = value[found.end():], found[1]
    return (found[0], body[: -len(quote)], quote) if body.endswith(quote) else (found[0], body, "")


def userinfo_end(scheme: str, rest: str) -> int:
    """Where the `@` is that ends user and password, in what follows `://`; -1 when there are none.

    A password may hold `/` and `@` (then the last `@` counts), a path or a query may hold `@` too (then it does not).
    """
    path = re.search(r"[/?#]", rest)
    stop = path.start() if path else len(rest)
    last = next((at for at in _backwards(rest, "@") if p.HOST.match(rest, at + 1)), -1)
    if p.STORE_SCHEME.fullmatch(scheme):
        return last if last >= 0 else rest.rfind("@")
    inside = rest.rfind("@", 0, stop)
    if inside >= 0:
        return inside
    port = rest[:stop].partition(":")[2]
    return last if port and not port.isdigit() else -1


def _backwards(text: str, char: str) -> Iterator[int]:
    at = text.rfind(char)
    while at >= 0:
        yield at
        at = text.rfind(char, 0, at)


def _closing(text: str, start: int, slashes: int, quote: str) -> int:
    """End of a quoted value, or of the line when the quote never closes."""
    if slashes == 0:
        found = p.QUOTED[quote].match(text, start)
        return found.end() if found else start
    newline = text.find("\n", start)
    stop = len(text) if newline < 0 else newline
    # JSON inside JSON: the closing quote has as many backslashes as the opening one.
    closing = re.compile(rf"(?<!\\)\\{{{slashes}}}{quote}").search(text, start, stop)
    return closing.start() if closing else stop


def _authorization(text: str, at: int) -> Found | None:
    """`Bearer x` is two words, `Digest ...` the rest of the line."""
    if p.WHOLE_SCHEME.match(text, at):
        found = p.LINE.match(text, at)
    else:
        scheme = p.CREDENTIAL.match(text, at)
        found = p.RUN.match(text, scheme.end() if scheme else at)
    if found is None:
        return None
    run = found["run"].rstrip("\\,;)}")
    return Found(at, found.start("run") + len(run), text[at:found.start("run")] + run, False)
