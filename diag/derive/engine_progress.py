"""Did an engine get on between the reads of /metrics: what it holds, and how many witnesses of progress moved.

Which names prove what is written in diag/health/witnesses; this is the same knowledge over the table `metrics`. A table of
first and last values, no verdict: `llmdiag health` judges.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from diag.health import witnesses
from diag.health.witnesses import Family, Found
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("metrics",)
GIVES: tuple[Table, ...] = (
    table(
        "engine_progress",
        "Did an engine get on between the reads of /metrics: requests it holds, and how many witnesses of progress moved. "
        "One long prefill moves only the KV usage of vLLM",
        "target VARCHAR: host:port, or the file",
        "engine VARCHAR: engine or rank; NULL = the engine does not say",
        "running DOUBLE: requests running, the most at any read; NULL = no such gauge",
        "waiting DOUBLE: requests waiting, the most at any read; NULL = no such gauge",
        "tokens_delta DOUBLE: tokens processed between first and last read as the engine counts them; NULL = one read, or not counted",
        "kv_usage_delta DOUBLE: last minus first share of the KV cache in use, 0 to 1; NULL = one read, or no such gauge",
        "witnesses BIGINT: progress counters and gauges that could be compared (an estimate of flops that stays 0 is switched off)",
        "moved BIGINT: how many of them moved: a counter that rose, a KV usage that reached a new maximum",
        "resets BIGINT: counters that fell, so the engine was restarted between the reads",
        "reads BIGINT: number of reads",
        "window_s DOUBLE: seconds between first and last read; NULL = times are not known, as for loose files",
        "kind VARCHAR: engine family: vllm, sglang, …",
    ),
)
PLACE = ("bundle", "host", "capture", "target")


@dataclass
class Series:
    """One known series of one engine: its values in the order of the reads."""

    found: Found
    reads: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    source: str | None = None

    @property
    def compared(self) -> bool:
        return len(set(self.reads)) > 1

    @property
    def delta(self) -> float:
        return self.values[-1] - self.values[0]

    @property
    def role(self) -> str:
        return "waiting" if self.found.witness.role == "deferred" else self.found.witness.role

    @property
    def witness(self) -> bool:
        """It can be compared, and is no option that was never switched on."""
        return self.compared and self.role in witnesses.PROGRESS and not (self.found.witness.optional and max(self.values) == 0)

    @property
    def moved(self) -> bool:
        return self.delta > 0 if self.role == "progress" else max(self.values) > self.values[0]


Key = tuple[Any, ...]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """metrics -> engine_progress."""
    import pandas as pd

    rows = frames["metrics"]
    rows = rows[rows["value"].notna() & rows["name"].map(lambda name: bool(witnesses.named(name)) if isinstance(name, str) else False)]
    if rows.empty:
        return {}
    places: dict[Key, list[tuple[dict[str, Any], Found, str | None]]] = {}
    records = rows.sort_values("read", kind="stable").astype(object).where(rows.notna(), None).to_dict("records")
    for row in cast("list[dict[str, Any]]", records):
        labels = json.loads(row["labels"]) if row["labels"] else {}
        found = witnesses.find(row["name"], labels)
        if found is not None:
            engine = row["engine"] if row["engine"] is not None else witnesses.engine_of(found.family, labels)
            places.setdefault(tuple(row[name] for name in PLACE), []).append((row, found, engine))
    out = [line for place, known in places.items() for line in _engines(place, known)]
    return {"engine_progress": pd.DataFrame(out)} if out else {}


def _engines(place: Key, known: Sequence[tuple[dict[str, Any], Found, str | None]]) -> Iterator[dict[str, object]]:
    """One row per engine of a target, of the family that is closest to the engine. What names no engine belongs to the only one."""
    family = closest(found for _, found, _ in known)
    own = [item for item in known if item[1].family is family]
    ranked = {engine for _, _, engine in own if engine is not None}
    only = next(iter(ranked)) if len(ranked) == 1 else None
    engines: dict[str | None, dict[Key, Series]] = {}
    for row, found, engine in own:
        if found.witness.role not in ("running", "waiting", "deferred", *witnesses.PROGRESS) or found.witness.of_waiting:
            continue
        series = engines.setdefault(only if engine is None else engine, {}).setdefault((row["name"], row["labels"]), Series(found))
        series.reads.append(row["read"])
        series.values.append(row["value"])
        series.source = row["source"]
        if row["ts"] is not None:
            series.times.append(row["ts"].timestamp())
    for engine, found_series in engines.items():
        yield {**dict(zip(PLACE, place, strict=True)), "engine": engine, "kind": family.kind, **_row(list(found_series.values()))}


def closest(found: Iterator[Found]) -> Family:
    """The family that counts requests and is closest to the engine: a worker of Dynamo that passes vLLM's series through is vLLM."""
    seen = list(found)
    speaking = [item.family for item in seen if item.witness.role == "running"] or [item.family for item in seen]
    return min(speaking, key=lambda family: (family.rank, family.kind))


def _row(series: Sequence[Series]) -> dict[str, object]:
    proving = [item for item in series if item.witness]
    counted = [item for item in proving if item.role == "progress"]
    shares = [item.delta for item in proving if item.role == "level" and item.found.witness.unit == "share"]
    reads = max(len(set(item.reads)) for item in series)
    windows = [max(item.times) - min(item.times) for item in series if item.times]
    running = [item for item in series if item.role == "running"]
    return {
        "running": _top(running), "waiting": _top([item for item in series if item.role == "waiting"]),
        "tokens_delta": _tokens(counted), "kv_usage_delta": max(shares, default=None),
        "witnesses": len(proving), "moved": sum(item.moved for item in proving), "resets": sum(item.delta < 0 for item in counted),
        "reads": reads, "window_s": max(windows, default=None) if reads > 1 else None,
        "source": max((item.source for item in running or series if item.source is not None), default=None),
    }


def _top(series: Sequence[Series]) -> float | None:
    return sum(max(item.values) for item in series) if series else None


def _tokens(counted: Sequence[Series]) -> float | None:
    """By chunks where the engine counts them, else by outputs."""
    for unit in ("chunk_tokens", "tokens"):
        deltas = [item.delta for item in counted if item.found.witness.unit == unit]
        if deltas:
            return sum(deltas)
    return None
