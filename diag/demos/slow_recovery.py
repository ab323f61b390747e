"""Incident 4: an engine dies, and coming back goes wrong in each of its stages; the same death where everything is set up well."""

import datetime
import http.client
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag import labs, rules
from diag.demos import tool
from diag.demos.steps import DemoFailed, Settings, Step

RULE = "slow-recovery"
NEEDS = ("aiohttp",)
HINT = "pip install '.[demo]', in the clone of llmdiag, brings what a demo needs"
KEEP = "`llmdiag demo slow-recovery --keep DIR` keeps the logs"
SCALE = 6.0
"""Lab seconds in a real one."""
DRILL = "kill-under-load"
LOGS, MAP = "logs", "events-map.toml"
PATIENCE_S, WAIT_S, END_S = 2.5, 60.0, 120.0
"""Real seconds: a question is asked with, until it is answered again, until a lab is over."""
QUESTION = json.dumps({"model": "toy-8b", "messages": [{"role": "user", "content": "ping"}], "max_tokens": 4}).encode()
LOST = (
    "SELECT count(*) AS n FROM http_events WHERE origin = 'haproxy' AND (status IS NULL OR status < 100 OR status >= 500 OR ended LIKE 'C%')"
)
LABELS = {
    "detect": "detect", "stop": "stop", "reclaim": "reclaim", "failed start": "a start that failed", "process": "process", "device": "device", "weights": "weights",
    "compile": "compile", "kv_pool": "KV pool", "graphs": "graphs", "api_up": "API up", "ready": "ready", "unattributed": "UNATTRIBUTED", "total": "time to recover",
    "traffic_switched": "traffic switched",
}  # fmt: skip
BEGINS = ("detect", "stop", "reclaim")
"""Stages that the first of several attempts has; the others are those of the last."""
LEAST_GAIN = 2.0
"""How many times as fast the good set-up has to be."""

Json = dict[str, Any]


def run(folder: Path, settings: Settings) -> Iterator[Step]:
    """The steps, as they happen."""
    base = settings.keep or folder
    if not settings.fault:
        yield from _calm(base / "demo-incident", folder)
        return
    bad, other = base / "demo-incident", base / "demo-incident-good"
    setup = "good" if settings.heal else "bad"
    with ExitStack() as both:
        second = both.enter_context(_started(other, folder, setup, DRILL))
        what = "set up well" if settings.heal else "set up badly: nothing will be healed"
        yield Step("Started an engine, a memory holder, a router, a manager and clients", f"pid {second.pid}, the router at {second.url}, {what}; their clock runs {SCALE:g} times as fast")
        lab = both.enter_context(_started(bad, folder, "bad", DRILL))
        yield Step("The same once more, set up badly", f"pid {lab.pid}, the router at {lab.url}")
        yield from _died(lab)
        for each in (second, lab):
            _ended(each)
    pool = ThreadPoolExecutor(2)  # each question to the tool takes seconds, and most machines have two cores
    try:
        asked = [_asked(pool, place) for place in (bad, other)]
        before = yield from _told(asked[0], bad, "set up badly")
        yield _diagnosed(asked[0].found.result())
        after = yield from _told(asked[1], other, f"set up {'well' if settings.heal else 'badly once more'}")
        yield from compared(before, after)
    finally:
        pool.shutdown(cancel_futures=True)


