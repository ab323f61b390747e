"""Whose lookup is it: that of the request whose tensors were dumped, that of a question of an experiment, or somebody else's? Pure.

A dump knows its request by its name at most, so several signs are taken, the surest first: the name bears the id of the
request; the physical blocks of the lookup are those of the dump; the name ends with the number of the id; and for the
last two, and where nothing else is known, the hole of the lookup is the block that is wrong in the dump.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

# cmpl-4f0a… and chatcmpl-…-0: the ids of OpenAI-compatible servers
NAMED = re.compile(r"(?:chat)?cmpl-[A-Za-z0-9-]+")
PREFIX = re.compile(r"^(?:chatcmpl|cmpl|request|req)[-_]", re.IGNORECASE)
MIN_BARE_CHARS = 6
"""Of an id without its prefix: shorter ones are numbers, which are compared as such."""
NUMBER = re.compile(r"(?:^|[^0-9])0*(\d+)$")
MIN_COMMON_BLOCKS = 2
COUNTED = re.compile(r"\d{1,9}(?:-\d+)?")
"""Of an id without its prefix: every run of such an engine has the same ids, so that the time must go with them."""
ZONE_S, FARTHEST_S, SKEW_S = 900, 50_400, 5.0
"""Logs tell local time, whole quarters of an hour and at most 14 hours from UTC; and what clocks of two machines differ by."""
SLACK_S = 0.05
"""Two clocks of one machine, and what a log rounds."""

How = Literal["request id", "physical blocks", "number", "hole"]
Whose = Literal["dumped", "fits", "ambiguous", "other", "unknown"]
ORDER: Mapping[How, int] = {"request id": 0, "physical blocks": 1, "number": 2, "hole": 3}


@dataclass(frozen=True)
class Looked:
    """One lookup, in the order of its log."""

    lookup: str
    request: str | None = None
    ts: float | None = None
    hole: int | None = None
    is_wrong: bool = False
    """It disagrees with a walk."""
    ids: Mapping[int, int] = field(default_factory=dict)
    """Position -> physical block, as far as it was logged."""
    reuses: int = 0
    """Blocks that the longer of its two answers reuses."""
    holes: frozenset[int] = frozenset()
    """Those of them that are not there."""


@dataclass(frozen=True)
class Dumped:
    """A dump of a bad run."""

    name: str
    wrong: frozenset[int] = frozenset()
    """Blocks that hold somebody else's content, with the same blocks behind them."""
    ids: Mapping[int, int] = field(default_factory=dict)
    """Block -> physical block; empty where the dump counts its blocks itself."""
    blocks: int | None = None
    """Blocks of its prompt; None: not known."""
    renewed: frozenset[int] = frozenset()
    """Blocks that differ and have none behind them that are the same: computed anew."""
    same_input: bool = True
    """As far as is known, it was given what the good run was given."""


@dataclass(frozen=True)
class Asked:
    """A question of an experiment."""

    names: tuple[str, ...]
    """Its ids: as the endpoint told it, as it was sent."""
    ts: float | None
    seconds: float
    says: str
    """`request 72 of the pressure arm`"""
    failed: bool
    """Not answered as it should be, and not as mere noise."""
    answer_class: str
    cached_tokens: int | None = None
    """What its answer told."""


@dataclass(frozen=True)
class Tie:
    """What is known of a lookup's request."""

    lookup: Looked
    whose: Whose | None
    """None: there is no dump."""
    how: How | None = None
    dump: Dumped | None = None
    among: int = 1
    """How many lookups fit as well as this one."""
    dumped_request: str | None = None
    """The request that was dumped, where this is another one."""
    odds: str = ""
    """The block is wrong in a dump, but what else is known of the two does not go together: what."""
    asked: Asked | None = None


