"""What a page shows of a diagnosis, each piece with a name of its own that links can lead to. Names are numbers, never texts of the evidence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diag.model import Diagnosis, RuleResult, SignalResult
from diag.rawlines import Place, place_of
from diag.report import words
from diag.report.words import Sentence

MAX_ROWS = 25
"""Of one signal; rows that have a sentence are always among them."""
ORIGIN = ("bundle", "host", "source", "unseen", "because")


@dataclass(frozen=True)
class Row:
    """One row of evidence: its columns, where it is from, and the raw line there."""

    anchor: str
    columns: tuple[tuple[str, object], ...]
    sentence: str
    where: str
    source: str
    raw: str | None
    """None = its source is no line of a text."""


@dataclass(frozen=True)
class Evidence:
    """A signal that held, with its rows."""

    title: str
    role: str
    rows: tuple[Row, ...]
    left_out: str


@dataclass(frozen=True)
class Told:
    """A sentence, and the row that it tells of."""

    sentence: Sentence
    anchor: str = ""
    """"" = there is no row to link to."""


@dataclass(frozen=True)
class Judged:
    """A rule's result, its sentences and its evidence."""

    anchor: str
    result: RuleResult
    held: tuple[Told, ...]
    others: tuple[Told, ...]
    """What could not be looked at, and what was not found."""
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Capture:
    """One diagnosis."""

    number: int
    """In order of time, from 1."""
    anchor: str
    diagnosis: Diagnosis
    badge: str
    """The verdict, one word of the headline."""
    rest: str
    """What follows it there."""
    subject: str
    accent: str
    """Class of its colour: severity-critical … severity-info of what was found, else its verdict."""
    findings: tuple[Judged, ...]
    open: tuple[Judged, ...]

    @property
    def runbooks(self) -> tuple[Judged, ...]:
        """Findings that have one."""
        return tuple(item for item in self.findings if item.result.runbook)

    @property
    def evidence(self) -> tuple[Judged, ...]:
        """What rests on rows."""
        return tuple(item for item in (*self.findings, *self.open) if item.evidence)

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of everything below the headline."""
        found = [(item.anchor, item.result.title) for item in self.findings] or [(f"{self.anchor}-answer", "The answer")]
        found += [(f"{self.anchor}-p{number}", section.title) for number, section in enumerate(self.diagnosis.sections, 1)]
        rest = (
            ("open", "Open", self.open), ("out", "Ruled out", self.diagnosis.ruled_out), ("missing", "Could not be looked at", words.missing(self.diagnosis)),
            ("runbook", "Runbook", self.runbooks), ("collected", "How this was collected", True), ("evidence", "Evidence, row by row", self.evidence),
        )  # fmt: skip
        return (*found, *((f"{self.anchor}-{name}", title) for name, title, there in rest if there))


def capture(diagnosis: Diagnosis, number: int, quoted: Mapping[Place, str]) -> Capture:
    """A diagnosis with all names of its pieces."""
    name = f"c{number}"
    lead, subject = words.headline(diagnosis)
    badge = lead.partition(" ")[0].rstrip(":")
    accent = f"severity-{diagnosis.findings[0].severity}" if diagnosis.findings else "inconclusive" if words.mostly_open(diagnosis) else diagnosis.verdict
    findings = tuple(_judged(result, f"{name}-f{place}", quoted) for place, result in enumerate(diagnosis.findings, 1))
    still_open = tuple(_judged(result, f"{name}-o{place}", quoted) for place, result in enumerate(diagnosis.inconclusive, 1))
    return Capture(number, name, diagnosis, badge, lead[len(badge) :], subject, accent, findings, still_open)


def _judged(result: RuleResult, name: str, quoted: Mapping[Place, str]) -> Judged:
    numbers = {signal.id: number for number, signal in enumerate(result.held(), 1)}
    told = list(_told(result, name, numbers))
    return Judged(
        name, result, tuple(item for item in told if item.sentence.mark == "+"), tuple(item for item in told if item.sentence.mark != "+"),
        tuple(_evidence(signal, f"{name}-s{numbers[signal.id]}", quoted) for signal in _in_order(result.held()) if signal.rows),
    )  # fmt: skip


def _in_order(signals: Sequence[SignalResult]) -> list[SignalResult]:
    return sorted(signals, key=lambda signal: words.ROLES.index(signal.role))


def _told(result: RuleResult, name: str, numbers: Mapping[str, int]) -> Iterator[Told]:
    """Each sentence of a signal tells of one of its rows, in their order."""
    seen: dict[str, int] = {}
    rows = {signal.id: len(signal.rows) for signal in result.held()}
    for sentence in words.told_in_full(result):
        place = seen[sentence.signal] = seen.get(sentence.signal, 0) + 1
        linked = sentence.mark == "+" and place <= rows.get(sentence.signal, 0)
        yield Told(sentence, f"{name}-s{numbers[sentence.signal]}-{place}" if linked else "")


def _evidence(signal: SignalResult, name: str, quoted: Mapping[Place, str]) -> Evidence:
    shown = signal.rows[: max(MAX_ROWS, len(signal.says))]
    rows = tuple(_row(row, f"{name}-{place}", signal.says[place - 1] if place <= len(signal.says) else "", quoted) for place, row in enumerate(shown, 1))
    more = len(signal.rows) - len(shown)
    left_out = f"{more}{' or more' if signal.more else ''} further rows: llmdiag report -f json" if more or signal.more else ""
    return Evidence(signal.id.replace("_", " "), signal.role, rows, left_out)


def _row(row: Mapping[str, object], name: str, sentence: str, quoted: Mapping[Place, str]) -> Row:
    place = place_of(row)
    columns = tuple((column, value) for column, value in row.items() if column not in ORIGIN and value is not None)
    where = " · ".join(str(row[column]) for column in ("host", "bundle") if row.get(column) is not None)
    return Row(name, columns, sentence, where, words.source_of(row), None if place is None else quoted.get(place))
