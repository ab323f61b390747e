"""`report --handoff`: a block of Markdown for the bug report of an upstream project, ready to paste. Pure.

What such projects ask for: versions and command lines, what was seen with its proof, every thread's stack (threads at the same
place folded into one line), what was ruled out, and what was taken out of it. What to do about it on this machine is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diag.model import Diagnosis
from diag.plots import Branch, Tree
from diag.redact import Redactor
from diag.report import markdown, words
from diag.report.sections import environment

TEMPLATE = "handoff.md.j2"
MAX_CLASSES, MAX_RULED_OUT = 40, 10


@dataclass(frozen=True)
class Class:
    """Threads that were seen at the same place."""

    weight: int
    who: str
    frames: str
    """Functions, innermost first."""


def render(diagnosis: Diagnosis, max_chars: int = markdown.MAX_CHARS) -> str:
    """Diagnosis -> Markdown of at most so many characters. Loose evidence, which nobody redacted yet, is redacted here."""
    body = [_part("finding", result) for result in diagnosis.findings]
    made_of = [part for section in diagnosis.sections if section.title == environment.TITLE for part in section.in_words()]
    body += [_part("environment", made_of)] if made_of else []
    classes = sorted(_classes(diagnosis), key=lambda item: -item.weight)
    body += [_part("stacks", classes[:MAX_CLASSES], max(0, len(classes) - MAX_CLASSES))] if classes else []
    ruled_out, missing = words.ruled_out(diagnosis), words.missing(diagnosis)
    body += [_part("ruled_out", ruled_out[:MAX_RULED_OUT], max(0, len(ruled_out) - MAX_RULED_OUT))] if ruled_out else []
    body += [_part("missing", missing)] if missing else []
    head = _part("head", *words.headline(diagnosis), words.notes(diagnosis))
    tail = _part("tail", words.origin(diagnosis), words.pause(diagnosis), words.sharing(diagnosis))
    text = markdown.bounded(head, body, tail, words.report_command(diagnosis), max_chars)
    return text if diagnosis.subject.get("redacted") is not None else Redactor().text(text)


def _part(name: str, *values: object) -> str:
    return markdown.part(name, *values, template=TEMPLATE)


def _classes(diagnosis: Diagnosis) -> Iterator[Class]:
    """The ends of all trees of stacks."""
    trees = [part.plot for section in diagnosis.sections for part in section.parts if isinstance(part.plot, Tree)]
    for tree in trees:
        yield from _ends(tree.branches, ())


def _ends(branches: Sequence[Branch], above: tuple[str, ...]) -> Iterator[Class]:
    for branch in branches:
        frames = (*above, *branch.frames)
        if branch.branches:
            yield from _ends(branch.branches, frames)
        else:
            yield Class(branch.weight, branch.note, " <- ".join(reversed(frames)))
