"""How well the rules do on samples: the answer in the first line, false accusations, abstentions. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

NONE = "(nothing)"


@dataclass(frozen=True)
class Judged:
    """One sample: what should be found and what was."""

    name: str
    expect: tuple[str, ...]
    abstain: bool
    origin: str
    found: tuple[tuple[str, str], ...]
    """Rule and verdict, in rank order."""
    folded: frozenset[str]
    """Symptoms that are told under what explains them."""

    @property
    def answer(self) -> str:
        return self.found[0][0] if self.found else NONE

    @property
    def is_right(self) -> bool:
        """The first line names a rule that is expected; or nothing is named where nothing is; or nothing is confirmed where nobody knows."""
        if self.abstain:
            return not self.accuses
        return self.answer in self.expect if self.expect else not self.found

    @property
    def accuses(self) -> bool:
        """Something is said that is not so: of a sample where the cause is not known only what is confirmed counts."""
        if self.abstain:
            return any(verdict == "confirmed" and rule not in self.expect for rule, verdict in self.found)
        return any(rule not in self.expect for rule, _ in self.found[:1]) or (not self.expect and bool(self.found))


@dataclass(frozen=True)
class Score:
    """Of one group of samples."""

    samples: int
    incidents: int
    right: int
    """Incidents whose first line is the answer."""
    silent: int
    """Incidents of which nothing was said."""
    accused: tuple[str, ...]
    """Samples in which something is said that is not so."""
    wrong: tuple[Judged, ...]

    @property
    def top1_pct(self) -> float:
        return 100.0 * self.right / self.incidents if self.incidents else 100.0


def score(judged: Iterable[Judged]) -> Score:
    every = list(judged)
    incidents = [one for one in every if one.expect and not one.abstain]
    return Score(
        len(every), len(incidents), sum(one.is_right for one in incidents), sum(not one.found for one in incidents),
        tuple(one.name for one in every if one.accuses), tuple(one for one in every if not one.is_right),
    )


def confusion(judged: Iterable[Judged]) -> Counter[tuple[str, str]]:
    """(expected, answered) -> samples; of several expected rules the one that was answered counts, else the first."""
    found: Counter[tuple[str, str]] = Counter()
    for one in judged:
        wanted = one.answer if one.answer in one.expect else one.expect[0] if one.expect else NONE
        found["(not known)" if one.abstain and not one.expect else wanted, one.answer] += 1
    return found