def compared(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[Step]:
    """Seconds of the stages of both, and what was gained. Raises DemoFailed when that is too little."""
    yield Step("Side by side, in seconds", "\n".join(_beside(before, after)))
    if before["total"] < LEAST_GAIN * after["total"]:
        raise DemoFailed(f"the second one took {after['total']:.0f} s to recover, the first one {before['total']:.0f} s: nothing is healed", hint=KEEP)
    yield Step("Healed", f"the same death took {before['total']:.0f} s, then {after['total']:.0f} s; {before['lost']:.0f} requests were lost or given up, then {after['lost']:.0f}")


def _started(place: Path, folder: Path, setup: str, drill: str) -> AbstractContextManager[labs.Lab]:
    """A lab whose evidence goes to `place`; its ledger stays out of it, and is not looked at here."""
    place.mkdir(parents=True)
    args = ("--logs", str(place / LOGS), "--ledger", str(folder / f"{place.name}-ledger.jsonl"), "--setup", setup, "--drill", drill, "--scale", f"{SCALE:g}")
    return labs.start_lab(_lab() / "lab.py", *args, log=folder / f"{place.name}.log")


def _lab() -> Path:
    return rules.samples() / RULE


def _calm(place: Path, folder: Path) -> Iterator[Step]:
    """Nobody kills anything."""
    with _started(place, folder, "bad", "none") as lab:
        yield Step("Started an engine, a memory holder, a router, a manager and clients, set up badly", f"pid {lab.pid}, the router at {lab.url}")
        yield Step("A question is answered", tool.expect(lambda: lab.post(QUESTION, "/v1/chat/completions"), 200))
        _ended(lab)
    found = _analysed(place)
    yield Step("llmdiag analyze", f"verdict: {found['verdict']}")
    if found["verdict"] != "clear":
        raise DemoFailed(f"nothing was planted, yet the analysis says {found['verdict']}", hint=KEEP)
    yield Step("CLEAR, as it should be: nothing died")


def _died(lab: labs.Lab) -> Iterator[Step]:
    """What a client sees: answers, then none, then answers."""
    yield Step("A question is answered", tool.expect(lambda: lab.post(QUESTION, "/v1/chat/completions"), 200))
    labs.wait_until(lambda: _waits(lab), WAIT_S)
    waiting = lab.post_later(QUESTION, "/v1/chat/completions", timeout_s=WAIT_S)
    yield Step("Its core is killed, under full load", f"no answer within {PATIENCE_S:g} s: the question waits in the router's queue")
    yield Step("Answers again", _answer_of(waiting))


def _waits(lab: labs.Lab) -> bool:
    """Is a question neither answered nor refused? In the moment of a death some are answered with 500."""
    try:
        lab.post(QUESTION, "/v1/chat/completions", timeout_s=PATIENCE_S)
    except TimeoutError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    return False


def _answer_of(waiting: "Future[labs.Answer]") -> str:
    try:
        answer = waiting.result(WAIT_S)
    except (OSError, http.client.HTTPException) as error:
        raise DemoFailed(f"the question that waited got no answer: {error}") from error
    if answer.status != 200:
        raise DemoFailed(f"the question that waited was answered with {answer.status}")
    return "the question that waited has its answer"


def _ended(lab: labs.Lab) -> None:
    """Wait for the end of a lab. Raises DemoFailed when it ended otherwise."""
    code = labs.wait_until(lambda: None if lab.process.poll() is None else (lab.process.returncode,), END_S, every_s=0.1)
    if code != (0,):
        raise DemoFailed(f"the lab ended with {code}", hint=lab.log.read_text(errors="replace")[-500:])


@dataclass(frozen=True)
class _Asked:
    """What is asked of the tool about one drill, while the demo goes on."""

    found: "Future[Json]"
    text: "Future[str]"
    lost: "Future[Json]"


def _asked(pool: ThreadPoolExecutor, place: Path) -> _Asked:
    logs = str(place / LOGS)
    return _Asked(
        pool.submit(tool.answer_of, ["recovery", logs, *_map(), "--format", "json"], (0,)), pool.submit(tool.llmdiag, ["recovery", logs, *_map()], (0,)),
        pool.submit(tool.answer_of, ["query", logs, LOST, *_map(), "--format", "json"], (0,)),
    )  # fmt: skip


def _told(asked: _Asked, place: Path, how: str) -> Generator[Step, None, dict[str, float]]:
    """What `llmdiag recovery` says of a drill -> seconds by stage, over all its attempts."""
    found = [item for item in asked.found.result()["recoveries"] if item["cause"] != "start"]
    if not found or found[-1]["ready_at"] is None:
        raise DemoFailed(f"llmdiag recovery sees no recovery in {place}", hint=KEEP)
    yield Step(f"llmdiag recovery, of what is {how}", "\n".join(_attempts(asked.text.result())))
    return {**stages(found), "lost": float(asked.lost.result()["rows"][0]["n"])}


def _attempts(text: str) -> list[str]:
    """The text without the first start, of which no end is seen, and without the table of all of them."""
    parts = text.split("\nRecovery ")
    return [line for part in parts[2:] for line in f"Recovery {part}".rstrip().splitlines()]


def stages(found: Sequence[Json]) -> dict[str, float]:
    """Seconds of the stages; what starts that failed took, with the wait after them, is one of its own."""
    first, last = found[0], found[-1]
    known = {stage["stage"]: stage["seconds"] for stage in last["stages"] if stage["stage"] in LABELS and stage["stage"] not in BEGINS}
    known |= {stage["stage"]: stage["seconds"] for stage in first["stages"] if stage["stage"] in BEGINS}
    spans = {name: float(seconds) for name, seconds in known.items() if seconds is not None}
    spans["total"] = _between_s(first["started_at"], last["ready_at"])
    if len(found) > 1:
        spans["failed start"] = _between_s(first["process_started_at"], last["process_started_at"])
    covered = sum(seconds for name, seconds in spans.items() if name not in ("total", "traffic_switched"))
    spans["unattributed"] = max(0.0, spans["total"] - covered)
    return spans


def _between_s(first: str, second: str) -> float:
    return (datetime.datetime.fromisoformat(second) - datetime.datetime.fromisoformat(first)).total_seconds()


def _beside(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[str]:
    yield f"{'':<21}{'bad':>8}{'good':>8}{'gained':>9}"
    for stage, label in LABELS.items():
        if stage in before or stage in after:
            bad, good = before.get(stage, 0.0), after.get(stage, 0.0)
            yield f"{label:<21}{bad:>8.1f}{good:>8.1f}{bad - good:>+9.1f}"
    yield f"{'lost or given up':<21}{before['lost']:>8.0f}{after['lost']:>8.0f}{before['lost'] - after['lost']:>+9.0f}"


def _diagnosed(told: Json) -> Step:
    """What the rules say, from the logs alone."""
    found = told["diagnosis"]
    if not found["findings"]:
        raise DemoFailed(f"no rule matches a recovery that went wrong in every stage: {found['verdict']}", hint=KEEP)
    return Step("Diagnosis", "\n".join(f"{item['rule']}, {item['verdict']}: {_because(item)}" for item in found["findings"]))


def _because(finding: Json) -> str:
    said = [text for item in finding["evidence"] if item["role"] in ("required", "proof") for text in item["says"]]
    return str(said[0]) if said else str(finding["title"])


def _analysed(place: Path) -> Json:
    return tool.answer_of(["analyze", str(place / LOGS), *_map(), "--format", "json"], (0, 1, 3))


def _map() -> Sequence[str]:
    return ("--events-map", str(_lab() / MAP), "--tz", "UTC")
