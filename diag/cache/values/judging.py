"""Judges values as they come, whatever they come from: each family waits until it is known, then goes straight through."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from diag.cache.values import halves, second_thoughts
from diag.cache.values.facts import Facts
from diag.cache.values.families import family, version_of, versionless
from diag.cache.values.keys import CacheKey, Place, ScanResult, Server, Tally, judged
from diag.cache.values.profile import DATA, MAJORITY, Profile, Sample, learn
from diag.cache.values.selection import Selection, current

SAMPLE = 200
NEAR = 0.1
"""So near to the share of data that decides, the sample may be luck: more siblings are read before a family is learnt."""
MORE = 16
"""At most so many times as many."""
MAX_SOFT = 10_000

Seen = tuple[Place, Facts]
Family = tuple[int, str]
"""Database and name: what two databases call alike need not be alike."""


@dataclass
class Scan:
    """State of a scan: families not yet known wait, the others are judged as they come."""

    each: Callable[[CacheKey], None] | None = None
    """Sees every row once, also those of sound keys, in no order."""
    sample: int = SAMPLE
    """Siblings that are read before a family is learnt, up to MORE times as many while their kinds leave it in doubt."""
    waiting: dict[Family, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    profiles: dict[Family, Profile] = field(default_factory=dict)
    versions: dict[Family, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    ghosts: dict[tuple[int, str], CacheKey] = field(default_factory=dict)
    soft: dict[tuple[int, str], CacheKey] = field(default_factory=dict)
    selection: Selection = field(default_factory=current)
    pairs: halves.Waiting = field(default_factory=halves.Waiting)
    doubts: second_thoughts.Doubts = field(default_factory=second_thoughts.Doubts)

    def add(self, place: Place, facts: Facts) -> None:
        if not self.selection.wants(place.key):
            return
        name = (place.db, family(place.key))
        version = version_of(place.key)
        if version is not None:
            self.versions[place.db, versionless(place.key)][version] += 1
        profile = self.profiles.get(name)
        if profile is not None:
            self._judge(place, facts, profile)
            return
        members = self.waiting[name]
        members.append((place, facts))
        if self._are_enough(members):
            self._learn(name)

    def _are_enough(self, members: list[Seen]) -> bool:
        """After `sample`, 2, 4, 8 … times as many: is it beyond doubt whether most of the family is data?"""
        times, rest = divmod(len(members), self.sample)
        if times == 0 or rest or times.bit_count() != 1:
            return False
        share = sum(facts.kind in DATA for _, facts in members) / len(members)
        return times >= MORE or abs(share - MAJORITY) >= NEAR

    def sound(self, db: int, name: str, versions: tuple[str, str] | None, keys: int, size: int) -> None:
        """Count values that were seen to be sound without a row of their own; only where nobody wants to see every row.

        `versions`: family over all versions, and version, of their names. `size`: bytes of all of them.
        """
        if versions is not None:
            self.versions[db, versions[0]][versions[1]] += keys
        tally = self.tallies[name]
        tally.keys += keys
        tally.bytes += size
        doubted = self.doubts.families.get((db, name))
        if doubted is not None:
            doubted.keys += keys

    def finish(self, exists: halves.Exists | None = None) -> None:
        """Judge what is left with what there is. `exists` looks once more for other halves; None: a file."""
        for name in list(self.waiting):
            self._learn(name)
        for row in (*self.pairs.settle(exists), *self.doubts.settle()):
            self.emit(row)

    def _learn(self, name: Family) -> None:
        members = self.waiting.pop(name)
        versions = self.versions.get((name[0], versionless(members[0][0].key)))
        stated = self.selection.book.find([(place.key, facts) for place, facts in members])
        if stated is not None and stated.file.few_versions:
            versions = Counter(version for place, _ in members if (version := stated.said(place.key, "version")) is not None)
        profile = learn(
            name[1], [Sample(facts, place.ttl_s) for place, facts in members], versions, stated, self.selection.book.marks
        )
        self.profiles[name] = profile
        for place, facts in members:
            self._judge(place, facts, profile)

    def _judge(self, place: Place, facts: Facts, profile: Profile) -> None:
        """Halves wait for each other, and what may look different beside the whole family waits for its end."""
        row = judged(place, facts, profile)
        rows = [row] if profile.stated is None else self.pairs.meet(row, facts, profile)
        for told in rows:
            if not self.doubts.keep(told, self.profiles.get((told.db, told.family), profile)):
                self.emit(told)

    def emit(self, row: CacheKey) -> None:
        self.tallies[row.family].add(row)
        if row.verdict == "ghost":
            self.ghosts[row.db, row.key_hex] = row
        elif row.verdict == "soft" and len(self.soft) < MAX_SOFT:
            self.soft[row.db, row.key_hex] = row
        if self.each is not None:
            self.each(row)

    def report(self, target: str, server: Server, seconds: float) -> ScanResult:
        profiles = {name: profile for (_db, name), profile in reversed(self.profiles.items())}
        families = [tally.report(profiles.get(name, Profile(name, 0))) for name, tally in self.tallies.items()]
        families.sort(key=lambda item: (-item.ghosts, -item.bytes, item.family))
        return ScanResult(
            target=target,
            server=server,
            keys=sum(item.keys for item in families),
            bytes=sum(item.bytes for item in families),
            seconds=seconds,
            families=tuple(families),
            ghosts=tuple(self.ghosts.values()),
            soft=tuple(self.soft.values()),
            unknown=sum(tally.unknown for tally in self.tallies.values()),
            warnings=server.notes,
        )
