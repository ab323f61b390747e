"""Which of several dumps that hold the same block wrote it, and which merely read it from the cache: slots and places tell.

A request that has the same block at the same place and did not fill it in the dumped step read it as the bad run did: it may
be a fellow victim. The one whose slot mapping fills it, or that has it at another place, is the owner.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diag.tensors.cutting import Span
from diag.tensors.matching import HELD, READ, WROTE, Match, Origin

MIN_SHARE = 0.5
"""Of the rows that the best match has: a writer with fewer has only some words in common."""
Mark = tuple[object, ...]


def mark(match: Match) -> Mark:
    """The same origin in another tensor of that dump."""
    return match.origin.dump, match.origin.step, match.origin.request, match.origin.physical, match.shift


@dataclass
class Hands:
    """What the dumps of one search did with each of their blocks."""

    block_tokens: int
    _spans: dict[tuple[Origin, int], tuple[Span, bool]] = field(default_factory=dict)

    def add(self, origin: Origin, span: Span, *, knows_slots: bool) -> None:
        """One block that is searched. `knows_slots`: its dump tells which slots the step fills."""
        self._spans[(origin, span.index)] = span, knows_slots

    def known(self, matches: Iterable[Match], physical: int | None) -> list[Match]:
        """The matches with what their dumps did. `physical`: id of the wrong block in the bad run."""
        return [replace(match, hand=self._hand(match, physical), wrote=self._wrote(match)) for match in matches]

    def _hand(self, match: Match, physical: int | None) -> int:
        span, knows_slots = self._spans.get((match.origin, match.block), (None, False))
        if span is None:
            return HELD
        if span.settled < span.tokens:
            filled = match.which >> span.settled if match.shift % self.block_tokens == 0 else match.which
            return WROTE if 2 * filled.bit_count() >= match.rows else HELD
        is_same_memory = physical is not None and span.physical == physical
        return READ if match.shift == 0 and (knows_slots or is_same_memory) else HELD

    def _wrote(self, match: Match) -> int:
        span, _ = self._spans.get((match.origin, match.block), (None, False))
        return 0 if span is None else max(0, span.tokens - span.settled)


def likeliest(rows: Mapping[Mark, int], examples: Mapping[Mark, Match], good: str) -> list[Mark]:
    """Those of equal right to be the owner: no reader before others, then most rows, then the writer. A pool block that is nobody's comes last.

    `good`: the good dump, whose own content comes before any donor's.
    """
    def named(one: Mark) -> bool:
        return examples[one].origin.physical is None

    known = [one for one in rows if named(one)] or list(rows)
    enough = MIN_SHARE * max(rows[one] for one in known)
    rank = {one: (examples[one].hand != READ, rows[one], WROTE if examples[one].origin.dump == good else examples[one].hand) for one in known if rows[one] >= enough}
    best = max(rank.values())
    return [one for one in rank if rank[one] == best]


def small_writer(found: Sequence[Sequence[Match]]) -> Match | None:
    """Where all who hold a block only read it: the one of whose few rows, as its step wrote them, not one is missing in most tensors."""
    votes: Counter[Mark] = Counter()
    examples: dict[Mark, Match] = {}
    for matches in found:
        for match in matches:
            if match.hand == WROTE and 0 < match.wrote <= match.rows:
                votes[mark(match)] += 1
                examples.setdefault(mark(match), match)
    if not votes:
        return None
    best, count = max(votes.items(), key=lambda item: (item[1], examples[item[0]].rows))
    return examples[best] if 2 * count > len(found) else None
