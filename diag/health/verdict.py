"""All reads of one backend -> one verdict. The whole sequence goes in, so that polling, recorded folders and --watch judge alike.

Exit: 0 nothing to do · 1 proved stuck (or proved gone) · 3 not proved either way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diag.health import identity, proof
from diag.health.budget import Budget
from diag.health.proof import ENGINE_ROLES, HALTED, SERVER, ProcessEvidence
from diag.health.reads import Read, elapsed_s
from diag.health.states import WINDOW, Asked, EngineState, ProbeResult, State, judge_engine
from diag.health.track import Backend, backend
from diag.repro.http_post import NO_NAME

EXIT: Mapping[State, int] = {
    "progressing": 0, "idle-proven": 0, "idle-unproven": 0, "starting": 0, "sleeping": 0, "restarted": 0,
    "stalled": 1, "admission-stalled": 1,
    "busy-unproven": 3, "mixed-backends": 3, "no-metrics": 3, "unreadable": 3, "unreachable": 3,
}
WORST: tuple[State, ...] = (
    "stalled", "admission-stalled", "busy-unproven", "no-metrics", "starting", "progressing", "sleeping", "idle-unproven", "idle-proven",
)
"""Of several engines the first of these that one of them is in is the state of the backend."""
START_S = 1800.0
"""A process that is younger and does not listen yet is starting."""


@dataclass(frozen=True)
class BackendVerdict:
    """What is so, why, and what the caller may do. `engines` is empty where no read could be compared."""

    state: State
    reason: str
    exit: int
    engine_kind: str | None = None
    engines: tuple[EngineState, ...] = field(default_factory=tuple)
    probe: ProbeResult | None = None
    may_probe: bool = False
    """One short question may be sent: every engine said idle at the last two reads, or the process is new and says idle."""


def judge(
    reads: Sequence[Read], *, evidence: ProcessEvidence | None = None, budget: Budget | None = None, probe: ProbeResult | None = None
) -> BackendVerdict:
    """Reads of one backend, oldest first -> verdict. No reads at all is a mistake of the caller (ValueError)."""
    if not reads:
        raise ValueError("no reads to judge")
    last = reads[-1]
    if not last.samples:
        return _no_samples(reads, evidence)
    if proof.outlived(evidence):
        evidence = None
    answered = [backend(read) for read in reads if read.samples]
    now = answered[-1]
    if now.family is None:
        return _verdict("no-metrics", "the answer holds metrics, but none of an engine that is known here (vLLM: --disable-log-stats)")
    found = identity.identity(answered)
    if found.mixed is not None:
        return _verdict("mixed-backends", f"{found.mixed}; ask each backend directly", kind=now.family.kind)
    since = [item for item in answered[found.since:] if item.family == now.family]
    if found.says is not None and len(since) < WINDOW:
        return _restarted(since, found.says, budget or Budget())
    if len(since) == 1 and len(reads) > 1 and _fresh(now):
        return _verdict("starting", "it began to answer at the last read and has served nothing yet", kind=now.family.kind)
    return _engines(reads, since, evidence, budget or Budget(), probe)


def tail(reads: Sequence[Read], budget: Budget) -> Sequence[Read]:
    """What a watcher may keep for the next verdicts: as much time as two budgets, and the reads of a window."""
    longest = 2 * max(budget.seconds(), budget.ceiling_s if budget.prompt_tokens is None else 0.0)
    first = 0
    while len(reads) - first > 2 * WINDOW and (elapsed_s(reads[first + 1], reads[-1]) or 0.0) > longest:
        first += 1
    return reads[first:]


def worst(verdicts: Sequence[BackendVerdict]) -> int:
    """Exit code of several backends: 1 before 3 before 0."""
    return max((verdict.exit for verdict in verdicts), key=(0, 3, 1).index, default=0)


def _engines(reads: Sequence[Read], since: Sequence[Backend], evidence: ProcessEvidence | None, budget: Budget, probe: ProbeResult | None) -> BackendVerdict:
    now = since[-1]
    asked_at = probe.reads_before if probe is not None and probe.sent and probe.reads_before is not None else len(reads)
    late = {id(read) for read in reads[asked_at:]}
    engines = []
    for engine in _counting(now):
        points = [point for item in since if (point := item.engines.get(engine)) is not None]
        after = sum(id(point.read) in late for point in points)
        engines.append(judge_engine(engine, points, Asked(evidence, budget, probe, len(_counting(now)) == 1, after)))
    state = min((item.state for item in engines), key=WORST.index)
    first = next(item for item in engines if item.state == state)
    may = state in ("idle-unproven", "idle-proven") and all(_twice_idle(since, engine) for engine in _counting(now))
    kind = None if now.family is None else now.family.kind
    return BackendVerdict(state, _whose(engines, first) + first.reason, EXIT[state], kind, tuple(engines), probe, may and state == "idle-unproven" and (probe is None or not probe.sent))


def _whose(engines: Sequence[EngineState], first: EngineState) -> str:
    """Of several engines the ones that a verdict is about; what follows is said of the first."""
    if len(engines) == 1:
        return ""
    same = [str(item.engine) for item in engines if item.state == first.state]
    if len(same) == 1:
        return f"engine {same[0]} of {len(engines)}: "
    named = ", ".join(same[:4]) + (f" and {len(same) - 4} more" if len(same) > 4 else "")
    return f"engines {named} of {len(engines)}, {first.engine} first: "


def _counting(now: Backend) -> tuple[str | None, ...]:
    """The engines that count requests; where none does, all there are."""
    counting = tuple(engine for engine, point in now.engines.items() if point.running is not None or point.in_flight is not None)
    return counting or tuple(now.engines)


def _twice_idle(since: Sequence[Backend], engine: str | None) -> bool:
    points = [item.engines.get(engine) for item in since[-2:]]
    return len(points) == 2 and all(point is not None and point.idle for point in points)


def _restarted(since: Sequence[Backend], says: str, budget: Budget) -> BackendVerdict:
    now = since[-1]
    asked = Asked(None, budget, None, len(now.engines) == 1, 0)
    engines = tuple(
        EngineState(engine, "restarted", says, item.running, item.waiting)
        for engine, points in ((engine, [found.engines[engine] for found in since if engine in found.engines]) for engine in now.engines)
        for item in (judge_engine(engine, points, asked),)
    )
    idle = all(point.idle for point in now.engines.values())
    kind = None if now.family is None else now.family.kind
    return BackendVerdict("restarted", f"{says}: nothing is compared across that", EXIT["restarted"], kind, engines, None, idle)


def _no_samples(reads: Sequence[Read], evidence: ProcessEvidence | None) -> BackendVerdict:
    """The last read brought nothing: not there, not readable, or still loading."""
    last = reads[-1]
    if last.outcome in ("timeout", "refused", "reset"):
        dead = proof.gone(evidence) or proof.none_runs(evidence)
        if dead is not None:
            return BackendVerdict("unreachable", f"no answer ({last.outcome}), and {dead}", 1)
        stopped = proof.stopped(evidence)
        if stopped is not None and stopped[1]:
            return _verdict("stalled", f"no answer ({last.outcome}), and {stopped[0]}")
        unnamed = last.problem.startswith(NO_NAME)
        if last.outcome == "refused" and not unnamed and _young(reads, evidence):
            return _verdict("starting", "its process is young and does not listen yet")
        before = "; it answered before" if any(read.samples for read in reads) else ""
        what = last.problem if unnamed else last.outcome
        return _verdict("unreachable", f"no answer: {what}{before}. That proves neither life nor death{'' if stopped is None else f'; {stopped[0]}'}")
    if last.loading:
        return _verdict("starting", "it says that it still loads the model")
    if last.outcome == "answer" and last.status == 404:
        return _verdict("no-metrics", "there is no /metrics (404): SGLang wants --enable-metrics, llama.cpp --metrics")
    if last.outcome == "answer" and last.status in (None, 200) and not last.problem:
        return _verdict("no-metrics", "the answer is empty")
    return _verdict("unreadable", f"what came back is no metrics: {last.problem or last.outcome}")


def _young(reads: Sequence[Read], evidence: ProcessEvidence | None) -> bool:
    """Was it started lately, and does it do something? One that answered before does not listen any more: that is no start."""
    if evidence is None or not evidence.looks or proof.waits(evidence):
        return False
    look = evidence.looks[-1]
    living = [seen for seen in look.processes if seen.state not in HALTED]
    if any(read.samples for read in reads):
        answered = max((read.ts for read in reads if read.samples and read.ts is not None), default=None)
        living = [seen for seen in living if answered is not None and seen.role in (SERVER, *ENGINE_ROLES) and (seen.started_at or 0.0) > answered]
    starts = [seen.started_at for seen in living if seen.started_at is not None]
    return bool(starts) and look.ts is not None and look.ts - min(starts) < START_S


def _fresh(now: Backend) -> bool:
    """All its counters are still 0."""
    return not any(point.busy or any(point.counters.values()) for point in now.engines.values())


def _verdict(state: State, reason: str, *, kind: str | None = None) -> BackendVerdict:
    return BackendVerdict(state, reason, EXIT[state], kind)
