"""Most values of a cache are sound and like their siblings: those are only counted, as a scan of a live server does it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from diag.cache.values.facts import Facts, facts_of
from diag.cache.values.judging import Scan
from diag.cache.values.naming import Named, Names, named
from diag.cache.values.quick import Quick


@dataclass(slots=True)
class Kin:
    """Keys of one family and version in one database."""

    name: Named
    quick: Quick | None = None
    """None: the family is not learnt yet."""
    keys: int = 0
    """Sound ones that are not yet in the scan's count, and their bytes."""
    bytes: int = 0


@dataclass
class Quickly:
    """What is known of each family so far."""

    scan: Scan
    markers: Sequence[bytes]
    kins: dict[tuple[int, str, str | None], Kin] = field(default_factory=dict)
    names: dict[int, Names[Kin]] = field(default_factory=dict)

    def facts(self, db: int, key: bytes, value: bytes | memoryview, *, expires: bool) -> Facts | None:
        """Facts about a whole value for `Scan.add`; None: it is sound, and counted."""
        kin = self._kin(db, key)
        if kin.quick is None:
            profile = self.scan.profiles.get((db, kin.name.family))
            kin.quick = None if profile is None else Quick(profile, kin.name.version)
        quick = kin.quick
        marked = any(marker in bytes(value) for marker in self.markers) if self.markers else False
        if quick is None or marked:
            return facts_of(bytes(value), markers=self.markers)
        view = memoryview(value)
        if self.scan.each is None and (expires or not quick.expires) and quick.sound(view):
            kin.keys += 1
            kin.bytes += len(view)
            return None
        form = quick.skeleton(view)
        if form is not None:
            return form.facts_of(bytes(view))
        facts = facts_of(bytes(view))
        if facts.kind == "array" and facts.problem is None:
            quick.learn(bytes(view))
        return facts

    def count(self) -> None:
        """Tell the scan how many sound values there were."""
        for (db, _, _), kin in self.kins.items():
            if kin.keys:
                versions = None if kin.name.version is None else (kin.name.versionless, kin.name.version)
                self.scan.sound(db, kin.name.family, versions, kin.keys, kin.bytes)
                kin.keys = kin.bytes = 0

    def _kin(self, db: int, key: bytes) -> Kin:
        names = self.names.get(db)
        if names is None:
            names = self.names[db] = Names()
        known = names.get(key)
        if known is None:
            said = named(key)
            known = self.kins.setdefault((db, said.family, said.version), Kin(said))
            names.remember(key, said.family, known)
        return known
