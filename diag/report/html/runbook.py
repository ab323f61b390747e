"""A runbook's Markdown as HTML: lists, bold, emphasis, code and fences; texts of the evidence in it stay text."""

from markdown_it import MarkdownIt
from markupsafe import Markup

from diag.report.inert import inert

MAX_LINE_CHARS = 2_000
# no links, images, HTML or entities: what else a value holds is not markup. A line that rules begin anew (`Expected: …`) stays a line.
MARKDOWN = MarkdownIt("zero", {"html": False, "breaks": True}).enable(["list", "fence", "code", "backticks", "emphasis", "heading", "newline"])


def to_html(text: str) -> Markup:
    """Markdown of a rule, with values of the evidence put into it -> HTML without a link, an image or an attribute of theirs."""
    lines = [inert(line, MAX_LINE_CHARS) for line in text.replace("\r\n", "\n").split("\n")]
    shown = MARKDOWN.render("\n".join(lines))
    for level in "123456":  # the page has headings of its own above
        shown = shown.replace(f"<h{level}>", "<p><strong>").replace(f"</h{level}>", "</strong></p>")
    return Markup(shown)  # markdown-it has escaped every text
