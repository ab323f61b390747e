"""Simulated lives, read as a watcher reads them and judged at every read: what was true and what was said.

Each life has one plot. What must never happen is a `fault` (a sentence); everything goes into the matrix truth x state.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from diag.health.budget import Budget
from diag.health.proof import Look, ProcessEvidence, ProcessSeen
from diag.health.reads import Read
from diag.health.states import EngineState, ProbeResult, State
from diag.health.verdict import EXIT, BackendVerdict, judge
from tests.health.simulated import ENGINES, EPOCH_S, Life, Stretch, healthy, read

PLOTS = ("healthy", "hang", "hidden-hang", "hidden-hang-asked", "restart", "reset", "swapped", "queued", "stopped", "compiling-seen", "slow-prompt")
SLACK = 2
"""Intervals after the budget by which a hang must be found: one until the next read, one for two comparisons."""


PATIENCE_S = 300.0
"""Seconds that the question to an idle engine may take."""


@dataclass
class Score:
    """What was judged so far."""

    matrix: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lives: int = 0
    verdicts: int = 0
    found_after: list[float] = field(default_factory=list)
    """Seconds from the onset of a hang to the verdict, as a share of the budget."""


@dataclass(frozen=True)
class Plot:
    """One life with how it is watched."""

    name: str
    engine: str
    stretches: Sequence[Stretch]
    interval_s: float
    budget: Budget
    asks: bool = False
    pid: bool = False
    other: Sequence[Stretch] = ()


def plot(rng: random.Random, name: str) -> Plot:
    """A life of this plot."""
    engine = rng.choice(sorted(ENGINES))
    interval = rng.uniform(5, 30) if rng.random() < 0.15 else rng.uniform(40, 120)
    budget = Budget()
    before = healthy(rng, 290, rng.uniform(30, 400))
    ends = name in ("hidden-hang", "hidden-hang-asked", "reset", "queued")
    decode = Stretch("decode", rng.uniform(10, 60), rng.choice((1, 4, 12)), 0, rng.uniform(0.05, 0.9), ends=ends)
    idle = Stretch("idle", 3 * interval + rng.uniform(1, 60))
    longest = 2.2 * max(budget.ceiling_s if engine.startswith(("vllm", "sglang", "lmcache")) else 0, budget.floor_s) + 4 * interval
    hang = Stretch("hang", min(longest, 1100 + 4 * interval), decode.running, rng.choice((0, 3)), decode.kv)
    match name:
        case "hang":
            return Plot(name, engine, [*before, decode, hang], interval, budget)
        case "hidden-hang" | "hidden-hang-asked":
            hidden = Stretch("hidden-hang", 700 + 4 * interval, 2)
            return Plot(name, engine, [*before, decode, idle, hidden], interval, budget, asks=name.endswith("asked"))
        case "restart":
            return Plot(name, engine, [*before, Stretch("down", rng.uniform(5, 240)), Stretch("idle", rng.uniform(5, 60), fresh=True), *healthy(rng, 200, 200)], interval, budget)
        case "reset":
            return Plot(name, engine, [*before, decode, Stretch("decode", rng.uniform(60, 200), 2, 0, 0.3, fresh=True)], interval, budget)
        case "swapped":
            return Plot(name, engine, healthy(rng, 100, 900), interval, budget, other=healthy(rng, 100, 900))
        case "queued":
            return Plot(name, engine, [*before, decode, Stretch("queued", 6 * interval, 0, 5, 0.97)], interval, budget)
        case "stopped":
            return Plot(name, engine, [*before, decode, Stretch("hang", 6 * interval, decode.running, 0, decode.kv)], interval, budget, pid=True)
        case "compiling-seen":
            return Plot(name, engine, [*before, decode, Stretch("silent", rng.uniform(30, 500), decode.running, 0, decode.kv)], interval, budget, pid=True)
        case "slow-prompt":
            tokens = rng.randrange(120_000, 400_000)
            wide = Budget(prompt_tokens=tokens)
            return Plot(name, engine, [*before, decode, Stretch("silent", wide.seconds() * 0.97, decode.running, 0, decode.kv), decode], interval, wide)
        case _:
            return Plot(name, engine, [*before, *healthy(rng, 290, 400)], interval, budget, asks=rng.random() < 0.5)


def watch(story: Plot, rng: random.Random, score: Score, judging: Callable[..., BackendVerdict] = judge) -> None:
    """Read the life at its interval, judge at every read, note what was true and what was said."""
    life = Life(story.stretches, busy_before=rng.randrange(1, 5000))
    other = Life(story.other, start=-40_000.0, busy_before=rng.randrange(5001, 9000)) if story.other else None
    reads: list[Read] = []
    looks: list[Look] = []
    probe: ProbeResult | None = None
    found_at: float | None = None
    clock = 0.0
    score.lives += 1
    while clock < life.seconds:
        reads.append(read(life, ENGINES[story.engine], clock) if other is None or len(reads) % 2 else read(other, ENGINES[story.engine], clock - 40_000.0))
        if story.pid:
            looks.append(look(life, clock))
        verdict = judging(reads, evidence=ProcessEvidence(tuple(looks)) if story.pid else None, budget=story.budget, probe=probe)
        score.verdicts += 1
        stretch, began = life.truth(clock)
        if verdict.state == "stalled" and found_at is None and stretch.kind in ("hang", "hidden-hang"):
            found_at = clock
        score.matrix[truth(story, stretch, clock - began, verdict), verdict.state] += 1
        score.faults += faults(story, life, verdict, clock, reads)
        if story.asks and verdict.may_probe and probe is None:
            # an answer is not kept: the next read sees what it moved. A long step holds it up as a hang does.
            if life.truth(clock)[0].kind in ("silent", "hidden-hang") and life.truth(clock) == life.truth(clock + PATIENCE_S):
                probe = ProbeResult(True, False, PATIENCE_S, None, len(reads))
                clock += PATIENCE_S
        elif probe is not None and verdict.state in ("progressing", "restarted"):
            probe = None
        clock += story.interval_s
    _found(story, life, found_at, score)


def truth(story: Plot, stretch: Stretch, since_s: float, verdict: BackendVerdict) -> str:
    """The row of the matrix."""
    if story.other:
        return "two backends"
    if stretch.kind in ("hang", "hidden-hang"):
        budget = verdict.engines[0].budget_s if verdict.engines and verdict.engines[0].budget_s is not None else story.budget.seconds()
        late = "past budget" if since_s > budget + SLACK * story.interval_s else "within budget"
        seen = ", worker stopped" if story.pid else ""
        return f"{stretch.kind}{', asked' if story.asks else ''}{seen}, {late}"
    return {"silent": "healthy, one long step", "chunked": "healthy, long prefill", "decode": "healthy, decoding"}.get(stretch.kind, stretch.kind)


def faults(story: Plot, life: Life, verdict: BackendVerdict, clock: float, reads: Sequence[Read]) -> Iterator[str]:
    """What must never be said."""
    stretch, began = life.truth(clock)
    where = f"{story.name} of {story.engine} at {clock:.0f} s ({stretch.kind} since {clock - began:.0f} s, every {story.interval_s:.0f} s): {verdict.reason}"
    if stretch.kind not in ("hang", "hidden-hang", "queued") and verdict.state == "stalled":
        yield f"healthy called stalled: {where}"
    if stretch.kind not in ("hang", "hidden-hang", "queued") and verdict.state == "admission-stalled":
        yield f"healthy called admission-stalled: {where}"
    if stretch.kind == "hidden-hang" and verdict.state == "idle-proven" and clock - began > story.interval_s:
        yield f"a hang called idle-proven: {where}"
    if stretch.kind == "hang" and verdict.state == "progressing" and clock - began > 3 * story.interval_s and not story.pid:
        yield f"a hang called progressing: {where}"
    busy = stretch.running or stretch.waiting
    if verdict.may_probe and busy and stretch.kind in ("decode", "chunked", "queued") and clock - began > story.interval_s and not story.other:
        yield f"a busy engine would be asked: {where}"


def _found(story: Plot, life: Life, found_at: float | None, score: Score) -> None:
    """Every hang that lasted long enough was found in time."""
    stretch, began = life.truth(life.seconds - 1e-6)
    if stretch.kind not in ("hang", "hidden-hang") or (stretch.kind == "hidden-hang" and not story.asks):
        return
    budget = story.budget.seconds(stretch.kv * 262_144 if story.engine.startswith(("vllm", "sglang", "lmcache")) else None)
    allowed = 3 * story.interval_s if story.pid else budget + (SLACK + 1) * story.interval_s + PATIENCE_S
    if stretch.seconds < allowed:
        return
    if found_at is None or found_at - began > allowed:
        when = "never" if found_at is None else f"after {found_at - began:.0f} s"
        score.faults.append(f"{story.name} of {story.engine} every {story.interval_s:.0f} s found {when}, allowed {allowed:.0f} s")
    else:
        score.found_after.append((found_at - began) / (story.budget.seconds() if not story.pid else story.interval_s))


def look(life: Life, clock: float) -> Look:
    """The processes at this moment: a hang is a stopped worker, one long healthy step a worker that computes."""
    stretch, _ = life.truth(clock)
    now = life.at(clock)
    works = stretch.kind in ("decode", "chunked", "silent")
    state = "T" if stretch.kind == "hang" else "R" if works else "S"
    stack = f"at {clock}" if works else "waits"
    core = ProcessSeen(2, "engine_core", "S", EPOCH_S + now.born, clock / 10, stack)
    return Look((core, ProcessSeen(3, "worker", state, EPOCH_S + now.born, clock if works else 0.0, stack)), EPOCH_S + clock, clock)


def run(lives: int, seed: int, judging: Callable[..., BackendVerdict] = judge) -> Score:
    """So many lives, the plots in turn."""
    rng = random.Random(seed)
    score = Score()
    for number in range(lives):
        watch(plot(rng, PLOTS[number % len(PLOTS)]), rng, score, judging)
    return score


def naive(reads: Sequence[Read], **_: object) -> BackendVerdict:
    """The rule this replaces: requests run and the counter of iterations did not move over two comparisons."""
    values = [
        {sample.name: sample.value for sample in item.samples if sample.name.endswith(("num_requests_running", "iteration_tokens_total_count"))}
        for item in reads[-3:]
    ]
    flat = len(values) == 3 and all(len(found) == 2 for found in values) and len({found["vllm:iteration_tokens_total_count"] for found in values}) == 1
    stalled = flat and all(found["vllm:num_requests_running"] for found in values)
    state: State = "stalled" if stalled else "progressing"
    return BackendVerdict(state, "", EXIT[state], "vllm", (EngineState("0", state, ""),))


def table(score: Score) -> str:
    """The matrix as text: rows what was true, columns what was said."""
    states = sorted({state for _, state in score.matrix})
    rows = sorted({row for row, _ in score.matrix})
    wide = max(len(row) for row in rows)
    head = " ".join(f"{state[:14]:>14}" for state in states)
    lines = [f"{'truth':<{wide}} {head}"]
    lines += [f"{row:<{wide}} " + " ".join(f"{score.matrix[row, state] or '.':>14}" for state in states) for row in rows]
    return "\n".join(lines)
