"""Reads of one backend -> what each engine said at each read: its gauges, counters and levels. One engine's row is a `Point`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from diag.health.reads import Read
from diag.health.witnesses import Family, Found, engine_of, find
from diag.parsers.prometheus import Sample


@dataclass(eq=False)
class Point:
    """One engine at one read. Unknown is None; counters and levels are by series."""

    read: Read
    running: float | None = None
    waiting: float | None = None
    in_flight: float | None = None
    deferred: dict[str, float] = field(default_factory=dict)
    """Of those that wait: who waits for something else than a place in the batch, by series."""
    counters: dict[str, float] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    idle_loop: dict[str, float] = field(default_factory=dict)
    first_token: float | None = None
    finished: float | None = None
    asleep: bool = False
    not_ready: bool = False
    held_tokens: float | None = None
    capacity_tokens: float | None = None
    found: dict[str, Found] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """It says that it holds requests."""
        return bool(self.running) or bool(self.waiting) or bool(self.in_flight)

    @property
    def unadmitted(self) -> float:
        """Requests that wait for nothing but a place in the batch."""
        return max(0.0, (self.waiting or 0.0) - sum(self.deferred.values()))

    @property
    def idle(self) -> bool:
        """It says that it holds none. Not the opposite of busy: an engine may say nothing."""
        return self.running == 0 and not self.waiting and not self.in_flight


@dataclass(frozen=True, eq=False)
class Backend:
    """One read of a backend, recognised: family, engines, and what tells it from another backend."""

    read: Read
    family: Family | None
    engines: Mapping[str | None, Point]
    started_at: float | None
    """process_start_time_seconds, else the `_created` time of one series; None = the engine gives none."""
    names: frozenset[str]
    """Values of identity labels: model, number of KV blocks."""
    uptime_s: float | None = None


@lru_cache(maxsize=4096)
def backend(read: Read) -> Backend:
    """Samples of one read -> what its engines said."""
    known = [(sample, found) for sample in read.samples if (found := find(sample.name, sample.labels)) is not None]
    family = _family(known)
    own = [(sample, found) for sample, found in known if found.family == family]
    engines: dict[str | None, Point] = {}
    for sample, found in own:
        _add(engines.setdefault(engine_of(found.family, sample.labels), Point(read)), sample, found)
    _adopt(engines, read, [pair for pair in known if pair[1].family.companion and pair[1].family != family])
    uptimes = [sample.value for sample, found in own if found.witness.role == "uptime" and sample.value is not None]
    return Backend(read, family, engines, _started_at(read.samples), _names(own), min(uptimes, default=None))


def _family(known: Sequence[tuple[Sample, Found]]) -> Family | None:
    """The engine closest to the metal that has a gauge of running requests, else any that was recognised."""
    speaking = {found.family for _, found in known if found.witness.role == "running"}
    others = {found.family for _, found in known}
    return min(speaking or others, key=lambda family: (family.rank, family.kind), default=None)


def _adopt(engines: dict[str | None, Point], read: Read, companions: Iterable[tuple[Sample, Found]]) -> None:
    """Series that name no engine belong to the only one there is; of several they speak for none."""
    ranked = [name for name in engines if name is not None]
    if len(ranked) == 1 and None in engines:
        _merge(engines[ranked[0]], engines.pop(None))
    elif len(ranked) > 1:
        engines.pop(None, None)
    if len(engines) == 1:
        (only,) = engines.values()
        for sample, found in companions:
            _add(only, sample, found)


def _merge(into: Point, other: Point) -> None:
    for name in ("running", "waiting", "in_flight", "first_token", "finished", "held_tokens", "capacity_tokens"):
        setattr(into, name, _plus(getattr(into, name), getattr(other, name)))
    for name in ("counters", "levels", "idle_loop", "deferred", "found"):
        getattr(into, name).update(getattr(other, name))
    into.asleep |= other.asleep
    into.not_ready |= other.not_ready


def _add(point: Point, sample: Sample, found: Found) -> None:
    """One series into its engine's point. NaN is no value."""
    witness, value = found.witness, sample.value
    if witness.capacity:
        point.capacity_tokens = _product(sample.labels.get(name) for name in witness.capacity)
    if value is None:
        return
    role = witness.role
    if role in ("running", "waiting", "in_flight", "first_token", "finished"):
        setattr(point, role, _plus(getattr(point, role), value))
    elif role == "deferred":
        key = series(found, sample.labels)
        point.deferred[key] = point.deferred.get(key, 0.0) + value
        point.found[key] = found
        point.waiting = point.waiting if witness.of_waiting else _plus(point.waiting, value)
    elif role in ("progress", "level", "idle_loop"):
        key = series(found, sample.labels)
        if key in point.found:  # another model, say, in a text that does not tell its engines apart
            key = f"{found.plain}{{{','.join(f'{name}={text}' for name, text in sorted(sample.labels.items()))}}}"
        {"progress": point.counters, "level": point.levels, "idle_loop": point.idle_loop}[role][key] = value
        point.found[key] = found
        if role == "level" and witness.unit == "tokens":
            point.held_tokens = _plus(point.held_tokens, value)
    elif role == "sleep":
        point.asleep |= value > 0
    elif role == "ready":
        point.not_ready |= value == 0


PLAIN_LABELS = frozenset({"engine", "model_name", "model", "version", "ReplicaId", "engine_type", "dp_rank", "tp_rank", "pp_rank", "moe_ep_rank", "priority",
                          "dynamo_component", "dynamo_endpoint", "dynamo_namespace"})
"""Labels that are the same for all series of an engine; what else there is tells series of one name apart."""


def series(found: Found, labels: Mapping[str, str]) -> str:
    """`realtime_tokens_total{mode="decode"}`: the plain name with the labels that tell series of an engine apart."""
    left = labels.keys() - PLAIN_LABELS
    if not left:
        return found.plain
    told = ",".join(f'{name}="{labels[name]}"' for name in sorted(left) if name not in found.family.engine_labels)
    return f"{found.plain}{{{told}}}" if told else found.plain


def _started_at(samples: Sequence[Sample]) -> float | None:
    """Birth of the process that answers. `_created` times of one process lie seconds apart, so the earliest one stands for all."""
    created: list[float] = []
    for sample in samples:
        if sample.value is None:
            continue
        if sample.name == "process_start_time_seconds":
            return sample.value
        if sample.name.endswith("_created") and not sample.name.startswith("python_"):
            created.append(sample.value)
    return min(created, default=None)


def _names(own: Sequence[tuple[Sample, Found]]) -> frozenset[str]:
    models = {f"model_name={sample.labels['model_name']}" for sample, found in own if "model_name" in sample.labels and found.witness.role == "running"}
    labels = {f"{name}={sample.labels[name]}" for sample, found in own for name in found.witness.identity if name in sample.labels}
    return frozenset(models | labels)


def _plus(before: float | None, more: float | None) -> float | None:
    if before is None or more is None:
        return before if more is None else more
    return before + more


def _product(texts: Iterable[str | None]) -> float | None:
    value = 1.0
    for text in texts:
        try:
            value *= float(text or "")
        except ValueError:
            return None
    return value if value > 0 else None
