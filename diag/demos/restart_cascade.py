"""Incident 3: a health check that needs what it guards keeps restarting a healthy engine; a check that only reads its counters does not."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from diag import labs, rules
from diag.demos import tool
from diag.demos.steps import DemoFailed, Settings, Step

RULE = "restart-cascade"
NEEDS = ("aiohttp",)
HINT = "pip install '.[demo]', in the clone of llmdiag, brings what a demo needs"
KEEP = "`llmdiag demo restart-cascade --keep DIR` keeps the logs"
HOURS, CALM_HOURS = 3.0, 1.0
"""Of the lab's clock: with the batch job, and without it (where nothing happens)."""
SCALE = 100.0
HANG_AFTER_S, SPARE_S = 60.0, 2100.0
"""Lab seconds from the end of those hours to a real hang, and what it takes to find it, to load again and to be seen at work."""
INTERVALS = 3
"""Rounds of the check within which a hang must be found."""
LOGS, MAP, ROUNDS = "logs", "events-map.toml", "rounds.jsonl"
PATIENCE_LAB_S = 45.0
"""Of the chat watchdog; 0.45 real seconds."""
BUSY_S, END_S = 60.0, 120.0
QUESTION = json.dumps({"model": "toy-27b", "messages": [{"role": "user", "content": "ping"}], "max_tokens": 4}).encode()
RESTARTS = "SELECT strftime(killed_at, '%H:%M:%S') AS at, initiator, how FROM restarts ORDER BY killed_at"

Json = dict[str, Any]


def run(folder: Path, settings: Settings) -> Iterator[Step]:
    """The steps, as they happen."""
    yield from show(folder, settings, HOURS)


def show(folder: Path, settings: Settings, hours: float) -> Iterator[Step]:
    """The same, for so many hours of the lab's clock."""
    base = settings.keep or folder
    incident, guarded = base / "demo-incident", base / "demo-incident-guarded"
    if not settings.fault:
        yield from _calm(incident, folder, min(hours, CALM_HOURS))
        return
    hang_s = hours * 3600 + HANG_AFTER_S
    guard = ("--health", shlex.join([sys.executable, "-P", "-m", "diag.cli"]), "--hang-at", f"{hang_s:g}") if settings.heal else ()
    with ExitStack() as both:
        lab = both.enter_context(_started(incident, folder, hours))
        longer = hours + (SPARE_S + HANG_AFTER_S) / 3600 if settings.heal else hours
        other = both.enter_context(_started(guarded, folder, longer, *guard))
        yield Step("Started an engine with two slots, a batch job and four watchdogs", f"pid {lab.pid}, {lab.url}; {hours:g} h on a clock that runs {SCALE:g} times as fast")
        who = "llmdiag health alone" if settings.heal else "the watchdogs as well: nothing is healed"
        yield Step("The same hours on a second engine", f"pid {other.pid}, {other.url}, guarded by {who}")
        yield from _busy_but_healthy(lab)
        _ended(lab, hours)
        yield from _diagnosed(incident)
        _ended(other, longer)
        yield from _guarded(guarded, hang_s)


def _started(place: Path, folder: Path, hours: float, *options: str) -> AbstractContextManager[labs.Lab]:
    """A lab whose evidence goes to `place`; its ledger stays out of it, and is not looked at here."""
    place.mkdir(parents=True)
    own = folder / f"{place.name}-ledger.jsonl"
    args = ("--logs", str(place / LOGS), "--ledger", str(own), "--hours", f"{hours:g}", "--scale", f"{SCALE:g}", *options)
    return labs.start_lab(rules.samples() / RULE / "lab.py", *args, log=folder / f"{place.name}.log")


def _calm(place: Path, folder: Path, hours: float) -> Iterator[Step]:
    """No batch job: nobody waits, and nobody is restarted."""
    with _started(place, folder, hours, "--no-batch") as lab:
        yield Step("Started an engine with two slots and four watchdogs, no batch job", f"pid {lab.pid}, {lab.url}; {hours:g} h on a clock that runs {SCALE:g} times as fast")
        yield Step("The question of the chat watchdog is answered", tool.expect(lambda: lab.post(QUESTION, "/v1/chat/completions"), 200))
        _ended(lab, hours)
    found = _analysed(place)
    yield Step("llmdiag analyze", f"verdict: {found['verdict']}")
    if found["verdict"] != "clear":
        raise DemoFailed(f"nothing was planted, yet the analysis says {found['verdict']}", hint=KEEP)
    yield Step("CLEAR, as it should be: without the batch job nobody restarts anything")


def _busy_but_healthy(lab: labs.Lab) -> Iterator[Step]:
    """The moment in which the chat watchdog goes wrong: full slots, no answer, and an engine at work."""
    labs.wait_until(lambda: lab.metrics()["vllm:num_requests_waiting"] >= 1, BUSY_S)
    seen = _asked(lab, PATIENCE_LAB_S / SCALE)
    yield Step("The question of the chat watchdog, while the batch job runs", seen)
    found = tool.answer_of(["health", lab.url, "--interval", "0.5", "--floor", "3", "--timeout", "2", "--no-probe", "--format", "json"], (0, 1, 3))
    (backend,) = found["backends"]
    if not backend["engines"] or backend["engines"][0]["tokens_per_s"] is None:
        raise DemoFailed(f"llmdiag health sees no tokens: {backend['state']}, {backend['reason']}")
    engine = backend["engines"][0]
    speed = f"{engine['tokens_per_s'] / SCALE:.0f}"
    yield Step("llmdiag health", f"{backend['state']}, exit {found['exit']}: {speed} tokens in a lab second, {engine['running']:g} running, {engine['waiting']:g} waiting; it sent no request")
    if found["exit"] != 0:
        raise DemoFailed(f"a healthy engine is called {backend['state']}: {backend['reason']}")