def ties(looked: Sequence[Looked], dumps: Sequence[Dumped], asked: Sequence[Asked]) -> Iterator[Tie]:
    """Lookups -> whose they are. Sound lookups are told only where an id says whose they are."""
    trials = Trials(asked)
    closest = {item.lookup: _closest(item, dumps) for item in looked}
    owners = _owners(looked, closest)
    for item in looked:
        trial, (how, dump) = trials.of(item), closest[item.lookup]
        if how is not None and dump is not None and owners[dump.name].how == how:
            among = len(owners[dump.name].lookups)
            whose: Whose = "ambiguous" if among > 1 and how != "request id" else "fits" if how == "hole" else "dumped"
            yield Tie(item, whose, how, dump, among, asked=trial)
        elif item.is_wrong:
            yield _untied(item, dumps, owners, trial)
        elif trial is not None:
            yield Tie(item, None, asked=trial)


@dataclass
class _Owner:
    """Lookups that are tied to one dump by the surest sign there is for it."""

    how: How
    lookups: list[Looked] = field(default_factory=list)


def _owners(looked: Sequence[Looked], closest: "Mapping[str, tuple[How | None, Dumped | None]]") -> dict[str, _Owner]:
    found: dict[str, _Owner] = {}
    for item in looked:
        how, dump = closest[item.lookup]
        if how is None or dump is None:
            continue
        owner = found.setdefault(dump.name, _Owner(how))
        if ORDER[how] < ORDER[owner.how]:
            owner = found[dump.name] = _Owner(how)
        if how == owner.how:
            owner.lookups.append(item)
    return found


def _untied(item: Looked, dumps: Sequence[Dumped], owners: Mapping[str, _Owner], trial: Asked | None) -> Tie:
    """A lookup that reuses a missing block and is tied to no dump: certainly another one's, or nobody can tell."""
    if not dumps:
        return Tie(item, None, asked=trial)
    sure = next((owner.lookups[0].request for owner in owners.values() if owner.how != "hole" and len(owner.lookups) == 1), None)
    known = sure or next((name for dump in dumps if (name := _named(dump)) is not None), None)
    elsewhere = item.hole is not None and any(dump.wrong for dump in dumps)
    odds = next((says for dump in dumps if item.hole in dump.wrong and (says := at_odds(item, dump))), "")
    return Tie(item, "other" if known is not None or (elsewhere and not odds) else "unknown", dumped_request=known, asked=trial, odds=odds)


def _closest(item: Looked, dumps: Sequence[Dumped]) -> tuple[How | None, Dumped | None]:
    found = [(ORDER[how], number, how, dump) for number, dump in enumerate(dumps) if (how := _tie(item, dump)) is not None]
    return min(found)[2:] if found else (None, None)


def _tie(item: Looked, dump: Dumped) -> How | None:
    if item.request is not None and bears(dump.name, item.request):
        return "request id"
    if not item.is_wrong or item.hole not in dump.wrong or _is_strangers(dump, item):
        return None
    if _same_blocks(item.ids, dump.ids):
        return "physical blocks"
    if at_odds(item, dump):
        return None
    if item.request is not None and (number := NUMBER.search(item.request)) is not None:
        mine = NUMBER.search(dump.name)
        if mine is not None and int(mine[1]) == int(number[1]):
            return "number"
    return "hole"


def at_odds(item: Looked, dump: Dumped) -> str:
    """What of a lookup does not go with a dump, though its hole is a wrong block there: another prompt, or another run; "" = nothing."""
    if dump.blocks is not None and item.reuses > dump.blocks:
        return f"it reuses {item.reuses} blocks, and the dump {dump.name} has {dump.blocks}"
    if right := sorted(place for place in item.holes if place not in dump.wrong | dump.renewed and (dump.blocks is None or place < dump.blocks)):
        return f"block {right[0]} was missing as well, and is as it should be in the dump {dump.name}"
    if anew := sorted(place for place in dump.renewed if place < item.reuses):
        return f"it reuses {item.reuses} blocks, and the dump {dump.name} shows block {anew[0]} computed anew"
    return ""


def bears(name: str, request: str) -> bool:
    """Is this id in this name, whole? An id that is a bare number is not enough: everything is numbered."""
    bare = PREFIX.sub("", request)
    ids = [request, *([bare] if len(bare) >= MIN_BARE_CHARS else [])]
    # a name that does not hold it at all is most of them: no pattern is made for those
    return any(not item.isdigit() and item.lower() in name.lower() and re.search(rf"(?<![A-Za-z0-9]){re.escape(item)}(?![A-Za-z0-9])", name, re.IGNORECASE) for item in ids)


