"""Verdicts about engines, as JSON (`llmdiag.health/1`: health.schema.json) and as lines of text. Pure."""

import datetime
import math
from collections.abc import Iterator, Sequence

from diag.health.checking import Checked
from diag.health.states import EngineState
from diag.health.verdict import worst

SCHEMA = "llmdiag.health/1"
COLUMNS = ("engine", "state", "running", "waiting", "tokens/s", "steps/s", "flat for", "budget")
WITNESSES = 6
STYLES = {0: "green", 1: "bold red", 3: "yellow"}
"""Colour of a verdict by its exit code."""


def render(checked: Sequence[Checked], interval_s: float | None) -> dict[str, object]:
    """One JSON object. `interval_s` None: recorded reads."""
    return {
        "schema": SCHEMA,
        "interval_s": interval_s,
        "exit": worst([item.verdict for item in checked]),
        "backends": [_backend(item) for item in checked],
    }


def _backend(item: Checked) -> dict[str, object]:
    verdict = item.verdict
    probe = verdict.probe
    return {
        "url": item.url, "source": item.source, "state": verdict.state, "exit": verdict.exit, "reason": verdict.reason,
        "engine_kind": verdict.engine_kind, "engines": [_engine(engine) for engine in verdict.engines],
        "probe": None if probe is None else {"sent": probe.sent, "ok": probe.ok, "seconds": probe.seconds, "status": probe.status},
        "asked": item.asked or None, "notes": list(item.notes),
    }  # fmt: skip


def _engine(engine: EngineState) -> dict[str, object]:
    return {
        "engine": engine.engine, "state": engine.state, "reason": engine.reason, "running": _rounded(engine.running), "waiting": _rounded(engine.waiting),
        "tokens_per_s": _rounded(engine.tokens_per_s), "steps_per_s": _rounded(engine.steps_per_s),
        "flat_s": _rounded(engine.flat_s), "budget_s": _rounded(engine.budget_s),
        "witnesses": {
            name: {"before": _finite(before), "after": _finite(after), **({"highest": _finite(engine.peaks[name])} if name in engine.peaks else {})}
            for name, (before, after) in engine.witnesses.items()
        },
    }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None or _finite(value) is None else round(value, 3)


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def first_line(item: Checked) -> str:
    """The state, whose it is, and what it does."""
    rate = _rates([engine for engine in item.verdict.engines if engine.state == item.verdict.state])
    return f"{item.verdict.state.upper()} {item.url}{rate and f', {rate}'}: {item.verdict.reason}"


def engine_row(engine: EngineState) -> dict[str, object]:
    """For COLUMNS; "-" is not known."""
    return {
        "engine": engine.engine or "the only one", "state": engine.state, "running": _number(engine.running), "waiting": _number(engine.waiting),
        "tokens/s": _number(engine.tokens_per_s), "steps/s": _number(engine.steps_per_s),
        "flat for": "-" if engine.flat_s is None else f"{engine.flat_s:.0f} s", "budget": "-" if engine.budget_s is None else f"{engine.budget_s:.0f} s",
    }


def details(item: Checked) -> Iterator[str]:
    """What a reader wants to know below the table."""
    if item.asked:
        yield f"  question: {item.asked}"
    for engine in item.verdict.engines:
        whose = "" if engine.engine is None else f"engine {engine.engine}: "
        told = [(name, *pair) for name, pair in engine.witnesses.items() if any(pair) or name in engine.peaks]
        for name, before, after in sorted(told, key=lambda witness: witness[1] == witness[2] and witness[0] not in engine.peaks)[:WITNESSES]:
            yield f"  {whose}{name} {_movement(before, after, engine.peaks.get(name))}"
    for note in item.notes:
        yield f"  note: {note}"


def _movement(before: float, after: float, peak: float | None) -> str:
    """What became of a witness. `peak`: what it reached in between, where that was higher."""
    said = f"{before:.12g}" if before == after else f"{before:.12g} -> {after:.12g}"
    if peak is not None:
        return f"{said} (reached {peak:.12g})"
    return f"{said} (did not move)" if before == after else said


def closing(checked: Sequence[Checked]) -> str:
    """What the exit code means, where it is not 0."""
    code = worst([item.verdict for item in checked])
    if code == 1:
        gone = all(item.verdict.state == "unreachable" for item in checked if item.verdict.exit == 1)
        return "exit 1: proved" if gone else "exit 1: proved; llmdiag snapshot PID before a restart keeps the evidence"
    if code == 3:
        return "exit 3: not proved either way; restart nothing on this alone"
    return ""


def _rates(engines: Sequence[EngineState]) -> str:
    """Of all engines together, by the first counter that moved; "" in a long prefill, when none does."""
    parts = []
    for field, unit in (("tokens_per_s", "tokens/s"), ("steps_per_s", "steps/s")):
        known = [value for engine in engines if (value := getattr(engine, field)) is not None]
        if sum(known) > 0:
            parts.append(f"{sum(known):.1f} {unit}")
    return parts[0] if parts else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}".removesuffix(".0")


def clock() -> str:
    """Time of day (UTC) of a round."""
    return datetime.datetime.now(datetime.UTC).strftime("%H:%M:%SZ")
