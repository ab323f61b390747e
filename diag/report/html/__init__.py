"""The report as one HTML file to attach to a ticket: no network, no script needed, prints well.

Whatever the template prints goes through one door, `finalize`: it is made inert (one line, no control characters, cut when long)
and then escaped. Only commands and runbooks take another way, with the same care. The page's Content-Security-Policy allows its
own style sheet and its own copy buttons by their hashes, and nothing else. Heat maps, trees and bars are tables and lists, which
screen readers, printers and narrow screens know how to take; only the timeline is drawn, as SVG, and none needs a plot library.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import structs

from diag.model import Diagnosis, Part, Section
from diag.plots import Plot, Timeline
from diag.rawlines import Place
from diag.report import words
from diag.report.html import anchors, runbook, timeline
from diag.report.inert import command, inert

MAX_TEXT_CHARS = 2_000
MAX_COMMAND_CHARS = 20_000
MAX_LISTED = 200


def render(diagnoses: Sequence[Diagnosis], quoted: Mapping[Place, str] | None = None, best: Diagnosis | None = None) -> str:
    """Captures in order of time, the raw lines of their rows, and which capture says most and comes first -> the page."""
    style, script = _file("style.css"), _file("copy.js")
    numbered = [anchors.capture(diagnosis, number, quoted or {}) for number, diagnosis in enumerate(diagnoses, 1)]
    captures = sorted(numbered, key=lambda item: best is not None and item.diagnosis is not best)
    page = _environment().get_template("page.html.j2")
    return page.render(
        captures=captures, together=_together(diagnoses), words=words, style=Markup(style), script=Markup(script), policy=_policy(style, script), max_listed=MAX_LISTED
    )


def _together(diagnoses: Sequence[Diagnosis]) -> Section | None:
    """Several captures on one line of time."""
    plots = [(number, part.plot) for number, diagnosis in enumerate(diagnoses, 1) for section in diagnosis.sections for part in section.parts]
    lanes = [structs.replace(lane, name=f"{lane.name} (capture {number})") for number, plot in plots if isinstance(plot, Timeline) for lane in plot.lanes]
    return Section("All captures on one line of time", (Part(plot=Timeline(tuple(lanes))),)) if lanes and len(diagnoses) > 1 else None


def _policy(style: str, script: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    return "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'".format(*hashes)


def _file(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_inert, loader=FunctionLoader(_file)
    )
    environment.filters |= {
        "command": _command, "runbook": runbook.to_html, "cut": _cut, "chart": timeline.chart, "in_order": timeline.in_order, "moment": timeline.moment,
        "kind": _kind, "units": _units, "capitalize_first": _capitalized, "one_line": _one_line,
    }  # fmt: skip
    return environment


def _inert(value: object) -> object:
    """The one door: what is no markup of ours becomes one harmless line, which the template engine then escapes."""
    return value if isinstance(value, Markup) else inert(value, MAX_TEXT_CHARS)


def _command(text: str) -> Markup:
    """A command exactly as it is to be typed."""
    if len(text) > MAX_COMMAND_CHARS:
        return Markup("({} characters: see llmdiag report -f json)").format(len(text))
    return escape(command(text))


def _cut(value: object, limit: int) -> Markup:
    """Text of the evidence of another length than MAX_TEXT_CHARS."""
    return escape(inert(value, limit))


def _capitalized(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _one_line(text: str) -> str:
    """A paragraph of a rule, which may be broken anywhere."""
    return " ".join(text.split())


def _kind(plot: Plot) -> str:
    """Its macro in plots.html.j2."""
    return type(plot).__name__.lower()


def _units(value: float, longest: float) -> float:
    """The length of a bar, of 100; nothing that is more than zero is invisible."""
    return 0.0 if longest <= 0 or value <= 0 else round(max(1.0, 100.0 * value / longest), 2)