def _same_blocks(looked: Mapping[int, int], dumped: Mapping[int, int]) -> bool:
    common = looked.keys() & dumped.keys()
    return len(common) >= MIN_COMMON_BLOCKS and all(looked[place] == dumped[place] for place in common)


def _named(dump: Dumped) -> str | None:
    found = NAMED.search(dump.name)
    return found[0] if found is not None else None


def _is_strangers(dump: Dumped, item: Looked) -> bool:
    """Does the dump bear the id of another request?"""
    return _named(dump) is not None and item.request is not None and NAMED.fullmatch(item.request) is not None


class Trials:
    """Questions of experiments, to be found by id or, where the log tells none, by time."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self._by_name = {name: item for item in asked for name in item.names}
        self._timed = sorted((item for item in asked if item.ts is not None), key=lambda item: item.ts or 0.0)
        self._starts = [item.ts or 0.0 for item in self._timed]

    def of(self, looked: Looked) -> Asked | None:
        """The question that this lookup was made for."""
        if looked.request is not None:
            return self.named(looked.request, looked.ts)
        return None if looked.ts is None else self._at(looked.ts)

    def named(self, request: str, ts: float | None) -> Asked | None:
        """The question under this id, or under what an engine makes of it; a mere number of another run is not it."""
        found = next((found for name in _shorter(request) if (found := self._by_name.get(name)) is not None), None)
        return None if found is not None and COUNTED.fullmatch(PREFIX.sub("", request)) and not _may_be_at(ts, found) else found

    def _at(self, ts: float) -> Asked | None:
        """The one question that was under way then; None: none, or several."""
        end = bisect_right(self._starts, ts + SLACK_S)
        going = [item for item in self._timed[max(0, end - 64) : end] if ts <= (item.ts or 0.0) + item.seconds + SLACK_S]
        return going[0] if len(going) == 1 else None


def _may_be_at(ts: float | None, asked: Asked) -> bool:
    """Can this be the moment of the question, in whatever zone the log tells its time?"""
    if ts is None or asked.ts is None:
        return True
    off = ts - asked.ts
    rest = (off + SKEW_S) % ZONE_S - SKEW_S
    return abs(off) <= FARTHEST_S + ZONE_S and rest <= asked.seconds + SKEW_S


def _shorter(logged: str) -> Iterator[str]:
    """All that an engine may have made this id of, the longest first."""
    for name in (logged, PREFIX.sub("", logged)):
        while name:
            yield name
            name = name.rpartition("-")[0]


def whom(tie: Tie) -> str:
    """Who it is, in a few words."""
    who = "an unnamed request" if tie.lookup.request is None else f"request {tie.lookup.request}"
    what = {"dumped": " (the dumped one)", "other": " (not the dumped one)"}
    return who + what.get(str(tie.whose), "")


def reason(tie: Tie) -> str:
    """How that is known, as the rest of a sentence; "" where there is no dump."""
    dump = "" if tie.dump is None else tie.dump.name
    match tie.whose, tie.how:
        case "dumped", "request id":
            return f"the dump {dump} bears its id"
        case "dumped", "physical blocks":
            return f"its physical blocks are those of the dump {dump}"
        case "dumped", _:
            return f"the dump {dump} bears its number"
        case "fits", _:
            return f"the dump {dump} does not say whose it is, but no other lookup has this hole, and its blocks go with those of the dump"
        case "ambiguous", _:
            return f"the dump {dump} does not say whose it is, and {tie.among} lookups have this hole"
        case "other", _:
            if tie.dumped_request is not None:
                return f"the dump is of request {tie.dumped_request}"
            return "in the dump another block is wrong"
        case "unknown", _ if tie.odds:
            return f"{tie.odds}, so the dump may be another request's"
        case "unknown", _:
            return "the dump does not say whose it is"
    return ""


def answered(tie: Tie) -> str:
    """What the experiment says of it; "" where it is not of one."""
    if tie.asked is None:
        return ""
    return f"{tie.asked.says}, answered {'wrongly ' if tie.asked.failed else ''}({tie.asked.answer_class})"
