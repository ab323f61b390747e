"""Judges values as they come, whatever they come from: each family waits until it is known, then goes straight through."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from diag.cache.facts import Facts
from diag.cache.families import family, version_of, versionless
from diag.cache.keys import CacheKey, Place, ScanResult, Server, Tally, judged
from diag.cache.profile import Profile, Sample, learn

SAMPLE = 200
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
    """Siblings that are read before a family is learnt."""
    waiting: dict[Family, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    profiles: dict[Family, Profile] = field(default_factory=dict)
    versions: dict[Family, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    ghosts: dict[tuple[int, str], CacheKey] = field(default_factory=dict)
    soft: dict[tuple[int, str], CacheKey] = field(default_factory=dict)

    def add(self, place: Place, facts: Facts) -> None:
        name = (place.db, family(place.key))
        version = version_of(place.key)
        if version is not None:
            self.versions[place.db, versionless(place.key)][version] += 1
        profile = self.profiles.get(name)
        if profile is not None:
            self.emit(judged(place, facts, profile))
            return
        self.waiting[name].append((place, facts))
        if len(self.waiting[name]) >= self.sample:
            self._learn(name)

    def finish(self) -> None:
        """Judge what is left with what there is."""
        for name in list(self.waiting):
            self._learn(name)

    def _learn(self, name: Family) -> None:
        members = self.waiting.pop(name)
        versions = self.versions.get((name[0], versionless(members[0][0].key)))
        profile = learn(name[1], [Sample(facts, place.ttl_s) for place, facts in members], versions)
        self.profiles[name] = profile
        for place, facts in members:
            self.emit(judged(place, facts, profile))

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