def _asked(lab: labs.Lab, patience_s: float) -> str:
    try:
        answer = lab.post(QUESTION, "/v1/chat/completions", timeout_s=patience_s)
    except OSError as error:
        return f"no answer within {PATIENCE_LAB_S:g} lab seconds ({type(error).__name__})"
    return f"HTTP {answer.status} within {PATIENCE_LAB_S:g} lab seconds"


def _ended(lab: labs.Lab, hours: float) -> None:
    """Wait for the end of a lab's hours. Raises DemoFailed when it ended otherwise."""
    code = labs.wait_until(lambda: None if lab.process.poll() is None else (lab.process.returncode,), hours * 3600 / SCALE + END_S, every_s=0.1)
    if code != (0,):
        raise DemoFailed(f"the lab ended with {code}", hint=lab.log.read_text(errors="replace")[-500:])


def _diagnosed(place: Path) -> Iterator[Step]:
    """The naive hours, from their logs alone."""
    found = _analysed(place)
    restarts = _restarts(place)
    yield Step("The watchdogs' hours are over", "\n".join(f"{row['at']} restarted by {row['initiator']}" for row in restarts))
    first = found["findings"][0] if found["findings"] else {"rule": "nothing", "verdict": found["verdict"], "evidence": []}
    if (first["rule"], first["verdict"]) != (RULE, "confirmed"):
        raise DemoFailed(f"the logs of a cascade are called {first['rule']} ({first['verdict']})", hint=KEEP)
    said = {item["signal"]: item for item in first["evidence"]}
    yield Step(f"Diagnosis: {RULE}, confirmed", "\n".join(_chain(said) + _each(said)))


def _chain(said: Json) -> list[str]:
    return [f"{row['restarts']} in a row, the later ones brought about by those before: {row['chain']}" for row in _rows(said, "chain")]


def _each(said: Json) -> list[str]:
    replays = [f"{row['initiator']} at {row['at']}: {row['replay']}" for row in _rows(said, "replayed")][:3]
    working = [f"{row['initiator']} at {row['at']} ended an engine at work: {row['how_seen']}" for row in _rows(said, "was_working")][:3]
    return [*replays, *working]


def _rows(said: Json, signal: str) -> Sequence[Json]:
    return said[signal]["rows"] if signal in said else []


def _guarded(place: Path, hang_s: float) -> Iterator[Step]:
    """The same hours with another guard: no restart before the hang, and that is found in time."""
    restarts = _restarts(place)
    rounds_file = place / ROUNDS
    if not rounds_file.exists():
        raise DemoFailed(f"the second engine was restarted {len(restarts)} times as well: its watchdogs are the old ones", hint="run it with the healing")
    rounds = [json.loads(line) for line in rounds_file.read_text(encoding="utf-8").splitlines()]
    calm = [item for item in rounds if item["second"] < hang_s]
    after = [item for item in rounds if item["second"] >= hang_s]
    early = [item for item in calm if item["said"]["exit"] == 1]
    if early or not calm:
        raise DemoFailed(f"llmdiag health called a healthy engine stuck: {early[0]['said']['backends'][0]['reason']}" if early else "llmdiag health said nothing")
    yield Step("The same hours under llmdiag health", f"{len(calm)} rounds: {_states(calm)}; nobody was restarted")
    stuck = next((number for number, item in enumerate(after, 1) if item["said"]["exit"] == 1), None)
    if stuck is None or stuck > INTERVALS:
        raise DemoFailed(f"the engine hangs, and {INTERVALS} rounds of llmdiag health did not find it", hint=f"it said {_states(after)}")
    reason = after[stuck - 1]["said"]["backends"][0]["reason"]
    yield Step("Then its loop really stopped", f"found in round {stuck} after that: {reason}")
    if len(restarts) != 1:
        raise DemoFailed(f"under llmdiag health there should be one restart, of the engine that hung; the logs tell of {len(restarts)}")
    alive = after[-1]["said"]
    if alive["exit"] != 0:
        raise DemoFailed(f"after that restart the engine is {alive['backends'][0]['state']}")
    yield Step("Restarted once, for a reason", f"by {restarts[0]['initiator']} at {restarts[0]['at']}; now it is {alive['backends'][0]['state']}")


def _states(rounds: Sequence[Json]) -> str:
    states = [item["said"]["backends"][0]["state"] for item in rounds]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _analysed(place: Path) -> Json:
    return tool.answer_of(["analyze", str(place / LOGS), *_told(place), "--format", "json"], (0, 1, 3))


def _restarts(place: Path) -> Sequence[Json]:
    """Who ended the engine when, by the tool's table of restarts."""
    found: Sequence[Json] = tool.answer_of(["query", str(place / LOGS), RESTARTS, *_told(place), "--format", "json"], (0,))["rows"]
    return found


def _told(place: Path) -> Sequence[str]:
    return ("--events-map", str(place / MAP), "--tz", "UTC")
