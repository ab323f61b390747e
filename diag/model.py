"""The nouns of llmdiag as frozen values: artefacts, rows, signals, findings, diagnoses."""

import enum
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from diag.errors import Garbled
from diag.plots import Plot

MAX_BYTES = 256 << 20
MAX_LINE_BYTES = 32 << 20

Row = tuple[str, Mapping[str, object]]
"""(table name, column -> value). Missing columns are NULL; bundle, host and capture are filled in by the loader."""


@dataclass(frozen=True)
class Artefact:
    """One raw piece of evidence: a file of a bundle or a loose file."""

    path: str
    """Inside a bundle `collector/name`; for a loose file its path as the person named it."""
    collector: str
    opener: Callable[[], BinaryIO] = field(repr=False)
    year: int | None = None
    """Year of its first line, as a person said it, for logs that print none."""
    zone: str | None = None
    """Zone its times are printed in, as a person said it (`UTC`, `+02:00`, `Europe/Berlin`)."""

    @classmethod
    def of_bytes(cls, path: str, collector: str, data: bytes) -> "Artefact":
        return cls(path, collector, lambda: io.BytesIO(data))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def bytes(self) -> bytes:
        """All of it. Raises Garbled when that is more than any evidence has."""
        with self.opener() as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Garbled(f"{self.path} is larger than {MAX_BYTES >> 20} MiB", hint="give the part around the incident")
        return data

    def text(self) -> str:
        """UTF-8; bytes that are not stay visible as replacement characters, never an error."""
        return self.bytes().decode("utf-8", "replace")

    def lines(self) -> Iterator[tuple[int, str]]:
        """(line number from 1, line without its end), streamed; of a line without end only the beginning."""
        number = 0
        with self.opener() as stream:
            while raw := stream.readline(MAX_LINE_BYTES):
                number += 1
                rest = raw
                while not rest.endswith(b"\n") and (rest := stream.readline(MAX_LINE_BYTES)):
                    pass
                yield number, raw.decode("utf-8", "replace").rstrip("\r\n")

    def at(self, line: int) -> str:
        """The `source` of a row that came from this line."""
        return f"{self.path}:{line}"

    def key(self, key: object) -> str:
        """The `source` of a row that came from this key of a structured artefact."""
        return f"{self.path}#{key}"


class SignalState(enum.StrEnum):
    """What a look at one signal found."""

    HELD = "held"
    EMPTY = "empty"
    UNSEEN = "could not look"


class Verdict(enum.StrEnum):
    """What a rule says of the evidence."""

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    NOT_MATCHED = "not matched"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class SignalResult:
    """One signal after its SQL was run: rows found, or the nearest miss, or what was missing."""

    id: str
    role: str
    state: SignalState
    says: tuple[str, ...] = ()
    rows: tuple[Mapping[str, object], ...] = ()
    more: bool = False
    near: str = ""
    unseen_tables: tuple[str, ...] = ()
    because: str = ""


@dataclass(frozen=True)
class Action:
    """One thing a person can do, and how to take it back."""

    title: str
    run: str
    undo: str


@dataclass(frozen=True)
class RuleResult:
    """A rule's verdict with everything it looked at."""

    rule: str
    title: str
    severity: str
    verdict: Verdict
    signals: tuple[SignalResult, ...]
    explains: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    runbook: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    subject: str = ""

    def held(self, role: str | None = None) -> tuple[SignalResult, ...]:
        return tuple(s for s in self.signals if s.state is SignalState.HELD and (role is None or s.role == role))

    def unseen(self) -> tuple[SignalResult, ...]:
        return tuple(s for s in self.signals if s.state is SignalState.UNSEEN)


@dataclass(frozen=True)
class Part:
    """One piece of a section of a report, for every format and width: one of a sentence, a picture, a command."""

    text: str = ""
    """A sentence; texts of the evidence in it are as found."""
    label: str = ""
    """What it is, where the text is a quotation."""
    drawn: tuple[str, ...] = ()
    """Lines of a table or map, to be shown as they are in letters of one width."""
    run: str = ""
    """A shell command, its values quoted."""
    plot: Plot | None = None
    """What a format with pictures shows instead of the lines that are drawn."""


@dataclass(frozen=True)
class Section:
    """What some tables say beside the findings: an experiment, a map, the stages of something."""

    title: str
    parts: tuple[Part, ...]
    headline: str = ""
    """What a report without a finding says of it in its first line; "" = nothing."""
    unexplained: bool = False
    """For reports without a finding only, and there on the first screen too."""

    def in_words(self) -> tuple[Part, ...]:
        """The parts that a format without pictures shows."""
        return tuple(part for part in self.parts if part.text or part.drawn or part.run)


@dataclass(frozen=True)
class Collected:
    """What one collector looked at for one table."""

    collector: str
    table_name: str
    status: str
    reason: str | None = None
    origin: Mapping[str, object] = field(default_factory=dict, compare=False)
    """bundle, host and capture it was looked at in; empty where no source has the table."""


@dataclass(frozen=True)
class Diagnosis:
    """What the evidence says: findings in rank order, what was ruled out, what could not be looked at."""

    verdict: str
    findings: tuple[RuleResult, ...]
    inconclusive: tuple[RuleResult, ...]
    ruled_out: tuple[RuleResult, ...]
    collected: tuple[Collected, ...]
    side_effects: Mapping[str, object]
    subject: Mapping[str, object]
    """Who was looked at: bundle, hosts, pid, roles, tool version, time, redactions."""
    collect_hints: Mapping[str, str]
    """Table -> exact command that would collect it."""
    folded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Cause -> matched symptom rules folded under it."""
    explained: tuple[RuleResult, ...] = ()
    """Those symptoms: matched, and not findings of their own."""
    sections: tuple[Section, ...] = ()
    """What a full report shows of the tables themselves."""


def mostly_unread(subject: Mapping[str, object]) -> bool:
    """Were more files handed in that nobody recognised than others?"""
    unrecognised, handed_in = subject.get("unrecognised"), subject.get("handed_in")
    return isinstance(unrecognised, list | tuple) and isinstance(handed_in, int) and 2 * len(unrecognised) > handed_in
