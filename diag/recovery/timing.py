"""Lines of one start -> how long each of its stages took. What an engine states is preferred to the time between two lines,
and what it states of a whole is not added to its parts.
"""

from collections import defaultdict
from collections.abc import Sequence

from diag.recovery.markers import INIT, Marker, markers_of, summed
from diag.recovery.records import Line, Stage, Start, Time
from diag.restarts.records import between_s, later

BUILD = ("process", "device", "weights", "compile", "kv_pool", "graphs", "api_up", "ready")
WHOLE = frozenset({"total", "deferred", "ready"})
"""Parts that cover a stage: the longest of them is the stage, smaller pieces are inside it."""
NOT_SEEN = "no line of the log tells"
Moments = dict[tuple[str, str], list[Line]]


class _Read:
    """What the lines of a start mark."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.engine = "vllm"
        self.moments: Moments = defaultdict(list)
        self.stated: dict[str, dict[str, dict[object, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
        self.told: dict[str, Line] = {}
        for line in start.lines:
            for marker, seconds in markers_of(line.message):
                self._mark(line, marker, seconds)
            for stage, seconds in summed(line.message).items():
                self._state(line, stage, "total", seconds)
                self.moments["api_up", "begin"].append(line)

    def _mark(self, line: Line, marker: Marker, seconds: float | None) -> None:
        if marker.engine == "sglang":
            self.engine = "sglang"
        self.moments[marker.stage, marker.what].append(line)
        if seconds is not None:
            self._state(line, marker.stage, marker.part, seconds)

    def _state(self, line: Line, stage: str, part: str, seconds: float) -> None:
        mine = self.stated[stage][part]
        key = (line.role, line.pid)
        mine[key] = max(mine[key], seconds) if part in WHOLE or part == "init" else mine[key] + seconds
        self.told[stage] = line

    def first(self, stage: str, what: str) -> Line | None:
        found = self.moments.get((stage, what))
        return min(found, key=lambda line: line.ts) if found else None

    def last(self, stage: str, *whats: str) -> Line | None:
        found = [line for what in whats for line in self.moments.get((stage, what), ())]
        return max(found, key=lambda line: line.ts) if found else None

    def said(self, stage: str) -> float | None:
        """Seconds that the engine states; processes work at the same time, so the slowest counts."""
        parts = self.stated.get(stage)
        if not parts:
            return None
        whole = [value for part in WHOLE if part in parts for value in parts[part].values()]
        if whole:
            return max(whole)
        if stage == "compile" and "init" in parts:
            return max(parts["init"].values())
        return sum(max(values.values()) for values in parts.values())


def timed(start: Start, begun_at: Time | None = None, begun_by: str = "") -> list[Stage]:
    """Stages `process` to `ready` of one start, one row each. `begun_at`: when a journal says that the process was started."""
    read = _Read(start)
    rows = {
        "process": _process(read, begun_at, begun_by), "device": _device(read), "weights": _weights(read),
        "compile": _stated(read, "compile", "it does not compile, or does not say so"), "graphs": _graphs(read),
    }  # fmt: skip
    rows["kv_pool"] = _kv_pool(read, rows["compile"], rows["graphs"])
    rows["api_up"] = _api_up(read)
    rows["ready"] = _ready(read)
    return [rows[stage] for stage in BUILD]


def _unseen(stage: str, why: str = NOT_SEEN) -> Stage:
    return Stage(stage, None, None, None, "", why)


def _between(stage: str, begin: Line | None, end: Line | None, why: str = NOT_SEEN) -> Stage:
    if begin is None or end is None or end.ts < begin.ts:
        return _unseen(stage, why)
    return Stage(stage, begin.ts, between_s(begin.ts, end.ts), "lines", end.source)


def _stated(read: _Read, stage: str, why: str = NOT_SEEN) -> Stage:
    seconds, line = read.said(stage), read.told.get(stage)
    if seconds is None or line is None:
        return _unseen(stage, why)
    begin = read.first(stage, "begin")
    return Stage(stage, begin.ts if begin is not None else later(line.ts, -seconds), seconds, "stated", line.source)


def _process(read: _Read, begun_at: Time | None, begun_by: str) -> Stage:
    first, engine = read.first("process", "begin"), read.first("device", "begin")
    engine = engine or read.first("weights", "begin")
    if engine is None:
        return _unseen("process", "no line tells when the engine began")
    if begun_at is not None and begun_at <= engine.ts and (first is None or begun_at <= first.ts):
        return Stage("process", begun_at, between_s(begun_at, engine.ts), "mixed" if begun_by else "lines", begun_by or engine.source)
    return _between("process", first, engine, "the log does not begin with the process")


def _device(read: _Read) -> Stage:
    if read.said("device") is not None:
        return _stated(read, "device")
    begin = read.first("device", "begin")
    end = read.last("device", "end") if read.engine == "sglang" else read.first("weights", "begin")
    return _between("device", begin, end or read.last("device", "end"))


def _weights(read: _Read) -> Stage:
    if read.said("weights") is not None:
        return _stated(read, "weights")
    return _between("weights", read.first("weights", "begin"), read.last("weights", "end"))


def _graphs(read: _Read) -> Stage:
    if read.said("graphs") is not None:
        return _stated(read, "graphs")
    return _between("graphs", read.first("graphs", "begin"), read.last("graphs", "end"), "no graphs are captured, or no line tells")


def _kv_pool(read: _Read, compiled: Stage, graphs: Stage) -> Stage:
    """vLLM times profile run, compilation, pool and graphs as one: what is left of it. SGLang: from the weights to the pool."""
    whole, line = read.said(INIT), read.told.get(INIT)
    if whole is not None and line is not None:
        left = whole - (compiled.seconds or 0.0) - (graphs.seconds or 0.0)
        sized = read.first("kv_pool", "begin") or read.first("kv_pool", "end") or line
        return Stage("kv_pool", sized.ts, max(left, 0.0), "stated", line.source, "profile run, pool and warm-up: init engine without compile and graphs")
    if read.said("kv_pool") is not None:
        return _stated(read, "kv_pool")
    if read.engine == "sglang":
        return _between("kv_pool", read.last("weights", "end", "took"), read.last("kv_pool", "end"))
    return _between("kv_pool", read.first("kv_pool", "begin"), read.last("kv_pool", "end"))


def _api_up(read: _Read) -> Stage:
    end = read.start.api or read.start.ready
    marks = ((INIT, ("took",)), ("graphs", ("took", "end")), ("kv_pool", ("end",)), *((("api_up", ("begin",)),) if read.engine == "sglang" else ()))
    built = [line for stage, whats in marks if (line := read.last(stage, *whats)) is not None]
    begin = max(built, key=lambda line: line.ts) if built else read.first("api_up", "begin")
    return _between("api_up", begin, end, "it never said that its API is up" if end is None else NOT_SEEN)


def _ready(read: _Read) -> Stage:
    """vLLM is ready when its API is up; SGLang first answers one request of its own."""
    ready, api = read.start.ready, read.start.api
    if ready is None:
        return _unseen("ready", "it never said that it is ready")
    if api is None or api is ready:
        return Stage("ready", ready.ts, 0.0, "lines", ready.source, "ready as soon as its API was up")
    return _between("ready", api, ready)


def engine_of(lines: Sequence[Line]) -> str:
    """vllm | sglang, by the words of the lines."""
    return "sglang" if any(marker.engine == "sglang" for line in lines for marker, _ in markers_of(line.message)) else "vllm"
