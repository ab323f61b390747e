"""The report as Markdown that pastes into a ticket: verdict, proof, what to do, what was ruled out, what is missing."""

from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

from diag.model import Diagnosis
from diag.report import words

TEMPLATE = Path(__file__).with_name("report.md.j2")
ESCAPES = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"})


def render(diagnosis: Diagnosis) -> str:
    """Diagnosis -> Markdown text."""
    environment = ImmutableSandboxedEnvironment(autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"md": escaped, "code": code, "inert": words.inert}
    good, total, gaps = words.collectors(diagnosis)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        d=diagnosis, headline=words.headline(diagnosis), origin=words.origin(diagnosis), because=words.because, ruled_out=words.ruled_out(diagnosis),
        missing=words.missing(diagnosis), footer=words.footer(diagnosis), side_effects=words.side_effects(diagnosis),
        good=good, total=total, gaps=gaps, sources=_sources,
    )


def escaped(value: object) -> str:
    """Evidence text as literal Markdown text: no markup, no HTML, no mention."""
    return words.inert(value).translate(ESCAPES).replace("@", "@\u200b").replace("\n", " ")


def code(value: object) -> str:
    """Evidence text as inline code, whatever back-ticks it holds."""
    text = words.inert(value).replace("\n", " ")
    longest = max((len(run) for run in text.replace("`", " ` ").split() if set(run) == {"`"}), default=0)
    fence = "`" * (max(longest, text.count("`")) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _sources(signal: object, limit: int = 5) -> list[str]:
    rows = getattr(signal, "rows", ())
    found = [f"{row.get('bundle') + ':' if row.get('bundle') else ''}{row['source']}" for row in rows if row.get("source")]
    return list(dict.fromkeys(found))[:limit]
