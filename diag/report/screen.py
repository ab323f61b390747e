"""The first screen: less than 24 lines that name cause, proof, next command and what could not be looked at."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from diag.model import Action, Diagnosis, RuleResult, Verdict
from diag.report import words
from diag.report.inert import command as as_command
from diag.report.inert import inert
from diag.report.layout import clipped, command_lines, joined, limited, remedy_kept, wrapped
from diag.report.words import Missing, Sentence

LINES = 23
"""One less than a terminal has: the prompt takes the last."""
LABEL = 11
MAX_COMMAND_LINES = 8
MAX_REASON_CHARS = 1_000
MAX_TABLES = 4
MARK_STYLE = {"+": "bold green", "-": "dim", "?": "bold yellow"}
COMMAND_STYLE = "cyan"
NEVER = 1_000
# Who gets a place first: the lower, the sooner. Signals by (mark, role), further ones of a kind after other things;
# what is not here waits for the full report.
NEXT_OF_A_KIND = 12
SIGNAL_RANKS = {
    ("+", "proof"): 10, ("+", "required"): 25, ("+", "support"): 52,
    ("?", "against"): 30, ("?", "proof"): 32, ("-", "proof"): 36,
}


@dataclass(frozen=True)
class Item:
    """Lines that stay together; the first stands behind the label, the others are complete."""

    label: str
    rank: int
    lines: tuple[Text, ...]


def lines(diagnosis: Diagnosis, width: int, *, more: bool, whole: bool = False) -> list[Text]:
    """Headline and what fits into 23 lines of `width` cells, the most important first, in the order of reading.

    `more` ends it with the command that prints everything. `whole`: the headline is not cut, however wide it is.
    """
    answer = _found(diagnosis, diagnosis.findings[0], width, whole=whole) if diagnosis.findings else _nothing_found(diagnosis, width)
    items = [*_who(diagnosis, width), *answer, _facts("Evidence", 2, words.footer(diagnosis), width)]
    if more:
        items.append(_more(diagnosis, width))
    shown, label = [_headline(diagnosis, width, whole=whole)], ""
    for item in _fitting(items, LINES - 1):
        shown.append(Text(f"{'' if item.label == label else item.label:<{LABEL}}").append(item.lines[0]))
        shown += item.lines[1:]
        label = item.label
    return shown


def _fitting(items: Sequence[Item], room: int) -> list[Item]:
    chosen = set()
    for number, item in sorted(enumerate(items), key=lambda pair: pair[1].rank):
        if len(item.lines) <= room and item.rank < NEVER:
            chosen.add(number)
            room -= len(item.lines)
    return [item for number, item in enumerate(items) if number in chosen]


def _headline(diagnosis: Diagnosis, width: int, *, whole: bool) -> Text:
    lead, subject = words.headline(diagnosis)
    line = lead if whole else clipped(lead, width)
    room = width - cell_len(line) - 2
    if subject and (whole or room >= LABEL):
        line += f": {inert(subject) if whole else clipped(inert(subject), room)}"
    verdict = diagnosis.findings[0].verdict if diagnosis.findings else "inconclusive" if diagnosis.inconclusive else diagnosis.verdict
    return Text(line, style=words.verdict_colour(verdict))


def _who(diagnosis: Diagnosis, width: int) -> list[Item]:
    origin = [f"{name} {value}" for name, value in words.origin(diagnosis)]
    notes, taken = words.notes(diagnosis), words.assumed(diagnosis)
    died = words.deaths(diagnosis)
    said = [_item("Died", 4, died, width, limit=4)] if died else []
    said += [_item("Broken", 4, inert(line, MAX_REASON_CHARS), width, limit=3) for line in words.broken(diagnosis)[:2]]
    said += [_item("Assumed", 13, inert("; ".join(taken), MAX_REASON_CHARS), width, limit=3)] if taken else []
    rank = 12 if diagnosis.findings else 3
    return [_facts("Looked at", 1, origin, width), *([_facts("Note", rank, notes, width)] if notes else []), *said]


def _found(diagnosis: Diagnosis, first: RuleResult, width: int, *, whole: bool) -> list[Item]:
    doubt = "" if first.verdict is Verdict.CONFIRMED else f"; {inert(words.reason(first))}"
    items = [_item("What", 5, f"{inert(first.title)} ({first.severity}{doubt})", width)]
    lead, subject = words.headline(diagnosis)
    told = any(subject in sentence.text[:width] for sentence in words.because(first))
    if not whole and cell_len(f"{lead}: {inert(subject)}") > width and not told:
        items.append(_item("Subject", 8, inert(subject), width, limit=3))
    items += _because(first, width)
    items += _not_seen(diagnosis, first, width)
    items += _ruled_out(diagnosis, width, ranks=(28, 60, 80))
    folded = words.explained(diagnosis, first)
    items += [_item("Explains", 29 + 41 * n, f"{inert(name)}{': ' if adds else ''}{inert(adds)}", width) for n, (name, adds) in enumerate(folded)]
    if len(diagnosis.findings) > 1:
        items.append(_item("Also", 45, _others(diagnosis.findings[1:]), width))
    for number, action in enumerate(first.actions):
        items += _action(action, number, width)
    return items


def _others(findings: Sequence[RuleResult]) -> str:
    subjects = [f": {inert(r.subject, 80)}" if r.subject else "" for r in findings]
    named = [f"{r.verdict.value} {inert(r.rule, 80)}{about}" for r, about in zip(findings, subjects, strict=True)]
    return f"{len(named)} more: {'; '.join(named)}"


def _because(result: RuleResult, width: int) -> list[Item]:
    """One item per signal: its first sentence, and how many rows are like it. A proof needs no second one that failed."""
    first = {sentence.signal: sentence for sentence in reversed(words.because(result))}
    proved = bool(result.held("proof"))
    items, before = [], Counter[tuple[str, str]]()
    for sentence in reversed(first.values()):
        kind = (sentence.mark, sentence.role)
        rank = NEVER if proved and kind == ("-", "proof") else SIGNAL_RANKS.get(kind, NEVER) + NEXT_OF_A_KIND * before[kind]
        items.append(Item("Because", rank, _body(_first_sentence(sentence, width - LABEL))))
        before[kind] += 1
    return items


def _first_sentence(sentence: Sentence, width: int, limit: int = 3) -> list[Text]:
    """`[+] text (+3 like it)  source` on at most `limit` lines; the source only where it costs no line."""
    unseen = sentence.mark == "?"
    text = inert(sentence.text, MAX_REASON_CHARS if unseen else limit * width)
    others = f" (+{sentence.others} like it)" if sentence.others else ""
    parts = wrapped(text + others, width - 4)
    if len(parts) > limit:
        parts = remedy_kept(text, limit, width - 4) if unseen else limited(wrapped(text, width - 4), limit, width - 4 - cell_len(others))
        parts[-1] += others
    shown = sentence_lines(sentence.mark, parts)
    source = inert(sentence.source)
    if source and cell_len(shown[-1].plain) + cell_len(source) + 2 <= width:
        shown[-1].append(f"  {source}", style="dim")
    return shown


def sentence_lines(mark: str, parts: Sequence[str]) -> list[Text]:
    """`[+] ` before the first line of a sentence, blanks before the others."""
    return [Text(f"[{mark}] ", style=MARK_STYLE[mark]).append(Text(parts[0])), *(Text(f"    {part}") for part in parts[1:])]


def _not_seen(diagnosis: Diagnosis, first: RuleResult, width: int) -> list[Item]:
    """What this finding lacks, and the one command that would settle most of the other questions."""
    gaps = words.missing(diagnosis)
    own = [gap for gap in gaps if first.rule in gap.rules]
    others = sorted((gap for gap in words.next_to_collect(diagnosis) if gap not in own), key=lambda gap: -len(gap.tables))
    decisive = {table for signal in first.unseen() if signal.role != "support" for table in signal.unseen_tables}
    ranked = [(20 + n if decisive & {*gap.tables} else 46 + n, gap) for n, gap in enumerate(own)] + [(47, gap) for gap in others[:1]]
    return [_gap("Not seen", gap, rank, "", width) for rank, gap in ranked]


def _gap(label: str, gap: Missing, rank: int, number: str, width: int) -> Item:
    """What was not looked at and why, and below it the command that would look."""
    why = "" if gap.because == words.NOT_COLLECTED else f" ({inert(gap.because, MAX_REASON_CHARS)})"
    more = f" and {len(gap.tables) - MAX_TABLES} more tables" if len(gap.tables) > MAX_TABLES else ""
    text = f"{number}{inert(', '.join(gap.tables[:MAX_TABLES]))}{more}{why}"
    head = remedy_kept(text, 2, width - LABEL)
    return Item(label, rank, (*_body(Text(part) for part in head), *command(gap.command, width)))


def _ruled_out(diagnosis: Diagnosis, width: int, ranks: Sequence[int]) -> list[Item]:
    found = [f"{inert(rule)}: {inert(why)}" for rule, why in words.ruled_out(diagnosis)]
    return [_item("Ruled out", rank, text, width) for rank, text in zip(ranks, found, strict=False)]


def _action(action: Action, number: int, width: int) -> list[Item]:
    title = limited(wrapped(f"{number + 1} {inert(action.title)}", width - LABEL), 2, width - LABEL)
    run = command(action.run, width) if action.run else []
    items = [Item("Do next", 54 + number if number else 15, (*_body(Text(part) for part in title), *run))]
    if action.undo:
        rank = 84 + number if number else 40
        items.append(_labelled_command("Do next", rank, "  undo: ", action.undo, width))
    return items


def _nothing_found(diagnosis: Diagnosis, width: int) -> list[Item]:
    """What is open, what speaks for it, what was ruled out, and the commands that would settle the rest."""
    items = []
    for number, result in enumerate(r for r in diagnosis.inconclusive if r.held("required")):
        why = f"{inert(result.rule)}: {inert(result.title)}; {inert(words.reason(result))}"
        items.append(_item("Open", 10 + 20 * number, why, width))
        held = [sentence for sentence in words.because(result) if sentence.mark == "+"][:2]
        shown = [_body(_first_sentence(sentence, width - LABEL, 2)) for sentence in held]
        items += [Item("Open", 11 + 20 * number, body) for body in shown]
    blind = [result.rule for result in diagnosis.inconclusive if not result.held("required")]
    if blind:
        items.append(_item("Open", 26, f"cannot judge {inert(', '.join(blind))}", width))
    items += _unexplained(diagnosis, width)
    items += _ruled_out(diagnosis, width, ranks=(20, *range(41, 49)))
    gaps = words.next_to_collect(diagnosis)
    items += [_gap("Do next", gap, 5 + 18 * n, f"{n + 1} collect ", width) for n, gap in enumerate(gaps)]
    if not gaps:
        again = command(words.hint_for(diagnosis, ""), width)
        say = _item("Do next", 30, "1 if it misbehaves again, take a snapshot while it does", width)
        items.append(Item(say.label, say.rank, (*say.lines, *again)))
    return items


def _unexplained(diagnosis: Diagnosis, width: int) -> list[Item]:
    """Errors and waits that no rule tells of."""
    parts = [part for section in diagnosis.sections if section.unexplained for part in section.parts]
    shown = [_item("Seen", 6, f"{inert(part.label)}: {inert(part.text, MAX_REASON_CHARS)}", width) for part in parts]
    return [_item("Seen", 6, "and no rule for it:", width), *shown] if shown else []


def _more(diagnosis: Diagnosis, width: int) -> Item:
    return _labelled_command("More", 38, "", words.report_command(diagnosis), width)


def command(text: str, width: int, indent: int = LABEL + 2, most: int = MAX_COMMAND_LINES) -> list[Text]:
    """A command, complete, on lines of its own; one of more than `most` lines is named instead of shown."""
    shown = command_lines(text, width, indent) if len(text) <= most * width else []
    if 0 < len(shown) <= most:
        return [Text(line, style=COMMAND_STYLE) for line in shown]
    note = f"({len(text)} characters: see llmdiag report -f json)"
    return [Text(" " * indent + clipped(note, width - indent), style="dim")]


def _labelled_command(label: str, rank: int, before: str, text: str, width: int) -> Item:
    if LABEL + len(before) + len(text) <= width and LABEL + len(before) + cell_len(as_command(text)) <= width:
        return Item(label, rank, (Text(before).append(as_command(text), style=COMMAND_STYLE),))
    return Item(label, rank, (Text(before.rstrip() or "everything:"), *command(text, width)))


def _facts(label: str, rank: int, facts: Iterable[str], width: int) -> Item:
    return Item(label, rank, _body(Text(part, style="dim") for part in joined(facts, width - LABEL, limit=2)))


def _item(label: str, rank: int, text: str, width: int, limit: int = 2) -> Item:
    return Item(label, rank, _body(Text(part) for part in limited(wrapped(text, width - LABEL), limit, width - LABEL)))


def _body(parts: Iterable[Text]) -> tuple[Text, ...]:
    first, *rest = parts
    return (first, *(Text(" " * LABEL).append(part) for part in rest))
